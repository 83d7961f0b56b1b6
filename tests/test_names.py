"""One name has one meaning: no two public things of the package share one, and none is a metaphor of old."""

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

import vitrail

PACKAGE = Path(vitrail.__file__).parent

PATTERNS = {
    "the five files of a task": r"tasks/\w+/(target|head|meter|answer|audit|page)\.py",
    "what a weights format can do": r"checkpoints/(google|huggingface|timm|torchvision)\.py",
    "the entry points of commands and processes": r"cli/\w+\.py|studies/worker\.py|data/decode_worker\.py",
    "the views of a report: figure, caption, and the function in Python": r"insight/\w+\.py|inspect\.py",
}
"""Files that give the same names to the same things, each group by its reason."""
FUNCTIONS = {
    "vitrail.predict and the route POST /predict": {"predict", "embed"},
    "a route is called as what it gives": {"attention", "read_metrics"},
    "the study of positions beside their view": {"positions"},
}
METAPHORS = {
    "Asked",
    "Audited",
    "Checkup",
    "Collected",
    "Door",
    "Examined",
    "Gate",
    "LocalPlace",
    "Passage",
    "Place",
    "Question",
    "RemotePlace",
    "Stored",
    "Told",
    "Twin",
    "Typical",
    "Words",
    "asked",
    "choose",
    "configured",
    "doctor",
    "door",
    "draws",
    "fast",
    "gate",
    "launched",
    "lighter",
    "question",
    "ranks",
    "shares",
    "together",
    "told",
    "twin",
    "twins",
    "words",
}
"""Names that said by a picture what a thing is; modules, classes and functions have had all of them."""


def definitions() -> dict[tuple[str, str], list[str]]:
    """The files that define each public name: (kind, name) -> files, each once."""
    found = defaultdict(list)
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        for node in ast.parse(path.read_text("utf-8")).body:
            kind = "class" if isinstance(node, ast.ClassDef) else "function"
            if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)) and node.name[0] != "_":
                found[kind, node.name].append(file)
    return {key: sorted(set(files)) for key, files in found.items()}


DEFINITIONS = definitions()


def groups(files: list[str]) -> set[str]:
    """What is left of the files when each pattern counts as one."""
    reasons = [next((why for why, form in PATTERNS.items() if re.fullmatch(form, file)), file) for file in files]
    return set(reasons)


def test_there_is_much_to_look_at():
    assert len(DEFINITIONS) > 1000
    assert DEFINITIONS["class", "ViT"] == ["models/vit.py"]


@pytest.mark.parametrize("kind", ["class", "function"])
def test_no_two_public_things_share_a_name(kind):
    allowed = set().union(*FUNCTIONS.values()) if kind == "function" else {"Prediction"}  # each task's, and their base
    twice = {
        name: files
        for (each, name), files in DEFINITIONS.items()
        if each == kind and len(groups(files)) > 1 and name not in allowed
    }
    assert not twice


def test_no_metaphor_is_left_as_a_public_name():
    names = {name for _, name in DEFINITIONS} | {path.stem for path in PACKAGE.rglob("*.py")}
    assert not names & METAPHORS
