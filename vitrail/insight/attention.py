"""Records attention layer by layer, and reduces it at once so that memory stays bounded.

A `step` is one attention, in the order in which they run: a layer has one, an axial layer two (rows, then columns).
Axial attention is given as the full matrix that it is equal to, mostly zeros, so that other code need not treat it
specially.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor

from vitrail.config import ModelConfig
from vitrail.errors import UserError
from vitrail.insight.images import Images
from vitrail.models.attention import Kind, Recorder
from vitrail.models.build import Model
from vitrail.models.positions import Grid
from vitrail.models.vit import ViT

BATCH_BYTES = 128 * 2**20
"""The memory that one layer's attention may take while it is reduced."""
LARGEST_RESULT = 4 * 2**30
"""The largest array of attention that is returned, in bytes."""

Reduce = Callable[[int, Tensor], None]
"""Takes the step and its attention, [batch, heads, tokens, tokens]."""


class Reducer(Recorder):
    """Passes each step's attention to a function and keeps nothing."""

    def __init__(self, config: ModelConfig, grid: Grid, reduce: Reduce, steps: Iterable[int] | None = None):
        super().__init__("attention", layers=steps)
        self.config, self.grid, self.reduce = config, grid, reduce

    def keep(self, kind: Kind, layer: int, tensor: Tensor) -> None:
        """Passes the attention of a layer to the function, as a full matrix."""
        self.reduce(layer, full_attention(tensor, self.config, self.grid, layer))


def attentive(model: Model) -> ViT:
    """Returns the model if it has attention; raises a UserError for a ResNet."""
    if isinstance(model, ViT):
        return model
    name = model.config.name or "the model"
    raise UserError(f"{name} is a ResNet and has no attention to look at: give a Vision Transformer or a hybrid")


@contextmanager
def evaluating(model: ViT) -> Iterator[None]:
    """Puts the model into evaluation mode, without dropout, and restores its mode afterwards."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def record(model: ViT, images: Tensor, reduce: Reduce, steps: Iterable[int] | None = None) -> Tensor:
    """Runs prepared images through the model and passes the attention of each step to `reduce`.

    Args:
        model: The model.
        images: Prepared images, [batch, channels, rows, columns].
        reduce: Is called with each step and its attention, [batch, heads, tokens, tokens].
        steps: The steps to record; None for all.

    Returns:
        The tokens after the final norm, [batch, tokens, width].
    """
    with evaluating(model), torch.inference_mode():
        images, grid = to_model(model, images), model.grid_of(images)
        return model.encode(model.embed(images), grid, Reducer(model.config, grid, reduce, steps))


def to_model(model: ViT, images: Tensor) -> Tensor:
    """Moves images to the model's device and precision."""
    weight = model.patch_embed.proj.weight
    return images.to(weight.device, weight.dtype)


def full_attention(attention: Tensor, config: ModelConfig, grid: Grid, step: int) -> Tensor:
    """Returns attention as [batch, heads, tokens, tokens]; attention along rows or columns is spread to all pairs of
    patches. Queries of a head are left out, and the shares of the other tokens scaled to the sum that they had with
    them."""
    if (tokens := config.prefix_tokens + grid[0] * grid[1]) < attention.shape[-1] and config.query_tokens:
        own = attention[..., :tokens, :tokens]
        return own * (attention[..., :tokens, :].sum(dim=-1, keepdim=True) / own.sum(dim=-1, keepdim=True).clamp(1e-30))
    if config.attention != "axial":
        return attention
    by_row = step % 2 == 0
    rows, columns = grid
    lines, length = (rows, columns) if by_row else (columns, rows)
    heads = attention.shape[1]
    attention = attention.unflatten(0, (-1, lines))  # (batch, lines, heads, length, length)
    full = attention.new_zeros(len(attention), heads, *grid, *grid)
    for line in range(lines):
        inside = attention[:, line]
        if by_row:
            full[:, :, line, :, line, :] = inside
        else:
            full[:, :, :, line, :, line] = inside
    return full.view(len(attention), heads, lines * length, lines * length)


