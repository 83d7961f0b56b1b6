"""The paper's recipes: Table 3 (pre-training) and Table 4 (fine-tuning), row by row.

Each kind has a table like the paper's; every row becomes a function with a docstring of its own.
"""

from collections.abc import Callable
from typing import Literal, NamedTuple

from vitrail.config import (
    DataConfig,
    OptimizerConfig,
    Preprocessing,
    ScheduleConfig,
    TrainConfig,
    TransformConfig,
)
from vitrail.models.sizes import config_for

Recipe = Callable[[], TrainConfig]
"""A function that returns a training."""

TRANSFORM = TransformConfig(resample="bilinear")
"""Inception crop and mirror images, with the bilinear interpolation of the official code."""
PREPROCESSING = Preprocessing(resample="bilinear", crop="squash", crop_fraction=1.0)
"""Pixels from -1 to 1, and in evaluation the whole picture resized, whatever its shape."""


NO_FIGURE = "no figure is recorded for this row"
"""Stands where neither the paper nor its authors give a result."""


class Corpus(NamedTuple):
    """The settings of Table 3 that are the same for all models pre-trained on a data set."""

    title: str
    classes: int
    decay: Literal["linear", "cosine"]
    final_lr: float
    weight_decay: float
    dropout: float
    clip: float
    objective: Literal["softmax", "sigmoid"]
    head_bias: float


CORPORA = {
    "jft": Corpus("JFT-300M", 18_291, "linear", 1e-5, 0.1, 0.0, 0.0, "sigmoid", -10.0),
    "imagenet21k": Corpus("ImageNet-21k", 21_841, "linear", 1e-5, 0.03, 0.1, 1.0, "softmax", 0.0),
    "imagenet": Corpus("ImageNet-1k", 1_000, "cosine", 0.0, 0.3, 0.1, 1.0, "softmax", 0.0),
}
"""The data sets of Table 3.

JFT-300M has 18,291 classes by the work that introduced it; the paper says 18k. A run takes the number from its data.
"""


class Pretraining(NamedTuple):
    """A row of Table 3."""

    recipe: str
    model: str
    data: str
    epochs: int
    lr: float
    exaflops: float
    """The cost in units of 10^18 FLOPs: for JFT-300M by the paper's Table 6; for other data, where it gives none, as
    `vitrail plan` counts."""
    transferred: float | None
    """ImageNet top-1 in per cent after fine-tuning, as the paper reports it (Tables 5 and 6); None if it does not."""
    itself: float | None = None
    """ImageNet top-1 in per cent before fine-tuning, as the authors of the code reported it; None if they did not."""


TABLE_3 = (
    Pretraining("vit-b16-jft", "B/16", "jft", 7, 8e-4, 224, 84.15),
    Pretraining("vit-b32-jft", "B/32", "jft", 7, 8e-4, 55, 80.73),
    Pretraining("vit-l32-jft", "L/32", "jft", 7, 6e-4, 196, 84.37),
    Pretraining("vit-l16-jft", "L/16", "jft", 7, 4e-4, 783, 86.30),
    Pretraining("vit-l16-jft-14", "L/16", "jft", 14, 4e-4, 1567, 87.12),
    Pretraining("vit-h14-jft", "H/14", "jft", 14, 3e-4, 4262, 88.08),
    Pretraining("bit-r50x1-jft", "BiT-R50x1", "jft", 7, 1e-3, 50, 77.54),
    Pretraining("bit-r50x2-jft", "BiT-R50x2", "jft", 7, 1e-3, 199, 82.12),
    Pretraining("bit-r101x1-jft", "BiT-R101x1", "jft", 7, 8e-4, 96, 80.67),
    Pretraining("bit-r152x1-jft", "BiT-R152x1", "jft", 7, 6e-4, 141, 81.88),
    Pretraining("bit-r152x2-jft", "BiT-R152x2", "jft", 7, 6e-4, 563, 84.97),
    Pretraining("r50+b16-jft", "R50+B/16", "jft", 7, 8e-4, 274, 85.58),
    Pretraining("r50+b32-jft", "R50+B/32", "jft", 7, 8e-4, 106, 84.90),
    Pretraining("r50+l32-jft", "R50+L/32", "jft", 7, 2e-4, 246, 85.68),
    Pretraining("r50+l16-jft", "R50+L/16", "jft", 7, 4e-4, 859, 86.60),
    Pretraining("r50+l16-jft-14", "R50+L/16", "jft", 14, 4e-4, 1668, 87.12),
    Pretraining("vit-b16-in21k", "B/16", "imagenet21k", 90, 1e-3, 135, 83.97),
    Pretraining("vit-b32-in21k", "B/32", "imagenet21k", 90, 1e-3, 34, 81.28),
    Pretraining("vit-l16-in21k", "L/16", "imagenet21k", 90, 1e-3, 472, 85.15),
    Pretraining("vit-l16-in21k-30", "L/16", "imagenet21k", 30, 1e-3, 157, None),
    Pretraining("vit-l32-in21k", "L/32", "imagenet21k", 90, 1e-3, 118, 80.99),
    Pretraining("vit-l32-in21k-30", "L/32", "imagenet21k", 30, 1e-3, 39, None),
    Pretraining("vit-b16-in1k", "B/16", "imagenet", 300, 3e-3, 41, 77.91, 74.79),
    Pretraining("vit-b32-in1k", "B/32", "imagenet", 300, 3e-3, 10, 73.38, 69.19),
    Pretraining("vit-l16-in1k", "L/16", "imagenet", 300, 3e-3, 142, 76.53, 72.59),
    Pretraining("vit-l32-in1k", "L/32", "imagenet", 300, 3e-3, 35, 71.16, 66.90),
)
"""The paper's Table 3."""


