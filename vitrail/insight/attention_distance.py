"""Measures how far the heads look (Figures 7 and 11): the mean distance in pixels from a patch to what it attends to.

The distance is weighted by attention. Class and register tokens have no place in the image: they are left out, as
queries and as keys, and the rest of each row is scaled to sum to 1. The distance is averaged over the query patches,
then over the images.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.insight.attention import batch_size, patch_grid, record, step_names
from vitrail.insight.images import Images
from vitrail.insight.statistics import rank_correlation
from vitrail.models.positions import Grid
from vitrail.models.vit import ViT

GLOBAL, LOCAL = 2 / 3, 1 / 3
"""A head is called global from the first share of uniform attention's distance on, and local up to the second."""


@dataclass(frozen=True)
class Distances:
    """Mean attention distances in pixels, [steps, heads]."""

    mean: np.ndarray
    spread: np.ndarray
    """The standard deviation over the images."""
    uniform: float
    """The distance of a head that attends to all patches equally: the average distance of two patches."""
    prefix_share: np.ndarray
    """The share of the patches' attention that goes to class and register tokens, which the distance leaves out,
    [steps]."""
    n: int
    """The number of images."""
    names: list[str]
    """The names of the steps."""

    @property
    def early(self) -> int:
        """Returns the number of steps in the first quarter, at least one."""
        return max(1, len(self.mean) // 4)

    def to_json(self) -> dict:
        """Returns the distances and what is concluded from them, as a JSON object."""
        early = self.mean[: self.early]
        by_layer = self.mean.mean(axis=1)
        return {
            "unit": "pixels",
            "n": self.n,
            "layers": self.names,
            "mean": rounded(self.mean),
            "spread": rounded(self.spread),
            "by_layer": rounded(by_layer),
            "uniform": round(self.uniform, 3),
            "early_layers": self.early,
            "global_from": round(GLOBAL * self.uniform, 3),
            "local_up_to": round(LOCAL * self.uniform, 3),
            "early_global_share": round(float((early >= GLOBAL * self.uniform).mean()), 4),
            "early_local_share": round(float((early <= LOCAL * self.uniform).mean()), 4),
            "depth_correlation": rank_correlation(np.arange(len(by_layer)), by_layer),
            "prefix_share": rounded(self.prefix_share, 5),
        }


def attention_distance(model: ViT, images: Images, progress: Callable[[int], None] = lambda done: None) -> Distances:
    """Computes the distances over all images, a batch and a layer at a time, so that memory depends on neither
    number."""
    config, grid = model.config, patch_grid(model, images)
    names = step_names(config)
    shape = (len(names), config.num_heads)
    total, squares, prefix_share = np.zeros(shape), np.zeros(shape), np.zeros(len(names))
    between = pixel_distances(grid, config.patch_pixels)

    def reduce(step: int, weights: Tensor) -> None:
        """Adds the distances of one step."""
        each, kept = mean_distances(weights[:, :, config.prefix_tokens :], between, config.prefix_tokens)
        total[step] += each.sum(0).cpu().numpy()
        squares[step] += each.square().sum(0).cpu().numpy()
        prefix_share[step] += (1 - kept).sum().item()

    for batch in images.batches(batch_size(config, grid)):
        record(model, batch, reduce)
        progress(len(batch))
    n = len(images)
    mean = total / n
    spread = np.sqrt(np.maximum(squares / n - mean**2, 0))
    return Distances(mean, spread, float(between.mean()), np.maximum(prefix_share / n, 0), n, names)


def mean_distances(weights: Tensor, between: Tensor, prefix: int = 0) -> tuple[Tensor, Tensor]:
    """Computes the mean distance of each head.

    Args:
        weights: Attention of the patches, [batch, heads, patches, prefix + patches].
        between: The distance of any two patches, [patches, patches].
        prefix: The number of tokens before the patches.

    Returns:
        The distances [batch, heads], and the share of attention that stays on patches [batch].
    """
    patches = weights[..., prefix:].double()
    mass = patches.sum(dim=-1)
    # If all of a head's attention goes to the class token there is no distance; it counts as 0.
    distance = (patches * between.to(patches.device)).sum(dim=-1) / mass.clamp_min(torch.finfo(mass.dtype).tiny)
    return distance.mean(dim=-1), mass.mean(dim=(1, 2))


def pixel_distances(grid: Grid, pixels: int) -> Tensor:
    """Computes the distances between the centres of any two patches, [patches, patches], float64; `pixels` is a patch's
    side."""
    place = torch.cartesian_prod(torch.arange(grid[0]), torch.arange(grid[1])).double().view(-1, 2) * pixels
    return torch.linalg.vector_norm(place[:, None] - place[None], dim=-1)


def rounded(values: np.ndarray, digits: int = 3) -> list:
    """Rounds an array and returns it as nested lists."""
    return np.round(values.astype(np.float64), digits).tolist()
