"""Plants bugs one at a time in a copy of the package and runs the tests that should notice.

    python -m tests.mutants.run                       # all of them
    python -m tests.mutants.run --only models/ knn    # those whose name or file holds one of these words
    python -m tests.mutants.run --jobs 2 --results mutants.jsonl   # go on where a run was stopped

The list is in the TOML files beside this one; `listing.py` says what stands there. The checkout itself is never
changed. Ends with 1 if a bug survives that is not argued to be equivalent, or if the tests fail without any bug.
"""

import argparse
import hashlib
import json
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

# Imported once for all forks; nothing of the package itself, which each takes from its copy.
import matplotlib.figure  # noqa: F401
import PIL.Image  # noqa: F401
import pytest
import safetensors.torch  # noqa: F401
import torch._dynamo  # noqa: F401

from tests.mutants.listing import LISTS, ROOT, Mutant, read_lists

KILLED = ("killed", "timeout")
SECONDS = 300
"""A mutant that takes longer is noticed: it hangs what it should not."""


@dataclass(frozen=True)
class Outcome:
    """What became of a mutant."""

    mutant: Mutant | None
    end: str
    """killed, survived, timeout, or broken where the tests could not run at all."""
    seconds: float
    said: str
    """The last of what pytest printed."""


@contextmanager
def copies(count: int) -> Iterator[list[Path]]:
    """Copies of what the tests need, of which each is changed by one job at a time."""
    with tempfile.TemporaryDirectory(prefix="vitrail-mutants-") as folder:
        made = [Path(folder) / f"copy{number}" for number in range(count)]
        for copy in made:
            ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "dist")
            shutil.copytree(ROOT, copy, ignore=ignored)
        yield made


