"""The studies by name."""

import difflib
import inspect
from collections.abc import Callable
from dataclasses import replace

from vitrail.errors import UserError
from vitrail.studies import paper, vtab
from vitrail.studies.self_supervised import self_supervised
from vitrail.studies.setting import Setting
from vitrail.studies.study import Study

STUDIES: dict[str, Callable[[Setting], Study]] = {**paper.STUDIES, "self-supervised": self_supervised}


NAMES = (*STUDIES, "vtab")


def describe(name: str) -> str:
    return (inspect.getdoc(vtab.vtab if name == "vtab" else STUDIES[name]) or "").partition("\n")[0]


def study(name: str, source: str | None = None, quick: bool = False, seeds: int | None = None) -> Study:
    """A study by its name, laid out for a data set."""
    make = _find(name)
    setting = Setting.of(source, quick, seeds)
    return replace(make(setting), fingerprint=setting.fingerprint)


def kept_study(name: str, quick: bool = False) -> Study:
    """A study by its name, to conclude from a table of results; it has no rows to run."""
    return replace(_find(name)(Setting.without_data(quick)), rows=())


def _find(name: str) -> Callable[[Setting], Study]:
    if name not in STUDIES:
        near = difflib.get_close_matches(name, NAMES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(NAMES)}"
        raise UserError(f"there is no study {name!r}; {hint}")
    return STUDIES[name]
