"""Top-1, top-5, loss, per class, confusion and calibration, every sample counted exactly once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from vitrail.data.loader import Batch
from vitrail.errors import UserError

BINS = 15
"""Of equal width from 0 to 1, as most who report a calibration error have it."""


@dataclass(frozen=True)
class Calibration:
    """How often predictions were right, by how sure the model was of them.

    A prediction's score is its probability. Bin b of 15 holds the scores above b/15, up to and including (b + 1)/15.
    """

    counts: np.ndarray  # [bins] int64
    scores: np.ndarray  # [bins] the mean score, 0 where a bin is empty
    accuracy: np.ndarray  # [bins] the share that was right, 0 where a bin is empty

    @property
    def error(self) -> float:
        """The expected calibration error: |accuracy - score| of each bin, averaged over the samples."""
        gaps = np.abs(self.accuracy - self.scores)
        return float((self.counts * gaps).sum() / max(int(self.counts.sum()), 1))


def calibration(scores: np.ndarray, right: np.ndarray, bins: int = BINS) -> Calibration:
    """scores: [n] in 0 to 1; right: [n] of truth values."""
    place = np.clip(np.ceil(scores.astype(np.float64) * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    some = np.maximum(counts, 1)
    return Calibration(
        counts,
        np.bincount(place, weights=scores, minlength=bins) / some,
        np.bincount(place, weights=right, minlength=bins) / some,
    )


@dataclass
class Accuracy:
    """Sums over samples; add batches, then read the result."""

    classes: tuple[str, ...]
    """The model's, in order."""
    mapping: np.ndarray | None = None
    """The source's label -> the model's, where the source has its classes in another order or only some of them."""
    n: int = 0
    loss: float = 0.0
    top1: int = 0
    top5: int = 0
    skipped: int = 0
    confusion: np.ndarray = field(init=False)
    """[label, prediction] counts."""
    kept: list[tuple[str, int, int, float]] = field(default_factory=list)
    """(id, label, prediction, its probability) of every sample, in order."""

    def __post_init__(self) -> None:
        self.confusion = np.zeros((len(self.classes), len(self.classes)), dtype=np.int64)

    def add(self, ids: list[str], labels: torch.Tensor, logits: torch.Tensor) -> None:
        labels, logits = labels.cpu(), logits.float().cpu()
        if bool((labels < 0).any()):
            raise UserError(f"{ids[int((labels < 0).nonzero()[0])]}: has no label, so no answer can be right or wrong")
        if not bool((finite := logits.isfinite().all(dim=1)).all()):
            raise UserError(
                f"{ids[int((~finite).nonzero()[0])]}: the model's outputs are not numbers (nan or infinite), so there "
                "is nothing to score; its weights are broken, or too large for their precision"
            )
        if self.mapping is not None:
            labels = torch.from_numpy(self.mapping)[labels]
        self.loss += F.cross_entropy(logits, labels, reduction="sum").double().item()
        best = logits.topk(min(5, logits.shape[1]), dim=1).indices
        hits = best == labels[:, None]
        self.n += len(labels)
        self.top1 += int(hits[:, 0].sum())
        self.top5 += int(hits.any(dim=1).sum())
        predicted = best[:, 0]
        np.add.at(self.confusion, (labels.numpy(), predicted.numpy()), 1)
        scores = logits.softmax(dim=1).gather(1, best[:, :1])[:, 0]
        self.kept += list(zip(ids, labels.tolist(), predicted.tolist(), scores.tolist(), strict=True))

    def calibration(self) -> Calibration:
        scores = np.array([score for *_, score in self.kept], dtype=np.float64)
        right = np.array([label == predicted for _, label, predicted, _ in self.kept], dtype=bool)
        return calibration(scores, right)

    def result(self) -> dict[str, Any]:
        """Fractions of 1, over n samples; skipped ones could not be read."""
        counts = self.confusion.sum(axis=1)
        per_class = {
            name: {"n": int(counts[index]), "top1": float(self.confusion[index, index] / counts[index])}
            for index, name in enumerate(self.classes)
            if counts[index]
        }
        n = max(self.n, 1)
        return {
            "n": self.n,
            "skipped": self.skipped,
            "top1": self.top1 / n,
            "top5": self.top5 / n,
            "loss": self.loss / n,
            "ece": self.calibration().error,
            "per_class": per_class,
        }


def merged(parts: Sequence[Accuracy], ids: Sequence[str]) -> Accuracy:
    """What several processes measured of one split, as if one had; `ids` are the split's, in order."""
    whole = Accuracy(parts[0].classes, parts[0].mapping)
    for part in parts:
        for name in ("n", "loss", "top1", "top5", "skipped", "confusion"):
            setattr(whole, name, getattr(whole, name) + getattr(part, name))
    place = {name: index for index, name in enumerate(ids)}
    whole.kept = sorted((each for part in parts for each in part.kept), key=lambda each: place[each[0]])
    return whole


@torch.inference_mode()
def measure(model: nn.Module, batches: Iterable[Batch], accuracy: Accuracy, device: torch.device) -> Accuracy:
    """Run a model over batches; it is left in the mode it was in."""
    before = model.training
    model.eval()
    try:
        for batch in batches:
            accuracy.skipped += len(batch.bad)
            if len(batch):
                accuracy.add(batch.ids, batch.labels, model(batch.images.to(device)))
    finally:
        model.train(before)
    return accuracy
