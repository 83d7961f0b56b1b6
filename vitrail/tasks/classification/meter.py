"""Measures classifiers: top-1, top-5, loss, accuracy by class, confusion and calibration. Counts every sample exactly
once."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from vitrail.errors import UserError
from vitrail.tasks import base
from vitrail.tasks.base import Meaning
from vitrail.tasks.classification import top1
from vitrail.tasks.classification.calibration import Calibration, calibration

_HARDEST = 5
"""How many classes the lines of a result list, those with the lowest accuracy."""


class Accuracy(base.Meter):
    """Counts right and wrong answers; a row of `kept` is (id, label, predicted class, its probability)."""

    headline = ("top1", "top5", "balanced_accuracy")
    chosen_by = ("top1", "balanced_accuracy")

    def __init__(self, meaning: Meaning, places: np.ndarray | None = None) -> None:
        super().__init__(meaning, places)
        self.loss, self.top1, self.top5 = 0.0, 0, 0
        self.confusion = np.zeros((len(meaning.names), len(meaning.names)), dtype=np.int64)
        """int64 [label, predicted class] counts."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The names of the model's classes, in order."""
        return self.meaning.names

    def add(
        self,
        ids: list[str],
        targets: torch.Tensor,
        outputs: torch.Tensor,
        annotations: Sequence[base.Annotation] = (),
    ) -> None:
        labels, logits = targets.cpu(), outputs.detach().float().cpu()
        if bool((labels < 0).any()):
            raise UserError(f"{ids[int((labels < 0).nonzero()[0])]}: has no label, so no answer can be right or wrong")
        base.refuse_not_finite(ids, logits)
        if self.places is not None:
            labels = torch.from_numpy(self.places)[labels]
        self.loss += F.cross_entropy(logits, labels, reduction="sum").double().item()
        predicted, rank = torch.from_numpy(top1.best(logits.numpy())), top1.rank_of_true(logits, labels)
        self.n += len(labels)
        self.top1 += int((rank == 0).sum())
        self.top5 += int((rank < 5).sum())
        np.add.at(self.confusion, (labels.numpy(), predicted.numpy()), 1)
        scores = logits.softmax(dim=1).gather(1, predicted[:, None])[:, 0]
        self.kept += list(zip(ids, labels.tolist(), predicted.tolist(), scores.tolist(), strict=True))

    def merge(self, parts: "Sequence[Accuracy]", ids: Sequence[str]) -> None:
        for part in parts:
            for name in ("n", "loss", "top1", "top5", "skipped", "confusion"):
                setattr(self, name, getattr(self, name) + getattr(part, name))
        self.kept = base.in_order([each for part in parts for each in part.kept], ids)

    def calibration(self) -> Calibration:
        """Compares the scores of the answers with how often they were right."""
        scores = np.array([score for *_, score in self.kept], dtype=np.float64)
        right = np.array([label == predicted for _, label, predicted, _ in self.kept], dtype=bool)
        return calibration(scores, right)

    def result(self) -> dict[str, Any]:
        """Returns fractions of 1 over n samples. The balanced accuracy is the mean accuracy of the classes that have
        samples; ece is the expected calibration error."""
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
            "balanced_accuracy": sum(each["top1"] for each in per_class.values()) / max(1, len(per_class)),
            "ece": self.calibration().error,
            "per_class": per_class,
        }

    @classmethod
    def score(cls, result: Mapping[str, Any], balanced: bool = False) -> float:
        return result["balanced_accuracy" if balanced else "top1"]

    @classmethod
    def words(cls, result: Mapping[str, Any]) -> str:
        return f"{result['top1']:.2%}"

    @classmethod
    def about(cls, result: Mapping[str, Any], split: str) -> str:
        return f"{result['top1']:.2%} of {result['n']:,} {split} images right"

    @classmethod
    def summary(cls, result: Mapping[str, Any]) -> str:
        return f"accuracy {result['top1']:.2%}"

    @classmethod
    def lines(cls, result: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
        lines = [
            f"top-1 {result['top1']:.2%}   top-5 {result['top5']:.2%}   loss {result['loss']:.4f}",
            f"balanced accuracy {result['balanced_accuracy']:.2%}   calibration error {result['ece']:.2%}",
        ]
        if real := result.get("real"):
            share = f"{real['top1']:.2%} of {real['n']:,}" if real["n"] else "none has a label"
            lines.append(f"ImageNet-ReaL: {share}, {real['without_label']:,} left out without a label")
        # Of classes with equal accuracy, the one with more samples comes first: it says more.
        worst = sorted(result["per_class"].items(), key=lambda item: (item[1]["top1"], -item[1]["n"]))[:_HARDEST]
        width = max(len(names[label]) for label, _ in worst)
        lines.append("hardest classes:")
        return lines + [f"  {names[label]:<{width}}  {facts['top1']:>7.1%} of {facts['n']:,}" for label, facts in worst]


PART = Accuracy
