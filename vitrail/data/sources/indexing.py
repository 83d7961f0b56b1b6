"""Finds the index of a folder of shards, makes sure that it is theirs, and makes one where there is none.

An index that was written with its shards is the record of what they should be: where they differ, something happened
to the data, and the person is told. One that was made from others' shards is only a note of what was there: where the
shards have changed it is made again, without a word, and only for the shards that changed.
"""

from pathlib import Path

import numpy as np

from vitrail.data.sources.places import LocalPlace, Place, in_order
from vitrail.data.sources.shard_index import INDEX, Index, Rows, Shard, joined, read_index, recognise, write_index
from vitrail.data.sources.tar_scan import scan
from vitrail.errors import UserError
from vitrail.io.progress import progress

State = tuple[int, str]


def find_index(place: Place, names: list[str] | None) -> tuple[Index, list[str], list[str]]:
    """The index of these shards, their names, and what there is to say. No names: of all shards in the place."""
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


def _compare(index: Index, place: Place, names: list[str] | None) -> list[str]:
    """The names of the shards that are read, once they are known to be those that were indexed."""
    where = place.where(INDEX)
    remedy = f"Write or fetch the shards again; or delete {where}, to have them read as they are now"
    listed = {shard.name: shard for shard in index.shards}
    if place.remote and names is None:
        return in_order(list(listed))
    found = place.listing(".tar") if names is None else names
    for name in found:
        if name not in listed:
            raise UserError(f"{place.where(name)} is not in {where}: they do not belong together. {remedy}")
    chosen = in_order(list(listed)) if names is None else names
    for name in () if place.remote else chosen:  # what is elsewhere is compared when it is fetched
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


def _kept(place: Place) -> Index | None:
    """The index that the cache has of a place; one that cannot be read is made again."""
    try:
        return read_index(place.kept()) if place.kept().is_file() else None
    except UserError:
        return None


def _refresh(index: Index | None, place: Place, states: dict[str, State]) -> Index:
    """An index that knows these shards as they are now; the same one if it did already."""
    known = {} if index is None else {shard.name: (shard.bytes, shard.version) for shard in index.shards}
    stale = [name for name, state in states.items() if known.get(name) != state]
    if index is not None and not stale:
        return index
    scanned = []
    with progress("indexing shards", len(stale), after=2.0) as advance:
        for name in stale:
            scanned.append(scan(place.stored(name).local(), name, states[name], place.where(name)))
            advance(1)
    # What another glob asked for stays, so that two of them in turn do not make each other's index anew.
    again = set(stale)
    old = [] if index is None else [each for each in index.shards if each.name not in again and _there(place, each)]
    return _joined(index, old, scanned)


def _there(place: Place, shard: Shard) -> bool:
    try:
        return bool(place.state(shard.name))
    except (OSError, UserError):
        return False


def _joined(index: Index | None, old: list[Shard], scanned: list[tuple[Shard, Rows]]) -> Index:
    shards = sorted([*old, *(shard for shard, _ in scanned)], key=lambda shard: shard.name)
    number = {shard.name: place for place, shard in enumerate(shards)}
    parts = []
    if index is not None:
        stays = {shard.name for shard in old}
        moved = np.array([number[shard.name] if shard.name in stays else -1 for shard in index.shards], dtype=np.int32)
        shard_of = moved[index.rows.shard]
        parts.append(index.rows.in_shards(shard_of).take(np.flatnonzero(shard_of >= 0)))
    parts += [rows.in_shards(np.full(len(rows), number[shard.name])) for shard, rows in scanned]
    return Index(tuple(shards), joined(parts), written=False)


def _keep(index: Index, place: Place, names: list[str], foreign: bool) -> Path | None:
    """Beside the shards where that can be written, else in the cache; a read-only machine goes without."""
    choices = [place.kept()]
    # A glob over several folders has a common parent that may be anything, even the root of the disk.
    if isinstance(place, LocalPlace) and not foreign and (not place.globbed or all("/" not in name for name in names)):
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
    asked = set(names)
    chosen = [shard for shard in index.shards if shard.name in asked]
    notes = []
    if pictureless := sum(shard.pictureless for shard in chosen):
        notes.append(f"{pictureless} sample(s) without an image were left out")
    if pickled := sum(shard.pickled for shard in chosen):
        notes.append(f"{pickled} pickled member(s) were left alone: pickles are never read")
    return notes
