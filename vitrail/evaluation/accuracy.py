"""Top-1, top-5, loss, per class and confusion, every sample counted exactly once."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from vitrail.data.loader import Batch


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
        if self.mapping is not None:
            labels = torch.from_numpy(self.mapping)[labels]
        logits = logits.float().cpu()
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
            "per_class": per_class,
        }


@torch.inference_mode()
def measure(model: nn.Module, batches: Iterable[Batch], accuracy: Accuracy, device: torch.device) -> Accuracy:
    """Run a model over batches; it is left in the mode it was in."""
    before = model.training
    model.eval()
    for batch in batches:
        accuracy.add(batch.ids, batch.labels, model(batch.images.to(device)))
        accuracy.skipped += len(batch.bad)
    model.train(before)
    return accuracy
