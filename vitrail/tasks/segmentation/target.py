"""Mask targets: uint8 [rows, columns] for each picture, the class of each of its pixels, `IGNORE` where there is none.

Masks are read one by one with their pictures. `Split.targets`, int8 [samples], tells which samples have one: 1, else 0.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from vitrail.config import OptimizerConfig, TrainConfig
from vitrail.errors import UserError
from vitrail.masks_and_boxes import Frame
from vitrail.tasks import base
from vitrail.tasks.audits import Audit, CheckedPicture, CheckedSplit, StoredAnnotation

if TYPE_CHECKING:
    from vitrail.tasks.segmentation.audit import MaskFacts

IGNORE = 255
"""The value of pixels that are neither learned nor measured."""
MOST_CLASSES = IGNORE
"""The largest number of classes, since classes and `IGNORE` are values of a byte."""


class MaskTarget(base.Target):
    """One mask for each picture."""

    contents = "masks"
    in_pixels = True

    def unknown(self, count: int) -> np.ndarray:
        return np.zeros(count, dtype=np.int8)

    def known(self, targets: np.ndarray) -> np.ndarray:
        return np.asarray(targets > 0)

    def strata(self, targets: np.ndarray) -> np.ndarray:
        """Puts all samples that have a mask into one group: splits are made without looking into the masks."""
        return np.where(targets > 0, 0, -1).astype(np.int64)

    def text(self, target: np.ndarray, names: Sequence[str]) -> str:
        return "mask" if target > 0 else ""

    def reordered(self, targets: np.ndarray, places: np.ndarray) -> np.ndarray:
        return targets

    def renumbered(self, annotation: np.ndarray, places: np.ndarray) -> np.ndarray:
        table = np.full(256, IGNORE, dtype=np.uint8)
        table[: len(places)] = places
        return table[annotation]

    def moved(self, annotation: np.ndarray | None, frame: Frame) -> np.ndarray:
        """Moves a mask to the model's input by the nearest pixel, uint8 [rows, columns]; padding becomes `IGNORE`."""
        if annotation is None:
            return np.full(frame.input_size, IGNORE, dtype=np.uint8)
        if annotation.shape != frame.size:
            mask, picture = (f"{size[1]} x {size[0]}" for size in (annotation.shape, frame.size))
            raise ValueError(f"is {picture} pixels, but its mask is {mask}")
        return frame.mask(annotation, IGNORE)

    def fitted(self, config: TrainConfig) -> TrainConfig:
        """Evaluates whole pictures: what a crop leaves out would have no answer."""
        return config.with_(preprocessing=replace(config.preprocessing, crop="squash"))

    def finetuning(self, config: TrainConfig, samples: int) -> TrainConfig:
        """Chooses AdamW with smaller steps in earlier layers, and batches of 16 pictures, each of which has many
        pixels to learn from."""
        steps = min(20_000, max(100, round(30 * samples / 16)))
        return config.with_(
            batch_size=16,
            steps=steps,
            optimizer=OptimizerConfig("adamw", lr=3e-4, weight_decay=0.05, layer_decay=0.8, clip=1.0),
            schedule=replace(config.schedule, warmup_steps=min(500, steps // 10)),
            transform=replace(config.transform, area=(0.4, 1.0), colour_jitter=0.2),
        )

    def check_names(self, where: str, names: Sequence[str]) -> None:
        if len(names) < 2:
            raise UserError(f"{where} has masks of {len(names)} class, so there is nothing to tell apart")
        if len(names) > MOST_CLASSES:
            raise UserError(f"{where} has {len(names):,} classes; masks can have at most {MOST_CLASSES}")
        doubled = base.first_repeated(names)
        if doubled is not None:
            raise UserError(f"{where}: the class {doubled!r} occurs more than once")

    def counted(self, names: Sequence[str]) -> str:
        return f"masks of {len(names)} classes"

    def audit(self, splits: Mapping[str, CheckedSplit], names: Sequence[str]) -> Audit:
        from vitrail.tasks.segmentation.audit import audit

        return audit(splits, names)

    def examined(self, annotation: StoredAnnotation) -> "MaskFacts":
        from vitrail.tasks.segmentation.audit import mask_facts

        return mask_facts(annotation)

    def checked_pages(self, pictures: Sequence[CheckedPicture], names: Sequence[str]) -> list[str]:
        from vitrail.tasks.segmentation.audit import mask_sections

        return mask_sections(pictures, names)

    def encoded(self, annotation: np.ndarray, names: Sequence[str]) -> tuple[str, bytes]:
        from vitrail.tasks.segmentation.colours import mask_png

        return "seg.png", mask_png(annotation, len(names))

    def stored(self, target: np.ndarray) -> int:
        return int(target)

    def restored(self, stored: Sequence[Any], outputs: int) -> np.ndarray:
        if any(each not in (0, 1) or type(each) is not int for each in stored):
            raise ValueError("a sample says neither 0 nor 1 of its mask")
        return np.array(stored, dtype=np.int8)


PART = MaskTarget()
