"""Where fetched files and the indexes of others' shards are kept: VITRAIL_CACHE, or ~/.cache/vitrail.

A file is in the cache under its name only once it is whole. Above VITRAIL_CACHE_SIZE (50GB) what has not been used for
the longest time goes.
"""

import hashlib
import os
from pathlib import Path

from vitrail.data.sizes import byte_count

_LIMIT = "50GB"


def cache_folder(*parts: str) -> Path:
    """A folder of the cache; it is not made yet."""
    given = os.environ.get("VITRAIL_CACHE")
    base = Path(given).expanduser() if given else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "vitrail"
    return base.expanduser().joinpath(*parts)


def cache_limit() -> int:
    return byte_count(os.environ.get("VITRAIL_CACHE_SIZE") or _LIMIT, "VITRAIL_CACHE_SIZE")


def cache_name(*parts: str) -> str:
    """A file name that stands for these texts and no others."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:40]


def used(file: Path) -> bool:
    """Whether a file is in the cache; if so it counts as used just now."""
    try:
        os.utime(file)
    except OSError:
        return False
    return True


def make_room(folder: Path, keep: Path) -> None:
    """Remove what was used longest ago, until the folder is within the limit. `keep` stays in any case."""
    files = []
    for file in folder.iterdir():
        try:
            state = file.stat()
        except OSError:  # another process was faster
            continue
        if not file.name.startswith("."):
            files.append((state.st_mtime_ns, state.st_size, file))
    total, limit = sum(size for _, size, _ in files), cache_limit()
    for _, size, file in sorted(files):
        if total <= limit:
            return
        if file != keep:
            file.unlink(missing_ok=True)  # a process that has it open reads on
            total -= size
