"""Recipes for pictures with masks, which start from a trained model."""

from collections.abc import Callable

from vitrail.config import DataConfig, OptimizerConfig, ScheduleConfig, TrainConfig, TransformConfig
from vitrail.config.training import FirstHead
from vitrail.models.sizes import config_for
from vitrail.recipes.small import COLOUR


def segment_linear() -> TrainConfig:
    """Fine-tunes on masks with a linear head, 30 epochs.

    vitrail finetune MODEL --recipe segment-linear --data FOLDER --out RUN

    FOLDER holds images and masks (docs/data.md). One linear map from each patch to the classes, first in closed form
    and then with the whole model; earlier layers learn more slowly. The best choice for a few hundred pictures.
    Cost: `vitrail plan segment-linear` counts it for Ti/16; the model itself is the one that is given.
    """
    return _segmentation("segment-linear", 30, "linear")


def segment_queries() -> TrainConfig:
    """Fine-tunes on masks with a head of queries, 60 epochs.

    vitrail finetune MODEL --recipe segment-queries --data FOLDER --out RUN

    FOLDER holds images and masks (docs/data.md). EoMT (Kerssies and others, 2025): learned queries join the patches in
    the last three layers, each becomes a class and a mask. Its head begins at random, so it needs more epochs than a
    linear one. Matching needs scipy: pip install "vitrail[tasks]".
    Cost: `vitrail plan segment-queries` counts it for Ti/16; the model itself is the one that is given.
    """
    return _segmentation("segment-queries", 60, "queries")


def _segmentation(name: str, epochs: int, head: str) -> TrainConfig:
    first: FirstHead = "closed_form" if head == "linear" else "zero"
    return TrainConfig(
        recipe=name,
        model=config_for("Ti/16", image_size=384, num_classes=2, head=head, pooling="patches"),
        data=DataConfig("few-photos"),
        transform=TransformConfig(area=(0.4, 1.0), colour_jitter=0.2),
        preprocessing=COLOUR,
        optimizer=OptimizerConfig("adamw", lr=3e-4, weight_decay=0.05, layer_decay=0.8, clip=1.0),
        schedule=ScheduleConfig("cosine", warmup_steps=50),
        head=first,
        epochs=epochs,
        batch_size=16,
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {"segment-linear": segment_linear, "segment-queries": segment_queries}
"""The recipes for masks by name."""
