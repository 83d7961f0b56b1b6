"""Sources by URL: shards and parquet files behind any file system that fsspec knows.

A plain path is read where it is. A URL, `file://` too, goes through the cache: what a slow disk or a network has is
copied once and then read at the speed of this machine.
"""

from pathlib import PurePosixPath

from vitrail.data.sources.base import Source, SplitRule
from vitrail.data.sources.listing import expand_braces
from vitrail.data.sources.parquet import open_parquet
from vitrail.data.sources.places import RemotePlace, in_order
from vitrail.data.sources.shard_index import INDEX, recognise
from vitrail.data.sources.shards import open_shards
from vitrail.data.sources.stored import filesystem
from vitrail.errors import UserError

_WILD = "*?[{"


def open_remote(url: str, rule: SplitRule) -> Source:
    """A folder, a file or a pattern of files."""
    given = url.rstrip("/")
    filesystem(url)  # says what is missing before anything else is asked for
    if any(mark in given for mark in _WILD):
        start = min(given.index(mark) for mark in _WILD if mark in given)
        base, pattern = given[: given.rindex("/", 0, start)], given[given.rindex("/", 0, start) + 1 :]
        place = RemotePlace(base)
        return _open_files(url, place, _matching(place, pattern), rule)
    if PurePosixPath(given).suffix.lower() in (".tar", ".parquet"):
        base, _, name = given.rpartition("/")
        return _open_files(url, RemotePlace(base), [name], rule)
    place = RemotePlace(given)
    # With an index nothing needs to be listed, which not every server can do, and which takes a while for many files.
    index = place.small(INDEX)
    if index is not None and recognise(index) == "index":
        return open_shards(url, place, None, rule)
    names = place.listing(".tar") or place.listing(".parquet")
    if not names:
        raise UserError(
            f"{url}: there are no .tar or .parquet files. Folders of single pictures are read from local disks: copy "
            "them, or write them as shards with `vitrail data shard`"
        )
    return _open_files(url, place, names, rule)


def _matching(place: RemotePlace, pattern: str) -> list[str]:
    names: set[str] = set()
    for each in expand_braces(pattern):
        names.update(place.matching(each) if any(mark in each for mark in "*?[") else [each])
    return in_order(list(names))


def _open_files(url: str, place: RemotePlace, names: list[str], rule: SplitRule) -> Source:
    if not names:
        raise UserError(f"no file matches {url!r}")
    suffixes = {PurePosixPath(name).suffix.lower() for name in names}
    if suffixes == {".tar"}:
        return open_shards(url, place, names, rule)
    if suffixes == {".parquet"}:
        return open_parquet(url, place, names, rule)
    raise UserError(f"{url}: give .tar or .parquet files, one kind at a time")
