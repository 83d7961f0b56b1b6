"""Fine-tuning is a recipe with `init_from`: what to choose for the size of the data and for weights that do not say how
their images were prepared, and the search for a rate."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.checkpoints.load import load
from vitrail.config import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    Preprocessing,
    ScheduleConfig,
    TrainConfig,
    TransformConfig,
)
from vitrail.config.fields import pair
from vitrail.config.training import scaled_warmup
from vitrail.data import open_data
from vitrail.evaluation import normalisation
from vitrail.models.device import choose_device
from vitrail.recipes import DEV_FRACTIONS, LEARNING_RATES, recipe
from vitrail.run import open_splits
from vitrail.tasks import task
from vitrail.train import Result, fit
from vitrail.training.progress import read_metrics, say

RATES: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03)
"""Of Table 4 for small data sets."""


def finetune(model: str, data: str, out: str | Path, *, quick: bool = False, **changes: Any) -> Result:
    """In Python: `vitrail.finetune("model", "photos", "run")`. `quick`: only the head, in closed form: one pass
    over the images. `changes` are fields of TrainConfig."""
    given = changes.pop("preprocessing", None)
    if quick:
        changes = {"freeze": "backbone", **changes}
    planned = chosen_config(model, data, preprocessing=given)
    config = planned.with_(**changes)
    if "schedule" not in changes:
        config = scaled_warmup(config, planned, lambda: len(open_data(config.data).split("train")))
    return fit(config if given is not None else with_preprocessing(config, say), out)


def chosen_config(
    model: str,
    data: str,
    name: str | None = None,
    preprocessing: str | Preprocessing | None = None,
    asked: str | None = None,
) -> TrainConfig:
    """The recipe of a name; without one the head in closed form, then SGD with momentum, cosine, no decay, clip 1, with
    batch and steps for the data. `preprocessing`: the model's, as `vitrail.load` takes it. `asked`: the task of the
    data, where that could be more than one."""
    if name is not None:
        config = recipe(name)
        return finetuned_config(
            config.with_(data=replace(config.data, source=data, task=asked)), model, None, preprocessing
        )
    samples = len(open_data(DataConfig(source=data, task=asked)).split("train"))
    batch = 32 if samples < 5_000 else 128 if samples < 50_000 else 512
    steps = min(20_000, max(100, round(10 * samples / batch)))
    own = load(model, preprocessing=preprocessing)
    config = TrainConfig(
        recipe="finetune",
        head="closed_form",
        model=own.config,
        data=DataConfig(source=data, task=asked),
        preprocessing=own.card.preprocessing or TrainConfig(epochs=1).preprocessing,
        transform=TransformConfig(area=(0.3, 1.0) if samples < 5_000 else (0.05, 1.0)),
        # A third of what a head from zero needs: this one is right already, and the features should not be spoilt.
        optimizer=OptimizerConfig("sgd", lr=0.003, weight_decay=0.0, clip=1.0),
        schedule=ScheduleConfig("cosine", warmup_steps=min(500, steps // 10)),
        steps=steps,
        batch_size=batch,
    )
    return finetuned_config(config, model, None, preprocessing)


def with_preprocessing(config: TrainConfig, tell: Callable[[str], None]) -> TrainConfig:
    """The configuration with the mean and std that suit the model, where its weights carry none: both usual ones are
    tried on training images. What was chosen, or could not be, is told."""
    model = load(config.init_from, image_size=config.model.image_size)
    if not model.card.assumed:
        return config
    device = choose_device(config.device)
    images = normalisation.sample(open_splits(config).split("train"))
    judge = normalisation.by_features(model.to(device), device)
    chosen, line = normalisation.choose(config.preprocessing, images, judge, config.data.workers)
    tell(line)
    return config.with_(preprocessing=chosen)


def search_learning_rate(config: TrainConfig, out: Path, say: Callable[[str], None]) -> TrainConfig:
    """Train once for each learning rate of the paper's table, on the training data less a dev split, and take the one
    that does best there. The test split is not looked at."""
    rates: tuple[float, ...] = LEARNING_RATES.get(config.recipe, RATES)
    if len(rates) == 1:
        say(f"{config.recipe}: the paper has one learning rate for it, {rates[0]:g}; nothing to search")
        return config
    data = replace(config.data, val_fraction=DEV_FRACTIONS.get(config.recipe, 0.1))
    trials: dict[float, tuple[float, str]] = {}
    for rate in rates:
        folder = out.parent / f"{out.name}-search" / f"{rate:g}"
        shutil.rmtree(folder, ignore_errors=True)
        trials[rate] = _dev_score(_at_rate(config, rate).with_(data=data), folder)
        say(f"learning rate {rate:g}: {trials[rate][1]} on the dev split")
    best = max(trials, key=lambda rate: trials[rate][0])
    say(f"the best is {best:g}")
    return _at_rate(config, best)


def _at_rate(config: TrainConfig, rate: float) -> TrainConfig:
    return config.with_(optimizer=replace(config.optimizer, lr=rate))


def _dev_score(config: TrainConfig, folder: Path) -> tuple[float, str]:
    """Trains, and gives the score of the best validation with its words."""
    meter = task(fit(config, folder, report=False).task).meter
    balanced = config.class_weights != "none"
    validations = [record for record in read_metrics(folder) if record["kind"] == "val"]
    scored = [
        (meter.score(each, balanced), f"{meter.score(each, balanced):.2%}" if balanced else meter.words(each))
        for each in validations
    ]
    return max(scored, default=(float("-inf"), "nothing validated"))


def finetuned_config(
    config: TrainConfig,
    init_from: str,
    image_size: int | tuple[int, int] | None = None,
    preprocessing: str | Preprocessing | None = None,
) -> TrainConfig:
    """A recipe with the architecture of the model it starts from: its own sizes, the recipe's resolution or another;
    its own preprocessing or another."""
    model = load(init_from, preprocessing=preprocessing)
    size = pair(config.model.image_size if image_size is None else image_size)
    if model.config.family == "vit":
        model.config.grid_for(size)
    kept: ModelConfig = model.config.with_(
        image_size=size,
        representation_size=0,
        head_bias=0.0,
        dropout=config.model.dropout,
        attention_dropout=config.model.attention_dropout,
        drop_path=config.model.drop_path,
        patch_dropout=config.model.patch_dropout,
    )
    own = model.card.preprocessing or config.preprocessing
    return config.with_(model=kept, init_from=init_from, preprocessing=replace(own, image_size=size))
