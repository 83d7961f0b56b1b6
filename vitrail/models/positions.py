"""Position embeddings, which tell the model where a patch is: the kinds of Appendix D.4 (Table 8), and their
interpolation.

Each kind is a class, a `PositionEmbedding`, and has an entry in `vitrail.config.positions` for what must be known
without torch. The tensors belong to the model, under the names that are usual in the field: a kind makes them, and its
methods are given them.
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
"""Rows and columns of patches."""


def interpolate(positions: Tensor, grid: Grid, convention: Interpolation) -> Tensor:
    """Interpolates positions (rows, columns, width) to another grid. A checkpoint was made for one of these
    conventions, and they give different numbers.

    official: linear with aligned corners, as scipy's zoom of order 1. timm: bicubic with antialiasing. torchvision:
    bicubic with aligned corners. huggingface (and MAE): plain bicubic. dinov2: bicubic by a scale factor to which an
    offset of 0.1 was added.
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
    """Interpolates positions (layers, prefix + patches, width) to another grid; those of the `prefix` first tokens
    stay."""
    if old == new:
        return positions
    head, patches = positions[:, :prefix], positions[:, prefix:]
    resized = [interpolate(layer.unflatten(0, old), new, convention).flatten(0, 1) for layer in patches]
    return torch.cat([head, torch.stack(resized)], dim=1)


def interpolate_axis(positions: Tensor, length: int, convention: Interpolation) -> Tensor:
    """Interpolates positions along one axis, (layers, length, width), to another length."""
    layers = [interpolate(layer[:, None], (length, 1), convention)[:, 0] for layer in positions]
    return torch.stack(layers)


def sincos(grid: Grid, width: int) -> Tensor:
    """Computes the fixed positions of MAE, (patches, width). The first half of the width encodes the column, the second
    the row, each as sines then cosines of frequencies that fall from 1 to 1 / 10,000."""
    quarter = width // 4
    frequencies = 10_000.0 ** (-torch.arange(quarter, dtype=torch.float64) / quarter)

    def axis(length: int) -> Tensor:  # (length, width / 2)
        angles = torch.arange(length, dtype=torch.float64)[:, None] * frequencies
        return torch.cat([angles.sin(), angles.cos()], dim=1)

    rows, columns = grid
    by_row = axis(rows)[:, None].expand(rows, columns, -1)
    by_column = axis(columns)[None].expand(rows, columns, -1)
    return torch.cat([by_column, by_row], dim=2).flatten(0, 1).float()


NamedTensors = Mapping[str, Tensor]
"""Tensors of a model by their names in the state dict."""


class PositionEmbedding:
    """A kind of position embeddings. This base class adds none: it is the kind "none".

    Learned positions have a leading dimension of layers: 1 if all layers share them, else as many as the model has.
    Prefix tokens (class, distillation, registers) come first, if they have positions.
    """

    def make(self, config: ModelConfig) -> dict[str, Tensor]:
        """Makes the tensors that are added to the tokens of a model of this `config`, by their names in its state dict.
        Learned ones are zeros, which `ViT.initialise` fills."""
        return {name: torch.zeros(shape) for name, shape in config.position_kind.tensors(config).items()}

    def at(self, config: ModelConfig, tensors: NamedTensors, layer: int, grid: Grid) -> Tensor | None:
        """Returns the positions that are added to the tokens before a layer, interpolated if the grid is not the
        model's own.

        Args:
            config: the model.
            tensors: what `make` made, by name.
            layer: the layer's number; 0 if all layers share their positions.
            grid: rows and columns of the patches.

        Returns:
            (1, tokens that have a position, width); None if nothing is added.
        """
        return None

    def resize(self, config: ModelConfig, tensors: NamedTensors, grid: Grid) -> dict[str, Tensor]:
        """Interpolates the tensors, which were made for the grid of `config`, to another grid."""
        return {}

    def in_attention(self, config: ModelConfig) -> nn.Module | None:
        """Makes the module that each attention layer of a model of this `config` gets: (queries, grid) -> a bias that
        is added to the scores, as in `RelativeBias`. Returns None if the kind does not act in the attention."""
        return None


class Learned(PositionEmbedding):
    """One learned embedding for each token, the patches in raster order: the paper's choice."""

    def at(self, config: ModelConfig, tensors: NamedTensors, layer: int, grid: Grid) -> Tensor:
        return self._on(config, tensors["pos_embed"][layer : layer + 1], grid)

    def resize(self, config: ModelConfig, tensors: NamedTensors, grid: Grid) -> dict[str, Tensor]:
        return {"pos_embed": self._on(config, tensors["pos_embed"], grid)}

    def _on(self, config: ModelConfig, positions: Tensor, grid: Grid) -> Tensor:
        return interpolate_tokens(positions, config.grid, grid, config.positioned_prefix, config.interpolation)


