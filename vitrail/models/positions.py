"""Where a patch is: the kinds of position embeddings (Appendix D.4, Table 8), each a class, and how they change grid.

A kind is a `PositionEmbedding`, and an entry of `vitrail.config.positions` for what must be known without torch.
The tensors are the model's own, under the names that the field shares: a kind makes them, and is given them.
"""

from collections.abc import Mapping
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Interpolation, ModelConfig
from vitrail.config.entries import imported
from vitrail.config.positions import POSITION_KINDS

Grid = tuple[int, int]


def interpolate(positions: Tensor, grid: Grid, convention: Interpolation) -> Tensor:
    """Positions (rows, columns, width) on another grid. The conventions give different numbers: a checkpoint
    means one of them.

    official: linear with the corners aligned, as scipy's zoom of order 1. timm: bicubic with antialiasing.
    torchvision: bicubic with the corners aligned. huggingface (and MAE): plain bicubic. dinov2: bicubic by a scale
    factor with an offset of 0.1, which the sampling uses as it is.
    """
    if positions.shape[:2] == grid:
        return positions
    source = positions.permute(2, 0, 1)[None].float()  # (1, width, rows, columns)
    if convention == "official":
        result = F.interpolate(source, grid, mode="bilinear", align_corners=True)
    elif convention == "timm":
        result = F.interpolate(source, grid, mode="bicubic", antialias=True, align_corners=False)
    elif convention == "torchvision":
        result = F.interpolate(source, grid, mode="bicubic", align_corners=True)
    elif convention == "huggingface":
        result = F.interpolate(source, grid, mode="bicubic", align_corners=False)
    else:
        factors = [(new + 0.1) / old for new, old in zip(grid, positions.shape[:2], strict=True)]
        result = F.interpolate(source, scale_factor=factors, mode="bicubic", recompute_scale_factor=False)
    return result[0].permute(1, 2, 0).to(positions.dtype)


def interpolate_tokens(positions: Tensor, old: Grid, new: Grid, prefix: int, convention: Interpolation) -> Tensor:
    """Positions (layers, prefix + patches, width) for another grid; those of the prefix tokens stay."""
    if old == new:
        return positions
    head, patches = positions[:, :prefix], positions[:, prefix:]
    resized = [interpolate(layer.unflatten(0, old), new, convention).flatten(0, 1) for layer in patches]
    return torch.cat([head, torch.stack(resized)], dim=1)


def interpolate_axis(positions: Tensor, length: int, convention: Interpolation) -> Tensor:
    """Positions along one axis (layers, length, width) for another length."""
    layers = [interpolate(layer[:, None], (length, 1), convention)[:, 0] for layer in positions]
    return torch.stack(layers)


def sincos(grid: Grid, width: int) -> Tensor:
    """Fixed positions (patches, width) as in MAE: the first half encodes the column, the second the row, each as
    sines then cosines of frequencies falling from 1 to 1 / 10,000."""
    quarter = width // 4
    frequencies = 10_000.0 ** (-torch.arange(quarter, dtype=torch.float64) / quarter)

    def axis(length: int) -> Tensor:  # (length, width / 2)
        angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=1)

    rows, columns = grid
    by_row = axis(rows)[:, None].expand(rows, columns, -1)
    by_column = axis(columns)[None].expand(rows, columns, -1)
    return torch.cat([by_column, by_row], dim=2).flatten(0, 1).float()


Tensors = Mapping[str, Tensor]
"""Tensors of a model by their names in the state dict."""


class PositionEmbedding:
    """What a kind of positions computes. This base class adds nothing, and is the kind "none".

    Learned positions have a leading dimension of layers: one, or as many as the model has. Their prefix tokens (class,
    distillation, registers) come first, where these have positions.
    """

    def make(self, config: ModelConfig) -> dict[str, Tensor]:
        """Makes the tensors that are added to the tokens. Learned ones are zeros, which `ViT.initialise` fills."""
        return {name: torch.zeros(shape) for name, shape in config.position_kind.tensors(config).items()}

    def at(self, config: ModelConfig, own: Tensors, layer: int, grid: Grid) -> Tensor | None:
        """Gives what is added to the tokens before a layer (1, tokens that have a position, width), interpolated where
        the grid is not the configuration's; None where nothing is. `layer` is 0 where all layers share positions."""
        return None

    def resize(self, config: ModelConfig, own: Tensors, grid: Grid) -> dict[str, Tensor]:
        """Interpolates the tensors, made for the grid of `config`, to another grid."""
        return {}

    def in_attention(self, config: ModelConfig) -> nn.Module | None:
        """Makes the module that each attention gets of the kind: (queries, grid) -> a bias that is added to its scores
        (see `RelativeBias`); None where the kind acts outside of it."""
        return None


