"""What is wrong with a data set: decodes every image once and reports what a person would want to know."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np
from PIL import Image

from vitrail.config.data import AUTO
from vitrail.data.decode import MAX_PIXELS, BadImage, Limits, decode, load_npy, open_header, to_bytes
from vitrail.data.duplicates import exact_groups, gradient_hash, near_groups, thumbnail
from vitrail.data.ranges import Measured, measure, range_notes, stored
from vitrail.data.sources import Source, Split
from vitrail.data.sources.folder import shared_note
from vitrail.tasks import task
from vitrail.tasks.base import Audit, Audited

USUAL_MODES = ("RGB", "L")
_ENDINGS = {
    "JPEG": (".jpg", ".jpeg", ".jpe", ".jfif"),
    "MPO": (".jpg", ".jpeg", ".jpe", ".jfif", ".mpo"),
    "PNG": (".png", ".apng"),
    "GIF": (".gif",),
    "BMP": (".bmp", ".dib"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}


@dataclass(frozen=True)
class Examined:
    """What decoding told about one sample."""

    id: str
    split: str
    label: str | None
    """Its target as text; None where there is none."""
    problem: str = ""
    mode: str = ""
    kind: str = ""
    rows: int = 0
    columns: int = 0
    turned: bool = False
    misnamed: bool = False
    pixel_hash: bytes = b""
    content_hash: bytes = b""
    gradients: int = 0
    thumbnail: np.ndarray | None = None


@dataclass(frozen=True)
class Checkup:
    """The findings, ready for JSON and for the report."""

    findings: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return self.findings


def check_source(
    source: Source,
    *,
    max_pixels: int = MAX_PIXELS,
    limits: Limits = None,
    workers: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Checkup:
    """Examine every sample of every split; `progress` is told how many more are done.

    `limits`: the range of stored values that training would take.
    """
    examined: list[Examined] = []
    measured = measure(source.split("train") if "train" in source.splits else source.all, max_pixels)
    how = Reading(max_pixels, limits, shown_limits(measured, limits))
    with ThreadPoolExecutor(workers or os.cpu_count() or 1, thread_name_prefix="vitrail-doctor") as pool:
        for split in source.splits.values():
            for done in pool.map(partial(_examine_all, split, source.classes, how), _chunks(len(split))):
                examined += done
                progress(len(done))
    return Checkup(_findings(source, examined, range_notes(measured, limits), how.shown))


def audit(source: Source) -> Audit:
    """Checks the targets of a source, as its task does."""
    splits = {name: Audited([*map(printable, split.ids)], split.targets) for name, split in source.splits.items()}
    return task(source.task).target.audit(splits, source.classes)


@dataclass(frozen=True)
class Reading:
    """How pictures are read: as training would, and for looking at them."""

    max_pixels: int = MAX_PIXELS
    limits: Limits = None
    shown: Limits = None


def shown_limits(measured: Measured, limits: Limits) -> Limits:
    """The range by which pictures with more than 8 bits are compared and shown: training's, unless it shows little."""
    whole = limits or measured.type_limits
    if not measured.deep or (whole is not None and not range_notes(measured, limits)):
        return whole
    low, high = measured.between(AUTO)
    return (low, high) if low < high else whole


def _chunks(count: int, size: int = 16) -> Iterator[range]:
    return (range(start, min(start + size, count)) for start in range(0, count, size))


def _examine_all(split: Split, names: tuple[str, ...], how: Reading, indices: range) -> list[Examined]:
    return [examine(split, index, names, how) for index in indices]


