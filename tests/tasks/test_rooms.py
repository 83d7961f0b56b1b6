"""A task is a room: nothing outside vitrail/tasks asks which one it is, and each room has the same five files."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vitrail
from vitrail.errors import UserError
from vitrail.tasks import answers, base, pages, task, task_names

PACKAGE = Path(vitrail.__file__).parent
FILES = {"target": base.Target, "head": base.Head, "answer": answers.Answer}


def branches(tree: ast.AST) -> list[ast.expr]:
    """Every comparison: where a program asks which of several it is."""
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            found.append(node)
        elif isinstance(node, ast.match_case):
            found += [each.value for each in ast.walk(node.pattern) if isinstance(each, ast.MatchValue)]
    return found


def names_a_task(expression: ast.expr) -> bool:
    return any(isinstance(each, ast.Constant) and each.value in task_names() for each in ast.walk(expression))


def test_no_file_outside_the_rooms_names_a_task_in_a_branch():
    guilty = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.is_relative_to(PACKAGE / "tasks"):
            continue
        tree = ast.parse(path.read_text("utf-8"))
        guilty += [f"{path}:{each.lineno}" for each in branches(tree) if names_a_task(each)]
    assert guilty == []


def test_the_search_finds_what_it_looks_for():
    tree = ast.parse('x = 1 if kind == "classification" else 2')
    assert any(names_a_task(each) for each in branches(tree))
    assert not any(names_a_task(each) for each in branches(ast.parse('x = 1 if kind == "other" else 2')))


@pytest.mark.parametrize("name", task_names())
def test_every_room_has_the_five_files(name):
    opened = task(name)
    for file, kind in FILES.items():
        assert isinstance(getattr(opened, file), kind), file
    assert issubclass(opened.meter, base.Meter)
    assert issubclass(opened.page, pages.Page)
    assert opened.head.losses
    assert opened.meter.headline
    assert set(opened.meter.chosen_by) <= {*opened.meter.headline, "loss"}


def test_targets_and_answers_need_no_torch():
    program = f"""
import sys
from vitrail.tasks import task
for name in {task_names()!r}:
    task(name).target, task(name).answer
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_a_task_that_is_not_there_is_refused_by_name():
    with pytest.raises(UserError, match="there is no task 'seeing'; there are classification"):
        task("seeing")