class Transfer(NamedTuple):
    """A row of Table 4."""

    recipe: str
    title: str
    data: str
    classes: int
    steps: int
    rates: tuple[float, ...]
    """The learning rates that are tried on a dev split. Without a search the third of four is used, or the only one."""
    dev: float
    """Share of the training images in that dev split; 0 if there is only one rate."""
    expect: str
    """Top-1 as the paper reports it, and the model it starts from."""
    model: str = "B/16"
    image_size: int = 384
    ema: float = 0.0


_LOW, _HIGH = (0.001, 0.003, 0.01, 0.03), (0.003, 0.01, 0.03, 0.06)

TABLE_4 = (
    Transfer("finetune-imagenet", "ImageNet-1k", "imagenet", 1_000, 20_000, _HIGH, 0.01, "83.97 % from vit-b16-in21k"),
    Transfer(
        "finetune-imagenet-512", "ImageNet-1k", "imagenet", 1_000, 20_000, _HIGH, 0.01, "", "L/16", 512, ema=0.9999
    ),
    Transfer(
        "finetune-imagenet-518", "ImageNet-1k", "imagenet", 1_000, 20_000, _HIGH, 0.01,
        "88.55 % from vit-h14-jft (90.72 % by the ReaL labels), its best", "H/14", 518, ema=0.9999,
    ),
    Transfer("finetune-cifar10", "CIFAR-10", "cifar10", 10, 10_000, _LOW, 0.02, "99.50 % from vit-h14-jft"),
    Transfer("finetune-cifar100", "CIFAR-100", "cifar100", 100, 10_000, _LOW, 0.02, "94.55 % from vit-h14-jft"),
    Transfer("finetune-pets", "Pets", "pets", 37, 500, _LOW, 0.1, "97.56 % from vit-h14-jft"),
    Transfer("finetune-flowers", "Flowers-102", "flowers", 102, 500, _LOW, 0.1, "99.68 % from vit-h14-jft"),
    Transfer(
        "finetune-vtab", "a VTAB task", "vtab", 1_000, 2_500, (0.01,), 0.0,
        "77.63 % as the mean of 19 tasks from vit-h14-jft",
    ),
)  # fmt: skip
"""The paper's Table 4. Model and classes are what `vitrail plan` counts with; a run takes them from what it is
given."""

LEARNING_RATES: dict[str, tuple[float, ...]] = {row.recipe: row.rates for row in TABLE_4} | {"finetune": _LOW}
"""The learning rates of Table 4 to try on a dev split, by recipe."""
DEV_FRACTIONS: dict[str, float] = {row.recipe: row.dev for row in TABLE_4 if row.dev} | {"finetune": 0.1}
"""The share of the training images in that dev split, by recipe; VTAB has one rate and needs none."""


def finetune_recipe() -> TrainConfig:
    """Fine-tunes on a folder of photos, 20 epochs.

    vitrail finetune MODEL --data FOLDER --out RUN

    MODEL is any pre-trained one. SGD, cosine, no weight decay and clip 1 as in the paper; a smaller batch, 224 px and
    no crop below 30 % of a picture, since the photos are assumed to be few. Cost: `vitrail plan finetune --images N`
    counts it for B/16; the paper's 384 px cost about three times that. Expect: it depends on the photos.
    """
    return TrainConfig(
        recipe="finetune",
        model=config_for("B/16"),
        data=DataConfig("photos"),
        transform=TransformConfig(area=(0.3, 1.0), resample="bilinear"),
        preprocessing=PREPROCESSING,
        optimizer=OptimizerConfig("sgd", lr=0.01, weight_decay=0.0, momentum=0.9, clip=1.0),
        schedule=ScheduleConfig("cosine", warmup_steps=20),
        epochs=20,
        batch_size=32,
    )


