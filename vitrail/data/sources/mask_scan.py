"""Finding which ids masks hold, for masks whose classes no file lists: every mask is decoded once.

The result is kept in the cache, by the names, sizes and times of the masks.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.bad_image import BadImage
from vitrail.data.cache import cache_folder, cache_name
from vitrail.data.mask_files import decode_mask, is_lossy
from vitrail.data.sources.mask_classes import COLOUR_REMEDY, colour_text, grey, packed
from vitrail.environment import available_processors
from vitrail.errors import UserError
from vitrail.io.documents import read_json
from vitrail.io.files import json_text, replacing
from vitrail.io.progress import PATIENCE, progress

_SHOWN = 4
"""The number of colours in a message."""


@dataclass(frozen=True)
class FoundIds:
    """The ids in some masks."""

    ids: tuple[int, ...]
    lossy: int = 0
    """The number of masks in formats that change ids, such as JPEG. Their ids count only if no other mask has any."""
    coloured: int = 0
    """The number of masks in colours, which have no ids."""
    colours: tuple[str, ...] = ()
    """The first colours of the first of these."""
    unreadable: int = 0


def scan_ids(read: Callable[[int], bytes | np.ndarray], rows: Sequence[int], states: str, max_pixels: int) -> FoundIds:
    """Finds the ids in masks.

    Args:
        read: Reads the encoded mask of a row; may raise BadImage.
        rows: The rows that have one.
        states: A text that changes when one of these masks does; "" to keep nothing in the cache.
        max_pixels: The largest mask that is decoded, in pixels.
    """
    kept = cache_folder("mask-ids", f"{cache_name(states)}.json")
    if states and kept.is_file():
        try:
            return _restored(read_json(kept))
        except (UserError, KeyError, TypeError, ValueError):
            kept.unlink(missing_ok=True)
    parts: list[FoundIds] = []
    with (
        progress("reading masks", len(rows), after=PATIENCE) as advance,
        ThreadPoolExecutor(available_processors(), thread_name_prefix="vitrail-masks") as pool,
    ):
        for part in pool.map(lambda row: _ids_in(read, row, max_pixels), rows):
            parts.append(part)
            advance(1)
    lossless = [part for part in parts if not part.lossy] or parts
    if not any(part.ids for part in lossless):
        lossless = parts
    found = FoundIds(
        tuple(sorted({identity for part in lossless for identity in part.ids})),
        sum(part.lossy for part in parts),
        sum(part.coloured for part in parts),
        next((part.colours for part in parts if part.colours), ()),
        sum(part.unreadable for part in parts),
    )
    if states:
        _keep(found, kept)
    return found


def _ids_in(read: Callable[[int], bytes | np.ndarray], row: int, max_pixels: int) -> FoundIds:
    """Finds the ids in one mask."""
    try:
        content = read(row)
        values = decode_mask(content, max_pixels)
    except BadImage:
        return FoundIds((), unreadable=1)
    lossy = int(is_lossy(content, max_pixels))
    if values.ndim == 3 and not grey(values):
        codes = np.unique(packed(values))
        return FoundIds((), lossy, 1, tuple(map(colour_text, codes[:_SHOWN].tolist())))
    ids = np.flatnonzero(np.bincount((values if values.ndim == 2 else values[:, :, 0]).ravel()))
    return FoundIds(tuple(ids.tolist()), lossy)


def check_ids(where: str, found: FoundIds, masks: int) -> None:
    """Raises UserError if no mask has ids.

    Args:
        where: The source, for messages.
        found: The ids in its masks.
        masks: The number of masks.
    """
    if found.ids:
        return
    if found.coloured:
        shown = ", ".join(found.colours)
        raise UserError(
            f"{where}: its masks are in colours ({shown} ...), and nothing says which class each is: {COLOUR_REMEDY}"
        )
    raise UserError(f"{where}: none of its {masks:,} masks can be read; fetch them again, or look what they are")


def scan_notes(found: FoundIds, masks: int) -> list[str]:
    """Returns notes on masks of which the ids cannot be relied on. masks: their number in all."""
    notes = []
    if found.lossy:
        notes.append(f"{found.lossy:,} of {masks:,} masks are JPEG or the like, which changes ids: save them as PNG")
    if found.coloured:
        notes.append(f"{found.coloured:,} of {masks:,} masks are in colours and cannot be used without a table of them")
    return notes


def _keep(found: FoundIds, file: Path) -> None:
    """Writes what was found to the cache, if it can be written."""
    document = {"ids": found.ids, "counts": [found.lossy, found.coloured, found.unreadable], "colours": found.colours}
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with replacing(file) as temporary:
            temporary.write_text(json_text(document), "utf-8")
    except OSError:
        return


def _restored(document: dict[str, Any]) -> FoundIds:
    """Makes of a document of the cache what was found; raises an exception if it cannot have been written here."""
    lossy, coloured, unreadable = map(int, document["counts"])
    ids = tuple(map(int, document["ids"]))
    if any(not 0 <= identity < 1 << 16 for identity in ids):
        raise ValueError("an id is none")
    return FoundIds(ids, lossy, coloured, tuple(map(str, document["colours"])), unreadable)
