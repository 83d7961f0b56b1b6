"""Patches of pixels, for the two objectives that hide some of them: cutting, joining and showing."""

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.config import Preprocessing
from vitrail.models.positions import Grid

HIDDEN_GREY = 0.5
"""The value, from 0 to 1, that hidden patches have in a picture."""


class Pixels(nn.Module):
    """Undoes the normalisation of a model's input."""

    mean: Tensor
    std: Tensor

    def __init__(self, preprocessing: Preprocessing):
        super().__init__()
        # Not kept in snapshots: the configuration has them.
        self.register_buffer("mean", torch.tensor(preprocessing.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("std", torch.tensor(preprocessing.std).view(-1, 1, 1), persistent=False)

    def forward(self, images: Tensor) -> Tensor:
        """Maps normalised images (batch, channels, rows, columns) to pixels from 0 to 1, of the same shape."""
        return images.float() * self.std + self.mean


def unpatchify(patches: Tensor, grid: Grid, patch_size: int) -> Tensor:
    """Joins patches (batch, patches, channels * P * P) into images (batch, channels, rows, columns): the reverse of
    `patchify`."""
    batch, _, values = patches.shape
    cut = patches.reshape(batch, *grid, values // patch_size**2, patch_size, patch_size)
    return cut.permute(0, 3, 1, 4, 2, 5).reshape(batch, -1, grid[0] * patch_size, grid[1] * patch_size)


def pixels_as_pictures(values: Tensor) -> list[np.ndarray]:
    """Turns images (batch, channels, rows, columns) from 0 to 1 into uint8 [rows, columns, channels] each. With other
    than 1 or 3 channels only the first is shown."""
    if values.shape[1] not in (1, 3):
        values = values[:, :1]
    bytes_ = (values.clamp(0, 1) * 255).round().to(torch.uint8).permute(0, 2, 3, 1)
    return list(bytes_.cpu().numpy())


def mask_at(chosen: Tensor, count: int) -> Tensor:
    """Turns indices (batch, chosen) into a mask (batch, count) that is true at them."""
    return torch.zeros(len(chosen), count, dtype=torch.bool, device=chosen.device).scatter(1, chosen, True)
