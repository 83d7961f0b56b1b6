"""Checking a data set: decodes every image once and finds what is damaged, doubled, mislabelled or unusual."""

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import PurePath
from typing import Any

import numpy as np
from PIL import Image

from vitrail.config.data import AUTO
from vitrail.data.decode import MAX_PIXELS, BadImage, ValueLimits, decode, load_npy, open_header, to_bytes
from vitrail.data.decode_pool import BoundedDecoder, DecodeLimits
from vitrail.data.duplicates import exact_groups, gradient_hash, grey_thumbnail, near_groups
from vitrail.data.mask_check import CheckedSize, MaskReading, stored_annotation
from vitrail.data.sources import Source, Split
from vitrail.data.sources.base import AnnotatedReader
from vitrail.data.sources.folder import shared_note
from vitrail.data.sources.mask_reading import EncodedMasks
from vitrail.data.value_range import RangeSample, measure_range, range_notes, stored_values
from vitrail.tasks import task
from vitrail.tasks.audits import Audit, CheckedSplit

USUAL_MODES = ("RGB", "L")
"""Pillow's modes that need no mention in a report."""
# The usual endings of file names by Pillow's name of the format.
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
class SampleFacts:
    """The facts about one sample that checking needs. Those after `problem` are empty if it cannot be decoded."""

    id: str
    split: str
    label: str | None
    """Its target as text; None if it has none."""
    problem: str = ""
    """The reason why it cannot be decoded; "" if it can."""
    mode: str = ""
    """Pillow's mode, or the channels and type of an array."""
    kind: str = ""
    """The format of the file, as Pillow names it, "npy" or "array"."""
    rows: int = 0
    columns: int = 0
    turned: bool = False
    """True if its EXIF data turn or mirror it."""
    misnamed: bool = False
    """True if its file name has the ending of another format."""
    pixel_hash: bytes = b""
    """A hash of the shape and the pixels."""
    content_hash: bytes = b""
    """A hash of the file; empty for arrays."""
    gradients: int = 0
    """The 64-bit hash of its brightness gradients, from `duplicates.gradient_hash`."""
    thumbnail: np.ndarray | None = None
    """Grey, uint8 [256], from `duplicates.thumbnail`."""
    annotation: Any = None
    """The facts about its right answer, where that lies in pixels, as its task keeps them; None if it has none."""


@dataclass(frozen=True)
class CheckResult:
    """The result of checking a data set."""

    findings: dict[str, Any]
    """The JSON document of `vitrail data check --json`, from which the report is made too."""
    audit: Audit = field(default_factory=Audit)
    """What the task found about the targets."""

    def to_json(self) -> dict[str, Any]:
        """Returns the findings."""
        return self.findings


def check_source(
    source: Source,
    *,
    max_pixels: int = MAX_PIXELS,
    limits: ValueLimits = None,
    workers: int | None = None,
    decode_limits: DecodeLimits | None = None,
    progress: Callable[[int], None] = lambda done: None,
) -> CheckResult:
    """Examines every sample of every split.

    Args:
        source: The data.
        max_pixels: The largest picture that is decoded, in pixels; larger ones count as damaged.
        limits: The range of stored values that training would use for pictures with more than 8 bits.
        workers: The number of threads; None for one on each processor.
        decode_limits: The time, memory and formats that decoding a file may take; None for the defaults.
        progress: Called with the number of samples newly examined.
    """
    examined: list[SampleFacts] = []
    decoder = BoundedDecoder(decode_limits)
    measured = measure_range(source.split("train") if "train" in source.splits else source.all, max_pixels, decoder)
    reading = ReadingOptions(max_pixels, limits, shown_limits(measured, limits), decoder)
    with ThreadPoolExecutor(workers or os.cpu_count() or 1, thread_name_prefix="vitrail-check") as pool:
        for split in source.splits.values():
            for done in pool.map(partial(_examine_all, split, source.classes, reading), _chunks(len(split))):
                examined += done
                progress(len(done))
    facts: dict[str, list[Any]] = {name: [] for name in source.splits}
    for each in examined:
        facts[each.split].append(each.annotation)
    audit = audit_targets(source, facts)
    findings = _findings(source, examined, audit, reading.shown, range_notes(measured, limits))
    return CheckResult(findings, audit)


def audit_targets(source: Source, facts: Mapping[str, Sequence[Any]]) -> Audit:
    """Checks the targets of a source by the rules of its task: their balance, and what contradicts itself.

    Args:
        source: The data.
        facts: For each split the facts about right answers in pixels, one for each sample; None for one without.
    """
    splits, known = {}, set[int]()
    for name, split in source.splits.items():
        unused = {}
        if isinstance(split.reader, EncodedMasks) and id(split.reader) not in known:
            known.add(id(split.reader))  # splits can share a reader, which has such files once
            unused = {kind: [*map(valid_unicode, files)] for kind, files in split.reader.unused.items()}
        ids = [*map(valid_unicode, split.ids)]
        splits[name] = CheckedSplit(ids, split.targets, facts[name], unused)
    return task(source.task).target.audit(splits, source.classes)


