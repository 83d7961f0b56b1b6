"""A linear segmentation head computed from the features of patches, before any step of training.

First the share of each class in each patch is learned (a convex problem that is quickly solved); then the map goes on
from there to the pixels themselves: its outputs on the grid are interpolated, as they are when it is used.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.random_stream import permutation
from vitrail.tasks.base import FeatureSet, Solved
from vitrail.tasks.segmentation.raster import NO_CLASS, interpolated, mask_grid, raster
from vitrail.tasks.segmentation.target import IGNORE

_STRENGTHS = (1e-2, 2e-3, 4e-4)
"""The strengths of regularisation to try, the strongest first."""
_HELD_OUT = 0.2
"""The share of the pictures that chooses between them."""
_PATCHES = 400_000
"""The largest number of patches that are learned from; of more pictures, some are drawn."""
_STEPS, _ROUGH = 60, 25
"""Iterations of L-BFGS on patches, and on pixels or if only strengths are compared."""
_EPSILON = 1e-5


def solve_masks(train: FeatureSet, outputs: int, class_weights: Tensor | None = None) -> Solved:
    """Computes a linear map from the features of a patch to the classes, by logistic regression.

    Args:
        train: features [pictures, patches, width], and masks uint8 [pictures, rows, columns] of the model's input.
        outputs: the number of classes.
        class_weights: [outputs], how much a pixel of each class counts; None: all alike.
    """
    features, masks = _some(train.features, train.targets)
    mean = features.mean(dim=(0, 1))
    std = features.std(dim=(0, 1), correction=0) + _EPSILON
    problem = _Problem((features - mean) / std, masks, outputs, class_weights)
    l2 = _STRENGTHS[1] if len(features) < 5 else problem.best_strength()
    weight, bias = problem.by_patches(l2, _STEPS)
    weight, bias = problem.by_pixels(l2, (weight, bias))
    weight = weight / std
    return Solved(weight.contiguous(), bias - weight @ mean, f"logistic regression on patches, l2 {l2:g}")


def _some(features: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
    """Returns all pictures, or some drawn at random if their patches are too many."""
    most = max(5, _PATCHES // features.shape[1])
    if len(features) <= most:
        return features, masks
    chosen = torch.from_numpy(permutation(len(features), "patches", 0)[:most].copy()).sort().values
    return features[chosen], masks[chosen]


class _Problem:
    """Pictures whose patches are standardised, and the masks to learn."""

    def __init__(self, features: Tensor, masks: Tensor, outputs: int, class_weights: Tensor | None):
        self.features, self.masks, self.outputs = features, masks, outputs
        self.class_weights = None if class_weights is None else class_weights.float()
        self.grid = mask_grid(features.shape[1], masks.shape[1:])
        self.shares = class_shares(masks, self.grid, outputs)
        if self.class_weights is not None:
            self.shares = self.shares * self.class_weights

    def best_strength(self) -> float:
        """Returns the strength that gives the lowest loss on held-out pictures."""
        out = torch.zeros(len(self.features), dtype=torch.bool)
        count = max(1, round(_HELD_OUT * len(out)))
        out[torch.from_numpy(permutation(len(out), "held out", 0)[:count].copy())] = True
        losses = {}
        for l2 in _STRENGTHS:
            found = self.by_patches(l2, _ROUGH, ~out)
            losses[l2] = float(self._patch_loss(self.features[out], self.shares[out])(*found))
        return min(losses, key=lambda each: losses[each])

    def by_patches(self, l2: float, steps: int, chosen: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Fits the share of each class in each patch. chosen: bool [pictures]; None: all."""
        features, shares = (
            (self.features, self.shares) if chosen is None else (self.features[chosen], self.shares[chosen])
        )
        zero = features.new_zeros(self.outputs, features.shape[2]), features.new_zeros(self.outputs)
        return minimise(self._patch_loss(features, shares), zero, l2, steps)

    def by_pixels(self, l2: float, begin: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        """Goes on from a map to one that is right in as many pixels as possible, between patches too."""
        wanted = raster(self.masks, self.grid)
        weights = self.class_weights

        def loss(weight: Tensor, bias: Tensor) -> Tensor:
            logits = F.linear(self.features, weight, bias).transpose(1, 2).unflatten(2, self.grid)
            enlarged = interpolated(logits, wanted.shape[1:])
            return F.cross_entropy(enlarged, wanted, weights, ignore_index=NO_CLASS)

        return minimise(loss, begin, l2, _ROUGH)

    @staticmethod
    def _patch_loss(features: Tensor, shares: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        count = shares.sum().clamp(min=_EPSILON)
        return lambda weight, bias: -(F.linear(features, weight, bias).log_softmax(2) * shares).sum() / count


@torch.enable_grad()
def minimise(
    loss: Callable[[Tensor, Tensor], Tensor], begin: tuple[Tensor, Tensor], l2: float, steps: int
) -> tuple[Tensor, Tensor]:
    """Minimises loss(weight, bias) + l2 |weight|^2 by L-BFGS from a given weight and bias."""
    weight, bias = (each.clone().requires_grad_() for each in begin)
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=steps, line_search_fn="strong_wolfe", tolerance_grad=1e-6)

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(weight, bias) + l2 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(closure)  # pyright: ignore[reportArgumentType]
    return weight.detach(), bias.detach()


def class_shares(masks: Tensor, grid: tuple[int, int], outputs: int) -> Tensor:
    """Computes the share of each class in each patch: float32 [pictures, patches, outputs]. What is ignored has no
    share, so the shares of a patch add up to 1 or less.

    masks: uint8 [pictures, rows, columns].
    """
    (rows, columns), pictures = grid, len(masks)
    cells = masks.reshape(pictures, rows, masks.shape[1] // rows, columns, masks.shape[2] // columns)
    shares = [(cells == index).float().mean(dim=(2, 4)).flatten(1) for index in range(outputs)]
    return torch.stack(shares, dim=2)


def majority(masks: Tensor, grid: tuple[int, int], outputs: int) -> Tensor:
    """Returns the commonest class of each patch, int64 [pictures, patches]; `IGNORE` where less than half of the patch
    has a class."""
    shares = class_shares(masks, grid, outputs)
    return torch.where(shares.sum(dim=2) >= 0.5, shares.argmax(dim=2), IGNORE)
