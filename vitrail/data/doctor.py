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

from vitrail.data.decode import MAX_PIXELS, BadImage, decode, open_header
from vitrail.data.duplicates import exact_groups, gradient_hash, near_groups, thumbnail
from vitrail.data.sources import UNLABELLED, Source, Split

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
    label: int
    problem: str = ""
    mode: str = ""
    kind: str = ""
    rows: int = 0
    columns: int = 0
    turned: bool = False
    misnamed: bool = False
    pixel_hash: bytes = b""
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
    workers: int | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> Checkup:
    """Examine every sample of every split; `progress` is told how many more are done."""
    examined: list[Examined] = []
    with ThreadPoolExecutor(workers or os.cpu_count() or 1, thread_name_prefix="vitrail-doctor") as pool:
        for split in source.splits.values():
            for done in pool.map(partial(_examine_all, split, max_pixels), _chunks(len(split))):
                examined += done
                progress(len(done))
    return Checkup(_findings(source, examined))


def _chunks(count: int, size: int = 16) -> Iterator[range]:
    return (range(start, min(start + size, count)) for start in range(0, count, size))


def _examine_all(split: Split, max_pixels: int, indices: range) -> list[Examined]:
    return [examine(split, index, max_pixels) for index in indices]


def examine(split: Split, index: int, max_pixels: int = MAX_PIXELS) -> Examined:
    """Decode one sample and note what it is."""
    name, label = split.ids[index], int(split.labels[index])
    try:
        content = split.read(index)
        mode, kind, turned = _header(content, max_pixels)
        if isinstance(content, np.ndarray) and content.shape[2] not in (1, 3):
            pixels = content
            grey = Image.fromarray(np.rint(content.mean(axis=2)).astype(np.uint8))
        else:
            pixels = decode(content, 3, max_pixels=max_pixels)
            grey = Image.fromarray(pixels).convert("L")
    except BadImage as error:
        return Examined(name, split.name, label, problem=str(error))
    rows, columns = pixels.shape[:2]
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
        gradients=gradient_hash(grey),
        thumbnail=thumbnail(grey),
    )


def _header(content: bytes | np.ndarray, max_pixels: int) -> tuple[str, str, bool]:
    """Mode, format, and whether EXIF data turn the picture."""
    if isinstance(content, np.ndarray):
        return {1: "L", 3: "RGB"}.get(content.shape[2], f"{content.shape[2]} channels"), "array", False
    if content[:6] == b"\x93NUMPY":
        return "array", "npy", False
    try:
        image = open_header(content, max_pixels)
        return image.mode, image.format or "", image.getexif().get(0x0112, 1) not in (0, 1)
    except BadImage:
        raise
    except Exception:
        # `decode` comes next and will say what is wrong, in its own words.
        return "", "", False


def _findings(source: Source, examined: list[Examined]) -> dict[str, Any]:
    good = [each for each in examined if not each.problem]
    member = partial(_member, source)
    exact = exact_groups([each.pixel_hash for each in good])
    # One picture of each exact group stands for it among the near ones.
    repeats = {place for group in exact for place in group[1:]}
    single = [place for place in range(len(good)) if place not in repeats]
    hashes = np.array([good[place].gradients for place in single], dtype=np.uint64)
    thumbnails = [each for place in single if (each := good[place].thumbnail) is not None]
    near, limited = near_groups(hashes, np.stack(thumbnails)) if len(single) > 1 else ([], False)
    near = [[single[place] for place in group] for group in near]
    exact_members = [[member(good[place]) for place in group] for group in exact]
    near_members = [[member(good[place]) for place in group] for group in near]
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
        "notes": [printable(note) for note in source.notes],
        "corrupt": [{**member(each), "reason": each.problem} for each in examined if each.problem],
        "damaged_shards": _damaged_shards(source),
        "unlabelled": [printable(each.id) for each in examined if each.label == UNLABELLED],
        "modes": dict(modes.most_common()),
        "odd_modes": [{**member(each), "mode": each.mode} for each in good if _is_odd(each)],
        "formats": dict(Counter(each.kind for each in good).most_common()),
        "misnamed": [{**member(each), "format": each.kind} for each in good if each.misnamed],
        "turned_by_exif": sum(each.turned for each in good),
        "exact_duplicates": exact_members,
        "near_duplicates": near_members,
        "near_duplicates_limited": limited,
        "leaks": [
            {"kind": kind, "members": group} for kind, group in groups if len({each["split"] for each in group}) > 1
        ],
        "conflicts": [
            {"kind": kind, "members": group} for kind, group in groups if len({each["label"] for each in group}) > 1
        ],
        "class_balance": _balance(source),
        "sizes": _sizes(good),
    }


def _damaged_shards(source: Source) -> list[dict[str, str]]:
    from vitrail.data.sources.shards import damaged_shards  # needs pyarrow, which other sources do not

    return damaged_shards(source)


def _is_odd(each: Examined) -> bool:
    return each.kind not in ("array", "npy") and each.mode not in USUAL_MODES


def _member(source: Source, each: Examined) -> dict[str, Any]:
    label = None if each.label == UNLABELLED else source.classes[each.label]
    return {"id": printable(each.id), "split": each.split, "label": label}


def printable(name: str) -> str:
    """File names need not be valid text; a report has to be."""
    return name.encode("utf-8", "backslashreplace").decode()


def _balance(source: Source) -> dict[str, dict[str, int]]:
    counts = {
        name: np.bincount(split.labels[split.labels >= 0], minlength=len(source.classes))
        for name, split in source.splits.items()
    }
    return {
        label: {name: int(count[place]) for name, count in counts.items()} for place, label in enumerate(source.classes)
    }


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
