"""Fine-tuning is a recipe with `init_from`: what to choose for the size of the data, and the search for a rate."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.checkpoints.load import load
from vitrail.config import DataConfig, OptimizerConfig, ScheduleConfig, TrainConfig, TransformConfig
from vitrail.data import open_data
from vitrail.recipes import DEV_FRACTIONS, LEARNING_RATES, recipe
from vitrail.train import Result, finetuned_config, fit
from vitrail.training.progress import read_metrics

RATES: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03)
"""Of Table 4 for small data sets."""


def finetune(model: str, data: str, out: str | Path, **changes: Any) -> Result:
    """In Python: `vitrail.finetune("model", "photos", "run")`; `changes` are fields of TrainConfig."""
    return fit(chosen_config(model, data).with_(**changes), out)


def chosen_config(model: str, data: str, name: str | None = None) -> TrainConfig:
    """The paper's fine-tuning (SGD with momentum, cosine, no decay, clip 1), with batch and steps for the data."""
    if name is not None:
        config = recipe(name)
        return finetuned_config(config.with_(data=replace(config.data, source=data)), model)
    samples = len(open_data(DataConfig(source=data)).split("train"))
    batch = 32 if samples < 5_000 else 128 if samples < 50_000 else 512
    steps = min(20_000, max(100, round(20 * samples / batch)))
    own = load(model)
    config = TrainConfig(
        recipe="finetune",
        model=own.config,
        data=DataConfig(source=data),
        preprocessing=own.card.preprocessing or TrainConfig(epochs=1).preprocessing,
        transform=TransformConfig(area=(0.3, 1.0) if samples < 5_000 else (0.05, 1.0)),
        optimizer=OptimizerConfig("sgd", lr=0.01, weight_decay=0.0, clip=1.0),
        schedule=ScheduleConfig("cosine", warmup_steps=min(500, steps // 10)),
        steps=steps,
        batch_size=batch,
    )
    return finetuned_config(config, model)


def search_learning_rate(config: TrainConfig, out: Path, say: Callable[[str], None]) -> TrainConfig:
    """Train once for each learning rate of the paper's table, on the training data less a dev split, and take the one
    that does best there. The test split is not looked at."""
    rates: tuple[float, ...] = LEARNING_RATES.get(config.recipe, RATES)
    if len(rates) == 1:
        say(f"{config.recipe}: the paper has one learning rate for it, {rates[0]:g}; nothing to search")
        return config
    data = replace(config.data, val_fraction=DEV_FRACTIONS.get(config.recipe, 0.1))
    trials: dict[float, float] = {}
    for rate in rates:
        folder = out.parent / f"{out.name}-search" / f"{rate:g}"
        shutil.rmtree(folder, ignore_errors=True)
        trials[rate] = _dev_accuracy(_at_rate(config, rate).with_(data=data), folder)
        say(f"learning rate {rate:g}: {trials[rate]:.2%} on the dev split")
    best = max(trials, key=lambda rate: trials[rate])
    say(f"the best is {best:g}")
    return _at_rate(config, best)


def _at_rate(config: TrainConfig, rate: float) -> TrainConfig:
    return config.with_(optimizer=replace(config.optimizer, lr=rate))


def _dev_accuracy(config: TrainConfig, folder: Path) -> float:
    fit(config, folder, report=False)
    return max((record["top1"] for record in read_metrics(folder) if record["kind"] == "val"), default=0.0)
