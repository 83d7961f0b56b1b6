"""Finding the index of a folder of shards, checking that it belongs to them, and making one if there is none.

An index that was written together with its shards states what they should be: if they differ, the data have been
damaged, and a UserError says so. An index that was made from shards that others wrote only saves scanning them again:
if some shards have changed, it is updated for these.
"""

from pathlib import Path

import numpy as np

from vitrail.data.sources.shard_index import (
    INDEX,
    Index,
    SampleTable,
    Shard,
    concatenated,
    read_index,
    recognise,
    write_index,
)
from vitrail.data.sources.storage.folders import LocalFolder, StorageFolder, sorted_by_folder
from vitrail.data.sources.tar_scan import scan
from vitrail.errors import UserError
from vitrail.io.progress import progress

State = tuple[int, str]
"""The size of a file in bytes, and a text that changes whenever the file does."""


def find_index(place: StorageFolder, names: list[str] | None) -> tuple[Index, list[str], list[str]]:
    """Finds or makes the index of some shards.

    Args:
        place: The folder of the shards.
        names: The names of the shards; None for all in the folder.

    Returns:
        The index, the names of the shards, and notes for the user.

    Raises:
        UserError: If shards are missing or differ from an index that was written with them, or cannot be read.
    """
    beside = place.small(INDEX)
    foreign = beside is not None and recognise(beside) == "other"
    index = None if beside is None or foreign else read_index(beside, place.where(INDEX))
    if index is not None and (index.written or place.remote):
        names = _compare(index, place, names)
        return index, names, _notes(index, names)
    names = place.listing(".tar") if names is None else names
    index = index or _kept(place)
    made = _refresh(index, place, {name: place.state(name) for name in names})
    notes = _notes(made, names)
    if made is not index:
        where = _keep(made, place, names, foreign)
        notes += [f"the shards had no index: one was made from their headers and kept as {where}"] if where else []
    return made, names, notes


def _compare(index: Index, place: StorageFolder, names: list[str] | None) -> list[str]:
    """Returns the names of the shards to read, after comparing their names and sizes with the index.

    The sizes of remote shards are compared when they are downloaded. Raises UserError if a shard differs.
    """
    where = place.where(INDEX)
    remedy = f"Write or fetch the shards again; or delete {where}, to have them read as they are now"
    listed = {shard.name: shard for shard in index.shards}
    if place.remote and names is None:
        return sorted_by_folder(list(listed))
    found = place.listing(".tar") if names is None else names
    for name in found:
        if name not in listed:
            raise UserError(f"{place.where(name)} is not in {where}: they do not belong together. {remedy}")
    chosen = sorted_by_folder(list(listed)) if names is None else names
    for name in () if place.remote else chosen:
        try:
            size, _ = place.state(name)
        except OSError:
            raise UserError(f"{place.where(name)} is missing: {where} lists it. {remedy}") from None
        if size != listed[name].bytes:
            raise UserError(
                f"{place.where(name)} has {size} bytes where {where} says {listed[name].bytes}: it was cut off or "
                f"changed. {remedy}"
            )
    return chosen


def _kept(place: StorageFolder) -> Index | None:
    """Returns the index of a folder that is in the cache; None if there is none or it cannot be read."""
    try:
        return read_index(place.kept()) if place.kept().is_file() else None
    except UserError:
        return None


def _refresh(index: Index | None, place: StorageFolder, states: dict[str, State]) -> Index:
    """Returns an index of the shards as they are now, which is `index` itself if none of them has changed.

    states: the present state of each shard by name. Only shards that are new or have changed are scanned.
    """
    known = {} if index is None else {shard.name: (shard.bytes, shard.version) for shard in index.shards}
    stale = [name for name, state in states.items() if known.get(name) != state]
    if index is not None and not stale:
        return index
    scanned = []
    with progress("indexing shards", len(stale), after=2.0) as advance:
        for name in stale:
            scanned.append(scan(place.stored(name).local(), name, states[name], place.where(name)))
            advance(1)
    # Shards that were not asked for stay in the index, so that two globs used in turn need not scan each time.
    again = set(stale)
    old = (
        [] if index is None else [shard for shard in index.shards if shard.name not in again and _exists(place, shard)]
    )
    return _joined(index, old, scanned)


def _exists(place: StorageFolder, shard: Shard) -> bool:
    """Tells whether a shard is still in its folder."""
    try:
        return bool(place.state(shard.name))
    except (OSError, UserError):
        return False


def _joined(index: Index | None, old: list[Shard], scanned: list[tuple[Shard, SampleTable]]) -> Index:
    """Makes an index of the shards of another index that have not changed and of those scanned now, sorted by name."""
    shards = sorted([*old, *(shard for shard, _ in scanned)], key=lambda shard: shard.name)
    number = {shard.name: position for position, shard in enumerate(shards)}
    parts = []
    if index is not None:
        stays = {shard.name for shard in old}
        moved = np.array([number[shard.name] if shard.name in stays else -1 for shard in index.shards], dtype=np.int32)
        shard_of = moved[index.rows.shard]
        parts.append(index.rows.in_shards(shard_of).take(np.flatnonzero(shard_of >= 0)))
    parts += [rows.in_shards(np.full(len(rows), number[shard.name])) for shard, rows in scanned]
    return Index(tuple(shards), concatenated(parts), written=False)


def _keep(index: Index, place: StorageFolder, names: list[str], foreign: bool) -> Path | None:
    """Writes an index beside the shards or, if that is not possible, to the cache; returns its path.

    Returns None if neither can be written. foreign: whether another file has the name of the index there.
    """
    choices = [place.kept()]
    # Write beside the shards only if they are in one folder: a glob over several folders may have any common parent,
    # even the root of the disk.
    if isinstance(place, LocalFolder) and not foreign and (not place.globbed or all("/" not in name for name in names)):
        choices.insert(0, place.root / INDEX)
    for path in choices:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_index(path, index)
            return path
        except OSError:
            continue
    return None


def _notes(index: Index, names: list[str]) -> list[str]:
    """Returns notes on members of these shards that are not read."""
    wanted = set(names)
    chosen = [shard for shard in index.shards if shard.name in wanted]
    notes = []
    if pictureless := sum(shard.pictureless for shard in chosen):
        notes.append(f"{pictureless} sample(s) without an image were left out")
    if pickled := sum(shard.pickled for shard in chosen):
        notes.append(f"{pickled} pickled member(s) were left alone: pickles are never read")
    return notes
