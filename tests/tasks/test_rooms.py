"""A task is a room: nothing outside vitrail/tasks asks which one it is, and each room has the same five files."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import vitrail
from vitrail.errors import UserError
from vitrail.tasks import answers, base, pages, task, task_names

NAMES = frozenset(task_names())
PACKAGE = Path(vitrail.__file__).parent
FILES = {"target": base.Target, "head": base.Head, "answer": answers.Answer}


NOT_TASKS = {
    ("serving/routes/inference_protocol.py", 'own.get("classification")'),
    ("data/sources/coco.py", 'each.get("segmentation")'),
}
"""Where the word is not a task: an extension of the inference protocol is called so, and a key of COCO's JSON."""
STAND_FOR_TASKS = {"DEFAULT", "TASK"}
"""Constants whose value is the name of a task, and which are imported or defined under these names."""


def branches(tree: ast.AST) -> list[ast.expr]:
    """Everything by which a program can ask which of several it is: comparisons, what an `if` or `while` asks, cases of
    a `match`, calls of methods such as `get` and `startswith`, and the keys of dictionaries."""
    found: list[ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            found.append(node)
        elif isinstance(node, ast.If | ast.IfExp | ast.While):
            found.append(node.test)
        elif isinstance(node, ast.match_case):
            found += [each.value for each in ast.walk(node.pattern) if isinstance(each, ast.MatchValue)]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            found += node.args[:1] if node.func.attr in ("get", "pop", "startswith", "endswith", "count") else []
        elif isinstance(node, ast.Dict):
            found += [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Subscript):
            found.append(node.slice)
    return found


def task_constants(tree: ast.Module) -> set[str]:
    """The names in a file that stand for one task: constants with such a value, and those of the tasks' own package."""
    found: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("vitrail."):
            found |= {each.asname or each.name for each in node.names if each.name in STAND_FOR_TASKS}
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant) and node.value.value in NAMES:
            found |= {each.id for each in node.targets if isinstance(each, ast.Name)}
    return found


def names_a_task(expression: ast.expr, constants: set[str]) -> bool:
    return any(
        (isinstance(each, ast.Constant) and each.value in NAMES)
        or (isinstance(each, ast.Name) and each.id in constants)
        for each in ast.walk(expression)
    )


def guilty_lines(text: str) -> list[tuple[int, str]]:
    """The places in a file where a branch names a task: line and expression."""
    tree = ast.parse(text)
    constants = task_constants(tree)
    found = {(each.lineno, ast.unparse(each)) for each in branches(tree) if names_a_task(each, constants)}
    return sorted(found)


def test_no_file_outside_the_rooms_names_a_task_in_a_branch():
    guilty = []
    for path in sorted(PACKAGE.rglob("*.py")):
        if path.is_relative_to(PACKAGE / "tasks"):
            continue
        file = path.relative_to(PACKAGE).as_posix()
        lines = path.read_text("utf-8").splitlines()
        for line, words in guilty_lines("\n".join(lines) + "\n"):
            if not any(file == where and what in lines[line - 1] for where, what in NOT_TASKS):
                guilty.append(f"{file}:{line}: {words}")
    assert guilty == []


def test_hardly_any_file_outside_the_rooms_names_a_task_at_all():
    """So a task is added without them: what is asked of files that name none, and of data that are for one task."""
    naming = {
        path.relative_to(PACKAGE).as_posix()
        for path in PACKAGE.rglob("*.py")
        for each in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(each, ast.Constant) and each.value in NAMES
    }
    outside = {file for file in naming if not file.startswith("tasks/")}
    data = {"data/sources/coco.py", "data/sources/mask_reading.py"}
    # Where "segmentation" is the name of a folder or a column of masks:
    folders = {"data/sources/mask_layout.py", "data/sources/image_columns.py"}
    weights = {"checkpoints/eomt.py"}  # of models that answer with masks
    assert outside == {"config/model.py"} | data | folders | weights | {file for file, _ in NOT_TASKS}


def test_no_page_or_style_names_a_task():
    """The browser's files get what they draw from the server, by the kind of the answer."""
    files = [path for path in PACKAGE.rglob("*") if path.suffix in (".js", ".html", ".css")]
    assert len(files) > 20
    quoted = [f"{mark}{name}{mark}" for name in task_names() for mark in "\"'`"]
    assert [path.name for path in files if any(each in path.read_text("utf-8") for each in quoted)] == []


@pytest.mark.parametrize("text", [
    'x = 1 if kind == "classification" else 2',
    'if kind in ("regression", "other"):\n    pass',
    'match kind:\n    case "multilabel":\n        pass',
    'x = {"classification": 1}[kind]',
    'x = table["regression"]',
    'x = table.get("multilabel")',
    'x = kind.startswith("regression")',
    'KIND = "regression"\nx = kind != KIND',
    "from vitrail.tasks import DEFAULT\nx = kind == DEFAULT",
    "from vitrail.data.sources.coco import TASK as ONE\nx = kind is ONE",
])  # fmt: skip
def test_the_search_finds_what_it_looks_for(text):
    assert guilty_lines(text)


@pytest.mark.parametrize(
    "text", ['x = 1 if kind == "other" else 2', 'task: str = "classification"', 'TASK = "regression"']
)
def test_the_search_finds_nothing_else(text):
    assert guilty_lines(text) == []


@pytest.mark.parametrize("file", ["train.py", "run.py", "run_evaluation.py", "probe.py"])
def test_a_training_needs_no_function_of_many_parameters_and_none_that_only_passes_them_on(file):
    tree = ast.parse((PACKAGE / file).read_text("utf-8"))
    functions = [each for each in ast.walk(tree) if isinstance(each, ast.FunctionDef | ast.Lambda)]
    assert [f"{file}:{each.lineno}" for each in functions if len(parameters(each)) > 6] == []
    assert [f"{file}:{each.lineno}" for each in functions if only_passes_on(each)] == []


def parameters(function: ast.FunctionDef | ast.Lambda) -> list[str]:
    given = function.args
    return [
        each.arg for each in (*given.posonlyargs, *given.args, *given.kwonlyargs) if each.arg not in ("self", "cls")
    ]


def only_passes_on(function: ast.FunctionDef | ast.Lambda) -> bool:
    """Whether it is a closure that calls one function with the arguments that it was given, as they are."""
    body = function.body if isinstance(function, ast.Lambda) else None
    if isinstance(function, ast.FunctionDef) and len(function.body) == 1 and isinstance(function.body[0], ast.Return):
        body = function.body[0].value
    names = parameters(function)
    if not isinstance(body, ast.Call) or not names or "self" in [each.arg for each in function.args.args]:
        return False
    passed = {each.id for each in body.args if isinstance(each, ast.Name)}
    return set(names) <= passed | {each.value.id for each in body.keywords if isinstance(each.value, ast.Name)}


def test_what_only_passes_on_is_recognised():
    first, second, third = (
        ast.parse(text, mode="eval").body for text in ("lambda a, b: f(1, a, b)", "lambda: f(1)", "lambda a: f(a) + 1")
    )
    assert isinstance(first, ast.Lambda)
    assert isinstance(second, ast.Lambda)
    assert isinstance(third, ast.Lambda)
    assert [only_passes_on(each) for each in (first, second, third)] == [True, False, False]


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
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)


def test_a_task_that_is_not_there_is_refused_by_name():
    with pytest.raises(UserError, match="there is no task 'seeing'; there are classification"):
        task("seeing")
