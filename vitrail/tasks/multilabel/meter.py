"""Measures multi-label models: mean average precision, F1, precision and recall. Counts every sample exactly once."""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from vitrail.errors import UserError
from vitrail.tasks import base
from vitrail.tasks.base import Meaning
from vitrail.tasks.multilabel.answer import thresholds_of
from vitrail.tasks.multilabel.scores import Counts, average_precision, best_thresholds, sigmoid

_HARDEST = 5
"""How many labels the lines of a result list, those with the lowest average precision."""


class LabelMeter(base.Meter):
    """Keeps scores and truths of every sample; a row of `kept` is (id, int8 [labels], float32 logits [labels]).

    Only labels that the source names are measured: whether a picture has one of the model's other labels is not known.
    """

    headline = ("map", "f1", "macro_f1")
    chosen_by = ("map",)

    def __init__(self, meaning: Meaning, places: np.ndarray | None = None) -> None:
        super().__init__(meaning, places)
        self.loss = 0.0

    @cached_property
    def measured(self) -> np.ndarray:
        """The indices of the model's outputs that are measured, int64, in the order of the source's names."""
        return np.arange(len(self.meaning.names)) if self.places is None else self.places

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the labels that are measured, in the order of the columns of `truths` and `logits`."""
        return tuple(self.meaning.names[place] for place in self.measured)

    @property
    def truths(self) -> np.ndarray:
        """The true labels, int8 [samples, labels]."""
        return np.stack([truths for _, truths, _ in self.kept]) if self.kept else self._nothing.astype(np.int8)

    @property
    def logits(self) -> np.ndarray:
        """The model's outputs, float32 [samples, labels]."""
        return np.stack([logits for *_, logits in self.kept]) if self.kept else self._nothing

    @property
    def thresholds(self) -> np.ndarray:
        """The model's thresholds of the labels that are measured, float64 [labels]."""
        return thresholds_of(self.meaning, len(self.meaning.names))[self.measured]

    @property
    def _nothing(self) -> np.ndarray:
        """The logits of no samples."""
        return np.empty((0, len(self.measured)), dtype=np.float32)

    def add(
        self,
        ids: list[str],
        targets: torch.Tensor,
        outputs: torch.Tensor,
        annotations: Sequence[base.Annotation] = (),
    ) -> None:
        truths, logits = targets.cpu(), outputs.float().cpu()
        if bool((truths < 0).any()):
            place = int((truths < 0).any(dim=1).nonzero()[0])
            raise UserError(f"{ids[place]}: its labels are not known, so no answer can be right or wrong")
        base.refuse_not_finite(ids, logits)
        logits = logits[:, torch.from_numpy(self.measured)]
        self.loss += F.binary_cross_entropy_with_logits(logits, truths.float(), reduction="sum").double().item()
        self.n += len(truths)
        self.kept += list(zip(ids, truths.to(torch.int8).numpy(), logits.numpy(), strict=True))

    def merge(self, parts: "Sequence[LabelMeter]", ids: Sequence[str]) -> None:
        for part in parts:
            self.n, self.loss, self.skipped = self.n + part.n, self.loss + part.loss, self.skipped + part.skipped
        self.kept = base.in_order([each for part in parts for each in part.kept], ids)

    def constants(self) -> dict[str, Any]:
        """Finds the best threshold of every label that was measured; the others keep theirs."""
        if not self.n:
            return {}
        found = thresholds_of(self.meaning, len(self.meaning.names))
        found[self.measured] = best_thresholds(sigmoid(self.logits), self.truths)
        return {"thresholds": found.tolist()}

    def result(self) -> dict[str, Any]:
        """Returns fractions of 1. map and macro_f1 are means over the labels that some sample has; f1 counts the
        answers of all labels together."""
        truths, logits, thresholds = self.truths, self.logits, self.thresholds
        counts = Counts.of(sigmoid(logits), truths, thresholds)
        precisions = [average_precision(*pair) for pair in zip(logits.T, truths.T, strict=True)]
        some = [each for each in precisions if each is not None]
        return {
            "n": self.n,
            "skipped": self.skipped,
            "map": float(np.mean(some)) if some else 0.0,
            "f1": counts.micro_f1,
            "macro_f1": counts.macro_f1,
            "loss": self.loss / max(self.n, 1),
            "per_class": {
                name: {
                    "n": int(counts.true[index]),
                    "precision": float(counts.precision[index]),
                    "recall": float(counts.recall[index]),
                    "f1": float(counts.f1[index]),
                    "ap": precisions[index],
                    "threshold": float(thresholds[index]),
                }
                for index, name in enumerate(self.labels)
            },
        }

    @classmethod
    def score(cls, result: Mapping[str, Any], balanced: bool = False) -> float:
        """Returns the mean average precision. Every label counts alike in it already, so `balanced` changes nothing."""
        return result["map"]

    @classmethod
    def words(cls, result: Mapping[str, Any]) -> str:
        return f"mAP {result['map']:.2%}"

    @classmethod
    def about(cls, result: Mapping[str, Any], split: str) -> str:
        return f"mAP {result['map']:.2%} on {result['n']:,} {split} images"

    @classmethod
    def summary(cls, result: Mapping[str, Any]) -> str:
        return f"mAP {result['map']:.2%}"

    @classmethod
    def lines(cls, result: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
        f1 = f"F1 {result['f1']:.2%} (micro), {result['macro_f1']:.2%} (macro)"
        lines = [f"mAP {result['map']:.2%}   {f1}   loss {result['loss']:.4f}"]
        present = {name: facts for name, facts in result["per_class"].items() if facts["n"]}
        if missing := len(result["per_class"]) - len(present):
            lines.append(f"{missing:,} labels that no image has are left out of the means")
        # Of labels with equal precision, the one with more samples comes first: it says more.
        worst = sorted(present.items(), key=lambda item: (item[1]["ap"], -item[1]["n"]))[:_HARDEST]
        width = max((len(names[label]) for label, _ in worst), default=0)
        lines.append("hardest labels:")
        for label, facts in worst:
            shares = f"precision {facts['precision']:>6.1%}, recall {facts['recall']:>6.1%} of {facts['n']:,}"
            lines.append(f"  {names[label]:<{width}}  average precision {facts['ap']:>6.1%}, {shares}")
        return lines


PART = LabelMeter
