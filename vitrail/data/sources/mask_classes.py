"""The classes of masks: which stored id, or colour, is which class, and which are ignored."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import numpy as np

from vitrail.data.bad_image import BadImage
from vitrail.errors import UserError
from vitrail.io.documents import read_text
from vitrail.tasks.segmentation.target import IGNORE, MOST_CLASSES

NAMES = ("classes.txt", "classes.csv")
"""The names of files that list the classes of masks."""
Colour = tuple[int, int, int]
_LARGEST = 1 << 22
"""The largest such file, in bytes."""
_IDS = 1 << 16
_ID_FIRST = re.compile(r"(\d+)\s*[,;:\t ]\s*(\S.*)")
_COLOUR = re.compile(r"(.*?)[,;\t ]\s*(#[0-9a-fA-F]{6}|\(?\d+\s*[,; \t]\s*\d+\s*[,; \t]\s*\d+\)?)")
_ID_HEADS = ("id", "index", "value", "label_id", "class_id")


@dataclass(frozen=True)
class MaskClasses:
    """The classes of masks, in order, with what is stored for them."""

    names: tuple[str, ...]
    ids: tuple[int, ...]
    """The id of each class."""
    colours: Mapping[Colour, int] = field(default_factory=dict)
    """The ids by colour, for masks in colours."""
    ignored: frozenset[int] = frozenset((IGNORE,))
    """The ids that are no class, and are neither learned nor measured."""
    file: str = ""
    """The file that lists the classes; "" if they are the ids found in the masks."""

    @property
    def remedy(self) -> str:
        """Returns what can be done about an id that no class has."""
        return f"name it in {self.file or 'a classes.txt'}, or leave it out with --data.ignore"

    def indices(self, stored: np.ndarray) -> np.ndarray:
        """Converts what a mask stores, as `decode_mask` returns it, to classes: uint8 [rows, columns], or `IGNORE`.

        Raises BadImage if it has an id or a colour that no class has, or colours whose meaning is not known.
        """
        ids = self.ids_of(stored) if stored.ndim == 3 else stored
        strange = self.strange_ids(ids)
        if len(strange):
            raise BadImage(f"has pixels of the id {min(strange)}, which no class has; {self.remedy}")
        return self.known_indices(ids)

    def known_indices(self, ids: np.ndarray) -> np.ndarray:
        """Converts ids to classes, uint8 of the same shape; those that no class has become `IGNORE` too."""
        return self._table[ids]

    def strange_ids(self, ids: np.ndarray) -> dict[int, int]:
        """Returns the ids in an array that are neither of a class nor ignored, with the number of their pixels."""
        counts = np.bincount(ids.ravel(), minlength=1)
        strange = np.flatnonzero((counts > 0) & self._strange[: len(counts)])
        return {identity: int(counts[identity]) for identity in strange.tolist()}

    def strange_colours(self, colours: np.ndarray) -> dict[str, int]:
        """Returns the colours in an array [rows, columns, 3] that are not in the table, with their pixels."""
        found, counts = np.unique(packed(colours), return_counts=True)
        strange = ~np.isin(found, self._codes)
        pairs = zip(found[strange].tolist(), counts[strange].tolist(), strict=True)
        return {colour_text(code): count for code, count in pairs}

    def known_ids(self, colours: np.ndarray) -> np.ndarray:
        """Converts colours [rows, columns, 3] to classes as `known_indices`, with `IGNORE` for those not in the
        table."""
        codes = packed(colours)
        places = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        return np.where(self._codes[places] == codes, self._table[self._coded[places]], np.uint8(IGNORE))

    def ids_of(self, colours: np.ndarray) -> np.ndarray:
        """Converts colours, uint8 [rows, columns, 3], to ids, uint16 [rows, columns].

        Without a table of colours, grey that is stored as colour is taken for ids. Raises BadImage for other colours.
        """
        if not self.colours:
            if grey(colours):
                return colours[:, :, 0]
            raise BadImage(f"is in colours, and nothing says which class each is: {COLOUR_REMEDY}")
        codes = packed(colours)
        places = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
        strange = self._codes[places] != codes
        if strange.any():
            raise BadImage(f"has pixels of {colour_text(int(codes[strange].min()))}, which is no colour of {self.file}")
        return self._coded[places]

    @cached_property
    def _table(self) -> np.ndarray:
        """Maps ids to classes, uint8 [65536]."""
        table = np.full(_IDS, IGNORE, dtype=np.uint8)
        table[list(self.ids)] = np.arange(len(self.ids))
        return table

    @cached_property
    def _strange(self) -> np.ndarray:
        """Tells which ids are neither of a class nor ignored, bool [65536]."""
        table = np.ones(_IDS, dtype=np.bool_)
        table[[*self.ids, *self.ignored]] = False
        return table

    @cached_property
    def _codes(self) -> np.ndarray:
        """The colours as numbers, sorted."""
        return np.array(sorted(_code(colour) for colour in self.colours), dtype=np.uint32)

    @cached_property
    def _coded(self) -> np.ndarray:
        """The id of each of these colours."""
        by_code = {_code(colour): identity for colour, identity in self.colours.items()}
        return np.array([by_code[code] for code in self._codes.tolist()], dtype=np.uint16)


COLOUR_REMEDY = "list them in a classes.csv beside the folders, with the columns id,name,colour (#rrggbb)"
"""What can be done about colours whose meaning is not known."""


def grey(colours: np.ndarray) -> bool:
    """Tells whether a picture in colours, uint8 [rows, columns, 3], has only shades of grey."""
    first = colours[:, :, 0]
    return bool((first == colours[:, :, 1]).all() and (first == colours[:, :, 2]).all())


def packed(colours: np.ndarray) -> np.ndarray:
    """Packs colours, uint8 [..., 3], into numbers, uint32 [...]."""
    red, green, blue = (colours[..., band].astype(np.uint32) for band in range(3))
    return red << 16 | green << 8 | blue


def colour_text(code: int) -> str:
    """Writes a packed colour as #rrggbb."""
    return f"#{code:06x}"


