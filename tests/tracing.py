"""Runs a `vitrail` command in this process and writes which functions of the package were called, in order of their
first call, and by which others: `python -m tests.tracing TRACE.json COMMAND ...`."""

import json
import signal
import sys
import threading
from inspect import CO_OPTIMIZED
from pathlib import Path
from types import FrameType
from typing import Any

import vitrail

PACKAGE = str(Path(vitrail.__file__).parent) + "/"


Function = tuple[str, str]
"""The file below the package, and the qualified name."""


def name_of(frame: FrameType) -> Function | None:
    """The file below the package and the name of a frame's function; None for code from elsewhere, and for what an
    import runs: the bodies of modules and classes."""
    code = frame.f_code
    if not code.co_filename.startswith(PACKAGE) or not code.co_flags & CO_OPTIMIZED:
        return None
    return code.co_filename.removeprefix(PACKAGE), code.co_qualname.replace("<locals>.", "")


class Trace:
    """The functions that were called, in order of their first call, and which functions called each."""

    def __init__(self) -> None:
        self.callers: dict[Function, set[Function]] = {}

    def __call__(self, frame: FrameType, event: str, _: Any) -> None:
        if event != "call" or (called := name_of(frame)) is None:
            return
        callers = self.callers.setdefault(called, set())
        caller = frame.f_back
        while caller is not None and name_of(caller) is None:
            caller = caller.f_back
        if caller is not None and (name := name_of(caller)) is not None:
            callers.add(name)

    def write(self, path: Path) -> None:
        path.write_text(json.dumps([[called, sorted(callers)] for called, callers in self.callers.items()]), "utf-8")

    @classmethod
    def read(cls, path: Path) -> "Trace":
        trace = cls()
        for (file, function), callers in json.loads(path.read_text("utf-8")):
            trace.callers[file, function] = {(file, function) for file, function in callers}
        return trace

    @property
    def order(self) -> list[Function]:
        return list(self.callers)

    def leading_to(self, function: Function) -> set[Function]:
        """Every function that called this one, or called one that did, and so on."""
        found: set[Function] = set()
        waiting = [function]
        while waiting:
            for each in self.callers.get(waiting.pop(), set()) - found:
                found.add(each)
                waiting.append(each)
        return found


def main() -> None:
    from vitrail.cli import main as command

    trace = Trace()
    signal.signal(signal.SIGUSR1, lambda *_: trace.callers.clear())
    threading.setprofile(trace)
    sys.setprofile(trace)
    path, sys.argv = Path(sys.argv[1]), ["vitrail", *sys.argv[2:]]
    try:
        command()
    finally:
        sys.setprofile(None)
        trace.write(path)


if __name__ == "__main__":
    main()