def start(copy: Path, tests: Iterable[str], log: Path) -> int:
    """Starts pytest in a copy, in a fork of this process, which has the large libraries imported already: its pid."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    status = 70
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.setsid()
        os.chdir(copy)
        os.environ.update(PYTHONPATH=str(copy), OMP_NUM_THREADS="1", PYTHONDONTWRITEBYTECODE="1")
        sys.dont_write_bytecode = True
        with log.open("w") as stream:
            os.dup2(stream.fileno(), 1)
            os.dup2(stream.fileno(), 2)
        sys.path.insert(0, str(copy))
        for name in [name for name in sys.modules if name.partition(".")[0] in ("tests", "vitrail")]:
            del sys.modules[name]
        status = int(pytest.main(["-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", *tests]))
    finally:
        os._exit(status)


@dataclass
class Running:
    """Tests under way."""

    mutant: Mutant | None
    """None: without any bug."""
    copy: Path
    pid: int
    since: float

    @property
    def log(self) -> Path:
        return self.copy.with_suffix(".log")


def begin(mutant: Mutant | None, tests: Iterable[str], copy: Path) -> Running:
    """Plants a mutant in a copy and starts its tests."""
    if mutant is not None:
        path = copy / mutant.file
        path.write_text(mutant.planted((ROOT / mutant.file).read_text(encoding="utf-8")), encoding="utf-8")
    since = time.monotonic()
    return Running(mutant, copy, start(copy, tests, copy.with_suffix(".log")), since)


def ended(running: Running, seconds: float) -> Outcome | None:
    """What became of it once its tests have ended, or have taken too long; the copy is then as it was."""
    pid, status = os.waitpid(running.pid, os.WNOHANG)
    took = time.monotonic() - running.since
    if not pid and took < seconds:
        return None
    end = "timeout"
    if pid:
        # 1: tests ran and some failed. Anything else (no tests found, wrong usage) says nothing about the bug.
        end = {0: "survived", 1: "killed"}.get(os.waitstatus_to_exitcode(status), "broken")
    stop(running)
    if running.mutant is not None:
        shutil.copyfile(ROOT / running.mutant.file, running.copy / running.mutant.file)
    return Outcome(running.mutant, end, took, running.log.read_text(errors="replace")[-1500:])


def stop(running: Running) -> None:
    """Ends the tests, and whatever they have started."""
    with suppress(ProcessLookupError):
        os.killpg(running.pid, signal.SIGKILL)
    with suppress(ChildProcessError):  # it has ended, and we were told
        os.waitpid(running.pid, 0)


def outcomes(
    work: Iterable[tuple[Mutant | None, Iterable[str]]], jobs: int = 1, seconds: float = SECONDS
) -> Iterator[Outcome]:
    """Judges mutants by their tests, so many at a time, in the order in which they end."""
    waiting = iter(work)
    with copies(jobs) as free:
        running: list[Running] = []
        try:
            while True:
                while free and (following := next(waiting, None)):
                    running.append(begin(*following, free.pop()))
                if not running:
                    return
                time.sleep(0.02)
                for each in list(running):
                    if outcome := ended(each, seconds):
                        running.remove(each)
                        free.append(each.copy)
                        yield outcome
        finally:
            for each in running:  # we were interrupted
                stop(each)


def identity(mutant: Mutant) -> str:
    """Of the mutant, its file and its tests as they are now: what a kept result stands for."""
    files = {mutant.file, *(test.partition("::")[0] for test in mutant.tests)}
    texts = [(ROOT / file).read_text(encoding="utf-8") for file in sorted(files)]
    return hashlib.sha256(json.dumps([mutant.file, mutant.old, mutant.new, mutant.tests, texts]).encode()).hexdigest()


def known(results: Path | None) -> dict[str, dict]:
    """Results of an earlier run, by what they stand for."""
    if results is None or not results.exists():
        return {}
    lines = [json.loads(line) for line in results.read_text(encoding="utf-8").splitlines()]
    return {line["identity"]: line for line in lines}


def chosen(mutants: list[Mutant], words: list[str] | None) -> list[Mutant]:
    """Those whose name or file holds one of the words; all of them without words."""
    return [each for each in mutants if not words or any(word in each.name or word in each.file for word in words)]


def summary(ends: dict[Mutant, str]) -> str:
    """Counts by folder, then whatever was not killed, by name."""
    killed = Counter(mutant.folder for mutant, end in ends.items() if end in KILLED)
    planted = Counter(mutant.folder for mutant in ends)
    lines = [f"{folder:12} {killed[folder]:3} of {planted[folder]:3} killed" for folder in sorted(planted)]
    lines.append(f"{'all':12} {killed.total():3} of {planted.total():3} killed")
    for mutant, end in ends.items():
        if end not in KILLED:
            why = f"; argued equivalent: {mutant.equivalent}" if mutant.equivalent else ""
            lines.append(f"{end}: {mutant.name} ({mutant.file}){why}")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns the exit status."""
    parser = argparse.ArgumentParser(prog="tests.mutants.run", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", metavar="WORD", help="mutants whose name or file holds one of these")
    parser.add_argument("--jobs", type=int, default=1, help="how many run at a time")
    parser.add_argument("--results", type=Path, help="a file of results: those that still stand are not run again")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="a mutant that takes longer counts as killed")
    parser.add_argument("--unchanged", action="store_true", help="first run all their tests without any bug")
    parser.add_argument("--lists", type=Path, default=LISTS, help="the folder of the lists")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # or the copies stay
    mutants = chosen(read_lists(given.lists), given.only)
    if given.unchanged:
        tests = sorted({test for mutant in mutants for test in mutant.tests})
        (outcome,) = outcomes([(None, tests)], seconds=len(mutants) * given.seconds)
        if outcome.end != "survived":
            print(f"the tests do not pass without a bug:\n{outcome.said}")
            return 1
    before = known(given.results)
    ends = {mutant: before[identity(mutant)]["end"] for mutant in mutants if identity(mutant) in before}
    work = [(mutant, mutant.tests) for mutant in mutants if mutant not in ends]
    for outcome in outcomes(work, given.jobs, given.seconds):
        mutant = outcome.mutant
        assert mutant is not None
        ends[mutant] = outcome.end
        print(f"{outcome.end:8} {outcome.seconds:6.1f} s  {mutant.file}: {mutant.name}", flush=True)
        if outcome.end == "broken":
            print(outcome.said, flush=True)
        elif given.results is not None:
            kept = {"identity": identity(mutant), "name": mutant.name, "end": outcome.end}
            with given.results.open("a", encoding="utf-8") as stream:
                stream.write(json.dumps({**kept, "seconds": round(outcome.seconds, 1)}) + "\n")
    print(summary(ends))
    return 1 if any(end not in KILLED and not mutant.equivalent for mutant, end in ends.items()) else 0


if __name__ == "__main__":
    sys.exit(main())