def _code(colour: Colour) -> int:
    red, green, blue = colour
    return red << 16 | green << 8 | blue


def found_classes(where: str, ids: Sequence[int], ignore: Sequence[int]) -> MaskClasses:
    """Makes the classes of masks that no file names: their ids, sorted. 255 is ignored, unless 0 is the only other id.

    Args:
        where: The source, for messages.
        ids: The ids found in the masks.
        ignore: The ids that the user leaves out.

    Raises:
        UserError: If there are more ids than there can be classes.
    """
    binary = set(ids) - set(ignore) == {0, IGNORE}
    ignored = frozenset(ignore) if binary else frozenset((IGNORE, *ignore))
    chosen = tuple(identity for identity in sorted(set(ids)) if identity not in ignored)
    if len(chosen) > MOST_CLASSES:
        raise UserError(
            f"{where}: its masks hold {len(chosen):,} ids, and there can be {MOST_CLASSES} classes. If they number "
            f"single things, or were saved as JPEG, make masks of classes; else name the classes in a {NAMES[0]}"
        )
    return MaskClasses(tuple(map(str, chosen)), chosen, ignored=ignored)


def read_classes(file: Path, ignore: Sequence[int]) -> MaskClasses:
    """Reads a file of classes: a name a line, or id, name and colour, with or without a header.

    Args:
        file: The file. Lines that begin with # are comments.
        ignore: The ids that the user leaves out, even if the file names them.

    Raises:
        UserError: If a line cannot be read, or an id or a colour stands in two.
    """
    lines = [(number, line.strip()) for number, line in enumerate(read_text(file, _LARGEST).splitlines(), 1)]
    lines = [(number, line.lstrip("\ufeff")) for number, line in lines if line and not line.startswith("#")]
    header = _header(lines[0][1]) if lines else None
    rows = _by_columns(file, lines[1:], header) if header else _by_lines(file, lines)
    entries: dict[int, str] = {}
    colours: dict[Colour, int] = {}
    for number, identity, name, colour in rows:
        if identity in entries:
            raise UserError(f"{file}, line {number}: the id {identity} stands above already, for {entries[identity]!r}")
        if not 0 <= identity < _IDS:
            raise UserError(f"{file}, line {number}: the id {identity} is not from 0 to {_IDS - 1}")
        if not name:
            raise UserError(f"{file}, line {number}: the class {identity} has no name")
        entries[identity] = name
        if colour is not None and colours.setdefault(colour, identity) != identity:
            taken = entries[colours[colour]]
            raise UserError(f"{file}, line {number}: {colour_text(_code(colour))} is the colour of {taken!r} already")
    if not entries:
        raise UserError(f"{file} names no classes: write a name on each line, or id,name,colour")
    return listed_classes(entries, file.name, ignore, colours)


