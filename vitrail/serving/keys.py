"""API keys. Without a key file the server admits everyone, and listens at an address of this machine alone."""

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from vitrail.errors import UserError

SHORTEST = 16
"""The fewest characters of a key."""
PUBLIC_PATHS = frozenset(("/", "/favicon.ico", "/v2/health/live", "/v2/health/ready"))
"""Paths that need no key, beside the page's files: the page, and health for those who watch over the server."""
PAGE_FILES = "/web/"


def needs_no_key(path: str) -> bool:
    """Tells whether a path is answered without a key."""
    return path in PUBLIC_PATHS or path.startswith(PAGE_FILES)


class ApiKeys:
    """The keys of a server; with none, every request is accepted.

    They are compared as digests, and all of them every time, so that the time it takes says nothing about a guess.
    """

    def __init__(self, keys: Iterable[str]):
        self.digests = [_digest(key.encode()) for key in keys]

    def accepts(self, headers: Iterable[tuple[bytes, bytes]]) -> bool:
        """Tells whether a request carries a key, as `Authorization: Bearer KEY` or `X-API-Key: KEY`.

        `headers` are its names, in lower case, and values.
        """
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


def read_keys(path: Path) -> ApiKeys:
    """Reads a key file: one key a line. Empty lines and lines that begin with # are passed over."""
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
    return ApiKeys(keys)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
