"""Sources given by a URL: shards and parquet files on any file system that fsspec knows.

Files behind a URL, even `file://`, are copied to the cache and read from there; files given by a path are read
directly.
"""

from pathlib import PurePosixPath

from vitrail.data.sources.base import OpenOptions, Source, SplitRule
from vitrail.data.sources.listing import expand_braces
from vitrail.data.sources.parquet import open_parquet
from vitrail.data.sources.shard_index import INDEX, recognise
from vitrail.data.sources.shards import open_shards
from vitrail.data.sources.storage.files import filesystem
from vitrail.data.sources.storage.folders import RemoteFolder, sorted_by_folder
from vitrail.errors import UserError

_WILD = "*?[{"


def open_remote(url: str, rule: SplitRule, asked: OpenOptions) -> Source:
    """Opens the URL of a folder, a file or a pattern of files.

    Raises UserError if nothing can be read there, or if it has neither shards nor parquet files.
    """
    given = url.rstrip("/")
    filesystem(url)  # raises first if the package for this kind of URL is not installed
    if any(mark in given for mark in _WILD):
        start = min(given.index(mark) for mark in _WILD if mark in given)
        base, pattern = given[: given.rindex("/", 0, start)], given[given.rindex("/", 0, start) + 1 :]
        place = RemoteFolder(base)
        return _open_files(url, place, _matching(place, pattern), rule, asked)
    if PurePosixPath(given).suffix.lower() in (".tar", ".parquet"):
        base, _, name = given.rpartition("/")
        return _open_files(url, RemoteFolder(base), [name], rule, asked)
    place = RemoteFolder(given)
    # With an index the files need not be listed, which takes long for many files and which not every server can do.
    index = place.small(INDEX)
    if index is not None and recognise(index) == "index":
        return open_shards(url, place, None, rule, asked)
    names = place.listing(".tar") or place.listing(".parquet")
    if not names:
        raise UserError(
            f"{url}: there are no .tar or .parquet files. Folders of single pictures are read from local disks: copy "
            "them, or write them as shards with `vitrail data shard`"
        )
    return _open_files(url, place, names, rule, asked)


def _matching(place: RemoteFolder, pattern: str) -> list[str]:
    """Lists the names in a folder that match a pattern; names written out by braces need not exist."""
    names: set[str] = set()
    for expanded in expand_braces(pattern):
        names.update(place.matching(expanded) if any(mark in expanded for mark in "*?[") else [expanded])
    return sorted_by_folder(list(names))


def _open_files(url: str, place: RemoteFolder, names: list[str], rule: SplitRule, asked: OpenOptions) -> Source:
    """Opens files that are all shards or all parquet files. Raises UserError otherwise."""
    if not names:
        raise UserError(f"no file matches {url!r}")
    suffixes = {PurePosixPath(name).suffix.lower() for name in names}
    if suffixes == {".tar"}:
        return open_shards(url, place, names, rule, asked)
    if suffixes == {".parquet"}:
        return open_parquet(url, place, names, rule, asked)
    raise UserError(f"{url}: give .tar or .parquet files, one kind at a time")