def listed_classes(
    entries: Mapping[int, str], file: str, ignore: Sequence[int], colours: Mapping[Colour, int] | None = None
) -> MaskClasses:
    """Makes the classes of masks that something lists; 255 is ignored unless it is listed.

    Args:
        entries: The names by their ids, in order.
        file: What lists them.
        ignore: The ids that the user leaves out, even if they are listed.
        colours: The ids by colour, for masks in colours.
    """
    ignored = frozenset(ignore) | ({IGNORE} - entries.keys())
    chosen = {identity: name for identity, name in entries.items() if identity not in ignored}
    return MaskClasses(tuple(chosen.values()), tuple(chosen), colours or {}, ignored, file)


_Row = tuple[int, int, str, Colour | None]
"""The number of a line, and the id, the name and the colour that stand in it."""


def _header(line: str) -> dict[str, int] | None:
    """Returns the place of each column of a header: id, name, colour, or red, green and blue; None if it is none."""
    cells = [cell.strip().strip('"').lower() for cell in re.split("[,;\t]", line)]
    spelt = {"color": "colour", "rgb": "colour", "hex": "colour", "r": "red", "g": "green", "b": "blue"}
    spelt |= {"class": "name", "label": "name", "class_name": "name", **dict.fromkeys(_ID_HEADS, "id")}
    places = {spelt.get(cell, cell): place for place, cell in enumerate(cells)}
    return places if "name" in places and len(places) > 1 else None


def _by_columns(file: Path, lines: list[tuple[int, str]], header: dict[str, int]) -> list[_Row]:
    """Reads the lines below a header; without a column of ids they count from 0."""
    rows: list[_Row] = []
    for row, (number, line) in enumerate(lines):
        cells = [cell.strip() for cell in re.split(r'[,;\t](?=(?:[^"]*"[^"]*")*[^"]*$)', line)]
        cells = [cell.strip('"') for cell in cells]
        if len(cells) <= header["name"] or len(cells) <= header.get("id", 0):
            raise UserError(f"{file}, line {number}: has {len(cells)} cells, fewer than the header")
        identity = cells[header["id"]] if "id" in header else str(row)
        if not (identity.isascii() and identity.isdigit()) or len(identity) > 9:
            raise UserError(f"{file}, line {number}: the id {identity!r} is no whole number")
        parts = [cells[header[band]] for band in ("red", "green", "blue") if len(cells) > header.get(band, len(cells))]
        text = " ".join(parts) or (" ".join(cells[header["colour"] :]) if "colour" in header else "")
        rows.append((number, int(identity), cells[header["name"]], _colour(file, number, text)))
    return rows


def _by_lines(file: Path, lines: list[tuple[int, str]]) -> list[_Row]:
    """Reads lines without a header: if all begin with a number, it is the id; otherwise each line is a name."""
    matches = [_ID_FIRST.fullmatch(line) for _, line in lines]
    rows: list[_Row] = []
    for place, ((number, line), match) in enumerate(zip(lines, matches, strict=True)):
        if not all(matches) or match is None:
            rows.append((number, place, line, None))
            continue
        if len(match[1]) > 9:
            raise UserError(f"{file}, line {number}: the id {match[1][:20]} is too large")
        coloured = _COLOUR.fullmatch(match[2])
        name, colour = (coloured[1], coloured[2]) if coloured else (match[2], "")
        rows.append((number, int(match[1]), name.strip(' "\t,;'), _colour(file, number, colour)))
    return rows


def _colour(file: Path, number: int, text: str) -> Colour | None:
    """Reads a colour written as #rrggbb or as three numbers; None for an empty text."""
    text = text.strip(' "()')
    if not text:
        return None
    if re.fullmatch("#?[0-9a-fA-F]{6}", text):
        code = int(text.removeprefix("#"), 16)
        return code >> 16, code >> 8 & 255, code & 255
    parts = [part for part in re.split(r"[,;\s]+", text) if part]
    if len(parts) != 3 or not all(part.isascii() and part.isdigit() and int(part[:4]) < 256 for part in parts):
        raise UserError(f"{file}, line {number}: {text!r} is no colour; write #rrggbb, or three numbers from 0 to 255")
    red, green, blue = map(int, parts)
    return red, green, blue
