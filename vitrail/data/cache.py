"""The cache for downloaded files and for indexes of shards that others wrote: VITRAIL_CACHE, or ~/.cache/vitrail.

A file gets its name in the cache only once it is complete. If the cache grows above VITRAIL_CACHE_SIZE (50GB), the
files that were used longest ago are deleted.
"""

import hashlib
import os
from pathlib import Path

from vitrail.io.sizes import byte_count

_LIMIT = "50GB"  # unless VITRAIL_CACHE_SIZE states another


def cache_folder(*parts: str) -> Path:
    """Returns the path of a folder of the cache, which is not created."""
    given = os.environ.get("VITRAIL_CACHE")
    base = Path(given).expanduser() if given else Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "vitrail"
    return base.expanduser().joinpath(*parts)


def cache_limit() -> int:
    """Returns the largest size of the cache in bytes. Raises UserError if VITRAIL_CACHE_SIZE is not a size."""
    return byte_count(os.environ.get("VITRAIL_CACHE_SIZE") or _LIMIT, "VITRAIL_CACHE_SIZE")


def cache_name(*parts: str) -> str:
    """Makes a file name of 40 hexadecimal digits that is unique to these texts."""
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogateescape")).hexdigest()[:40]


def used(file: Path) -> bool:
    """Tells whether a file is in the cache, and if so marks it as used just now."""
    try:
        os.utime(file)
    except OSError:
        return False
    return True


def make_room(folder: Path, keep: Path) -> None:
    """Deletes the files of a cache folder that were used longest ago, until it is within the limit.

    keep: a file that is not deleted in any case, since the caller is about to use it.
    """
    files = []
    for file in folder.iterdir():
        try:
            state = file.stat()
        except OSError:  # another process has just deleted it
            continue
        if not file.name.startswith("."):
            files.append((state.st_mtime_ns, state.st_size, file))
    total, limit = sum(size for _, size, _ in files), cache_limit()
    for _, size, file in sorted(files):
        if total <= limit:
            return
        if file != keep:
            file.unlink(missing_ok=True)  # a process that has it open can still read it
            total -= size