def step_names(config: ModelConfig) -> list[str]:
    """Returns the names of the steps; layers are counted from 1."""
    if config.attention == "axial":
        return [f"{layer}{axis}" for layer in range(1, config.depth + 1) for axis in (" rows", " columns")]
    return [str(layer) for layer in range(1, config.depth + 1)]


def place_of(layer: int, count: int) -> int:
    """Returns the index of a layer; negative numbers count from the end. Raises a UserError if there is no such
    layer."""
    if not -count <= layer < count:
        raise UserError(f"there is no layer {layer}: there are {count}, counted from 0")
    return layer % count


def read_by_head(matrix: Tensor, config: ModelConfig, grid: Grid) -> Tensor:
    """Selects the rows of a token-to-token matrix that the classifier reads, over the patches.

    These are the class token's row (with DeiT's distillation token the mean of both), or with average pooling the mean
    over all patches.

    Args:
        matrix: [..., tokens, tokens].
        config: The model's configuration.
        grid: The rows and columns of patches.

    Returns:
        [..., rows, columns].
    """
    first = config.prefix_tokens
    if config.pooling == "class":
        rows = matrix[..., : 2 if config.distillation_token else 1, first:]
    else:
        rows = matrix[..., first:, first:]
    return rows.mean(dim=-2).unflatten(-1, grid)


def batch_size(config: ModelConfig, grid: Grid) -> int:
    """Returns how many images keep one layer's attention, and the scores that it is made of, within BATCH_BYTES."""
    tokens = config.prefix_tokens + grid[0] * grid[1]
    each = 3 * 4 * config.num_heads * tokens**2
    return max(1, min(32, BATCH_BYTES // each))


def patch_grid(model: ViT, images: Images) -> Grid:
    """Returns the rows and columns of patches that the model cuts these images into."""
    return model.grid_of(images.tensor(0)[None])


def attention(model: ViT, images: Images, steps: Iterable[int] | None = None) -> np.ndarray:
    """Computes all attention, [images, steps, heads, tokens, tokens]; a UserError if it would take too much memory."""
    config, grid = model.config, patch_grid(model, images)
    names = step_names(config)
    chosen = list(range(len(names))) if steps is None else [place_of(step, len(names)) for step in steps]
    tokens = config.prefix_tokens + grid[0] * grid[1]
    shape = (len(images), len(chosen), config.num_heads, tokens, tokens)
    if (size := 4 * int(np.prod(shape, dtype=object))) > LARGEST_RESULT:
        raise UserError(
            f"the attention of {shape[0]} images in {shape[1]} layers takes {size / 2**30:.1f} GB: "
            "give fewer images, or choose layers"
        )
    result, done = np.empty(shape, np.float32), 0
    for batch in images.batches(batch_size(config, grid)):

        def fill(step: int, weights: Tensor, start: int = done) -> None:
            """Copies the attention of one step to its place in the result."""
            for place in (place for place, each in enumerate(chosen) if each == step):
                result[start : start + len(weights), place] = weights.float().cpu().numpy()

        record(model, batch, fill, chosen)
        done += len(batch)
    return result


def class_attention(model: ViT, images: Images) -> np.ndarray:
    """Computes what the classifier's tokens attend to, in every step and head: [images, steps, heads, rows,
    columns]."""
    config, grid = model.config, patch_grid(model, images)
    result = np.empty((len(images), len(step_names(config)), config.num_heads, *grid), np.float32)
    done = 0
    for batch in images.batches(batch_size(config, grid)):

        def fill(step: int, weights: Tensor, start: int = done) -> None:
            """Copies what the classifier reads of one step to its place in the result."""
            read = read_by_head(weights, config, grid)
            result[start : start + len(weights), step] = read.float().cpu().numpy()

        record(model, batch, fill)
        done += len(batch)
    return result
