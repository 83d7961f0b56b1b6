"""The filters (Figure 7, left): what the patch projection responds to, as its principal components."""

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from vitrail.insight.principal import principal_components
from vitrail.models.resnet import StandardizedConv2d
from vitrail.models.vit import ViT

COMPONENTS = 28
"""As many as the paper shows."""


class Filters(NamedTuple):
    tiles: np.ndarray
    """[components, rows, columns, channels]: unit vectors in the space of a patch's pixels."""
    explained: np.ndarray
    """[components]: the share of the filters' variance each explains."""


@torch.no_grad()
def filters(model: ViT, components: int = COMPONENTS) -> Filters:
    """Principal components of the projection's filters; of a hybrid, those of its stem's first convolution."""
    first = _first(model)
    # What is applied, not what is stored.
    weight = first.standardized() if isinstance(first, StandardizedConv2d) else first.weight
    weight = weight.float().cpu().numpy()  # (width, channels, rows, columns)
    directions, explained = principal_components(weight.reshape(len(weight), -1), components)
    return Filters(directions.reshape(-1, *weight.shape[1:]).transpose(0, 2, 3, 1), explained)


def described(model: ViT) -> str:
    """What the filters are filters of."""
    rows, columns = _first(model).kernel_size
    of = "the patch projection" if model.patch_embed.backbone is None else "the stem's first convolution"
    return f"{of} ({rows} x {columns} pixels)"


def _first(model: ViT) -> nn.Conv2d:
    """The convolution that sees the pixels, whatever kind of stem there is."""
    embedding = model.patch_embed
    seen = embedding if embedding.backbone is None else embedding.backbone
    return next(module for module in seen.modules() if isinstance(module, nn.Conv2d))


def as_pictures(tiles: np.ndarray) -> np.ndarray:
    """uint8 [components, rows, columns, 3]: grey is no response, each tile stretched to its own largest value."""
    channels = tiles.shape[-1]
    shown = tiles[..., :3] if channels >= 3 else np.repeat(tiles[..., :1], 3, axis=-1)
    largest = np.abs(shown).max(axis=(1, 2, 3), keepdims=True)
    return np.rint(127.5 + 127.5 * shown / np.maximum(largest, 1e-12)).astype(np.uint8)