@dataclass(frozen=True)
class ReadingOptions:
    """Settings for decoding the pictures that are checked."""

    max_pixels: int = MAX_PIXELS
    """The largest picture that is decoded, in pixels."""
    limits: ValueLimits = None
    """The range that training would use for pictures with more than 8 bits."""
    shown: ValueLimits = None
    """The range by which such pictures are compared and shown."""
    decoder: BoundedDecoder = field(default_factory=BoundedDecoder)
    """Decodes the files within limits."""


def shown_limits(measured: RangeSample, limits: ValueLimits) -> ValueLimits:
    """Chooses the range by which pictures with more than 8 bits are compared and shown.

    It is the range of training, or, if the pictures hardly use that, the range that they do use.
    """
    full_range = limits or measured.type_limits
    if not measured.deep or (full_range is not None and not range_notes(measured, limits)):
        return full_range
    low, high = measured.between(AUTO)
    return (low, high) if low < high else full_range


def _chunks(count: int, size: int = 16) -> Iterator[range]:
    """Yields the numbers 0 to count - 1 in ranges of `size`."""
    return (range(start, min(start + size, count)) for start in range(0, count, size))


def _examine_all(split: Split, names: tuple[str, ...], reading: ReadingOptions, indices: range) -> list[SampleFacts]:
    return [sample_facts(split, index, names, reading) for index in indices]


def sample_facts(split: Split, index: int, names: tuple[str, ...], reading: ReadingOptions) -> SampleFacts:
    """Decodes one sample and collects the facts about it.

    Args:
        split: The split.
        index: The sample's place in it.
        names: The class names of the source.
        reading: How to decode it.
    """
    target = task(split.task).target
    label = target.text(split.targets[index], names) or None if names else None
    found = _picture_facts(split, index, label, reading)
    if not target.in_pixels or not split.known[index]:
        return found
    assert isinstance(split.reader, AnnotatedReader)
    size = None if found.problem else CheckedSize((found.rows, found.columns), found.turned, found.pixel_hash)
    masks = MaskReading(reading.decoder, reading.max_pixels)
    stored = stored_annotation(split.reader, int(split.rows[index]), masks, size)
    return replace(found, annotation=target.examined(stored))


def _picture_facts(split: Split, index: int, label: str | None, reading: ReadingOptions) -> SampleFacts:
    """Decodes the picture of one sample and collects the facts about it. label: its target as text."""
    name = split.ids[index]
    try:
        content = split.read(index)
        content_hash = hashlib.blake2b(content, digest_size=16).digest() if isinstance(content, bytes) else b""
        examination = partial(look, max_pixels=reading.max_pixels, limits=reading.limits, shown=reading.shown)
        seen = reading.decoder(examination, content)
    except BadImage as error:
        return SampleFacts(name, split.name, label, problem=str(error))
    seen["pixel_hash"] = bytes.fromhex(seen["pixel_hash"])
    endings = _ENDINGS.get(seen["kind"])
    ending = PurePath(name).suffix.lower()
    misnamed = bool(endings and ending and ending not in endings)
    return SampleFacts(name, split.name, label, misnamed=misnamed, content_hash=content_hash, **seen)


