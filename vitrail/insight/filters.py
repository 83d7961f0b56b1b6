"""Computes the filters (Figure 7, left): the principal components of what the patch projection responds to."""

from typing import NamedTuple

import numpy as np
import torch
from torch import nn

from vitrail.insight.statistics import principal_components
from vitrail.models.resnet import StandardizedConv2d
from vitrail.models.vit import ViT

COMPONENTS = 28
"""The number of components, as in the paper."""


class Filters(NamedTuple):
    """The principal components of a model's filters."""

    tiles: np.ndarray
    """Unit vectors in the space of a patch's pixels, [components, rows, columns, channels]."""
    explained: np.ndarray
    """The share of the filters' variance that each explains, [components]."""


@torch.no_grad()
def filters(model: ViT, components: int = COMPONENTS) -> Filters:
    """Computes the principal components of the projection's filters; for a hybrid, of its stem's first convolution."""
    first = _first(model)
    # The weights as they are applied, which are not always those that are stored.
    weight = first.standardized() if isinstance(first, StandardizedConv2d) else first.weight
    weight = weight.float().cpu().numpy()  # (width, channels, rows, columns)
    directions, explained = principal_components(weight.reshape(len(weight), -1), components)
    return Filters(directions.reshape(-1, *weight.shape[1:]).transpose(0, 2, 3, 1), explained)


def described(model: ViT) -> str:
    """Says which layer the filters are from, and their size."""
    rows, columns = _first(model).kernel_size
    of = "the patch projection" if model.patch_embed.backbone is None else "the stem's first convolution"
    return f"{of} ({rows} x {columns} pixels)"


def _first(model: ViT) -> nn.Conv2d:
    """Returns the convolution that is applied to the pixels, for any kind of stem."""
    embedding = model.patch_embed
    seen = embedding if embedding.backbone is None else embedding.backbone
    return next(module for module in seen.modules() if isinstance(module, nn.Conv2d))


def filter_pictures(tiles: np.ndarray) -> np.ndarray:
    """Returns the components as uint8 [components, rows, columns, 3]; grey is no response, each is scaled to its own
    maximum."""
    channels = tiles.shape[-1]
    shown = tiles[..., :3] if channels >= 3 else np.repeat(tiles[..., :1], 3, axis=-1)
    largest = np.abs(shown).max(axis=(1, 2, 3), keepdims=True)
    return np.rint(127.5 + 127.5 * shown / np.maximum(largest, 1e-12)).astype(np.uint8)
