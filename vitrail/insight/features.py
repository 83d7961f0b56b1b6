"""Shows patch features: as colours, and by the patches of other images that are most similar."""

import numpy as np
import torch
from torch import Tensor

from vitrail.insight.attention import batch_size, evaluating, patch_grid, place_of, to_model
from vitrail.insight.images import Images
from vitrail.insight.statistics import principal_components
from vitrail.models.attention import Recorder
from vitrail.models.vit import ViT


def patch_features(model: ViT, images: Images, layer: int | None = None) -> np.ndarray:
    """Computes features [images, rows, columns, width], after the final norm or after a layer (counted from 0)."""
    grid = patch_grid(model, images)
    result = np.empty((len(images), *grid, model.config.width), np.float32)
    done = 0
    for batch in images.batches(batch_size(model.config, grid)):
        tokens = _tokens(model, to_model(model, batch), layer)
        patches = tokens[:, model.config.prefix_tokens :][:, : grid[0] * grid[1]].unflatten(1, grid)
        result[done : done + len(batch)] = patches.float().cpu().numpy()
        done += len(batch)
    return result


def _tokens(model: ViT, images: Tensor, layer: int | None) -> Tensor:
    """Computes all tokens after the final norm or after a layer, [batch, tokens, width]."""
    recorder = None if layer is None else Recorder("hidden", layers=[place_of(layer, model.config.depth)])
    with evaluating(model), torch.inference_mode():
        encoded = model.encode(model.embed(images), model.grid_of(images), recorder)
    return encoded if recorder is None else next(iter(recorder.hidden.values()))


def as_colours(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Turns patch features [images, rows, columns, width] into colours.

    The three directions in which the patches of all images differ most become red, green and blue, so that patches of
    one colour are similar to the model. Each is stretched from its 2nd to its 98th percentile.

    Returns:
        The colours [images, rows, columns, 3] in 0..1, and the share of the variance that each of the three explains.
    """
    flat = features.reshape(-1, features.shape[-1]).astype(np.float64)
    directions, explained = principal_components(flat, 3)
    projected = np.zeros((len(flat), 3))  # with very few patches there are fewer than three directions
    projected[:, : len(directions)] = (flat - flat.mean(axis=0)) @ directions.T
    low, high = np.percentile(projected, [2, 98], axis=0)
    colours = np.clip((projected - low) / np.maximum(high - low, 1e-12), 0, 1)
    return colours.reshape(*features.shape[:-1], 3), explained


def nearest_patches(
    features: np.ndarray, image: int, row: int, column: int, count: int = 5
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the patches of other images that are most similar to one patch, at most one an image.

    If there is only one image, its own other patches are searched.

    Args:
        features: [images, rows, columns, width].
        image: The image of the patch.
        row: The row of the patch.
        column: The column of the patch.
        count: How many patches to return at most.

    Returns:
        The places [found, 3] as image, row and column, and their cosines [found], the most similar first.
    """
    images, rows, columns, width = features.shape
    unit = features / np.maximum(np.linalg.norm(features, axis=-1, keepdims=True), 1e-12)
    cosines = (unit.reshape(-1, width) @ unit[image, row, column]).reshape(images, rows * columns)
    if images == 1:
        cosines[0, row * columns + column] = -np.inf
        order = np.argsort(-cosines[0], kind="stable")[: min(count, rows * columns - 1)]
        return np.stack([np.zeros_like(order), *np.divmod(order, columns)], axis=1), cosines[0, order]
    best = cosines.argmax(axis=1)
    others = np.array([each for each in range(images) if each != image])
    values = cosines[others, best[others]]
    order = np.argsort(-values, kind="stable")[:count]
    chosen = others[order]
    return np.stack([chosen, *np.divmod(best[chosen], columns)], axis=1), values[order]
