"""Learning masks: the cross-entropy of every pixel, and the linear head in closed form.

The linear head is one linear map from the token of each patch to a logit for each class; between the patches logits are
interpolated.
"""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.config import ModelConfig
from vitrail.errors import UserError
from vitrail.tasks import base
from vitrail.tasks.base import Examples, FeatureSet, LossSettings, Solved
from vitrail.tasks.segmentation.query_loss import MATCHED_MASKS, QueryLoss
from vitrail.tasks.segmentation.raster import NO_CLASS, interpolated, mask_grid, raster
from vitrail.tasks.segmentation.target import IGNORE

SMOOTH = 1.0
"""Added to both sides of dice's fraction, so that a class that does not occur costs nothing."""


class MaskLoss(base.Loss):
    """Cross-entropy of the pixels of masks, and the dice loss beside it if `kind` asks for it. Pixels that are ignored
    add nothing."""

    def __init__(self, settings: LossSettings) -> None:
        assert settings.kind in MaskHead.losses
        self.dice, self.weights = settings.kind == "cross_entropy_dice", settings.weights

    def to(self, device: torch.device) -> None:
        self.weights = None if self.weights is None else self.weights.to(device)

    def __call__(self, outputs: Tensor, targets: Tensor, soft: Tensor | None) -> Tensor:
        """Computes the loss of logits [batch, classes, grid rows, grid columns] for masks [batch, rows, columns]."""
        wanted = raster(targets, outputs.shape[2:])
        logits = interpolated(outputs, wanted.shape[1:])
        loss = pixel_loss(logits, wanted, self.weights)
        return loss + dice_loss(logits, wanted) if self.dice else loss

    def measures(self, outputs: Tensor, targets: Tensor) -> dict[str, float]:
        """Computes the share of right pixels in each picture."""
        wanted = raster(targets, outputs.shape[2:])
        right = interpolated(outputs, wanted.shape[1:]).argmax(dim=1) == wanted
        known = (wanted != NO_CLASS).flatten(1).sum(dim=1)
        return {"pixel_accuracy": float((right.flatten(1).sum(dim=1) / known.clamp(min=1)).sum())}


def pixel_loss(logits: Tensor, wanted: Tensor, weights: Tensor | None = None) -> Tensor:
    """Computes the mean cross-entropy of pixels that have a class; 0 if none has.

    Args:
        logits: [batch, classes, rows, columns].
        wanted: int64 [batch, rows, columns], `NO_CLASS` where pixels are ignored.
        weights: [classes], how much a pixel of each class counts; None: all alike.
    """
    total = F.cross_entropy(logits, wanted, weights, ignore_index=NO_CLASS, reduction="sum")
    known = wanted != NO_CLASS
    count = known.sum() if weights is None else weights[wanted[known]].sum()
    return total / count.clamp(min=1e-6)


def dice_loss(logits: Tensor, wanted: Tensor) -> Tensor:
    """Computes 1 - dice, the mean over the classes that occur in the batch: it counts the area of a class, however
    small, rather than its pixels. Arguments as for `pixel_loss`."""
    known = (wanted != NO_CLASS)[:, None]
    shares = logits.softmax(dim=1) * known
    true = F.one_hot(wanted.clamp(min=0), logits.shape[1]).movedim(-1, 1) * known
    both, sizes = (shares * true).sum(dim=(0, 2, 3)), (shares + true).sum(dim=(0, 2, 3))
    lost = 1 - (2 * both + SMOOTH) / (sizes + SMOOTH)
    occurs = true.sum(dim=(0, 2, 3)) > 0
    return (lost * occurs).sum() / occurs.sum().clamp(min=1)


class MaskHead(base.Head):
    """Learns the class of each pixel."""

    losses = ("cross_entropy", "cross_entropy_dice")

    def losses_for(self, model: ModelConfig) -> tuple[str, ...]:
        return (MATCHED_MASKS,) if model.head == "queries" else self.losses

    def adapted(self, model: ModelConfig) -> ModelConfig:
        """Returns the architecture with a head that reads every patch."""
        if model.family != "vit":
            raise UserError("segmentation needs the patches of a Vision Transformer; a ResNet has none")
        return model.with_(pooling="patches", representation_size=0, patch_dropout=0.0)

    def loss(self, settings: LossSettings) -> base.Loss:
        return QueryLoss(settings) if settings.kind == MATCHED_MASKS else MaskLoss(settings)

    def soft_targets(self, targets: Tensor, outputs: int, smoothing: float) -> Tensor:
        raise UserError(
            "mixup, cutmix and label smoothing are for whole pictures, and this data has masks: set "
            "--transform.mixup, --transform.cutmix and --transform.label-smoothing to 0"
        )

    def weights(self, targets: Iterable[np.ndarray | None], outputs: int) -> np.ndarray:
        """Computes n / (K n_c) for n pixels in K classes with n_c pixels of class c; 1 for a class without pixels."""
        counts = np.zeros(256, dtype=np.int64)
        for mask in targets:
            if mask is not None:
                counts += np.bincount(mask.ravel(), minlength=256)
        counts = counts[:outputs]
        present = counts > 0
        return np.where(present, counts.sum() / (present.sum() * np.maximum(counts, 1)), 1.0)

    def weights_line(self, weights: np.ndarray, names: Sequence[str]) -> str:
        low, high = int(weights.argmin()), int(weights.argmax())
        return (
            f"class weights: a pixel counts from {weights[low]:.3g} ({names[low]}) to {weights[high]:.3g} "
            f"({names[high]}) times"
        )

    def unsolvable(self, kind: str) -> str | None:
        if kind == MATCHED_MASKS:
            return "a head of queries has no closed form, so there is no probe"
        return None if kind in self.losses else super().unsolvable(kind)

    def solve(self, train: FeatureSet, held_out: FeatureSet | None, settings: LossSettings) -> Solved:
        from vitrail.tasks.segmentation.closed_form import solve_masks

        return solve_masks(train, settings.outputs, settings.weights)

    def examples(self, found: FeatureSet) -> Examples:
        """Returns patches and the commonest class of each."""
        from vitrail.tasks.segmentation.closed_form import majority

        outputs = int(found.targets[found.targets != IGNORE].max()) + 1
        grid = mask_grid(found.features.shape[1], found.targets.shape[1:])
        labels = majority(found.targets, grid, outputs)
        pictures = torch.arange(len(labels))[:, None].expand_as(labels)
        step = max(1, int((labels != IGNORE).sum()) // _JUDGED)
        chosen = (labels.flatten() != IGNORE).nonzero()[::step, 0]
        return Examples(found.features.flatten(0, 1)[chosen], labels.flatten()[chosen], pictures.flatten()[chosen])


_JUDGED = 4000
"""How many patches, about, judge a preprocessing."""

PART = MaskHead()
