"""What every configuration shares: sizes, and refusing fields that do not exist."""

import difflib
from dataclasses import fields
from typing import Any

from vitrail.errors import UserError


def pair(size: int | tuple[int, int] | list[int]) -> tuple[int, int]:
    """An image size as (rows, columns); one number means a square."""
    if isinstance(size, int):
        return size, size
    if len(size) != 2:
        raise UserError(f"image_size must be one number or two (rows, columns), not {list(size)}")
    return int(size[0]), int(size[1])


def check_fields(kind: type, values: dict[str, Any]) -> None:
    """Refuse names that `kind`, a dataclass, does not have; suggest the one that was probably meant."""
    known = [field.name for field in fields(kind)]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            raise UserError(f"{kind.__name__} has no field {name!r}{hint}")
