"""What the shapes of a checkpoint's tensors say about the model: counts, grid, heads."""

import math
import re
from collections.abc import Iterable

from torch import Tensor

from vitrail.config import ModelConfig
from vitrail.errors import UserError
from vitrail.models.sizes import SIZES


def count(names: Iterable[str], pattern: str) -> int:
    """How many numbered parts there are: 1 + the largest number the pattern's group catches, 0 without any."""
    found = {int(match[1]) for name in names if (match := re.match(pattern, name))}
    if found and found != set(range(len(found))):
        gap = min(set(range(max(found))) - found)
        raise UserError(f"the checkpoint has part {max(found)} of {pattern!r} but lacks part {gap}")
    return len(found)


def heads_of(width: int, depth: int, given: ModelConfig | None, notes: list[str]) -> int:
    """The number of heads leaves no trace in fused weights: from the given model, the paper's sizes, or width / 64."""
    if given is not None and given.width == width:
        return given.num_heads
    if given is not None and given.name:
        raise UserError(f"the tensors say width {width}, the model {given.name} has {given.width}")
    for size in SIZES.values():
        if (size["width"], size["depth"]) == (width, depth):
            return size["num_heads"]
    heads = width // 64 if width % 64 == 0 else 0
    if not heads:
        raise UserError(
            f"the tensors do not say how many heads a width of {width} is divided into: "
            "give the model (--model NAME, or model=ModelConfig(...) in Python)"
        )
    notes.append(f"the tensors do not say how many heads there are; assumed {heads}, 64 columns each")
    return heads


def grid_of(
    positions: Tensor | None, prefix: int, patch_pixels: int, given: ModelConfig | None
) -> tuple[tuple[int, int], bool]:
    """(image size, whether prefix tokens have positions) from the number of positions (1, tokens, width)."""
    if positions is None:
        return (given.rows_columns if given else (224, 224)), True
    if positions.ndim != 3:
        raise UserError(f"positions must have three dimensions, not the shape {tuple(positions.shape)}")
    tokens = positions.shape[1]
    if given is not None and given.family == "vit":
        rows, columns = given.rows_columns
        patches = (rows // patch_pixels) * (columns // patch_pixels)
        if tokens in (patches + prefix, patches):
            return given.rows_columns, tokens == patches + prefix
    for patches, with_prefix in ((tokens - prefix, True), (tokens, False)):
        side = math.isqrt(max(patches, 0))
        if side and side * side == patches:
            return (side * patch_pixels, side * patch_pixels), with_prefix
    raise UserError(
        f"{tokens} positions do not make a square grid: say which image size the model was trained "
        "at (in Python, load(..., model=ModelConfig(image_size=(rows, columns), ...)))"
    )
