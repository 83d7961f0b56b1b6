"""What the shapes of a checkpoint's tensors say about the model: counts, grid, heads."""

import math
import re
from collections.abc import Iterable

from torch import Tensor

from vitrail.checkpoints.architectures import PLAIN
from vitrail.checkpoints.told import Told
from vitrail.config import pair
from vitrail.errors import UserError
from vitrail.models.sizes import SIZES


def count(names: Iterable[str], pattern: str) -> int:
    """How many numbered parts there are: 1 + the largest number the pattern's group catches, 0 without any."""
    found = {int(match[1]) for name in names if (match := re.match(pattern, name))}
    if found and found != set(range(len(found))):
        gap = min(set(range(max(found))) - found)
        raise UserError(f"the checkpoint has part {max(found)} of {pattern!r} but lacks part {gap}")
    return len(found)


def heads_of(width: int, depth: int, told: Told, gated: bool = False) -> tuple[int, bool]:
    """(the number of heads, whether it was assumed): fused weights have no trace of it, so it is what was told, that of
    the published models of this width, or width / 64."""
    if told.name and told.config and told.config.width != width:
        raise UserError(f"the tensors say width {width}, the model {told.name} has {told.config.width}")
    if told.get("num_heads"):
        return told.get("num_heads"), False
    sizes = {(size["width"], size["depth"]): size["num_heads"] for size in SIZES.values()}
    published = {each: heads for each, _, heads in PLAIN if each > 64} | {768: 12, 1536: 24 if gated else 16}
    heads = sizes.get((width, depth)) or published.get(width) or (width // 64 if width % 64 == 0 else 0)
    if not heads:
        raise UserError(
            f"the tensors do not say how many heads a width of {width} is divided into: say it (--model num_heads=N, "
            "or model=ModelConfig(...) in Python)"
        )
    return heads, True


def grid_of(positions: Tensor | None, prefix: int, patch_pixels: int, told: Told) -> tuple[tuple[int, int], bool]:
    """(image size, whether prefix tokens have positions) from the number of positions (1, tokens, width)."""
    said = told.fields.get("image_size")
    given = pair(said) if said else told.config.rows_columns if told.config else None
    if positions is None:
        return given or (224, 224), True
    if positions.ndim != 3:
        raise UserError(f"positions must have three dimensions, not the shape {tuple(positions.shape)}")
    tokens = positions.shape[1]
    if given is not None and (said or (told.config and told.config.family == "vit")):
        rows, columns = given
        patches = (rows // patch_pixels) * (columns // patch_pixels)
        if tokens in (patches + prefix, patches):
            return given, tokens == patches + prefix
        if said:
            raise UserError(
                f"an image_size of {rows} x {columns} makes {patches} patches, the file has {tokens} positions"
            )
    for patches, with_prefix in ((tokens - prefix, True), (tokens, False)):
        side = math.isqrt(max(patches, 0))
        if side and side * side == patches:
            return (side * patch_pixels, side * patch_pixels), with_prefix
    raise UserError(
        f"{tokens} positions do not make a square grid: say which image size the model was trained at (--model "
        "image_size=224x448, or model=ModelConfig(...) in Python)"
    )