def look(content: bytes | np.ndarray, max_pixels: int, limits: ValueLimits, shown: ValueLimits) -> dict[str, Any]:
    """Decodes a picture and returns fields of `Examined` by name, with the pixels' hash as hexadecimal digits.

    limits: the range of training for pictures with more than 8 bits; shown: the range by which they are shown.
    """
    mode, kind, turned = _header(content, max_pixels)
    content, channels = opened(content, max_pixels)
    pixels = decode(content, channels, max_pixels=max_pixels, limits=limits)
    values = stored_values(content, max_pixels)
    if values is None:
        seen = pixels
    else:
        seen = to_bytes(decode(content, channels, max_pixels=max_pixels, limits=shown))
        pixels = as_stored(values)  # pictures that differ may be equal once reduced to 8 bits
    grey = Image.fromarray(seen).convert("L") if channels == 3 else Image.fromarray(_mean(seen))
    rows, columns = seen.shape[:2]
    digest = hashlib.blake2b(f"{pixels.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(pixels).data)
    return {
        "mode": mode,
        "kind": kind,
        "rows": rows,
        "columns": columns,
        "turned": turned,
        "pixel_hash": digest.hexdigest(),
        "gradients": gradient_hash(grey),
        "thumbnail": grey_thumbnail(grey),
    }


def opened(content: bytes | np.ndarray, max_pixels: int = MAX_PIXELS) -> tuple[bytes | np.ndarray, int]:
    """Returns the content, with an .npy file replaced by its array, and the number of channels to decode it to: 3,
    unless it is an array with another number than 1 or 3."""
    if not isinstance(content, np.ndarray) and content[:6] == b"\x93NUMPY":
        content = load_npy(content, max_pixels)
    if isinstance(content, np.ndarray) and content.ndim == 3 and content.shape[2] not in (1, 3):
        return content, content.shape[2]
    return content, 3


def seen_as(content: bytes | np.ndarray, limits: ValueLimits) -> np.ndarray:
    """Decodes a picture for display, to uint8 [rows, columns, 3].

    Of an array with other channels it shows the first three, or the mean of two. limits: the range that is shown of
    pictures with more than 8 bits. Raises BadImage if it cannot be decoded.
    """
    content, channels = opened(content)
    pixels = to_bytes(decode(content, channels, limits=limits))
    return pixels[:, :, :3] if channels >= 3 else np.repeat(_mean(pixels)[:, :, None], 3, axis=2)


def as_stored(values: np.ndarray) -> np.ndarray:
    """Converts values of more than 8 bits to one type, so that equal pictures have equal bytes whatever their format:
    float64, uint16 or, for whole numbers outside its range, int64."""
    if np.issubdtype(values.dtype, np.floating):
        return values.astype(np.float64)
    return values.astype(np.uint16) if values.min() >= 0 and values.max() <= 65535 else values.astype(np.int64)


def _mean(pixels: np.ndarray) -> np.ndarray:
    """Averages the channels of uint8 [rows, columns, channels] to uint8 [rows, columns]."""
    return np.rint(pixels.mean(axis=2)).astype(np.uint8)


def _header(content: bytes | np.ndarray, max_pixels: int) -> tuple[str, str, bool]:
    """Reads the mode, the format, and whether EXIF data turn the picture."""
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
        # `decode` is called next and raises BadImage with the reason.
        return "", "", False


def _npy_mode(values: np.ndarray) -> str:
    channels = values.shape[2] if values.ndim == 3 else 1
    return f"{channels} channel{'s' * (channels > 1)} of {values.dtype}"


def _findings(
    source: Source, examined: list[SampleFacts], targets: Audit, shown: ValueLimits, notes: list[str]
) -> dict[str, Any]:
    """Builds the JSON document of the findings. notes: on the range of values; shown: the range that is shown."""
    good = [sample for sample in examined if not sample.problem]
    shared = shared_note(source, [(sample.content_hash, sample.split, sample.label) for sample in good])
    exact = exact_groups([sample.pixel_hash for sample in good])
    # The search for near duplicates takes only the first picture of each group of exact ones.
    repeats = {index for group in exact for index in group[1:]}
    single = [index for index in range(len(good)) if index not in repeats]
    hashes = np.array([good[index].gradients for index in single], dtype=np.uint64)
    thumbnails = [found for index in single if (found := good[index].thumbnail) is not None]
    near, limited = near_groups(hashes, np.stack(thumbnails)) if len(single) > 1 else ([], False)
    near = [[single[index] for index in group] for group in near]
    exact_members = [[_member(good[index]) for index in group] for group in exact]
    near_members = [[_member(good[index]) for index in group] for group in near]
    groups = [("exact", group) for group in exact_members] + [("near", group) for group in near_members]
    modes = Counter(sample.mode for sample in good)
    return {
        "source": source.name,
        "fingerprint": source.fingerprint(),
        "n": len(examined),
        "skipped": len(examined) - len(good),
        "classes": list(source.classes),
        "splits": {name: len(split) for name, split in source.splits.items()},
        "made_splits": list(source.made_splits),
        "notes": [valid_unicode(note) for note in [*source.notes, *notes, *shared]],
        "shown_range": shown,
        "corrupt": [{**_member(each), "reason": each.problem} for each in examined if each.problem],
        "damaged_shards": _damaged_shards(source),
        "unlabelled": [valid_unicode(each.id) for each in examined if each.label is None],
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
    """Returns {shard, reason} for each damaged shard of a source in shards; [] for other sources."""
    from vitrail.data.sources.shards import damaged_shards  # needs pyarrow, which other sources do not

    return damaged_shards(source)


def _is_odd(sample: SampleFacts) -> bool:
    """Tells whether a sample is an image file of an unusual mode."""
    return sample.kind not in ("array", "npy") and sample.mode not in USUAL_MODES


def _member(sample: SampleFacts) -> dict[str, Any]:
    """Returns the JSON object by which the findings name a sample."""
    return {"id": valid_unicode(sample.id), "split": sample.split, "label": sample.label}


def valid_unicode(name: str) -> str:
    """Converts a file name, which need not be valid Unicode, to text that is: invalid characters become escapes."""
    return name.encode("utf-8", "backslashreplace").decode()


def _sizes(good: list[SampleFacts]) -> dict[str, Any]:
    """Summarises the sizes of pictures: range of rows and columns, and a histogram of the shorter side."""
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