def examine(split: Split, index: int, names: tuple[str, ...], how: Reading) -> Examined:
    """Decode one sample and note what it is; `names` are the source's."""
    name = split.ids[index]
    label = task(split.task).target.text(split.targets[index], names) or None if names else None
    try:
        content = split.read(index)
        content_hash = hashlib.blake2b(content, digest_size=16).digest() if isinstance(content, bytes) else b""
        mode, kind, turned = _header(content, how.max_pixels)
        content, channels = opened(content, how.max_pixels)
        pixels = decode(content, channels, max_pixels=how.max_pixels, limits=how.limits)
        values = stored(content, how.max_pixels)
        if values is None:
            seen = pixels
        else:
            seen = to_bytes(decode(content, channels, max_pixels=how.max_pixels, limits=how.shown))
            pixels = as_stored(values)  # equal in 8 bits is not equal
    except BadImage as error:
        return Examined(name, split.name, label, problem=str(error))
    grey = Image.fromarray(seen).convert("L") if channels == 3 else Image.fromarray(_mean(seen))
    rows, columns = seen.shape[:2]
    digest = hashlib.blake2b(f"{pixels.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).data)
    endings = _ENDINGS.get(kind)
    ending = PurePath(name).suffix.lower()
    return Examined(
        id=name,
        split=split.name,
        label=label,
        mode=mode,
        kind=kind,
        rows=rows,
        columns=columns,
        turned=turned,
        misnamed=bool(endings and ending and ending not in endings),
        pixel_hash=digest.digest(),
        content_hash=content_hash,
        gradients=gradient_hash(grey),
        thumbnail=thumbnail(grey),
    )


def opened(content: bytes | np.ndarray, max_pixels: int = MAX_PIXELS) -> tuple[bytes | np.ndarray, int]:
    """The content, of an .npy file its array, and by how many channels to look at it: colour, unless it is an array
    that has another number."""
    if not isinstance(content, np.ndarray) and content[:6] == b"\x93NUMPY":
        content = load_npy(content, max_pixels)
    if isinstance(content, np.ndarray) and content.ndim == 3 and content.shape[2] not in (1, 3):
        return content, content.shape[2]
    return content, 3


def seen_as(content: bytes | np.ndarray, limits: Limits) -> np.ndarray:
    """uint8 [rows, columns, 3] for people to look at: the first three channels, or, of two, the mean of both."""
    content, channels = opened(content)
    pixels = to_bytes(decode(content, channels, limits=limits))
    return pixels[:, :, :3] if channels >= 3 else np.repeat(_mean(pixels)[:, :, None], 3, axis=2)


def as_stored(values: np.ndarray) -> np.ndarray:
    """Values of more than 8 bits as one type, so that equal ones have equal bytes whatever the file format."""
    if np.issubdtype(values.dtype, np.floating):
        return values.astype(np.float64)
    return values.astype(np.uint16) if values.min() >= 0 and values.max() <= 65535 else values.astype(np.int64)


def _mean(pixels: np.ndarray) -> np.ndarray:
    return np.rint(pixels.mean(axis=2)).astype(np.uint8)


def _header(content: bytes | np.ndarray, max_pixels: int) -> tuple[str, str, bool]:
    """Mode, format, and whether EXIF data turn the picture."""
    if isinstance(content, np.ndarray):
        return {1: "L", 3: "RGB"}.get(content.shape[2], f"{content.shape[2]} channels"), "array", False
    if content[:6] == b"\x93NUMPY":
        return _npy_mode(load_npy(content, max_pixels)), "npy", False
    try:
        image = open_header(content, max_pixels)
        return image.mode, image.format or "", image.getexif().get(0x0112, 1) not in (0, 1)
    except BadImage:
        raise
    except Exception:
        # `decode` comes next and will say what is wrong, in its own words.
        return "", "", False


def _npy_mode(values: np.ndarray) -> str:
    channels = values.shape[2] if values.ndim == 3 else 1
    return f"{channels} channel{'s' * (channels > 1)} of {values.dtype}"


def _findings(source: Source, examined: list[Examined], notes: list[str], shown: Limits) -> dict[str, Any]:
    good = [each for each in examined if not each.problem]
    targets = audit(source)
    shared = shared_note(source, [(each.content_hash, each.split, each.label) for each in good])
    exact = exact_groups([each.pixel_hash for each in good])
    # One picture of each exact group stands for it among the near ones.
    repeats = {place for group in exact for place in group[1:]}
    single = [place for place in range(len(good)) if place not in repeats]
    hashes = np.array([good[place].gradients for place in single], dtype=np.uint64)
    thumbnails = [each for place in single if (each := good[place].thumbnail) is not None]
    near, limited = near_groups(hashes, np.stack(thumbnails)) if len(single) > 1 else ([], False)
    near = [[single[place] for place in group] for group in near]
    exact_members = [[_member(good[place]) for place in group] for group in exact]
    near_members = [[_member(good[place]) for place in group] for group in near]
    groups = [("exact", group) for group in exact_members] + [("near", group) for group in near_members]
    modes = Counter(each.mode for each in good)
    return {
        "source": source.name,
        "fingerprint": source.fingerprint(),
        "n": len(examined),
        "skipped": len(examined) - len(good),
        "classes": list(source.classes),
        "splits": {name: len(split) for name, split in source.splits.items()},
        "made_splits": list(source.made_splits),
        "notes": [printable(note) for note in [*source.notes, *notes, *shared]],
        "shown_range": shown,
        "corrupt": [{**_member(each), "reason": each.problem} for each in examined if each.problem],
        "damaged_shards": _damaged_shards(source),
        "unlabelled": [printable(each.id) for each in examined if each.label is None],
        "modes": dict(modes.most_common()),
        "odd_modes": [{**_member(each), "mode": each.mode} for each in good if _is_odd(each)],
        "formats": dict(Counter(each.kind for each in good).most_common()),
        "misnamed": [{**_member(each), "format": each.kind} for each in good if each.misnamed],
        "turned_by_exif": sum(each.turned for each in good),
        "exact_duplicates": exact_members,
        "near_duplicates": near_members,
        "near_duplicates_limited": limited,
        "leaks": [
            {"kind": kind, "members": group} for kind, group in groups if len({each["split"] for each in group}) > 1
        ],
        "conflicts": [
            {"kind": kind, "members": group}
            for kind, group in groups
            if len({each["label"] for each in group if each["label"] is not None}) > 1
        ],
        "class_balance": targets.balance,
        **targets.findings,
        "sizes": _sizes(good),
    }


def _damaged_shards(source: Source) -> list[dict[str, str]]:
    from vitrail.data.sources.shards import damaged_shards  # needs pyarrow, which other sources do not

    return damaged_shards(source)


def _is_odd(each: Examined) -> bool:
    return each.kind not in ("array", "npy") and each.mode not in USUAL_MODES


def _member(each: Examined) -> dict[str, Any]:
    return {"id": printable(each.id), "split": each.split, "label": each.label}


def printable(name: str) -> str:
    """File names need not be valid text; a report has to be."""
    return name.encode("utf-8", "backslashreplace").decode()


def _sizes(good: list[Examined]) -> dict[str, Any]:
    """Rows and columns at a glance, and how many pictures have a shorter side of what length."""
    if not good:
        return {}
    rows, columns = np.array([each.rows for each in good]), np.array([each.columns for each in good])
    short = np.minimum(rows, columns)
    if len(set(short.tolist())) <= 12:
        values, counts = np.unique(short, return_counts=True)
        bins = [
            {"from": int(value), "to": int(value), "n": int(count)} for value, count in zip(values, counts, strict=True)
        ]
    else:
        edges = np.unique(np.round(np.geomspace(short.min(), short.max() + 1, 17)).astype(int))
        counts, _ = np.histogram(short, edges)
        bins = [
            {"from": int(low), "to": int(high) - 1, "n": int(count)}
            for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
        ]
    return {
        "rows": _range(rows),
        "columns": _range(columns),
        "shorter_side": bins,
        "distinct": len(set(zip(rows.tolist(), columns.tolist(), strict=True))),
    }


def _range(values: np.ndarray) -> dict[str, int]:
    return {"least": int(values.min()), "median": int(np.median(values)), "most": int(values.max())}