class Learned2D(PositionEmbedding):
    """One learned embedding for each column and one for each row, each half the width. The prefix tokens have none."""

    def at(self, config: ModelConfig, tensors: NamedTensors, layer: int, grid: Grid) -> Tensor:
        resized = self.resize(config, {name: tensor[layer : layer + 1] for name, tensor in tensors.items()}, grid)
        by_row = resized["pos_embed_rows"][:, :, None].expand(1, *grid, -1)
        by_column = resized["pos_embed_columns"][:, None].expand(1, *grid, -1)
        return torch.cat([by_column, by_row], dim=-1).flatten(1, 2)

    def resize(self, config: ModelConfig, tensors: NamedTensors, grid: Grid) -> dict[str, Tensor]:
        lengths = zip(("pos_embed_rows", "pos_embed_columns"), grid, strict=True)
        return {name: interpolate_axis(tensors[name], length, config.interpolation) for name, length in lengths}


class SineCosine(PositionEmbedding):
    """Fixed sines and cosines of row and column, computed for any grid; zeros for the prefix tokens."""

    def make(self, config: ModelConfig) -> dict[str, Tensor]:
        return {"pos_embed": self._on(config, config.grid)}

    def at(self, config: ModelConfig, tensors: NamedTensors, layer: int, grid: Grid) -> Tensor:
        return tensors["pos_embed"] if grid == config.grid else self.resize(config, tensors, grid)["pos_embed"]

    def resize(self, config: ModelConfig, tensors: NamedTensors, grid: Grid) -> dict[str, Tensor]:
        return {"pos_embed": self._on(config, grid).to(tensors["pos_embed"])}

    def _on(self, config: ModelConfig, grid: Grid) -> Tensor:
        return F.pad(sincos(grid, config.width), (0, 0, config.positioned_prefix, 0))[None]


class Relative(PositionEmbedding):
    """Learned embeddings of the offset between query and key. They act in the attention; nothing is added to the
    tokens."""

    def make(self, config: ModelConfig) -> dict[str, Tensor]:
        return {}  # every attention layer makes its own table

    def resize(self, config: ModelConfig, tensors: NamedTensors, grid: Grid) -> dict[str, Tensor]:
        return {name: offset_table(table, grid, config.interpolation) for name, table in tensors.items()}

    def in_attention(self, config: ModelConfig) -> nn.Module:
        return RelativeBias(config)


_made: dict[str, PositionEmbedding] = {}
"""The kinds that have been used, by class name."""


def position_embedding(config: ModelConfig) -> PositionEmbedding:
    """Returns the kind of position embeddings that a configuration names."""
    entry = POSITION_KINDS[config.positions].computed_by
    if entry not in _made:
        _made[entry] = imported("vitrail.models", entry)()
    return _made[entry]


class RelativeBias(nn.Module):
    """Relative positions (Appendix D.4): an extra attention whose keys are embeddings of the offset between query and
    key.

    Its scores are added to those of the attention, so a query scores `q . (k + r[offset])`. Offsets are in rows and
    columns; the tokens before the patches (class, registers) have none.
    """

    def __init__(self, config: ModelConfig):
        super().__init__()
        rows, columns = config.grid
        self.prefix = config.prefix_tokens
        self.convention: Interpolation = config.interpolation
        self.table = nn.Parameter(torch.zeros(2 * rows - 1, 2 * columns - 1, config.width // config.num_heads))

    def forward(self, queries: Tensor, grid: Grid) -> Tensor:
        """Computes the bias (batch, heads, tokens, tokens) for queries (batch, heads, tokens, head width)."""
        table = offset_table(self.table, grid, self.convention).flatten(0, 1)  # (offsets, head width)
        patches = queries[:, :, self.prefix :]
        scores = patches @ table.T * queries.shape[-1] ** -0.5  # (batch, heads, patches, offsets)
        index = _offset_index(grid, queries.device).expand(*scores.shape[:2], -1, -1)
        return F.pad(scores.gather(-1, index), (self.prefix, 0, self.prefix, 0))


def offset_table(table: Tensor, grid: Grid, convention: Interpolation) -> Tensor:
    """Interpolates the embeddings of offsets, (2 rows - 1, 2 columns - 1, head width), to another grid."""
    return interpolate(table, (2 * grid[0] - 1, 2 * grid[1] - 1), convention)


@lru_cache(maxsize=16)
def _offset_index(grid: Grid, device: torch.device) -> Tensor:
    """Returns the row of the flattened offset table for every pair of patches: int64 (queries, keys)."""
    rows, columns = grid
    with torch.inference_mode(False):  # the tensor is cached, and training may use it next
        place = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
        offset = place[:, None] - place[None] + torch.tensor([rows - 1, columns - 1])
        return (offset[..., 0] * (2 * columns - 1) + offset[..., 1]).to(device)
