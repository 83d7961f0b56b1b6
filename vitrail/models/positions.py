"""Where a patch is: interpolation to another grid in the five conventions in use, sine-cosine, relative."""

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import Interpolation

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


class RelativePositions(nn.Module):
    """Appendix D.4: an extra attention whose keys are embeddings of the offset between query and key.

    Its logits are added to the attention's own, so a query scores `q . (k + r[offset])`. Offsets are in rows and
    columns; the tokens before the patches (class, registers) have none.
    """

    def __init__(self, grid: Grid, head_width: int, prefix: int, convention: Interpolation):
        super().__init__()
        self.grid, self.prefix = grid, prefix
        self.convention: Interpolation = convention
        self.table = nn.Parameter(torch.zeros(2 * grid[0] - 1, 2 * grid[1] - 1, head_width))

    def forward(self, queries: Tensor, grid: Grid) -> Tensor:
        """Queries (batch, heads, tokens, head width) -> bias (batch, heads, tokens, tokens)."""
        table = self.table_for(grid).flatten(0, 1)  # (offsets, head width)
        patches = queries[:, :, self.prefix :]
        scores = patches @ table.T * queries.shape[-1] ** -0.5  # (batch, heads, patches, offsets)
        index = _offset_index(grid, queries.device).expand(*scores.shape[:2], -1, -1)
        return F.pad(scores.gather(-1, index), (self.prefix, 0, self.prefix, 0))

    def table_for(self, grid: Grid) -> Tensor:
        return interpolate(self.table, (2 * grid[0] - 1, 2 * grid[1] - 1), self.convention)

    def resize(self, grid: Grid) -> None:
        self.table = nn.Parameter(self.table_for(grid).detach().clone())
        self.grid = grid


@lru_cache(maxsize=16)
def _offset_index(grid: Grid, device: torch.device) -> Tensor:
    """For every (query, key) pair of patches, the row of the flattened offset table: (patches, patches)."""
    rows, columns = grid
    with torch.inference_mode(False):  # it is kept, and training may be the next to use it
        place = torch.cartesian_prod(torch.arange(rows), torch.arange(columns))
        offset = place[:, None] - place[None] + torch.tensor([rows - 1, columns - 1])
        return (offset[..., 0] * (2 * columns - 1) + offset[..., 1]).to(device)
