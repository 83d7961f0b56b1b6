"""How much learning without labels helps, by how many labels there are afterwards."""

from dataclasses import replace
from typing import Any

from vitrail.config import TrainConfig
from vitrail.errors import UserError
from vitrail.recipes import recipe
from vitrail.studies.figures import lines
from vitrail.studies.setting import Setting
from vitrail.studies.study import ABOVE, BELOW, Outcome, Point, Row, Study, compare, percent, verdict

BEGINNINGS = {
    "masked patches": "mnist5k-masked-patch",
    "masked autoencoder": "mnist5k-mae",
    "supervised": "mnist5k",
}
SCRATCH = "from scratch"


def self_supervised(setting: Setting) -> Study:
    """Section 4.6: from scratch, masked patches, MAE or labels first, then few labels."""
    wanted = (100, 500) if setting.quick else (50, 100, 200, 500)
    labels = [count for count in wanted if count <= setting.training]
    if not labels:
        raise UserError(f"{setting.source}: has {setting.training} training images; at least {wanted[0]} are needed")
    share = 0.2 if setting.quick else 1.0
    steps = 200 if setting.quick else 600
    rows: list[Row] = []
    for seed in range(setting.seeds):
        starts: dict[str, Row | None] = {SCRATCH: None}
        for name, source in BEGINNINGS.items():
            config = _pretrained(recipe(source), setting, seed, share)
            starts[name] = Row({"pre-training": name, "labels": "none"}, config, measured=False)
        rows += [row for row in starts.values() if row is not None]
        rows += [
            Row(
                {"pre-training": name, "labels": count}, _tuned(setting, seed, count, steps, start is None), start=start
            )
            for count in labels
            for name, start in starts.items()
        ]
    rows.sort(key=lambda row: (row.measured, str(row.factors["labels"]).zfill(9), row.name))

    def conclude(outcome: Outcome) -> list[str]:
        said = []
        for name in BEGINNINGS:
            words = []
            for count in labels:
                first, scratch = _point(outcome, name, count), _point(outcome, SCRATCH, count)
                if first and scratch:
                    word = compare(first, scratch)
                    words.append(f"{percent(first)} against {percent(scratch)} with {count} labels ({word} scratch)")
            if words:
                said.append(f"{name}: " + "; ".join(words) + ".")
        fewest = labels[0]
        masked, scratch, full = (_point(outcome, each, fewest) for each in ("masked patches", SCRATCH, "supervised"))
        if masked and scratch and full:
            words = compare(masked, scratch), compare(masked, full)
            said.append(
                "The paper finds masked patches 2 points above training from scratch and 4 below pre-training with "
                f"labels: with {fewest} labels they are {100 * (masked.mean - scratch.mean):+.1f} and "
                f"{100 * (masked.mean - full.mean):+.1f} points here, so that order "
                f"{verdict(words == (ABOVE, BELOW), *words)}."
            )
        return said

    def draw(outcome: Outcome, theme: Any) -> bytes:
        series = {
            name: [(float(count), point) for count in labels if (point := _point(outcome, name, count))]
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
        conclude,
    )


def _pretrained(config: TrainConfig, setting: Setting, seed: int, share: float) -> TrainConfig:
    epochs = max(1.0, (config.epochs or 1) * share)
    return _fitted(config, setting).with_(data=setting.data(), seed=seed, epochs=epochs, ema=0.0, evaluate_every=0)


def _fitted(config: TrainConfig, setting: Setting) -> TrainConfig:
    """The recipes are made for the embedded digits; other pictures have other colours, and may be mirrored."""
    if setting.embedded:
        return config
    return config.with_(model=setting.model(), transform=setting.transform(), preprocessing=setting.preprocessing())


def _tuned(setting: Setting, seed: int, labels: int, steps: int, scratch: bool) -> TrainConfig:
    config = _fitted(recipe("finetune-mnist5k"), setting)
    # Slower early layers keep what was learned before; from scratch there is nothing to keep.
    optimizer = replace(config.optimizer, layer_decay=1.0) if scratch else config.optimizer
    return config.with_(
        optimizer=optimizer,
        data=setting.data(train_size=labels, split_seed=seed),
        schedule=replace(config.schedule, warmup_steps=steps // 10),
        epochs=None,
        steps=steps,
        batch_size=min(config.batch_size, labels),
        seed=seed,
    )


def _point(outcome: Outcome, name: str, labels: int) -> Point | None:
    return outcome.point(**{"pre-training": name, "labels": labels})
