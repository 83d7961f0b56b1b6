"""Prepares the data of the page's view of where a patch looks: attention in 8 bits, small enough to be in the file
itself."""

import base64
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.drawing.page import data_address
from vitrail.insight.attention import patch_grid, read_by_head, record, step_names
from vitrail.insight.images import Images
from vitrail.insight.overlays import jpeg, palette, shown
from vitrail.models.positions import Grid
from vitrail.models.vit import ViT

BUDGET = 2_200_000
"""The bytes of attention in the page; as text they take a third more."""
AVERAGE_BYTES, HEADS_BYTES = 500_000, 1_500_000
"""The bytes of one image's averaged maps, and of its maps for all heads."""
MOST_IMAGES = 3
"""The largest number of images in the view."""


@dataclass(frozen=True)
class AttentionMaps:
    """Attention of one head, or of all heads averaged, on a grid that may be coarser than the model's.

    Query 0 is what the classifier reads; then there is one query for each cell. A share of attention is peak * (level /
    255) ** 2; the square root keeps small shares apart.
    """

    grid: Grid
    levels: np.ndarray
    """Levels of attention, uint8 [steps, queries, cells]."""
    peaks: np.ndarray
    """The largest share of each query, float32 [steps, queries]."""

    def to_json(self) -> dict[str, Any]:
        """Returns the grid, and the numbers as base64."""
        packed = [base64.b64encode(each.tobytes()).decode() for each in (self.levels, self.peaks.astype("<f4"))]
        return {"grid": list(self.grid), "levels": packed[0], "peaks": packed[1]}


@dataclass(frozen=True)
class Pictured:
    """One image with its maps by head, if there is room, and their average, if it cannot be computed from them."""

    name: str
    address: str
    """The picture as a data address."""
    average: AttentionMaps | None
    heads: list[AttentionMaps]


@dataclass(frozen=True)
class Explorer:
    """All that the view needs."""

    steps: list[str]
    reader: str
    """What the classifier reads, in words."""
    patch_pixels: int
    full_grid: Grid
    """The model's own grid."""
    images: list[Pictured]

    def to_json(self) -> dict[str, Any]:
        """Returns the data as the page's script reads it."""
        return {
            "steps": self.steps,
            "reader": self.reader,
            "patchPixels": self.patch_pixels,
            "grid": list(self.full_grid),
            "palette": base64.b64encode(palette().astype(np.uint8).tobytes()).decode(),
            "images": [
                {
                    "name": each.name,
                    "address": each.address,
                    "average": each.average and each.average.to_json(),
                    "heads": [head.to_json() for head in each.heads],
                }
                for each in self.images
            ],
        }


def explore(model: ViT, images: Images) -> Explorer:
    """Prepares as many images as fit: the first one head by head, the others averaged over heads."""
    config, grid = model.config, patch_grid(model, images)
    steps, heads = step_names(config), config.num_heads
    fine = coarsened(grid, len(steps), AVERAGE_BYTES)
    by_head = coarsened(grid, len(steps), HEADS_BYTES // heads)
    room = BUDGET - heads * map_bytes(by_head, len(steps))
    pictured: list[Pictured] = []
    for index in range(min(len(images), MOST_IMAGES)):
        first = index == 0
        average_needed = not first or by_head != fine
        room -= map_bytes(fine, len(steps)) if average_needed else 0
        if room < 0 and not first:
            break
        recorded = _Recorded(config.prefix_tokens, grid, fine, by_head if first else None)

        def reduce(step: int, weights: Tensor, into: "_Recorded" = recorded) -> None:
            """Adds one step's attention."""
            into.add(weights[0].float(), read_by_head(weights, config, grid)[0].float())

        record(model, images.tensor(index)[None], reduce)
        address = data_address(jpeg(shown(images.pixels(index))), "jpeg")
        average = recorded.maps(fine, recorded.average) if average_needed else None
        by_heads = [recorded.maps(by_head, head) for head in recorded.heads]
        pictured.append(Pictured(images.names[index], address, average, by_heads))
    reader = "the class token" if config.pooling == "class" else "all patches together"
    return Explorer(steps, reader, config.patch_pixels, grid, pictured)


class _Recorded:
    """Collects the shares of attention (queries, cells) of one image, step by step, on the two grids."""

    def __init__(self, prefix: int, grid: Grid, fine: Grid, by_head: Grid | None):
        self.prefix, self.fine, self.by_head = prefix, membership(grid, fine), None
        self.average: list[Tensor] = []
        self.heads: list[list[Tensor]] = []
        if by_head is not None:
            self.by_head = membership(grid, by_head)

    def add(self, weights: Tensor, read: Tensor) -> None:
        """Adds a step: weights [heads, tokens, tokens], and what the classifier reads, [heads, rows, columns]."""
        patches = weights[:, self.prefix :, self.prefix :]
        self.average.append(_pooled(patches.mean(0), read.mean(0), self.fine))
        if self.by_head is not None:
            self.heads = self.heads or [[] for _ in weights]
            for head, kept in enumerate(self.heads):
                kept.append(_pooled(patches[head], read[head], self.by_head))

    def maps(self, grid: Grid, shares: list[Tensor]) -> AttentionMaps:
        """Returns the collected shares in 8 bits."""
        return AttentionMaps(grid, *quantised(torch.stack(shares).cpu().numpy()))


def _pooled(patches: Tensor, read: Tensor, members: Tensor) -> Tensor:
    """Averages the queries of each cell and adds up its keys, so that each row still sums to 1."""
    members = members.to(patches.device)
    mean = members / members.sum(dim=1, keepdim=True)
    return torch.cat([read.flatten()[None], mean @ patches]) @ members.T


def quantised(shares: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns shares [..., cells] in 8 bits, as (levels [..., cells], peaks [...])."""
    peaks = shares.max(axis=-1)
    relative = shares / np.maximum(peaks, 1e-30)[..., None]
    return np.rint(np.sqrt(relative) * 255).astype(np.uint8), peaks.astype(np.float32)


def map_bytes(grid: Grid, steps: int) -> int:
    """Returns the bytes of one map with so many steps."""
    cells = grid[0] * grid[1]
    return steps * (cells + 1) * (cells + 4)


def coarsened(grid: Grid, steps: int, most: int) -> Grid:
    """Returns the finest grid whose maps take at most `most` bytes."""
    factor, coarse = 1, grid
    while map_bytes(coarse, steps) > most and max(coarse) > 1:
        factor += 1
        coarse = (math.ceil(grid[0] / factor), math.ceil(grid[1] / factor))
    return coarse


def membership(grid: Grid, coarse: Grid) -> Tensor:
    """Returns a matrix (cells, patches) that is 1 where a patch lies in a cell."""
    rows = torch.arange(grid[0]) * coarse[0] // grid[0]
    columns = torch.arange(grid[1]) * coarse[1] // grid[1]
    cell = (rows[:, None] * coarse[1] + columns).flatten()
    return torch.nn.functional.one_hot(cell, coarse[0] * coarse[1]).T.float()
