"""The loss of a head of queries: each class of a picture is matched with one query, which learns its class and its mask
(Mask2Former: Cheng and others, 2022). All other queries learn that they are no object.

What is compared are points. For matching they are drawn evenly; in the loss of a mask, most are those of many drawn
points where the mask is least certain. Pixels that are ignored count in neither.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import UserError
from vitrail.tasks import base
from vitrail.tasks.base import LossSettings
from vitrail.tasks.queries import Predictions, dense_scores
from vitrail.tasks.segmentation.raster import NO_CLASS, interpolated, raster
from vitrail.tasks.segmentation.target import IGNORE

MATCHED_MASKS = "matched_masks"
"""The name of this loss."""
_CLASS, _MASK, _DICE, _NO_OBJECT = 2.0, 5.0, 5.0, 0.1
"""The paper's weights of the class, the mask's cross-entropy and its dice, and of "no object" among the classes."""
_MOST_POINTS = 12_544
"""The paper's number of points. On a coarser grid fewer say as much: half as many as it has cells."""
_OVERSAMPLING, _UNCERTAIN = 3, 0.75
"""How many times as many points are drawn as are used, and the share that is chosen among them."""
_POWER = 0.9
"""The power of the curve by which masked attention ends."""


@dataclass(frozen=True)
class Segments:
    """The classes of one picture."""

    labels: Tensor  # int64 [segments]
    masks: Tensor  # float32 [segments, rows, columns], 1 where the class is
    known: Tensor | None  # float32 [rows, columns], 0 where pixels are ignored; None if none are

    @classmethod
    def of(cls, mask: Tensor) -> "Segments":
        """Separates the classes of a mask, uint8 [rows, columns]."""
        labels = mask.unique()
        labels = labels[labels != IGNORE]
        ignored = mask == IGNORE
        known = (~ignored).float() if bool(ignored.any()) else None
        return cls(labels.long(), (mask[None] == labels[:, None, None]).float(), known)


