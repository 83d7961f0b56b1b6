"""Patches of pixels, as the two objectives that hide some of them predict and show them."""

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.config import Preprocessing
from vitrail.models.positions import Grid

GREY = 0.5
"""The value, of 0 to 1, of what is hidden in a picture."""


class Pixels(nn.Module):
    """Undoes the normalisation that a model's images went through."""

    mean: Tensor
    std: Tensor

    def __init__(self, preprocessing: Preprocessing):
        super().__init__()
        # Known from the configuration, so no part of a snapshot.
        self.register_buffer("mean", torch.tensor(preprocessing.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(preprocessing.std).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """(batch, channels, rows, columns), normalised -> the same from 0 to 1."""
        return images.float() * self.std + self.mean


def unpatchify(patches: Tensor, grid: Grid, patch_size: int) -> Tensor:
    """(batch, patches, channels * P * P) -> (batch, channels, rows, columns): what `patchify` cut, joined again."""
    batch, _, values = patches.shape
    cut = patches.reshape(batch, *grid, values // patch_size**2, patch_size, patch_size)
    return cut.permute(0, 3, 1, 4, 2, 5).reshape(batch, -1, grid[0] * patch_size, grid[1] * patch_size)


def as_pictures(values: Tensor) -> list[np.ndarray]:
    """(batch, channels, rows, columns) from 0 to 1 -> uint8 [rows, columns, channels] each; 1 or 3 channels."""
    if values.shape[1] not in (1, 3):
        values = values[:, :1]
    bytes_ = (values.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
    return list(bytes_.cpu().numpy())


def spread(chosen: Tensor, count: int) -> Tensor:
    """Places (batch, chosen) -> a mask (batch, count), true at those places."""
    return torch.zeros(len(chosen), count, dtype=torch.bool, device=chosen.device).scatter(1, chosen, True)
