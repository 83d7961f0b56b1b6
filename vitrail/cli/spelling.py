"""Finds out which flag was probably meant by one that does not exist."""

import difflib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from inspect import signature, unwrap
from typing import Any, get_type_hints

from vitrail.errors import UserError

_ELSEWHERE = {
    "learning-rate": "lr",
    "batch": "batch-size",
    "num-epochs": "epochs",
    "num-workers": "workers",
    "model": "model.size",
    "dataset": "data",
    "output": "out",
    "output-dir": "out",
}
"""The names that other programs give to our flags."""


def check_flags(arguments: Iterable[str], known: Iterable[str], prog: str) -> None:
    """Raises a UserError for a flag that a command does not have, with those that are similar.

    Args:
        arguments: The command's arguments.
        known: The flags that exist, without the two hyphens.
        prog: The command, for the message.
    """
    names = set(known)
    for each in arguments:
        given = each.removeprefix("--").partition("=")[0]
        if not each.startswith("--") or not given:
            continue
        name = given.replace("_", "-")
        if name in names or name == "help":
            continue
        near = _near(name, sorted(names))
        hint = f"did you mean {' or '.join('--' + found for found in near)}?" if near else f"see {prog} --help"
        raise UserError(f"{prog} has no flag --{given}; {hint}")


def field_flags(config: Any, prefix: str = "") -> Iterator[str]:
    """Yields the flags of a dataclass's fields, such as `model.image-size`."""
    hints = get_type_hints(type(config), include_extras=True)
    for field in fields(config):
        value = getattr(config, field.name)
        if is_dataclass(value):
            yield from field_flags(value, f"{prefix}{_flag(field.name, hints)}.")
        else:
            yield from _spellings(_flag(field.name, hints), value, prefix)


def command_flags(command: Callable[..., Any]) -> Iterator[str]:
    """Yields the flags of a command's parameters; the fields of a dataclass are flags of the command."""
    hints = get_type_hints(unwrap(command), include_extras=True)
    for name, parameter in signature(command).parameters.items():
        if is_dataclass(parameter.default):
            yield from field_flags(parameter.default)
        else:
            yield from _spellings(_flag(name, hints), parameter.default)


def _flag(name: str, hints: dict[str, Any]) -> str:
    """Returns the flag of a parameter or field: the name in its annotation, if there is one, else its own."""
    for each in getattr(hints[name], "__metadata__", ()):
        if isinstance(called := getattr(each, "name", None), str):
            return called
    return name.replace("_", "-")


def _spellings(name: str, default: Any, prefix: str = "") -> list[str]:
    """Returns the flag, and for a boolean its `no-` form."""
    return [prefix + name, f"{prefix}no-{name}"] if isinstance(default, bool) else [prefix + name]


def _near(name: str, known: Sequence[str]) -> list[str]:
    """Returns up to two similar flags. For flags with dots the last word counts too: `lr` finds `optimizer.lr`."""
    name = _ELSEWHERE.get(name, name)
    if name in known:
        return [name]
    last = name.rpartition(".")[2]
    same = [each for each in known if each.rpartition(".")[2] == last]
    whole = difflib.get_close_matches(name, known, n=1, cutoff=0.8)
    words = {each.rpartition(".")[2]: each for each in reversed(known)}
    part = [words[each] for each in difflib.get_close_matches(last, words, n=1, cutoff=0.75)]
    return list(dict.fromkeys([*same, *whole, *part]))[:2] if same or not whole else whole