class QueryLoss(base.Loss):
    """The sum of the losses of what is predicted before each layer with queries, and at the end."""

    def __init__(self, settings: LossSettings, points: int | None = None) -> None:
        """Makes the loss.

        Args:
            settings: what it is made from; class weights weigh the classes of queries.
            points: the points at which masks are compared; None: as many as suit the grid.
        """
        try:
            from scipy.optimize import linear_sum_assignment
        except ImportError as error:
            raise UserError(
                'a head of queries is trained with the help of scipy: pip install "vitrail[tasks]"'
            ) from error
        self.assign, self.points, self.share = linear_sum_assignment, points, 0.0
        own = torch.ones(settings.outputs) if settings.weights is None else settings.weights.float()
        self.weights = torch.cat([own, torch.tensor([_NO_OBJECT]).to(own)])

    def to(self, device: torch.device) -> None:
        self.weights = self.weights.to(device)

    def begin(self, share: float) -> None:
        self.share = share

    def outputs(self, model: Any, images: Tensor) -> list[Predictions]:
        """Computes what queries predict before each of their layers and at the end, with masked attention as it is at
        this point of the training."""
        return model.query_predictions(images, masked_shares(self.share, model.config.query_layers))

    def __call__(self, outputs: Sequence[Predictions], targets: Tensor, soft: Tensor | None) -> Tensor:
        """Computes the loss of predictions for masks uint8 [batch, rows, columns]."""
        wanted = [Segments.of(mask) for mask in targets]
        parts = [self.parts(classes.float(), masks.float(), wanted) for classes, masks in outputs]
        return torch.stack([_CLASS * label + _MASK * mask + _DICE * dice for label, mask, dice in parts]).sum()

    def parts(self, classes: Tensor, masks: Tensor, wanted: Sequence[Segments]) -> tuple[Tensor, Tensor, Tensor]:
        """Computes the losses of one prediction: of the classes, of the cells of the masks, and dice.

        Args:
            classes: [batch, queries, classes + 1].
            masks: [batch, queries, rows, columns].
            wanted: the classes of each picture.
        """
        points = self.points or max(1, min(_MOST_POINTS, masks.shape[2] * masks.shape[3] // 2))
        found = [self.matched(classes[index], masks[index], each, points) for index, each in enumerate(wanted)]
        chosen = torch.cat([masks[index, queries] for index, (queries, _) in enumerate(found)])[:, None]
        pairs = list(zip(wanted, found, strict=True))
        true = torch.cat([each.masks[segments] for each, (_, segments) in pairs])[:, None]
        cell, dice = mask_losses(chosen, true, _known(pairs), points)
        labels = torch.full(classes.shape[:2], classes.shape[2] - 1, device=classes.device)
        for index, (each, (queries, segments)) in enumerate(pairs):
            labels[index, queries] = each.labels[segments]
        count = max(1, sum(len(each.labels) for each in wanted))
        return F.cross_entropy(classes.transpose(1, 2), labels, self.weights), cell.sum() / count, dice.sum() / count

    @torch.no_grad()
    def matched(self, classes: Tensor, masks: Tensor, wanted: Segments, points: int) -> tuple[Tensor, Tensor]:
        """Matches the segments of a picture with queries so that they cost least: (queries, segments), each int64
        [matches].

        Args:
            classes: [queries, classes + 1].
            masks: [queries, rows, columns].
            wanted: the classes of the picture.
            points: how many points are compared.
        """
        places = torch.rand(1, points, 2, device=masks.device)
        logits = _sampled(masks[None], places)[0]  # [queries, points]
        true = _sampled(wanted.masks[None], places)[0]  # [segments, points]
        weight = torch.ones_like(places[0, :, 0])
        if wanted.known is not None:
            weight = _sampled(wanted.known[None, None], places, "border")[0, 0]
        count = weight.sum().clamp(min=1e-6)
        inside, outside = F.softplus(-logits) * weight, F.softplus(logits) * weight
        cell = (inside @ true.T + outside @ (1 - true).T) / count
        shown, true = logits.sigmoid() * weight, true * weight
        dice = 1 - (2 * (logits.sigmoid() @ true.T) + 1) / (shown.sum(-1)[:, None] + true.sum(-1) + 1)
        cost = _MASK * cell - _CLASS * classes.softmax(-1)[:, wanted.labels] + _DICE * dice
        rows, columns = self.assign(cost.nan_to_num(nan=1e30, posinf=1e30, neginf=1e30).cpu().numpy())
        return torch.as_tensor(rows, device=masks.device), torch.as_tensor(columns, device=masks.device)

    def measures(self, outputs: Sequence[Predictions], targets: Tensor) -> dict[str, float]:
        """Computes the share of right pixels in each picture, by the final predictions."""
        scores = dense_scores(outputs[-1])
        true = raster(targets, scores.shape[2:])
        right = interpolated(scores, true.shape[1:]).argmax(dim=1) == true
        known = (true != NO_CLASS).flatten(1).sum(dim=1)
        return {"pixel_accuracy": float((right.flatten(1).sum(dim=1) / known.clamp(min=1)).sum())}


def masked_shares(share: float, layers: int) -> list[float]:
    """Computes the share of the queries that attend to their own masks only, in each layer with queries.

    As in EoMT's trainings it falls from 1 to 0 in one layer after the other, the first layer first; nothing is masked
    in the last part of a training.

    Args:
        share: the part of the training that is over, from 0 to 1.
        layers: how many layers there are.
    """
    passed = [min(1.0, max(0.0, share * (layers + 2) - (layer + 1))) for layer in range(layers)]
    return [(1 - each) ** _POWER for each in passed]


def mask_losses(logits: Tensor, true: Tensor, known: Tensor | None, points: int) -> tuple[Tensor, Tensor]:
    """Computes the cross-entropy and dice of each mask at points where it is uncertain: two of [masks].

    Args:
        logits: [masks, 1, rows, columns].
        true: [masks, 1, rows, columns], in pixels.
        known: the same, 0 where pixels are ignored; None if none are.
        points: how many points are compared.
    """
    with torch.no_grad():
        places = uncertain_points(logits, points)
        wanted = _sampled(true, places)[:, 0]
        weight = torch.ones_like(wanted) if known is None else _sampled(known, places, "border")[:, 0]
    found = _sampled(logits, places)[:, 0]
    cell = F.binary_cross_entropy_with_logits(found, wanted, reduction="none") * weight
    shown, wanted = found.sigmoid() * weight, wanted * weight
    dice = 1 - (2 * (found.sigmoid() * wanted).sum(-1) + 1) / (shown.sum(-1) + wanted.sum(-1) + 1)
    return cell.sum(-1) / weight.sum(-1).clamp(min=1e-6), dice


def uncertain_points(logits: Tensor, points: int) -> Tensor:
    """Draws points of each mask, [masks, points, 2] as (x, y) from 0 to 1, most of them where its logits are near 0.

    Args:
        logits: [masks, 1, rows, columns].
        points: how many points.
    """
    count, device = len(logits), logits.device
    drawn = torch.rand(count, _OVERSAMPLING * points, 2, device=device)
    near = -_sampled(logits, drawn)[:, 0].abs()
    uncertain = int(_UNCERTAIN * points)
    best = near.topk(uncertain, dim=1).indices
    chosen = drawn.gather(1, best[..., None].expand(-1, -1, 2))
    return torch.cat([chosen, torch.rand(count, points - uncertain, 2, device=device)], dim=1)


def _sampled(values: Tensor, places: Tensor, beyond: str = "zeros") -> Tensor:
    """Interpolates values [batch, channels, rows, columns] at places [batch, points, 2]: [batch, channels, points].

    beyond: what stands outside the picture, "zeros" or "border".
    """
    found = F.grid_sample(values, 2 * places[:, :, None] - 1, padding_mode=beyond, align_corners=False)
    return found[..., 0]


def _known(pairs: Sequence[tuple[Segments, tuple[Tensor, Tensor]]]) -> Tensor | None:
    """Returns for each matched segment where pixels are not ignored, [masks, 1, rows, columns]; None if all are
    known."""
    if all(each.known is None for each, _ in pairs):
        return None
    maps = [
        (torch.ones_like(each.masks[0]) if each.known is None else each.known).expand(len(segments), -1, -1)
        for each, (_, segments) in pairs
        if len(segments)
    ]
    return torch.cat(maps)[:, None] if maps else None
