"""API keys: who may ask. Without a key file everyone may who reaches the server, which then is this machine alone."""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from vitrail.errors import UserError

SHORTEST = 16
OPEN = frozenset(("/", "/favicon.ico", "/v2/health/live", "/v2/health/ready"))
"""What needs no key: health, for those who watch over the server, and the page's own files (see `is_open`)."""
PAGE_FILES = "/web/"


def is_open(path: str) -> bool:
    return path in OPEN or path.startswith(PAGE_FILES)


class Keys:
    """Compared as digests, all of them every time: how long it takes says nothing about how near a guess was."""

    def __init__(self, keys: Iterable[str]):
        self.digests = [_digest(key.encode()) for key in keys]

    def accept(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """`Authorization: Bearer KEY`, or `X-API-Key: KEY`."""
        if not self.digests:
            return True
        given = b""
        for name, value in headers:
            if name == b"x-api-key":
                given = value
            elif name == b"authorization" and value[:7].lower() == b"bearer ":
                given = value[7:].strip()
        digest, found = _digest(given), False
        for known in self.digests:
            found |= hmac.compare_digest(known, digest)
        return found


def read_keys(path: Path) -> Keys:
    """One key a line; empty lines and those that begin with # are passed over."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(
            f"--api-key-file {path}: cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error
    keys = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    if not keys:
        raise UserError(
            f"--api-key-file {path}: holds no key; write one a line, such as the output of openssl rand -hex 32"
        )
    for number, key in enumerate(keys, 1):
        if len(key) < SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
            raise UserError(
                f"--api-key-file {path}: key {number} must have {SHORTEST} ASCII characters or more, no spaces"
            )
    return Keys(keys)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
