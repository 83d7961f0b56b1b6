"""Parsing amounts of bytes such as 256MB, 1GB or 500kB."""

import re

from vitrail.errors import UserError

_UNITS = {"b": 0, "k": 1, "m": 2, "g": 3, "t": 4}  # powers of 1000 or 1024


def byte_count(text: str, what: str) -> int:
    """Parses an amount such as "256MB" to a number of bytes; kB, MB ... are powers of 1000, KiB, MiB ... of 1024.

    what: the flag or variable with this value, for the message. Raises UserError if the text is not a size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b", text.strip().lower(), re.ASCII)
    if match is None or (match[3] and not match[2]):
        raise UserError(f"{what} {text!r} is not a size: give a number and a unit, such as 256MB, 1GB or 500kB")
    count = int(float(match[1]) * (1024 if match[3] else 1000) ** _UNITS[match[2] or "b"])
    if not 1 <= count < 1 << 60:
        raise UserError(f"{what} {text!r} must be at least one byte and less than 2^60 bytes")
    return count
