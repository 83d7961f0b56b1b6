"""Measures masks in the pictures' own pixels: one confusion matrix over all pixels, each counted exactly once."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from vitrail.errors import UserError
from vitrail.tasks import base
from vitrail.tasks.base import Annotation, Meaning
from vitrail.tasks.segmentation.answer import mask_of
from vitrail.tasks.segmentation.raster import NO_CLASS, interpolated
from vitrail.tasks.segmentation.target import IGNORE

SHOWN = 8
"""How many pictures a report shows with their masks, and how many of the worst."""
_SIDE = 160
"""The longest side, in pixels, of masks that are kept to be shown."""


class Kept(NamedTuple):
    """The numbers of one picture."""

    id: str
    miou: float
    """The mean IoU of the classes that the picture or its answer has; nan if no pixel of it is measured."""
    right: int
    """How many measured pixels are right."""
    pixels: int
    """How many pixels are measured."""
    loss: float
    """The sum of the cross-entropy over the pixels of the model's input."""
    weight: int
    """How many of those pixels have a class."""


class Masks(NamedTuple):
    """The true and the predicted mask of a picture, made smaller: uint8 [rows, columns] each."""

    true: np.ndarray
    predicted: np.ndarray


class MaskMeter(base.Meter):
    """Measures how well masks agree. Totals are whole numbers, so neither the size of batches nor the number of
    processes changes them.

    The data may have only some of the model's classes: an answer with another class is then wrong.
    """

    headline = ("miou", "pixel_accuracy", "dice")
    chosen_by = ("miou", "pixel_accuracy")
    adds_up, score_name = True, "mIoU"

    def __init__(self, meaning: Meaning, places: np.ndarray | None = None) -> None:
        super().__init__(meaning, places)
        self.classes = len(meaning.names)
        self.confusion = np.zeros((self.classes, self.classes + 1), dtype=np.int64)
        """Pixels by their true and their predicted class; the last column counts pixels without an answer."""
        self.kept: list[Kept] = []
        self.masks: dict[str, Masks] = {}
        """The masks of the pictures that a report shows: some drawn by their ids, and the worst."""

    def add(
        self,
        ids: list[str],
        targets: torch.Tensor,
        outputs: torch.Tensor,
        annotations: Sequence[Annotation] = (),
    ) -> None:
        assert len(annotations) == len(ids), "masks are measured in the pictures' own pixels"
        base.refuse_not_finite(ids, outputs)
        logits = outputs.float().cpu()
        for name, target, scores, annotation in zip(ids, targets.cpu(), logits, annotations, strict=True):
            if annotation.values is None:
                raise UserError(f"{name}: has no mask, so no answer can be right or wrong")
            predicted = mask_of(scores.numpy(), annotation.frame)
            found = self._count(self._placed(annotation.values), predicted)
            loss, weight = _loss(scores, torch.from_numpy(self._placed(target.numpy())))
            self.confusion += found
            right, pixels = int(np.trace(found)), int(found.sum())
            self.kept.append(Kept(name, _mean(ious(found)), right, pixels, loss, weight))
            self.masks[name] = Masks(*(_smaller(each) for each in (self._placed(annotation.values), predicted)))
        self.n += len(ids)
        self._forget()

    def merge(self, parts: "Sequence[MaskMeter]", ids: Sequence[str]) -> None:
        self.n, self.skipped = sum(part.n for part in parts), sum(part.skipped for part in parts)
        self.confusion = sum((part.confusion for part in parts), np.zeros_like(self.confusion))
        self.kept = base.in_order([each for part in parts for each in part.kept], ids)
        self.masks = {name: masks for part in parts for name, masks in part.masks.items()}
        self._forget()

    def result(self) -> dict[str, Any]:
        """Returns miou, dice and pixel_accuracy over all pixels that have a class, and each class's iou, dice,
        accuracy (the share of its pixels that are found) and pixels. What neither masks nor answers have is None, and
        left out of the means."""
        own, dice = ious(self.confusion), dices(self.confusion)
        pixels, found = self.confusion.sum(axis=1), np.diag(self.confusion)
        with np.errstate(invalid="ignore"):
            accuracy = found / pixels
        measured = range(self.classes) if self.places is None else sorted(self.places.tolist())
        per_class = {
            self.meaning.names[index]: {
                "iou": _number(own[index]),
                "dice": _number(dice[index]),
                "accuracy": _number(accuracy[index]),
                "pixels": int(pixels[index]),
            }
            for index in measured
        }
        total, weight = int(pixels.sum()), sum(each.weight for each in self.kept)
        return {
            "n": self.n,
            "skipped": self.skipped,
            "miou": _mean(own),
            "pixel_accuracy": int(found.sum()) / total if total else math.nan,
            "dice": _mean(dice),
            "pixels": total,
            "loss": math.fsum(each.loss for each in self.kept) / weight if weight else math.nan,
            "per_class": per_class,
        }

    @classmethod
    def score(cls, result: Mapping[str, Any], balanced: bool = False) -> float:
        """Returns the mean IoU, in which every class counts alike."""
        return result["miou"] if math.isfinite(result["miou"]) else -1.0

    @classmethod
    def words(cls, result: Mapping[str, Any]) -> str:
        return f"mIoU {result['miou']:.4f}"

    @classmethod
    def about(cls, result: Mapping[str, Any], split: str) -> str:
        pixels = f"{result['pixel_accuracy']:.2%} of pixels right"
        return f"mIoU {result['miou']:.4f} over {result['n']} {split} images, {pixels}"

    @classmethod
    def summary(cls, result: Mapping[str, Any]) -> str:
        return f"mIoU {result['miou']:.4f}, pixel accuracy {result['pixel_accuracy']:.2%}"

    @classmethod
    def lines(cls, result: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
        from vitrail.drawing.page import visible

        pixels = f"{result['pixel_accuracy']:.2%} of {result['pixels']:,} pixels right"
        lines = [f"mIoU {result['miou']:.4f}, dice {result['dice']:.4f}, {pixels}, loss {result['loss']:.4f}"]
        shown = {visible(names.get(name, name)): facts for name, facts in result["per_class"].items()}
        width = max(map(len, shown), default=0)
        for name, facts in shown.items():
            iou = "   -  " if facts["iou"] is None else f"{facts['iou']:.4f}"
            lines.append(f"  {name:<{width}}  IoU {iou}  {facts['pixels']:,} pixels")
        return lines

    def tally(self, output: np.ndarray, annotation: Annotation) -> np.ndarray:
        """Counts the pixels of one picture by their true and their predicted class, [classes, classes + 1]."""
        assert annotation.values is not None
        return self._count(self._placed(annotation.values), mask_of(output, annotation.frame))

    def tally_score(self, counts: np.ndarray) -> float:
        """Returns the mean IoU; nan if no class occurs."""
        return _mean(ious(counts))

    def mean_change(self, before: np.ndarray, after: np.ndarray) -> float:
        return float(np.abs(_probabilities(after) - _probabilities(before)).max(axis=0).mean())

    def _placed(self, mask: np.ndarray) -> np.ndarray:
        """Renumbers a mask of the data's classes to the model's."""
        if self.places is None:
            return mask
        table = np.full(256, IGNORE, dtype=np.uint8)
        table[: len(self.places)] = self.places
        return table[mask]

    def _count(self, true: np.ndarray, predicted: np.ndarray) -> np.ndarray:
        """Counts the pixels of one picture: its confusion matrix."""
        known = true < self.classes
        given = np.minimum(predicted[known].astype(np.int64), self.classes)
        pairs = true[known].astype(np.int64) * (self.classes + 1) + given
        return np.bincount(pairs, minlength=self.confusion.size).reshape(self.confusion.shape)

    def _forget(self) -> None:
        """Drops the masks of all pictures but those to be shown."""
        chosen = {*drawn_ids(self), *worst_ids(self)}
        self.masks = {name: masks for name, masks in self.masks.items() if name in chosen}


def drawn_ids(meter: MaskMeter) -> list[str]:
    """Chooses pictures by a digest of their ids: the same ones whatever the order and the number of processes."""
    return sorted((each.id for each in meter.kept), key=_digest)[:SHOWN]


def worst_ids(meter: MaskMeter) -> list[str]:
    """Returns the pictures with the lowest IoU, the worst first; of equal ones the first by name."""
    measured = [each for each in meter.kept if not math.isnan(each.miou)]
    return [each.id for each in sorted(measured, key=lambda each: (each.miou, each.id))[:SHOWN]]


def ious(confusion: np.ndarray) -> np.ndarray:
    """Computes the intersection over union of each class, float64 [classes]; nan for a class that neither masks nor
    answers have. confusion: int64 [classes, classes + 1]."""
    found = np.diag(confusion)
    union = confusion.sum(axis=1) + confusion[:, :-1].sum(axis=0) - found
    with np.errstate(invalid="ignore"):
        return found / union


def dices(confusion: np.ndarray) -> np.ndarray:
    """Computes dice, or F1, of each class, as `ious`: twice the intersection over the sum of both areas."""
    found = np.diag(confusion)
    areas = confusion.sum(axis=1) + confusion[:, :-1].sum(axis=0)
    with np.errstate(invalid="ignore"):
        return 2 * found / areas


def _loss(logits: torch.Tensor, target: torch.Tensor) -> tuple[float, int]:
    """Computes the cross-entropy of one picture, summed over the pixels of the model's input that have a class, and
    their number."""
    wanted = target.long()
    wanted = wanted.masked_fill(wanted == IGNORE, NO_CLASS)
    enlarged = interpolated(logits[None], wanted.shape)
    total = F.cross_entropy(enlarged, wanted[None], ignore_index=NO_CLASS, reduction="sum")
    return float(total), int((wanted != NO_CLASS).sum())


def _probabilities(logits: np.ndarray) -> np.ndarray:
    """Computes the probability of each class in each patch, from logits [classes, grid rows, grid columns]."""
    powers = np.exp(logits - logits.max(axis=0))
    return powers / powers.sum(axis=0)


def _smaller(mask: np.ndarray) -> np.ndarray:
    """Takes every so many pixels of a mask, so that it takes little memory."""
    step = -(-max(mask.shape) // _SIDE)
    return mask[step // 2 :: step, step // 2 :: step].copy()


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogateescape"), digest_size=8).digest()


def _mean(values: np.ndarray) -> float:
    """Computes the mean of the numbers that are not nan; nan if all are."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else math.nan


def _number(value: float) -> float | None:
    return None if math.isnan(value) else float(value)


PART = MaskMeter