class Learned(PositionEmbedding):
    """One embedding a token, the patches in raster order: the paper's choice."""

    def at(self, config: ModelConfig, own: Tensors, layer: int, grid: Grid) -> Tensor:
        return self._on(config, own["pos_embed"][layer : layer + 1], grid)

    def resize(self, config: ModelConfig, own: Tensors, grid: Grid) -> dict[str, Tensor]:
        return {"pos_embed": self._on(config, own["pos_embed"], grid)}

    def _on(self, config: ModelConfig, positions: Tensor, grid: Grid) -> Tensor:
        return interpolate_tokens(positions, config.grid, grid, config.positioned_prefix, config.interpolation)


class Learned2D(PositionEmbedding):
    """One embedding a column and one a row, of half the width each. The prefix tokens have none."""

    def at(self, config: ModelConfig, own: Tensors, layer: int, grid: Grid) -> Tensor:
        resized = self.resize(config, {name: tensor[layer : layer + 1] for name, tensor in own.items()}, grid)
        by_row = resized["pos_embed_rows"][:, :, None].expand(1, *grid, -1)
        by_column = resized["pos_embed_columns"][:, None].expand(1, *grid, -1)
        return torch.cat([by_column, by_row], dim=-1).flatten(1, 2)

    def resize(self, config: ModelConfig, own: Tensors, grid: Grid) -> dict[str, Tensor]:
        lengths = zip(("pos_embed_rows", "pos_embed_columns"), grid, strict=True)
        return {name: interpolate_axis(own[name], length, config.interpolation) for name, length in lengths}


class SineCosine(PositionEmbedding):
    """Fixed sines and cosines of row and column, for any grid by the same formula; zeros for the prefix tokens."""

    def make(self, config: ModelConfig) -> dict[str, Tensor]:
        return {"pos_embed": self._on(config, config.grid)}

    def at(self, config: ModelConfig, own: Tensors, layer: int, grid: Grid) -> Tensor:
        return own["pos_embed"] if grid == config.grid else self.resize(config, own, grid)["pos_embed"]

    def resize(self, config: ModelConfig, own: Tensors, grid: Grid) -> dict[str, Tensor]:
        return {"pos_embed": self._on(config, grid).to(own["pos_embed"])}

    def _on(self, config: ModelConfig, grid: Grid) -> Tensor:
        return F.pad(sincos(grid, config.width), (0, 0, config.positioned_prefix, 0))[None]


class Relative(PositionEmbedding):
    """Embeddings of the offset between query and key. Nothing is added to the tokens: all of it is in the attention."""

    def make(self, config: ModelConfig) -> dict[str, Tensor]:
        return {}  # every attention makes its own table

    def resize(self, config: ModelConfig, own: Tensors, grid: Grid) -> dict[str, Tensor]:
        return {name: offset_table(table, grid, config.interpolation) for name, table in own.items()}

    def in_attention(self, config: ModelConfig) -> nn.Module:
        return RelativeBias(config)


_made: dict[str, PositionEmbedding] = {}
"""The kinds that were asked for, by the names of their classes."""


def position_embedding(config: ModelConfig) -> PositionEmbedding:
    """Gives the kind of positions that a configuration names."""
    entry = POSITION_KINDS[config.positions].computed_by
    if entry not in _made:
        _made[entry] = imported("vitrail.models", entry)()
    return _made[entry]


class RelativeBias(nn.Module):
    """Appendix D.4: an extra attention whose keys are embeddings of the offset between query and key.

    Its logits are added to the attention's own, so a query scores `q . (k + r[offset])`. Offsets are in rows and
    columns; the tokens before the patches (class, registers) have none.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        rows, columns = config.grid
        self.prefix = config.prefix_tokens
        self.convention: Interpolation = config.interpolation
        self.table = nn.Parameter(torch.zeros(2 * rows - 1, 2 * columns - 1, config.width // config.num_heads))

    def forward(self, queries: Tensor, grid: Grid) -> Tensor:
        """Queries (batch, heads, tokens, head width) -> bias (batch, heads, tokens, tokens)."""
        table = offset_table(self.table, grid, self.convention).flatten(0, 1)  # (offsets, head width)
        patches = queries[:, :, self.prefix :]
        scores = patches @ table.T * queries.shape[-1] ** -0.5  # (batch, heads, patches, offsets)
        index = _offset_index(grid, queries.device).expand(*scores.shape[:2], -1, -1)
        return F.pad(scores.gather(-1, index), (self.prefix, 0, self.prefix, 0))


def offset_table(table: Tensor, grid: Grid, convention: Interpolation) -> Tensor:
    """Embeddings of offsets (2 rows - 1, 2 columns - 1, head width) for another grid."""
    return interpolate(table, (2 * grid[0] - 1, 2 * grid[1] - 1), convention)


@lru_cache(maxsize=16)
def _offset_index(grid: Grid, device: torch.device) -> Tensor:
    """For every (query, key) pair of patches, the row of the flattened offset table: (patches, patches)."""
    rows, columns = grid
    with torch.inference_mode(False):  # it is kept, and training may be the next to use it
        place = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
        offset = place[:, None] - place[None] + torch.tensor([rows - 1, columns - 1])
        return (offset[..., 0] * (2 * columns - 1) + offset[..., 1]).to(device)
