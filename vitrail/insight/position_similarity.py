"""Computes position similarity (Figure 7, middle): the cosine of every position's embedding with every other's."""

import numpy as np
import torch

from vitrail.errors import UserError
from vitrail.insight.attention import place_of
from vitrail.models.positions import Grid
from vitrail.models.vit import ViT


def has_positions(model: ViT) -> bool:
    """Tells whether every place of the grid has an embedding that can be compared with another's."""
    return model.config.position_kind.added


@torch.no_grad()
def position_similarity(model: ViT, layer: int = 0) -> np.ndarray:
    """Computes the cosines, [rows, columns, rows, columns]: entry (i, j) is the map of position (i, j) with all
    others."""
    config, grid = model.config, model.config.grid
    layer = place_of(layer, config.depth)
    positions = model.positions(layer, grid) if has_positions(model) else None
    if positions is None:
        raise UserError(f"positions are {config.positions!r}: there is no embedding of a position to compare")
    patches = positions[0, -grid[0] * grid[1] :].double().cpu()
    unit = patches / patches.norm(dim=1, keepdim=True).clamp_min(1e-12)
    return (unit @ unit.T).view(*grid, *grid).numpy()


def locality(similarity: np.ndarray) -> dict:
    """Summarises similarities [rows, columns, rows, columns] as numbers.

    They are mean cosines: by distance in whole patches; `near`, the four nearest patches; `far`, more than half the
    largest distance; along a row, along a column, and elsewhere.
    """
    grid: Grid = (similarity.shape[0], similarity.shape[1])
    down, right = offsets(grid)
    flat = similarity.reshape(down.shape)
    exact = np.hypot(down, right)
    distance = np.rint(exact).astype(int)

    def mean(chosen: np.ndarray) -> float | None:
        """Returns the mean cosine of the chosen pairs; None if there are none."""
        return round(float(flat[chosen].mean()), 4) if chosen.any() else None

    return {
        "near": mean(exact == 1),
        "far": mean(exact > exact.max() / 2),
        "by_distance": [
            {"distance": each, "cosine": mean(distance == each), "pairs": int((distance == each).sum())}
            for each in range(1, distance.max() + 1)
        ],
        "same_row": mean((down == 0) & (right > 0)),
        "same_column": mean((right == 0) & (down > 0)),
        "elsewhere": mean((down > 0) & (right > 0)),
        "nearest_is_most_similar": _nearest_first(flat, exact),
    }


def offsets(grid: Grid) -> tuple[np.ndarray, np.ndarray]:
    """Returns how many rows and how many columns any two patches are apart, two arrays [patches, patches]."""
    rows, columns = np.divmod(np.arange(grid[0] * grid[1]), grid[1])
    return np.abs(rows[:, None] - rows), np.abs(columns[:, None] - columns)


def _nearest_first(flat: np.ndarray, exact: np.ndarray) -> float | None:
    """Computes the share of patches whose most similar other patch is one of the eight around it."""
    if len(flat) < 2:
        return None
    others = np.where(exact == 0, -np.inf, flat)
    best = others.argmax(axis=1)
    return round(float((exact[np.arange(len(flat)), best] < 1.5).mean()), 4)
