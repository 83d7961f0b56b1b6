"""Fine-tuning: a training that starts from another model (`TrainConfig.init_from`), with settings that suit the size of
the data."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.checkpoints.starting_model import StartingModel, starting_model
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
from vitrail.config.model import QUERY_FIELDS
from vitrail.config.training import scaled_warmup
from vitrail.data import open_data
from vitrail.errors import UserError
from vitrail.evaluation import normalisation
from vitrail.models.device import choose_device
from vitrail.recipes import DEV_FRACTIONS, LEARNING_RATES, recipe
from vitrail.run import open_splits
from vitrail.tasks import task
from vitrail.train import TrainResult, fit
from vitrail.training.progress import read_metrics, say

RATES: tuple[float, ...] = (0.001, 0.003, 0.01, 0.03)
"""The learning rates to search, as in the paper's Table 4 for small data sets."""


def finetune(model: str, data: str, out: str | Path, *, quick: bool = False, **changes: Any) -> TrainResult:
    """Fine-tunes a model on other data: `vitrail.finetune("model", "photos", "run")`.

    Args:
        model: the model to start from: a bundle, a run, a weights file, a name, or hf:owner/name.
        data: the data to learn: a folder of class folders, a table, or any other source.
        out: the run's folder, which must be new.
        quick: whether to compute only a new head, in closed form, which takes one pass over the images.
        changes: fields of TrainConfig to set, such as steps=500 or seed=1.

    Returns:
        The run's folder, the folder of the model, and the numbers that were measured at the end.

    Raises:
        UserError: if model or data cannot be read, or the folder is in use.
    """
    given = changes.pop("preprocessing", None)
    if quick:
        changes = {"freeze": "backbone", **changes}
    start = StartingModel(model, given)
    planned = chosen_config(start, data)
    config = planned.with_(**changes)
    if quick:
        check_quick(config)
    if "schedule" not in changes:
        config = scaled_warmup(config, planned, lambda: len(open_data(config.data).split("train")))
    return fit(config if given is not None else with_preprocessing(config, say, start), out, start=start)


def check_quick(config: TrainConfig) -> None:
    """Raises a UserError for a fine-tuning of the head alone, in closed form, whose head has none."""
    if config.model.head == "queries":
        raise UserError(
            "--quick computes a head in closed form, which a head of queries does not have: leave out --quick, or give "
            "--model.head linear"
        )


def chosen_config(
    model: str | StartingModel,
    data: str,
    name: str | None = None,
    preprocessing: str | Preprocessing | None = None,
    asked: str | None = None,
) -> TrainConfig:
    """Chooses how to fine-tune a model on this data: by a recipe if one is named.

    Without one the head is first computed in closed form. Then all weights learn by SGD with momentum, a cosine
    schedule, no weight decay and gradients clipped at 1; batch size and steps depend on the number of samples.

    Args:
        model: the model to start from. A StartingModel has a preprocessing of its own, and is loaded at most once.
        data: the data to learn.
        name: a recipe, or None.
        preprocessing: the model's, as `vitrail.load` takes it; None: its own.
        asked: the task of the data, if it can be read as more than one; None: decided by the data.
    """
    if name is not None:
        config = recipe(name)
        return finetuned_config(
            config.with_(data=replace(config.data, source=data, task=asked)), model, None, preprocessing
        )
    source = open_data(DataConfig(source=data, task=asked))
    samples = len(source.split("train"))
    batch = 32 if samples < 5_000 else 128 if samples < 50_000 else 512
    steps = min(20_000, max(100, round(10 * samples / batch)))
    start = model if isinstance(model, StartingModel) else StartingModel(model, preprocessing)
    own = start.loaded()
    config = TrainConfig(
        recipe="finetune",
        head="closed_form",
        model=own.config,
        data=DataConfig(source=data, task=asked),
        preprocessing=own.card.preprocessing or TrainConfig(epochs=1).preprocessing,
        transform=TransformConfig(area=(0.3, 1.0) if samples < 5_000 else (0.05, 1.0)),
        # A third of the rate for a head that begins at zero: this head is right already, and large steps would only
        # distort the features.
        optimizer=OptimizerConfig("sgd", lr=0.003, weight_decay=0.0, clip=1.0),
        schedule=ScheduleConfig("cosine", warmup_steps=min(500, steps // 10)),
        steps=steps,
        batch_size=batch,
    )
    return task(source.task).target.finetuning(_from_model(config, start, config.model.image_size), samples)


def with_preprocessing(
    config: TrainConfig, tell: Callable[[str], None], start: StartingModel | None = None
) -> TrainConfig:
    """Returns the configuration with the mean and deviation that suit the model, if its weights do not say which. Both
    usual ones are then tried on training images.

    Args:
        config: the fine-tuning.
        tell: called with a sentence on the choice.
        start: the model, if it has been loaded already.
    """
    start = starting_model(config, start)
    if not start.loaded().card.assumed:
        return config
    source, model = open_splits(config), start.resized(config.model.image_size)
    model.config = task(source.task).head.adapted(model.config)  # of a copy: what its head will read
    device = choose_device(config.device)
    images = normalisation.sample(source.split("train"))
    judge = normalisation.by_features(model.to(device), device)
    chosen, line = normalisation.choose_normalisation(config.preprocessing, images, judge, config.data.workers)
    tell(line)
    return config.with_(preprocessing=chosen)


def search_learning_rate(config: TrainConfig, out: Path, say: Callable[[str], None]) -> TrainConfig:
    """Trains once with each learning rate of the paper's table, and returns the configuration with the best.

    The best is chosen on a dev split, which is set aside from the training data. The test split is not used.

    Args:
        config: the fine-tuning.
        out: the run's folder; the trials are kept beside it.
        say: called with a sentence on each trial.
    """
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
    """Trains, and returns the score of the best validation and how to write it."""
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
    init_from: str | StartingModel,
    image_size: int | tuple[int, int] | None = None,
    preprocessing: str | Preprocessing | None = None,
) -> TrainConfig:
    """Returns a recipe with the architecture of the model it starts from.

    Args:
        config: the recipe.
        init_from: the model to start from. A StartingModel has a preprocessing of its own.
        image_size: another image size than the recipe's; None: the recipe's.
        preprocessing: another preprocessing than the model's; None: the model's.
    """
    size = config.model.image_size if image_size is None else image_size
    start = init_from if isinstance(init_from, StartingModel) else StartingModel(init_from, preprocessing)
    return _from_model(config, start, size)


def _from_model(config: TrainConfig, start: StartingModel, image_size: int | tuple[int, int]) -> TrainConfig:
    """Returns a recipe with the architecture and the preprocessing of the model that it starts from."""
    size, model = pair(image_size), start.loaded()
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
        **{name: getattr(config.model, name) for name in QUERY_FIELDS},
    )
    own = model.card.preprocessing or config.preprocessing
    return config.with_(model=kept, init_from=start.source, preprocessing=replace(own, image_size=size))
