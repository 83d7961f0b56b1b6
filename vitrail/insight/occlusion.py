"""Occlusion: an independent check of every attention map, since it looks at the answer alone.

A window is moved over the image and filled with the image's mean colour; where the score falls, something was hidden
that the answer rests on. A patch's value is the mean fall over the windows that hid it.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitrail.insight.attention import evaluating, to_model
from vitrail.insight.question import Question
from vitrail.models.positions import Grid
from vitrail.models.vit import ViT

AT_ONCE = 16


class Windows(NamedTuple):
    """In patches."""

    size: int
    stride: int

    def count(self, grid: Grid) -> int:
        """How many there are: so often the model runs for a map."""
        return len(places(grid, self))


def usual_windows(grid: Grid) -> Windows:
    """About a fifth of the shorter side, moved by one patch: small enough to point, large enough to matter."""
    return Windows(max(1, round(min(grid) / 5)), 1)


def affordable_windows(grid: Grid, most: int) -> Windows:
    """The finest that need at most so many runs of the model, or the coarsest that still make a map."""
    windows = usual_windows(grid)
    while windows.count(grid) > most and windows.stride < max(1, min(grid) // 4):
        stride = windows.stride + 1
        windows = Windows(max(windows.size, stride), stride)
    return windows


def places(grid: Grid, windows: Windows) -> list[tuple[slice, slice]]:
    """Rows and columns of patches each window covers; at the edges it is cut off, so that no patch is rarely hidden."""
    before = (windows.size - 1) // 2

    def starts(side: int) -> list[int]:
        found = list(range(-before, side - before, windows.stride))
        return [*found, found[-1] + windows.stride] if found[-1] + windows.size < side else found

    def span(start: int, side: int) -> slice:
        return slice(max(start, 0), min(start + windows.size, side))

    return [(span(top, grid[0]), span(left, grid[1])) for top in starts(grid[0]) for left in starts(grid[1])]


def occlusion(
    model: ViT,
    image: Tensor,
    question: Question,
    windows: Windows | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> np.ndarray:
    """For one image (channels, rows, columns): [rows, columns], how much the score falls when a patch is hidden."""
    with evaluating(model), torch.inference_mode():
        images = to_model(model, image[None])
        grid = model.grid_of(images)
        windows = windows or usual_windows(grid)
        colour = images.mean(dim=(2, 3), keepdim=True)
        score = question.score(model, model.encode(model.embed(images), grid)).item()
        fall, times = np.zeros(grid), np.zeros(grid)
        covered = places(grid, windows)
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
    step = model.config.patch_pixels
    return slice(patches.start * step, patches.stop * step)
