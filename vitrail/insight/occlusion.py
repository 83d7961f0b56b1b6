"""Computes occlusion maps: an independent check of every attention map, since they use only the answer.

A window is moved over the image and filled with the image's mean colour. Where the score falls, the answer depends on
what was hidden. A patch's value is the mean fall over all windows that hid it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.insight.attention import evaluating, to_model
from vitrail.insight.explained_score import ExplainedScore
from vitrail.models.positions import Grid
from vitrail.models.vit import ViT

AT_ONCE = 16
"""The number of windows in a batch."""


class Windows(NamedTuple):
    """The size and the stride of occlusion windows, in patches."""

    size: int
    stride: int

    def count(self, grid: Grid) -> int:
        """Returns the number of windows on a grid: the model runs once for each."""
        return len(hidden_patches(grid, self))


def usual_windows(grid: Grid) -> Windows:
    """Returns windows of about a fifth of the shorter side, moved by one patch: small enough to localise, large enough
    to matter."""
    return Windows(max(1, round(min(grid) / 5)), 1)


def affordable_windows(grid: Grid, most: int) -> Windows:
    """Returns the finest windows that need at most `most` runs of the model, or the coarsest that still make a map."""
    windows = usual_windows(grid)
    while windows.count(grid) > most and windows.stride < max(1, min(grid) // 4):
        stride = windows.stride + 1
        windows = Windows(max(windows.size, stride), stride)
    return windows


def hidden_patches(grid: Grid, windows: Windows) -> list[tuple[slice, slice]]:
    """Lists the rows and columns of patches that each window covers; windows are cut at the edges, so that every patch
    is hidden often."""
    before = (windows.size - 1) // 2

    def starts(side: int) -> list[int]:
        """Lists the first patch of each window along one side."""
        found = list(range(-before, side - before, windows.stride))
        return [*found, found[-1] + windows.stride] if found[-1] + windows.size < side else found

    def span(start: int, side: int) -> slice:
        """Returns the patches of one window along one side."""
        return slice(max(start, 0), min(start + windows.size, side))

    return [(span(top, grid[0]), span(left, grid[1])) for top in starts(grid[0]) for left in starts(grid[1])]


def occlusion(
    model: ViT,
    image: Tensor,
    question: ExplainedScore,
    windows: Windows | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """Computes how much the score falls when each patch is hidden, [rows, columns].

    Args:
        model: The model.
        image: One prepared image, [channels, rows, columns].
        question: The score that is explained.
        windows: The windows; None takes the usual ones.
        progress: Is called with the number of windows that were just run.
    """
    with evaluating(model), torch.inference_mode():
        images = to_model(model, image[None])
        grid = model.grid_of(images)
        windows = windows or usual_windows(grid)
        colour = images.mean(dim=(2, 3), keepdim=True)
        score = question.score(model, model.encode(model.embed(images), grid)).item()
        fall, times = np.zeros(grid), np.zeros(grid)
        covered = hidden_patches(grid, windows)
        for start in range(0, len(covered), AT_ONCE):
            chosen = covered[start : start + AT_ONCE]
            hidden = images.repeat(len(chosen), 1, 1, 1)
            for each, (rows, columns) in zip(hidden, chosen, strict=True):
                each[:, _pixels(rows, model), _pixels(columns, model)] = colour[0]
            scores = question.score(model, model.encode(model.embed(hidden), grid)).double().cpu().numpy()
            for value, place in zip(scores, chosen, strict=True):
                fall[place] += score - value
                times[place] += 1
            progress(len(chosen))
    return fall / times


def _pixels(patches: slice, model: ViT) -> slice:
    """Returns the pixels of a range of patches."""
    step = model.config.patch_pixels
    return slice(patches.start * step, patches.stop * step)
