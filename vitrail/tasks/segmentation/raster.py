"""Outputs on the grid of patches beside masks in pixels: the points at which both are compared."""

from collections.abc import Sequence

import torch.nn.functional as F
from torch import Tensor

from vitrail.tasks.segmentation.target import IGNORE

NO_CLASS = -100
"""The class, in losses, of pixels that are ignored; PyTorch's own value for it."""
_POINTS = 4
"""The points along one side of a patch at which a loss compares: all pixels would take longer, and their neighbours say
much the same."""


def mask_grid(patches: int, size: Sequence[int]) -> tuple[int, int]:
    """Returns rows and columns of `patches` square patches that cover a picture of the given (rows, columns)."""
    side = round((size[0] * size[1] / patches) ** 0.5)
    grid = size[0] // side, size[1] // side
    assert grid[0] * grid[1] == patches
    return grid


def raster(masks: Tensor, grid: Sequence[int]) -> Tensor:
    """Takes every so many pixels of masks, int64 [pictures, points, points], `NO_CLASS` where they are ignored.

    masks: uint8 [pictures, rows, columns]; grid: the rows and columns of patches.
    """
    step = max(1, masks.shape[1] // grid[0] // _POINTS)
    points = masks[:, step // 2 :: step, step // 2 :: step].long()
    return points.masked_fill(points == IGNORE, NO_CLASS)


def interpolated(logits: Tensor, size: Sequence[int]) -> Tensor:
    """Interpolates logits [pictures, classes, rows, columns] to another size, as answers do to the picture's pixels."""
    return F.interpolate(logits, size=tuple(size), mode="bilinear", align_corners=False)
