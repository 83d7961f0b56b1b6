"""Defines the study of learning without labels: how much it helps, for several numbers of labels afterwards."""

from dataclasses import replace
from typing import Any

from vitrail.config import TrainConfig
from vitrail.errors import UserError
from vitrail.recipes import recipe
from vitrail.studies.comparison import ABOVE, BELOW, Contrast, Point, verdict
from vitrail.studies.figures import lines
from vitrail.studies.setting import Setting
from vitrail.studies.study import Comparisons, Study, StudyOutcome, StudyRow, as_percent

BEGINNINGS = {
    "masked patches": "mnist5k-masked-patch",
    "masked autoencoder": "mnist5k-mae",
    "supervised": "mnist5k",
}
"""The recipe of each pre-training."""
SCRATCH = "from scratch"
"""The name of training without pre-training."""


def self_supervised(setting: Setting) -> Study:
    """Compares pre-training by masked patches, MAE or labels with none, before few labels (Section 4.6)."""
    wanted = (100, 500) if setting.quick else (50, 100, 200, 500)
    labels = [count for count in wanted if count <= setting.training]
    if not labels:
        raise UserError(f"{setting.source}: has {setting.training} training images; at least {wanted[0]} are needed")
    share = 0.2 if setting.quick else 1.0
    steps = 200 if setting.quick else 600
    rows: list[StudyRow] = []
    for seed in range(setting.seeds):
        starts: dict[str, StudyRow | None] = {SCRATCH: None}
        for name, source in BEGINNINGS.items():
            config = _pretrained(recipe(source), setting, seed, share)
            starts[name] = StudyRow({"pre-training": name, "labels": "none"}, config, measured=False)
        rows += [row for row in starts.values() if row is not None]
        rows += [
            StudyRow({"pre-training": name, "labels": count}, _tuned(setting, seed, count, steps), start=start)
            for count in labels
            for name, start in starts.items()
        ]
    rows.sort(key=lambda row: (row.measured, str(row.factors["labels"]).zfill(9), row.name))

    def contrasts(outcome: StudyOutcome) -> dict[str, Contrast]:
        """Compares each pre-training with none at every number of labels, and masked patches with labels at the
        fewest."""
        counts = _counts(outcome)
        chosen = [(name, SCRATCH, count) for count in counts for name in BEGINNINGS]
        chosen += [("masked patches", "supervised", count) for count in counts[:1]]
        return {
            _name(one, other, count): Contrast.between(first, second)
            for one, other, count in chosen
            if (first := _point(outcome, one, count)) and (second := _point(outcome, other, count))
        }

    def conclude(outcome: StudyOutcome, compared: Comparisons) -> list[str]:
        said, counts = [], _counts(outcome)
        for name in BEGINNINGS:
            words = []
            for count in counts:
                first, scratch = _point(outcome, name, count), _point(outcome, SCRATCH, count)
                if first and scratch:
                    found = compared[_name(name, SCRATCH, count)]
                    words.append(
                        f"{as_percent(first)} against {as_percent(scratch)} with {count} labels ({found.word} scratch, "
                        f"{found.points})"
                    )
            if words:
                said.append(f"{name}: " + "; ".join(words) + ".")
        fewest = counts[0]
        above = compared.get(_name("masked patches", SCRATCH, fewest))
        below = compared.get(_name("masked patches", "supervised", fewest))
        if above and below:
            reverse = {BELOW: ABOVE, ABOVE: BELOW}.get(below.word, below.word)
            said.append(
                "The paper finds masked patches 2 points above training from scratch and 4 below pre-training with "
                f"labels: with {fewest} labels they are {above.word} scratch here, {above.points}, and {below.word} "
                f"labels, {below.points}, so that order {verdict(ABOVE, above.word, reverse)}."
            )
        return said

    def draw(outcome: StudyOutcome, theme: Any) -> bytes:
        """Draws accuracy against the number of labels."""
        counts = _counts(outcome)
        series = {
            name: [(float(count), point) for count in counts if (point := _point(outcome, name, count))]
            for name in (SCRATCH, *BEGINNINGS)
        }
        return lines({name: points for name, points in series.items() if points}, "labelled images", theme)

    return Study(
        "self-supervised",
        "Learning without labels first",
        "What is pre-training worth when few labels follow? Each model is pre-trained on all training images, without "
        "their labels or (supervised, an upper bound) with them, then fine-tuned on a few labelled ones; from scratch "
        "there is the same training alone.",
        tuple(rows),
        draw,
        contrasts,
        conclude,
    )


def _pretrained(config: TrainConfig, setting: Setting, seed: int, share: float) -> TrainConfig:
    """Returns the configuration of a pre-training for `share` of its epochs."""
    epochs = max(1.0, (config.epochs or 1) * share)
    return _fitted(config, setting).with_(data=setting.data(), seed=seed, epochs=epochs, ema=0.0, evaluate_every=0)


def _fitted(config: TrainConfig, setting: Setting) -> TrainConfig:
    """Adapts a recipe for the embedded digits to other pictures, which may have colours and be mirrored."""
    if setting.embedded:
        return config
    return config.with_(model=setting.model(), transform=setting.transform(), preprocessing=setting.preprocessing())


def _tuned(setting: Setting, seed: int, labels: int, steps: int) -> TrainConfig:
    """Returns the training on a few labels, the same after every pre-training."""
    config = _fitted(recipe("finetune-mnist5k"), setting)
    return config.with_(
        data=setting.data(train_size=labels, split_seed=seed),
        schedule=replace(config.schedule, warmup_steps=steps // 10),
        epochs=None,
        steps=steps,
        batch_size=min(config.batch_size, labels),
        seed=seed,
    )


def _counts(outcome: StudyOutcome) -> list[int]:
    """Returns the numbers of labels, in order."""
    return sorted({int(point.factors["labels"]) for point in outcome.points()})


def _name(one: str, other: str, labels: int) -> str:
    """Returns the name of a comparison."""
    return f"{one} beside {other}, {labels} labels"


def _point(outcome: StudyOutcome, name: str, labels: int) -> Point | None:
    """Returns the point of a pre-training at a number of labels, if it was measured."""
    return outcome.point(**{"pre-training": name, "labels": labels})
