"""Examining one mask for `vitrail data check`: how it is stored, and whether it fits its picture and the classes."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from vitrail.data.bad_image import BadImage, NotIds
from vitrail.data.decode import MAX_PIXELS
from vitrail.data.decode_pool import BoundedDecoder
from vitrail.data.mask_files import examine_mask
from vitrail.data.sources.base import AnnotatedReader
from vitrail.data.sources.mask_classes import grey
from vitrail.data.sources.mask_reading import EncodedMasks, NoMaskFile
from vitrail.masks_and_boxes import Size
from vitrail.tasks.audits import StoredAnnotation

_KEPT_STRANGE = 16
"""The most ids or colours without a class that are kept of one mask."""
_BLOCK = 1 << 22
"""The number of pixels that are compared at a time."""
_SLOPING_STRANGE = 0.8
"""The share of the pixels without a class that lie between their neighbours, from which on a mask counts as blended."""
_SLOPING = 0.2
"""The same share of all pixels along edges, where the ids in between are classes."""
_LEAST_STEPS = 4
"""The number of different ids in between, where they are classes: few may be borders that someone has drawn."""


@dataclass(frozen=True)
class CheckedSize:
    """The facts about a picture that its mask is compared with."""

    size: Size
    """The rows and columns of the upright picture."""
    turned: bool
    """Whether EXIF data turn it."""
    digest: bytes
    """A digest of its pixels."""


@dataclass(frozen=True)
class MaskReading:
    """The settings for decoding the masks that are checked."""

    decoder: BoundedDecoder
    """Decodes the files within limits."""
    max_pixels: int = MAX_PIXELS
    """The largest mask that is decoded, in pixels."""


def stored_annotation(
    reader: AnnotatedReader, row: int, reading: MaskReading, picture: CheckedSize | None = None
) -> StoredAnnotation:
    """Reads the right answer of a row and finds what is wrong with how it is stored.

    Args:
        reader: Reads the samples.
        row: The row.
        reading: How masks are decoded.
        picture: Its picture; None if that cannot be read.
    """
    if isinstance(reader, EncodedMasks):
        found = _examined(reader, row, reading)
    else:
        try:
            found = StoredAnnotation(reader.annotation(row))
        except BadImage as error:
            found = StoredAnnotation(None, {"unreadable": str(error)})
    faults = dict(found.faults)
    if picture is None:
        return found
    if found.values is not None:
        faults.update(_size_fault((found.values.shape[0], found.values.shape[1]), picture))
    return replace(found, faults=faults, picture_digest=picture.digest)


def _examined(reader: EncodedMasks, row: int, reading: MaskReading) -> StoredAnnotation:
    """Examines a mask that is an encoded picture."""
    name = reader.mask_name(row)
    try:
        seen = reading.decoder(partial(examine_mask, max_pixels=reading.max_pixels), reader.mask(row))
    except BadImage as error:
        kind = "mask_missing" if isinstance(error, NoMaskFile) else "unreadable"
        return StoredAnnotation(None, {"not_ids" if isinstance(error, NotIds) else kind: f"{name} {error}"})
    faults: dict[str, str] = {}
    stored, lossy = seen["stored"], seen["lossy"]
    if seen["transparent"]:
        faults["transparent"] = f"{name} is transparent in part"
    if lossy:
        faults["lossy"] = f"{name} is stored with losses"
    classes = reader.classes
    if stored.ndim == 3 and not classes.colours and not grey(stored):
        if not lossy:
            faults["no_colour_table"] = f"{name} is in colours"
        return StoredAnnotation(None, faults)
    if stored.ndim == 3 and classes.colours:
        strange = {} if lossy else classes.strange_colours(stored)
        if strange:
            faults["unknown_colours"] = f"{name} has {_listed(strange)}"
        return StoredAnnotation(classes.known_ids(stored), faults, _first(strange))
    ids = stored if stored.ndim == 2 else stored[:, :, 0]
    strange = {str(identity): count for identity, count in classes.strange_ids(ids).items()}
    if not lossy:
        faults.update(_id_faults(name, ids, strange))
    strange = strange if "unknown_ids" in faults else {}  # changed ids say nothing of the classes
    colours = seen["palette"]
    used = np.flatnonzero(np.bincount(ids.ravel())).tolist() if colours else ()
    palette = {identity: colours[identity] for identity in used if identity < len(colours)}
    return StoredAnnotation(classes.known_indices(ids), faults, _first(strange), palette)


def _id_faults(name: str, ids: np.ndarray, strange: dict[str, int]) -> dict[str, str]:
    """Finds ids that no class has, and says whether blending has made them. strange: these ids with their pixels."""
    numbers = np.array([int(each) for each in strange], dtype=np.int64)
    edges = sloping = odd = 0
    steps: set[int] = set()
    for middle, edge, slope in _neighbours(ids):
        edges, sloping = edges + int(edge.sum()), sloping + int(slope.sum())
        between = middle[slope]
        steps.update(np.unique(between).tolist())
        odd += int(np.isin(between, numbers).sum())
    if strange:
        # A pixel can lie between its neighbours both across and down, and counts twice then.
        if odd >= _SLOPING_STRANGE * sum(strange.values()):
            return {"blended": f"{name} has {_listed(strange)} along edges, between the ids on both sides"}
        return {"unknown_ids": f"{name} has {_listed(strange)}"}
    if len(steps) >= _LEAST_STEPS and sloping >= _SLOPING * edges:
        return {"blended": f"{name} has ids along edges that lie between those on both sides"}
    return {}


def _neighbours(ids: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yields blocks of pixels: their ids, whether their two neighbours across (then down) differ, and whether their
    ids lie between those."""
    for turned in (ids, ids.T):
        step = max(1, _BLOCK // max(1, turned.shape[1]))
        for start in range(0, turned.shape[0], step):
            block = turned[start : start + step]
            left, middle, right = block[:, :-2], block[:, 1:-1], block[:, 2:]
            slope = ((left < middle) & (middle < right)) | ((left > middle) & (middle > right))
            yield middle, left != right, slope


def _size_fault(mask: Size, shown: CheckedSize) -> dict[str, str]:
    """Compares the size of a mask with that of its picture, and explains a difference."""
    picture = shown.size
    if mask == picture:
        return {}
    sizes = f"is {picture[1]} x {picture[0]} pixels, its mask {mask[1]} x {mask[0]}"
    if mask == picture[::-1]:
        if shown.turned:
            return {"turned": f"{sizes}: EXIF data turn the picture and not the mask"}
        return {"size_differs": f"{sizes}: one of them has been turned"}
    # A resized copy has the same proportions, but for rounding to whole pixels on either side.
    rounding = 0.6 * max(1 / picture[0] + 1 / picture[1], 1 / mask[0] + 1 / mask[1])
    across, down = mask[1] / picture[1], mask[0] / picture[0]
    if abs(across - down) <= rounding * max(across, down) and min(*mask, *picture) > 1:
        return {"resized": f"{sizes}: {across:.3g} times as large"}
    return {"size_differs": sizes}


def _first(strange: dict[str, int]) -> dict[str, int]:
    """Returns the ids or colours of the most pixels."""
    return dict(sorted(strange.items(), key=lambda each: -each[1])[:_KEPT_STRANGE])


def _listed(strange: dict[str, int]) -> str:
    """Lists some ids or colours, those of the most pixels first."""
    shown = [f"{what} ({count:,} pixel{'s' * (count > 1)})" for what, count in list(_first(strange).items())[:3]]
    return ", ".join(shown) + (f" and {len(strange) - 3} more" if len(strange) > 3 else "")
