"""Every public part of the package says what it does, beginning with a verb and in words that can be read once."""

import ast
import importlib
import inspect
import pkgutil
import re
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import vitrail

PACKAGE = Path(vitrail.__file__).parent
RIDDLE = re.compile(r"(Of|Whose|What|Which|Around|Where|How|As|From|For|So|With|By|In|On|To|Every|Each)\b")
VERB = re.compile(r"(?:[A-Z][a-z-]+s|Whether)\b")
NOT_VERBS = {"This", "Its", "Classes", "Images", "Names", "Files", "Rows", "Numbers", "Pictures", "Bytes", "Values"}


def modules() -> Iterator[ModuleType]:
    for each in pkgutil.walk_packages(vitrail.__path__, "vitrail."):
        if not any(part.startswith("__main__") for part in each.name.split(".")):
            yield importlib.import_module(each.name)


def own(module: ModuleType) -> Iterator[tuple[str, Any]]:
    """The public classes and functions that a module defines itself."""
    for name, value in vars(module).items():
        if name.startswith("_") or getattr(value, "__module__", None) != module.__name__:
            continue
        if inspect.isclass(value) or inspect.isfunction(value):
            yield name, value


def function_of(member: Any) -> Any:
    if isinstance(member, (staticmethod, classmethod)):
        return member.__func__
    if isinstance(member, property):
        return member.fget
    return member.func if isinstance(member, cached_property) else member


def documented(kind: type, name: str) -> str | None:
    """The docstring of a method, or the one it inherits."""
    for base in kind.__mro__:
        member = vars(base).get(name)
        if member is not None and (text := function_of(member).__doc__):
            return text
    return None


def methods(kind: type) -> Iterator[tuple[str, Any]]:
    for name, member in vars(kind).items():
        function = function_of(member)
        if name.startswith("_") or not inspect.isfunction(function) or function.__name__ == "<lambda>":
            continue  # a lambda is the default of a field
        if function.__module__ == kind.__module__:
            yield name, member


def complaints(module: ModuleType) -> Iterator[str]:
    if not module.__doc__:
        yield f"{module.__name__}: no docstring"
    for name, value in own(module):
        where = f"{module.__name__}.{name}"
        if inspect.isclass(value):
            text = value.__doc__ or ""
            if not text or text.startswith(f"{name}("):  # what dataclass writes itself
                yield f"{where}: no docstring"
            elif RIDDLE.match(text):
                yield f"{where}: begins with neither a verb nor what it is: {text[:60]!r}"
            for method, member in methods(value):
                if value.__name__.startswith("_"):
                    continue
                text = documented(value, method)
                if text is None:
                    yield f"{where}.{method}: no docstring"
                elif RIDDLE.match(text):
                    yield f"{where}.{method}: begins with neither a verb nor what it is: {text[:60]!r}"
                elif inspect.isfunction(member) and not says_what_it_does(text):
                    yield f"{where}.{method}: does not begin with a verb: {text[:60]!r}"
        elif not value.__doc__:
            yield f"{where}: no docstring"
        elif not says_what_it_does(value.__doc__):
            yield f"{where}: does not begin with a verb: {value.__doc__[:60]!r}"


def says_what_it_does(text: str) -> bool:
    return bool(VERB.match(text)) and text.split()[0] not in NOT_VERBS


def test_every_public_part_says_what_it_does():
    found = [each for module in modules() for each in complaints(module)]
    assert not found, "\n".join(found)


def test_the_first_words_that_are_refused():
    for text in ("Of all tokens", "How it is", "This one", "Images as they are", "the first"):
        assert not says_what_it_does(text) or RIDDLE.match(text)
    for text in ("Computes the loss", "Whether a file is there", "Returns the first"):
        assert says_what_it_does(text)
        assert not RIDDLE.match(text)


def attributes_without_riddles(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """The strings below constants and fields that begin with a word which needs reading twice."""
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for before, after in pairwise(body):
            if not isinstance(before, (ast.Assign, ast.AnnAssign)) or not isinstance(after, ast.Expr):
                continue
            text = after.value.value if isinstance(after.value, ast.Constant) else None
            if isinstance(text, str) and re.match(r"(Of|Whose|So many of) ", text):
                yield after.lineno, text


def test_what_stands_below_constants_and_fields_names_its_subject():
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for line, text in attributes_without_riddles(ast.parse(path.read_text("utf-8"))):
            found.append(f"{path}:{line}: {text[:60]!r}")
    assert not found, "\n".join(found)


FUNCTIONS = [name for name in vitrail.__all__ if inspect.isfunction(getattr(vitrail, name))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_of_the_api_describe_their_parameters(name):
    function = getattr(vitrail, name)
    text = function.__doc__ or ""
    missing = [each for each in inspect.signature(function).parameters if not re.search(rf"\b{each}\b", text)]
    assert not missing, f"vitrail.{name} does not describe {missing}"
    assert "Args:" in text, f"vitrail.{name} has no Args section"


def entries() -> list[str]:
    """The names on the page of functions, those that are to be built on among them."""
    page = Path(__file__).parent.parent / "docs" / "api.md"
    return re.findall(r"^::: (.+)$", page.read_text("utf-8"), re.MULTILINE)


def with_parameters(value: Any) -> Iterator[tuple[str, Any, str]]:
    """The functions of an entry: itself, those of a module, or the methods of a class and what makes one; each with its
    docstring."""
    if inspect.ismodule(value):
        yield from ((name, getattr(value, name), getattr(value, name).__doc__ or "") for name in value.__all__)
        return
    if not inspect.isclass(value):
        yield value.__name__, value, value.__doc__ or ""
        return
    own_init = inspect.isfunction(vars(value).get("__init__")) and not is_dataclass(value)
    if own_init and not issubclass(value, Exception):
        yield value.__name__, value.__init__, f"{value.__doc__}{value.__init__.__doc__}"
    for name, member in methods(value):
        if inspect.isfunction(function := inspect.unwrap(function_of(member))) and name.isidentifier():
            yield f"{value.__name__}.{name}", function, documented(value, name) or ""


@pytest.mark.parametrize("entry", entries())
def test_what_is_on_the_page_of_functions_names_all_its_parameters(entry):
    """So the page says what each is, with its shape where it is an array; how it says it is for people to judge."""
    missing = {}
    for name, function, text in with_parameters(pkgutil.resolve_name(entry)):
        parameters = [each for each in inspect.signature(function).parameters if each not in ("self", "cls")]
        if unnamed := [each for each in parameters if not re.search(rf"\b{each}\b", text)]:
            missing[name] = unnamed
    assert not missing