def _pretraining(row: Pretraining) -> Recipe:
    """Makes the recipe of a row of Table 3."""
    corpus = CORPORA[row.data]

    def build() -> TrainConfig:
        model = config_for(
            row.model,
            image_size=224,
            num_classes=corpus.classes,
            dropout=corpus.dropout,
            head_bias=corpus.head_bias,
        )
        if model.family == "vit":  # a ResNet has a plain head
            model = model.with_(representation_size=model.width)
        return TrainConfig(
            recipe=row.recipe,
            model=model,
            data=DataConfig(row.data),
            transform=TRANSFORM,
            preprocessing=PREPROCESSING,
            optimizer=OptimizerConfig("adamw", row.lr, corpus.weight_decay, betas=(0.9, 0.999), clip=corpus.clip),
            schedule=ScheduleConfig(corpus.decay, warmup_steps=10_000, final_lr=corpus.final_lr),
            objective=corpus.objective,
            epochs=row.epochs,
            batch_size=4096,
        )

    expect = f"{NO_FIGURE}."
    if row.transferred is not None:
        expect = f"{row.transferred:.2f} % on ImageNet after fine-tuning on it, as the paper reports."
    if row.itself is not None:
        expect += f"\nBefore fine-tuning {row.itself:.2f} %, as its authors reported."
    counted = "the paper's Table 6" if row.data == "jft" else "as `vitrail plan` counts"
    lines = [
        f"Trains {row.model} on {corpus.title}, {row.epochs} epochs.",
        "",
        f"vitrail train {row.recipe} --data FOLDER --out RUN",
        "",
        "A row of the paper's Table 3.",
        f"Cost: {row.exaflops} exaFLOPs, {counted}.",
        f"Expect: {expect}",
    ]
    if row.data == "jft":
        lines += [
            "An image of JFT-300M has several labels: each class is a yes or no of its own (sigmoid), and the head's",
            "bias starts at -10, since nearly all answers are no. Images with one label work too.",
        ]
    return _named(build, row.recipe, lines)


def _finetuning(row: Transfer) -> Recipe:
    """Makes the recipe of a row of Table 4."""
    # A training of 500 steps cannot be all warm-up: there the warm-up is a fifth.
    warmup = 500 if row.steps > 500 else 100

    def build() -> TrainConfig:
        rate = row.rates[len(row.rates) // 2]
        return TrainConfig(
            recipe=row.recipe,
            model=config_for(row.model, image_size=row.image_size, num_classes=row.classes),
            data=DataConfig(row.data, val_fraction=row.dev),
            transform=TRANSFORM,
            preprocessing=PREPROCESSING,
            optimizer=OptimizerConfig("sgd", lr=rate, weight_decay=0.0, momentum=0.9, clip=1.0),
            schedule=ScheduleConfig("cosine", warmup_steps=warmup),
            steps=row.steps,
            batch_size=512,
            ema=row.ema,
        )

    lines = [
        f"Fine-tunes on {row.title} at {row.image_size} px, {row.steps:,} steps.",
        "",
        f"vitrail finetune MODEL --recipe {row.recipe} --data FOLDER --out RUN",
        "",
        "A row of the paper's Table 4.",
        f"Cost: `vitrail plan {row.recipe}` counts it for {row.model}; the model itself is the one that is given.",
        f"Expect: {f'{row.expect}, as the paper reports' if row.expect else NO_FIGURE}.",
    ]
    if len(row.rates) > 1:
        tried = ", ".join(f"{rate:g}" for rate in row.rates)
        lines += [
            f"The paper chose among learning rates {tried} on a dev split of {row.dev:.0%} (`--search-lr`), then",
            "trained on everything (`--data.val-fraction 0`).",
        ]
    if warmup < 500:
        lines.append(f"Warm-up is {warmup} steps: the paper's usual 500 would be the whole training.")
    if "h14" in row.expect and row.image_size % 14:
        lines.append("H/14 needs a size that 14 divides: `--model.image-size 392`, or 518.")
    if row.ema:
        lines.append(f"A headline model: Polyak averaging {row.ema}; the paper gives the mean of three runs.")
    return _named(build, row.recipe, lines)


def _named(build: Recipe, name: str, lines: list[str]) -> Recipe:
    """Gives a recipe its name and its docstring."""
    build.__name__ = build.__qualname__ = name.replace("-", "_").replace("+", "_")
    build.__doc__ = "\n".join(lines)
    return build


RECIPES: dict[str, Recipe] = {
    **{row.recipe: _pretraining(row) for row in TABLE_3},
    "finetune": finetune_recipe,
    **{row.recipe: _finetuning(row) for row in TABLE_4},
}
"""The paper's recipes by name."""
