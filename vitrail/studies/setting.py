"""What the studies share: where the samples come from, how long a row learns, a small model to vary."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.config import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    Preprocessing,
    ScheduleConfig,
    TrainConfig,
    TransformConfig,
)
from vitrail.data import open_source
from vitrail.errors import UserError

SIDE = 32
"""Pixels; pictures of another size are resized, so that all of a study's models see the same."""
BATCH = 64
EMBEDDED = ("digits", "mnist5k")


@dataclass(frozen=True)
class Setting:
    """A study's data and budget."""

    source: str
    quick: bool
    seeds: int
    channels: int
    classes: int
    training: int
    """Samples there are to train on."""
    embedded: bool
    """Whether they are the digits that come with the program."""
    fingerprint: str
    """Of the samples."""

    @staticmethod
    def of(source: str | None, quick: bool, seeds: int | None) -> "Setting":
        name = source or "mnist5k"
        opened = open_source(name, val_fraction=0.0)
        opened.check_labelled()
        if "test" not in opened.splits:
            raise UserError(f"{name}: has no test split, and a study measures on one; call its val split test")
        training = opened.split("train")
        first = training.read(0)
        grey = isinstance(first, np.ndarray) and (first.ndim == 2 or first.shape[-1] == 1)
        channels, number = 1 if grey else 3, seeds or (2 if quick else 3)
        facts = channels, len(opened.classes), len(training), name in EMBEDDED, opened.fingerprint()
        return Setting(name, quick, number, *facts)

    @staticmethod
    def without_data(quick: bool) -> "Setting":
        """For a study whose results are kept already: it is read, not run, and its rows' data are not there."""
        return Setting("", quick, 1, 1, 10, 60_000, False, "")

    def model(self, **fields: Any) -> ModelConfig:
        """16 patches of 8 pixels, average pooling and fixed positions, unless said otherwise."""
        chosen: dict[str, Any] = {
            "image_size": SIDE,
            "channels": self.channels,
            "num_classes": self.classes,
            "patch_size": 8,
            "width": 96,
            "depth": 4,
            "num_heads": 4,
            "mlp_dim": 384,
            "class_token": False,
            "pooling": "average",
            "positions": "sincos",
        }
        return ModelConfig(**{**chosen, **fields})

    def config(
        self, model: ModelConfig, seed: int, samples: int, lr: float = 1e-3, train_size: int | None = None, **more: Any
    ) -> TrainConfig:
        """A training on `samples` images in all, however often each is seen. Nothing is set aside for validation:
        the last weights are what is measured, on the test split."""
        steps = max(1, samples // BATCH)
        settings: dict[str, Any] = {
            "recipe": "study",
            "model": model,
            "data": self.data(train_size=train_size),
            "transform": self.transform(),
            "preprocessing": self.preprocessing(),
            "optimizer": OptimizerConfig("adamw", lr=lr, weight_decay=0.05),
            "schedule": ScheduleConfig("cosine", warmup_steps=steps // 10),
            "steps": steps,
            "batch_size": BATCH,
            "seed": seed,
        }
        return TrainConfig(**{**settings, **more})

    def data(self, **more: Any) -> DataConfig:
        return DataConfig(self.source, val_fraction=0.0, val_size=0, workers=0, **more)

    def preprocessing(self) -> Preprocessing:
        half = (0.5,) * self.channels
        return Preprocessing(mean=half, std=half, crop="squash", crop_fraction=1.0)

    def transform(self) -> TransformConfig:
        if self.embedded:  # the mirror image of a digit is none
            return TransformConfig(crop="evaluation", flip=0.0, rotate=10, translate=0.1, scale=0.1)
        # By one pixel: a training this short does not make up for larger shifts. ViT on Fashion-MNIST comes to 82 %
        # this way, with the usual four pixels of 32 to 72 % (64,000 images, one seed each).
        return TransformConfig(crop="pad", padding=1, flip=0.5)

    def sizes(self, wanted: tuple[int, ...]) -> list[int]:
        """Of the numbers of training images wanted, those there are; then all there are."""
        return [*(size for size in wanted if size < 0.8 * self.training), self.training]
