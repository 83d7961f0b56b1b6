"""The list of planted bugs fits the package as it is, and the runner tells those that tests notice from the others."""

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from tests.mutants.listing import ROOT, Mutant, read_lists

MUTANTS = read_lists()
FOLDERS = {path.name for path in (ROOT / "vitrail").iterdir() if (path / "__init__.py").is_file()}
LEAST = 120


@cache
def text(file: str) -> str:
    return (ROOT / file).read_text(encoding="utf-8")


@cache
def names_in(file: str) -> frozenset[str]:
    nodes = ast.walk(ast.parse(text(file)))
    return frozenset(node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_each_can_be_planted_and_names_tests_that_exist(mutant: Mutant):
    planted = mutant.planted(text(mutant.file))  # its old text occurs exactly once
    assert planted != text(mutant.file)
    assert ast.dump(ast.parse(planted)) != ast.dump(ast.parse(text(mutant.file))), "it changes more than comments"
    assert mutant.tests
    for test in mutant.tests:
        file, _, name = test.partition("::")
        assert not name or name.partition("[")[0] in names_in(file), test


def test_there_are_enough_and_in_every_folder():
    count = Counter(mutant.folder for mutant in MUTANTS)
    assert len(MUTANTS) >= LEAST
    assert count.keys() >= FOLDERS | {"run", "transfer", "process_group"}
    names = Counter((mutant.file, mutant.name) for mutant in MUTANTS)
    assert max(names.values()) == 1
    changes = Counter((mutant.file, mutant.old, mutant.new) for mutant in MUTANTS)
    assert max(changes.values()) == 1, "no bug twice"


def test_the_page_says_how_many_there_are():
    count = Counter(mutant.folder for mutant in MUTANTS)
    rows = re.findall(r"^\| ([a-z_, ]+) \| (\d+) \| (\d+) \|$", text("docs/design.md"), re.MULTILINE)
    told = {folders: int(planted) for folders, planted, _ in rows}
    assert told.pop("all") == len(MUTANTS)
    assert told == {folders: sum(count[each] for each in folders.split(", ")) for folders in told}
    survive = sum(int(planted) - int(killed) for folders, planted, killed in rows if folders != "all")
    assert survive == sum(bool(mutant.equivalent) for mutant in MUTANTS)


def run(*arguments: str, lists: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.mutants.run", *(["--lists", str(lists)] if lists else []), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)


ENTRY = """
[[mutant]]
name = "{name}"
file = "vitrail/training/schedule.py"
old = "peak * (step + 1) / warmup"
new = "{new}"
tests = ["tests/training/test_schedule.py::test_warm_up_is_linear_and_reaches_the_peak"]
"""


@pytest.mark.slow
def test_the_runner_tells_what_was_noticed_from_what_was_not_and_goes_on_where_it_was(tmp_path):
    before = text("vitrail/training/schedule.py")
    same = "peak * (1 + step) / warmup"
    (tmp_path / "some.toml").write_text(
        ENTRY.format(name="from 0", new="peak * step / warmup") + ENTRY.format(name="the same", new=same)
    )
    results = tmp_path / "results.jsonl"
    found = run("--results", str(results), "--unchanged", lists=tmp_path)
    assert found.returncode == 1, found.stdout + found.stderr
    lines = found.stdout.splitlines()
    assert lines[0].startswith("killed ")
    assert lines[0].endswith("vitrail/training/schedule.py: from 0")
    assert lines[1].startswith("survived ")
    assert "all            1 of   2 killed" in found.stdout
    assert lines[-1] == "survived: the same (vitrail/training/schedule.py)"
    (tmp_path / "some.toml").write_text((tmp_path / "some.toml").read_text() + 'equivalent = "a sum has no order"\n')
    again = run("--results", str(results), lists=tmp_path)
    assert again.returncode == 0, "argued for"
    assert "from 0" not in again.stdout, "it is known already"
    assert "argued equivalent: a sum has no order" in again.stdout
    assert (ROOT / "vitrail/training/schedule.py").read_text() == before, "the package itself is never touched"


@pytest.mark.slow
def test_bugs_that_once_survived_the_whole_suite_are_noticed():
    names = ("by their number", "always the last", "at every step", "on every rank", "bicubic are swapped", "is 0.7")
    found = run("--only", *names, "averaged over classes", "unscaled", "attention dropout at evaluation")
    assert found.returncode == 0, found.stdout
    assert "all            9 of   9 killed" in found.stdout
