"""The objects that COCO JSON marks as masks of classes, one for each picture: polygons and run lengths are drawn when
they are needed."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.data.decode import MAX_PIXELS, BadImage
from vitrail.data.polygons import PixelWindow, polygon_pixels
from vitrail.data.sources.base import AnnotatedReader
from vitrail.data.sources.folder import FilesReader
from vitrail.masks_and_boxes import Size
from vitrail.tasks.segmentation.rle import decode_runs
from vitrail.tasks.segmentation.target import IGNORE

BACKGROUND = "background"
"""The name of the class of pixels that no object covers; it is the first."""
_MOST_DRAWN = 1 << 29
"""The most pixels that are drawn for one picture, counting those of each object: some hundred objects that fill a large
photo."""

Outline = tuple[np.ndarray, ...] | Mapping[str, Any] | str
"""How an object is marked: polygons, float64 [corners, 2] each; run lengths; or what is wrong with it."""


@dataclass(frozen=True)
class MarkedObject:
    """An object in a picture."""

    category: int
    """The id of its category."""
    outline: Outline

    @property
    def size(self) -> int:
        """Returns the size of what is stored for it, in bytes or characters."""
        if isinstance(self.outline, tuple):
            return sum(part.nbytes for part in self.outline)
        return len(self.outline["counts"]) if isinstance(self.outline, Mapping) else 0


@dataclass(frozen=True)
class CocoMaskReader(AnnotatedReader):
    """Reads pictures, and draws the masks of the objects in them."""

    files: FilesReader
    sizes: tuple[Size | None, ...]
    """The size of each picture as the annotations state it; None if they do not."""
    objects: tuple[tuple[MarkedObject, ...], ...]
    """The objects in each picture."""
    indices: Mapping[int, int]
    """The class of each category, by its id."""
    max_pixels: int = MAX_PIXELS
    """The largest mask that is drawn, in pixels."""

    def read(self, row: int) -> bytes:
        return self.files.read(row)

    def size(self, row: int) -> int:
        """Returns the size of the picture and of what is stored for its objects."""
        return self.files.size(row) + sum(each.size for each in self.objects[row])

    def annotation(self, row: int) -> np.ndarray:
        """Draws the mask of a picture, uint8 [rows, columns]: where objects overlap, the smaller one counts."""
        size = self.sizes[row]
        if size is None:
            raise BadImage("has no mask: its annotations do not state its height and width")
        if size[0] * size[1] > self.max_pixels:
            raise BadImage(
                f"has no mask: its annotations state {size[1]} x {size[0]} pixels, above the limit of "
                f"{self.max_pixels:,} (max_pixels)"
            )
        mask = np.zeros(size, dtype=np.uint8)
        smallest = np.full(size, np.iinfo(np.uint32).max, dtype=np.uint32)
        drawn = 0
        for each in self.objects[row]:
            try:
                for window, covered in _parts(each.outline, size):
                    drawn += covered.size
                    if drawn > _MOST_DRAWN:
                        raise ValueError("has more objects than can be drawn")
                    area = np.uint32(covered.sum())
                    nearer = covered & (area <= smallest[window])
                    mask[window][nearer] = self.indices[each.category]
                    smallest[window][nearer] = area
            except ValueError as error:
                reason = f"an object of the category {each.category} {error}"
                raise BadImage(f"has a mask that cannot be drawn: {reason}") from error
        return mask


def _parts(outline: Outline, size: Size) -> Iterator[tuple[PixelWindow, np.ndarray]]:
    """Yields the window that holds an object, and which of its pixels the object covers; nothing if it covers none.

    Raises ValueError, a predicate, if it cannot be drawn.
    """
    if isinstance(outline, str):
        raise ValueError(outline)
    if isinstance(outline, Mapping):
        if outline["size"] != [*size]:
            raise ValueError(f"has run lengths of the size {outline['size']!r:.40} in a picture of {[*size]}")
        yield (slice(0, size[0]), slice(0, size[1])), decode_runs(outline, size[0] * size[1])
        return
    drawn = [polygon_pixels(polygon, size) for polygon in outline]
    drawn = [(window, covered) for window, covered in drawn if covered.size]
    if len(drawn) < 2:
        yield from drawn
        return
    rows, columns = (
        slice(min(window[axis].start for window, _ in drawn), max(window[axis].stop for window, _ in drawn))
        for axis in (0, 1)
    )
    whole = np.zeros((rows.stop - rows.start, columns.stop - columns.start), dtype=np.bool_)
    for (down, across), covered in drawn:
        whole[down.start - rows.start :, across.start - columns.start :][: covered.shape[0], : covered.shape[1]] |= (
            covered
        )
    yield (rows, columns), whole


def marked_object(category: int, segmentation: Any) -> MarkedObject:
    """Converts the `segmentation` of an annotation. What is wrong with it is kept, and said when it is drawn."""
    return MarkedObject(category, _outline(segmentation))


def _outline(value: Any) -> Outline:
    if isinstance(value, Mapping):
        counts, size = value.get("counts"), value.get("size")
        if not isinstance(counts, str | list) or not isinstance(size, list):
            return "has run lengths without counts or a size"
        return {"size": size, "counts": counts}
    if not isinstance(value, list) or not value:
        return NO_OUTLINE
    polygons = []
    for each in value:
        numbers = each if isinstance(each, list) else ()
        if len(numbers) % 2 or not numbers or not all(type(number) in (int, float) for number in numbers):
            return "has a polygon that is no list of x, y, x, y ..."
        try:
            polygons.append(np.array(numbers, dtype=np.float64).reshape(-1, 2))
        except OverflowError:
            return "has a polygon with a number that is too large"
    return tuple(polygons)


NO_OUTLINE = "has neither polygons nor run lengths"
"""What is said of an object that only a box marks."""


def stated_size(image: Mapping[str, Any]) -> Size | None:
    """Returns the size that the entry of a picture states; None if it does not."""
    rows, columns = image.get("height"), image.get("width")
    if type(rows) is not int or type(columns) is not int or min(rows, columns) < 1:
        return None
    return rows, columns


def coco_classes(categories: Mapping[int, str], ignore: Sequence[int]) -> tuple[tuple[str, ...], dict[int, int]]:
    """Returns the classes of masks, the background first, and the class of each category by its id.

    Args:
        categories: The names of the categories by their ids, in order. One that is called background is that class.
        ignore: The ids of categories whose pixels are ignored.
    """
    names = [BACKGROUND]
    indices: dict[int, int] = {}
    for identity, name in categories.items():
        if identity in ignore:
            indices[identity] = IGNORE
        elif name == BACKGROUND:
            indices[identity] = 0
        else:
            indices[identity] = min(len(names), IGNORE)  # more classes than that are refused by their number
            names.append(name)
    return tuple(names), indices
