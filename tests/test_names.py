"""One name has one meaning: no two public things of the package share one, and none is a metaphor of old."""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import vitrail

PACKAGE = Path(vitrail.__file__).parent

PATTERNS = {
    "the five files of a task": r"tasks/\w+/(target|head|meter|answer|audit|page)\.py",
    "what a weights format can do": r"checkpoints/(google|huggingface|timm|torchvision)\.py",
    "the entry points of commands and processes": r"cli/\w+\.py|studies/worker\.py|data/decode_worker\.py",
    "the recipes of a file, and all of them": r"recipes/\w+\.py",
    "the addresses of a router": r"serving/routes/\w+\.py",
    "the views of a report: figure, caption, and the function in Python": r"insight/\w+\.py|inspect\.py",
}
"""Files that give the same names to the same things, each group by its reason."""
FUNCTIONS = {
    "vitrail.predict and the route POST /predict": {"predict", "embed"},
    "a route is called as what it gives": {"attention", "read_metrics"},
    "the study of positions beside their view": {"positions"},
}
METAPHORS = {
    *(
        "Asked",
        "Audited",
        "Checkup",
        "Collected",
        "Door",
        "Draws",
        "Examined",
        "Gate",
        "LocalPlace",
        "Passage",
        "Place",
    ),
    *("Question", "RemotePlace", "Stored", "Told", "Twin", "Typical", "Words", "add_up", "agree", "all_or_none"),
    *("asked", "checking", "choose", "configured", "doctor", "door", "draws", "export_lighter", "fast", "first_alone"),
    *("gate", "launched", "launching", "lighter", "places", "principal", "question", "ranks", "refusals", "shares"),
    *("starts", "stored", "tiles", "to_huggingface", "together", "told", "twin", "twins", "words"),
}
"""Names that said by a picture what a thing is; modules, classes and functions have had all of them."""
MOVED = {
    "serving/documents.py",
    "serving/maps.py",
    "serving/predictions.py",
    "cli/weights.py",
    "inference/functions.py",
}
"""Modules that had a name which is used elsewhere in its own sense."""


def named(node: ast.stmt) -> Iterator[tuple[str, str]]:
    """The public names that a statement of a module gives, each with its kind."""
    match node:
        case ast.ClassDef():
            yield "class", node.name
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield "function", node.name
        case ast.Assign():
            yield from (("value", each.id) for each in node.targets if isinstance(each, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield "value", name


def definitions() -> dict[str, dict[str, set[str]]]:
    """The files that define each public name, and as what: a class, a function, or a value, such as a type or a
    constant."""
    found = defaultdict(lambda: defaultdict(set))
    for path in sorted(PACKAGE.rglob("*.py")):
        file = path.relative_to(PACKAGE).as_posix()
        for node in ast.parse(path.read_text("utf-8")).body:
            for kind, name in named(node):
                if not name.startswith("_"):
                    found[name][kind].add(file)
    return found


DEFINITIONS = definitions()


def groups(files: set[str]) -> set[str]:
    """What is left of the files when each pattern counts as one."""
    return {next((why for why, form in PATTERNS.items() if re.fullmatch(form, file)), file) for file in files}


def test_there_is_much_to_look_at():
    assert len(DEFINITIONS) > 1400
    assert DEFINITIONS["ViT"] == {"class": {"models/vit.py"}}
    assert DEFINITIONS["Parallel"] == {"value": {"config/training.py"}}


def test_no_two_public_things_share_a_name():
    """Neither two classes nor two functions, nor a type or constant and anything else."""
    allowed = set().union(*FUNCTIONS.values(), {"Prediction"})  # each task's, and their base
    twice = {}
    for name, kinds in DEFINITIONS.items():
        types = kinds["class"] | kinds["value"]
        for files in (types, kinds["function"]):
            if len(groups(files)) > 1 and name not in allowed:
                twice[name] = sorted(files)
        if kinds["value"] and kinds["function"]:
            twice[name] = sorted(kinds["value"] | kinds["function"])
    assert not twice


def test_no_metaphor_is_left_as_a_public_name():
    names = set(DEFINITIONS) | {path.stem for path in PACKAGE.rglob("*.py")}
    assert not names & METAPHORS
    assert not [file for file in sorted(MOVED) if (PACKAGE / file).exists()]
