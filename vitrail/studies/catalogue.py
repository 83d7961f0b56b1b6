"""Lists the studies by name."""

import difflib
import inspect
from collections.abc import Callable
from dataclasses import replace

from vitrail.errors import UserError
from vitrail.studies import paper, vtab
from vitrail.studies.self_supervised import self_supervised
from vitrail.studies.setting import Setting
from vitrail.studies.study import Study

STUDIES: dict[str, Callable[[Setting], Study]] = {**paper.PAPER_STUDIES, "self-supervised": self_supervised}
"""The studies of the paper that need only a data set; each function makes one."""


STUDY_NAMES = (*STUDIES, "vtab")
"""All studies."""


def describe_study(name: str) -> str:
    """Returns a line about a study."""
    return (inspect.getdoc(vtab.vtab if name == "vtab" else STUDIES[name]) or "").partition("\n")[0]


def study(name: str, source: str | None = None, quick: bool = False, seeds: int | None = None) -> Study:
    """Returns a study by its name, with the rows for a data set; `source` None takes the embedded one."""
    make = _find(name)
    setting = Setting.of(source, quick, seeds)
    return replace(make(setting), fingerprint=setting.fingerprint)


def kept_study(name: str, quick: bool = False) -> Study:
    """Returns a study by its name, without rows, to conclude from a kept table of results."""
    return replace(_find(name)(Setting.without_data(quick)), rows=())


def _find(name: str) -> Callable[[Setting], Study]:
    """Returns the function that makes a study, or raises a UserError with the nearest name."""
    if name not in STUDIES:
        near = difflib.get_close_matches(name, STUDY_NAMES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(STUDY_NAMES)}"
        raise UserError(f"there is no study {name!r}; {hint}")
    return STUDIES[name]
