"""Pictures with known numbers: a bright bar, by its angle in degrees and its length in pixels."""

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
from vitrail.data import Source, Split
from vitrail.data.sources.base import ArrayReader

NAMES = ("angle", "length")
SIDE = 16


def draw(angles: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Draws uint8 [samples, SIDE, SIDE, 1] bars around the middle, with soft edges."""
    rows, columns = np.mgrid[:SIDE, :SIDE] - (SIDE - 1) / 2
    turn = np.deg2rad(angles)[:, None, None]
    along = columns * np.cos(turn) + rows * np.sin(turn)
    beside = rows * np.cos(turn) - columns * np.sin(turn)
    inside = np.clip(lengths[:, None, None] / 2 - np.abs(along) + 0.5, 0, 1) * np.clip(2 - np.abs(beside), 0, 1)
    return (255 * inside).astype(np.uint8)[..., None]


def split(name: str, count: int, seed: int) -> Split:
    """Makes so many bars of any angle from -60 to 60 degrees and length from 6 to 14 pixels."""
    numbers = np.random.default_rng(seed).uniform((-60, 6), (60, 14), (count, 2))
    ids = [f"{name}/{index:05d}" for index in range(count)]
    return Split(name, ids, numbers, ArrayReader(draw(*numbers.T)), np.arange(count), "regression")


def source(train: int = 1200, held_out: int = 200) -> Source:
    splits = {"train": split("train", train, 1), "val": split("val", held_out, 2), "test": split("test", held_out, 3)}
    return Source("bars", NAMES, splits)


def config(**changes) -> TrainConfig:
    """A small ViT from scratch."""
    base = TrainConfig(
        model=ModelConfig(
            image_size=SIDE, patch_size=4, channels=1, width=48, depth=2, num_heads=3, mlp_dim=96, num_classes=2
        ),
        data=DataConfig(source="bars", workers=0),
        transform=TransformConfig(crop="evaluation", flip=0.0),
        preprocessing=Preprocessing(SIDE, (0.5,), (0.5,), crop="squash"),
        optimizer=OptimizerConfig("adamw", 3e-3, 0.01),
        schedule=ScheduleConfig("cosine", warmup_steps=30),
        steps=250,
        batch_size=64,
        device="cpu",
        evaluate_every=125,
    )
    return base.with_(**changes)
