"""Defines the study VTAB: transfer to many tasks with 1,000 examples each, and the means of their three groups."""

import re
import statistics
from dataclasses import replace
from pathlib import PurePath

from vitrail.checkpoints.load import locate
from vitrail.data import Source, open_source
from vitrail.drawing.plots import Theme
from vitrail.errors import UserError
from vitrail.io.checksums import fingerprint
from vitrail.recipes import recipe
from vitrail.studies.comparison import Point
from vitrail.studies.figures import dots
from vitrail.studies.study import Study, StudyOutcome, StudyRow
from vitrail.transfer import finetuned_config

GROUPS = {
    "natural": ("caltech101", "cifar100", "dtd", "flowers102", "pets", "sun397", "svhn"),
    "specialised": ("camelyon", "eurosat", "resisc45", "retinopathy"),
    "structured": (
        "clevrcount",
        "clevrdist",
        "dmlab",
        "dsprloc",
        "dsprori",
        "kittidist",
        "snorbazim",
        "snorbelev",
    ),
}
"""VTAB's 19 tasks by group, their names without punctuation."""
_LONG = {
    "oxfordflowers": "flowers",
    "oxfordiiitpet": "pets",
    "patchcamelyon": "camelyon",
    "diabeticretinopathy": "retinopathy",
    "dsprites": "dspr",
    "location": "loc",
    "smallnorb": "snorb",
    "label": "",
    "closestobject": "",
    "closestvehicle": "",
    "xposition": "loc",
}
"""Longer names that are also used, such as those of TensorFlow Datasets, and their short forms."""
OTHER = "other"
"""The group of tasks that VTAB does not have."""
EXAMPLES, DEV = 1000, 200


def group_of(task: str) -> str:
    """Returns a task's group by its name: `Clevr-Count` and `clevr_count` are the same; tasks not in VTAB are
    `other`."""
    plain = re.sub(r"[^a-z0-9]", "", task.lower())
    for long, name in _LONG.items():
        plain = plain.replace(long, name)
    return next((group for group, names in GROUPS.items() if any(plain.startswith(name) for name in names)), OTHER)


def vtab(
    model: str,
    tasks: tuple[str, ...],
    seeds: int = 3,
    steps: int | None = None,
    batch_size: int | None = None,
    image_size: int | None = None,
) -> Study:
    """Measures transfer by VTAB's protocol on your tasks: 1,000 examples each, 800 to train and 200 to choose by."""
    if not tasks:
        raise UserError("vtab needs its tasks: --tasks FOLDER FOLDER ..., each a data set")
    if not model:
        raise UserError("vtab needs a model to start from: --model MODEL")
    base = recipe("finetune-vtab")
    if steps is not None:
        base = base.with_(steps=steps)
    if batch_size is not None:
        base = base.with_(batch_size=batch_size)
    if base.schedule.warmup_steps >= (base.steps or 0):
        base = base.with_(schedule=replace(base.schedule, warmup_steps=(base.steps or 0) // 5))
    base = finetuned_config(base, model, image_size)
    rows, prints = [], [fingerprint(locate(model))]
    for task in tasks:
        name, source = PurePath(task).name or task, open_source(task, val_fraction=0.0)
        source.check_labelled()
        prints.append(source.fingerprint())
        share = _dev_share(task, source)
        data = replace(base.data, source=task, val_fraction=share, train_size=EXAMPLES - DEV, val_size=DEV)
        factors: dict[str, str | int | float] = {"task": name, "group": group_of(name)}
        rows += [StudyRow(factors, base.with_(data=data, seed=seed)) for seed in range(seeds)]
    if len({row.name for row in rows}) < len(rows):
        raise UserError("two of the tasks have one name: rename one of their folders")
    return Study(
        "vtab",
        "Transfer to many tasks, 1,000 examples each",
        f"How well does {PurePath(model).name} transfer? Each task is fine-tuned on {EXAMPLES - DEV} examples; the "
        f"weights are kept that do best on {DEV} others, and measured on the task's own test split.",
        tuple(rows),
        _draw,
        lambda outcome: {},  # no comparisons between tasks
        lambda outcome, compared: _conclude(outcome),
        fingerprint=" ".join(prints),
    )


def _dev_share(task: str, source: Source) -> float:
    """Returns the share to set aside so that 200 samples are left to choose by, if the task has no validation split of
    its own."""
    if "test" not in source.splits:
        raise UserError(f"{task}: has no test split, and VTAB measures on one")
    own = len(source.splits["val"]) if "val" in source.splits else 0
    training = len(source.split("train"))
    if training + (0 if own else -DEV) < EXAMPLES - DEV or (own and own < DEV):
        raise UserError(f"{task}: has {training} training samples and {own} to validate; VTAB takes 800 and 200")
    if own:
        return 0.0
    whole = training + (len(source.splits["test"]) if "test" in source.made_splits else 0)
    return DEV / whole


def group_means(outcome: StudyOutcome) -> dict[str, tuple[float, int]]:
    """Returns for each group the mean over its tasks of their mean over seeds, and the number of tasks."""
    groups: dict[str, list[float]] = {}
    for point in outcome.points():
        groups.setdefault(str(point.factors["group"]), []).append(point.mean)
    order = [*GROUPS, OTHER]
    return {name: (statistics.fmean(groups[name]), len(groups[name])) for name in order if name in groups}


def _conclude(outcome: StudyOutcome) -> list[str]:
    """Writes the sentences with the means."""
    means = group_means(outcome)
    sentences = [
        f"{name}: {mean:.1%} over {count} {'task' if count == 1 else 'tasks'}." for name, (mean, count) in means.items()
    ]
    points = outcome.points()
    if len(points) > 1:
        sentences.append(f"Mean of the {len(points)} tasks: {statistics.fmean(point.mean for point in points):.1%}.")
    return sentences


def _draw(outcome: StudyOutcome, theme: Theme) -> bytes:
    """Draws the accuracy of each task, by group."""
    groups: dict[str, list[tuple[str, Point]]] = {}
    for point in outcome.points():
        groups.setdefault(str(point.factors["group"]), []).append((str(point.factors["task"]), point))
    return dots(groups, theme)
