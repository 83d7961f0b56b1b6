"""The standing drill: hostile files and requests, those that were found before and new ones, at what reads them.

    make fuzz ARGS="--minutes 2 --seed 7 --only checkpoints http"

Each mutant is made from the seed, its target and its number alone, so that what is found can be had again with
`--from NUMBER --cases 1`. Ends with 1 if something was found; the files stay in the folder that is printed.
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from tests.fuzz.limits import Outcome, run_command
from tests.fuzz.targets import TARGETS, warm_up


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0, help="for the mutants; 0: only the corpus")
    parser.add_argument("--cases", type=int, help="so many mutants in place of a time")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the mutants; printed")
    parser.add_argument("--from", type=int, default=0, dest="first", help="number of the first mutant")
    parser.add_argument("--only", nargs="+", choices=TARGETS, default=list(TARGETS), help="targets")
    asked = parser.parse_args()
    print(f"seed {asked.seed}", flush=True)
    kept = Path(tempfile.mkdtemp(prefix="vitrail-fuzz-"))
    os.chdir(kept)  # for commands that write where they are, as `data check` does
    warm_up()
    found, slowest, done = 0, 0.0, 0

    def judge(what: str, folder: Path, outcome: Outcome, refused: bool) -> None:
        nonlocal found, slowest
        slowest = max(slowest, outcome.seconds)
        complaint = outcome.complaint or ("was not refused" if refused and outcome.status != 2 else None)
        if complaint is None:
            shutil.rmtree(folder)
            return
        found += 1
        print(f"FOUND {complaint}: {what}\n  {folder}\n{outcome.said[-1500:]}", flush=True)

    targets = {}
    try:
        for name in asked.only:
            (kept / name / "good").mkdir(parents=True)
            targets[name] = TARGETS[name](kept / name / "good")
            for case, build in targets[name].cases.items():
                folder = Path(tempfile.mkdtemp(dir=kept / name))
                judge(f"{name}: {case}", folder, run_command(build(folder)), refused=name != "data")
        ends = time.monotonic() + 60 * asked.minutes
        number = asked.first
        while number < asked.first + asked.cases if asked.cases is not None else time.monotonic() < ends:
            name = asked.only[number % len(asked.only)]
            rng = random.Random(f"{asked.seed} {name} {number}")
            folder = Path(tempfile.mkdtemp(dir=kept / name))
            what, outcome = targets[name].attempt(rng, folder)
            judge(f"{name}, seed {asked.seed}, number {number}: {what}", folder, outcome, refused=False)
            number += 1
            done += 1
    finally:
        for target in targets.values():
            target.close()
    cases = sum(len(target.cases) for target in targets.values())
    print(f"{cases} cases and {done} mutants, the slowest took {slowest:.1f} s: {found} found (seed {asked.seed})")
    if not found:
        shutil.rmtree(kept)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
