"""Finding a model's number of layers, of heads, and its image size from the names and shapes of its tensors."""

import itertools
import math
import re
from collections.abc import Iterable

from torch import Tensor

from vitrail.checkpoints.architectures import PLAIN_SIZES
from vitrail.checkpoints.declared_config import Declared
from vitrail.config import pair
from vitrail.errors import UserError
from vitrail.models.sizes import SIZES


def count(names: Iterable[str], pattern: str) -> int:
    """Counts numbered parts of a model, such as its layers.

    Args:
        names: The names of its tensors.
        pattern: A regular expression for the beginning of a name, whose group matches the part's number.

    Raises:
        UserError: If a number between 0 and the largest is missing.
    """
    found = {int(match[1]) for name in names if (match := re.match(pattern, name))}
    if found and max(found) >= len(found):
        gap = next(number for number in itertools.count() if number not in found)
        raise UserError(f"the checkpoint has part {max(found)} of {pattern!r} but lacks part {gap}")
    return len(found)


def heads_of(width: int, depth: int, told: Declared, gated: bool = False) -> tuple[int, bool]:
    """Finds the number of heads, which the shapes of fused weights do not show.

    It is what is known (`told`), else that of published models of this width, else width / 64. gated: whether the MLP
    is a SwiGLU, which tells two published models of one width apart.

    Returns the number and whether it was assumed. Raises UserError if there is no way to find it.
    """
    if told.name and told.config and told.config.width != width:
        raise UserError(f"the tensors say width {width}, the model {told.name} has {told.config.width}")
    if told.get("num_heads"):
        return told.get("num_heads"), False
    sizes = {(size["width"], size["depth"]): size["num_heads"] for size in SIZES.values()}
    published = {each: heads for each, _, heads in PLAIN_SIZES if each > 64} | {768: 12, 1536: 24 if gated else 16}
    heads = sizes.get((width, depth)) or published.get(width) or (width // 64 if width % 64 == 0 else 0)
    if not heads:
        raise UserError(
            f"the tensors do not say how many heads a width of {width} is divided into: say it (--model num_heads=N, "
            "or model=ModelConfig(...) in Python)"
        )
    return heads, True


def grid_of(positions: Tensor | None, prefix: int, patch_pixels: int, told: Declared) -> tuple[tuple[int, int], bool]:
    """Finds the image size from the number of position embeddings.

    Args:
        positions: The position embeddings (1, tokens, width), or None if the model has none.
        prefix: The number of tokens before the patches (class token, registers).
        patch_pixels: The side of a patch in pixels of the image.
        told: What is known besides the tensors; without an image size there, the grid must be square.

    Returns:
        The image size (rows, columns) in pixels, and whether the prefix tokens have positions too.

    Raises:
        UserError: If the number of positions fits no grid, or not the known image size.
    """
    stated = told.fields.get("image_size")
    given = pair(stated) if stated else told.config.rows_columns if told.config else None
    if positions is None:
        return given or (224, 224), True
    if positions.ndim != 3:
        raise UserError(f"positions must have three dimensions, not the shape {tuple(positions.shape)}")
    tokens = positions.shape[1]
    if given is not None and (stated or (told.config and told.config.family == "vit")):
        rows, columns = given
        patches = (rows // patch_pixels) * (columns // patch_pixels)
        if tokens in (patches + prefix, patches):
            return given, tokens == patches + prefix
        if stated:
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
