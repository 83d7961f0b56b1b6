"""Amounts of bytes as people write them: 256MB, 1GB, 500kB."""

import re

from vitrail.errors import UserError

_UNITS = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def byte_count(text: str, what: str) -> int:
    """Bytes of such a text; `what` is the flag or variable it was given by. MB counts by 1000, MiB by 1024."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b", text.strip().lower(), re.ASCII)
    if match is None or (match[3] and not match[2]):
        raise UserError(f"{what} {text!r} is not a size: give a number and a unit, such as 256MB, 1GB or 500kB")
    count = int(float(match[1]) * (1024 if match[3] else 1000) ** _UNITS[match[2] or "b"])
    if not 1 <= count < 1 << 60:
        raise UserError(f"{what} {text!r} must be at least one byte, and no more than there are disks for")
    return count
