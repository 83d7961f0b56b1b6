"""Checks the masks of a data set: what is wrong with them, and how many pixels each class has."""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.drawing.page import section, text, thumbnail
from vitrail.tasks.audits import Audit, CheckedPicture, CheckedSplit, FaultySample, StoredAnnotation
from vitrail.tasks.segmentation.colours import class_colours, paint_mask
from vitrail.tasks.segmentation.faults import MASK_FAULTS
from vitrail.tasks.segmentation.target import IGNORE

_SHOWN_FAULTY = 24
"""The most pictures with faults that the page shows, of each kind at most `_SHOWN_OF_A_KIND`."""
_SHOWN_OF_A_KIND = 3
_SHOWN_SOUND = 6
"""The pictures without faults that the page shows."""
_SHOWN_LINES = 16
"""The most classes that a terminal shows."""
_SHOWN_STRANGE = 50
"""The most ids without a class that are listed."""


@dataclass(frozen=True)
class MaskFacts:
    """The facts about one mask that are kept."""

    faults: Mapping[str, str]
    counts: tuple[tuple[int, int], ...]
    """(class, number of its pixels) for each class that occurs."""
    ignored: int
    """The number of pixels that are ignored."""
    digest: bytes
    """A digest of the mask; equal masks have equal ones. Empty for masks that are not compared with others."""
    picture_digest: bytes
    strange: Mapping[str, int]
    palette: Mapping[int, str]


def mask_facts(mask: StoredAnnotation) -> MaskFacts:
    """Reduces a mask to the facts about it."""
    faults = dict(mask.faults)
    if mask.values is None:
        return MaskFacts(faults, (), 0, b"", mask.picture_digest, mask.strange, mask.palette)
    found = np.bincount(mask.values.ravel(), minlength=IGNORE + 1)
    counts = tuple((index, int(found[index])) for index in np.flatnonzero(found[:IGNORE]).tolist())
    if not faults and not counts:
        faults["all_ignored"] = "has no pixel that counts"
    elif not faults and len(counts) == 1 and found[IGNORE] == 0:
        faults["one_class"] = "has one class in all of its pixels"
    digest = hashlib.blake2b(f"{mask.values.shape}".encode(), digest_size=16)
    digest.update(np.ascontiguousarray(mask.values).data)
    # Masks of one class are equal without anyone having copied them.
    own = digest.digest() if len(counts) > 1 else b""
    return MaskFacts(faults, counts, int(found[IGNORE]), own, mask.picture_digest, mask.strange, mask.palette)


@dataclass(frozen=True)
class _Mask:
    """A mask among all others."""

    split: str
    index: int
    id: str
    facts: MaskFacts


def audit(splits: Mapping[str, CheckedSplit], names: Sequence[str]) -> Audit:
    """Finds the faults of masks, and counts the pictures and pixels of each class."""
    masks = [
        _Mask(split, index, each.ids[index], facts)
        for split, each in splits.items()
        for index, facts in enumerate(each.facts)
        if facts is not None
    ]
    found: dict[str, list[dict[str, Any]]] = {kind: [] for kind in MASK_FAULTS}
    for kind, member in _faults(splits, masks, names):
        found[kind].append(member)
    found = {kind: members for kind, members in found.items() if members}
    faults = sum(map(len, found.values()))
    classes = _classes(masks, names, list(splits))
    pixels = {split: sum(each["pixels"][split] for each in classes.values()) for split in splits}
    ignored = sum(mask.facts.ignored for mask in masks)
    findings = {
        "n": len(masks),
        "ignored_share": ignored / max(1, ignored + sum(pixels.values())),
        "faults": {kind: {"n": len(members), "members": [*map(_shown, members)]} for kind, members in found.items()},
        "unknown_ids": _strange(masks),
        "classes": {
            name: {**each, "share": {split: each["pixels"][split] / max(1, pixels[split]) for split in splits}}
            for name, each in classes.items()
        },
    }
    balance = {name: each["pictures"] for name, each in classes.items()}
    lines = [
        ("masks", f"{len(masks):,}"),
        ("faults of masks", f"{faults:,}, of {len(found)} kinds" if found else "0"),
        *((f"  {MASK_FAULTS[kind].title}", _some(members)) for kind, members in found.items()),
        ("pixels ignored", f"{findings['ignored_share']:.1%}"),
        ("share of pixels by class", ""),
        *_class_lines(findings["classes"]),
    ]
    tables, samples = _tables(findings, list(splits)), _samples(found, masks)
    cards = [(f"{faults:,}", "faults of masks", "bad" if faults else "good")]
    return Audit(balance, {"masks": findings}, lines, tables, samples, cards)


def _faults(
    splits: Mapping[str, CheckedSplit], masks: Sequence[_Mask], names: Sequence[str]
) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields each fault: its kind, and the JSON object that names what has it."""
    for split, each in splits.items():
        for index in np.flatnonzero(each.targets <= 0).tolist():
            yield "mask_missing", _member(each.ids[index], split, index, "has no mask")
        for kind, files in each.unused.items():
            yield from ((kind, _member(file, None, None, "is not used")) for file in files)
    for mask in masks:
        yield from ((kind, _named(mask, why)) for kind, why in mask.facts.faults.items())
    yield from _copies(masks)
    yield from _palettes(masks)
    seen = {name: set[str]() for name in names}
    for mask in masks:
        for index, _ in mask.facts.counts:
            seen[names[index]].add(mask.split)
    for name, where in seen.items():
        if not where:
            yield "class_never", _member(name, None, None, "has no pixels")
        elif len(where) == 1 and len(splits) > 1:
            yield "class_in_one_split", _member(name, None, None, f"has pixels in {next(iter(where))} alone")


def _member(name: str, split: str | None, index: int | None, reason: str) -> dict[str, Any]:
    return {"id": name, "split": split, "index": index, "reason": reason}


def _shown(member: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a member as check.json has it, without its place in the split."""
    return {key: value for key, value in member.items() if key != "index"}


def _named(mask: _Mask, reason: str) -> dict[str, Any]:
    return _member(mask.id, mask.split, mask.index, reason)


def _copies(masks: Sequence[_Mask]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields equal masks of different pictures, and different masks of equal pictures."""
    by_mask, by_picture = defaultdict[bytes, list[_Mask]](list), defaultdict[bytes, list[_Mask]](list)
    for mask in masks:
        if mask.facts.digest and mask.facts.picture_digest:
            by_mask[mask.facts.digest].append(mask)
            by_picture[mask.facts.picture_digest].append(mask)
    for group in by_mask.values():
        first, *others = group
        for other in others:
            if other.facts.picture_digest != first.facts.picture_digest:
                yield "equal_masks", _named(other, f"has the mask of {first.id}")
    for group in by_picture.values():
        first, *others = group
        for other in others:
            if other.facts.digest != first.facts.digest:
                yield "contradicting", _named(other, f"is the picture {first.id} with another mask")


def _palettes(masks: Sequence[_Mask]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields masks whose palette gives an id another colour than in most masks."""
    colours = defaultdict[int, Counter[str]](Counter)
    for mask in masks:
        for identity, colour in mask.facts.palette.items():
            colours[identity][colour] += 1
    usual = {identity: counts.most_common(1)[0][0] for identity, counts in colours.items()}
    for mask in masks:
        odd = [(each, colour) for each, colour in mask.facts.palette.items() if colour != usual[each]]
        if odd:
            identity, colour = odd[0]
            yield "palettes_differ", _named(mask, f"has {colour} for the id {identity}, not {usual[identity]}")


def _classes(masks: Sequence[_Mask], names: Sequence[str], splits: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Counts the pictures and the pixels of each class by split."""
    classes = {name: {"pictures": dict.fromkeys(splits, 0), "pixels": dict.fromkeys(splits, 0)} for name in names}
    for mask in masks:
        for index, count in mask.facts.counts:
            each = classes[names[index]]
            each["pictures"][mask.split] += 1
            each["pixels"][mask.split] += count
    return classes


def _strange(masks: Sequence[_Mask]) -> list[dict[str, Any]]:
    """Lists the ids and colours that no class has, those in most masks first."""
    found: dict[str, dict[str, Any]] = {}
    for mask in masks:
        for what, pixels in mask.facts.strange.items():
            entry = found.setdefault(what, {"id": what, "masks": 0, "pixels": 0, "example": mask.id})
            entry["masks"] += 1
            entry["pixels"] += pixels
    return sorted(found.values(), key=lambda each: (-each["masks"], -each["pixels"]))[:_SHOWN_STRANGE]


def _some(members: Sequence[Mapping[str, Any]]) -> str:
    return f"{len(members):,}  (such as {_example(members)})"


def _example(members: Sequence[Mapping[str, Any]]) -> str:
    return f"{members[0]['id']}: {members[0]['reason']}"


def _class_lines(classes: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Returns a line on the share of each class; of many classes those of the most pixels."""
    largest = sorted(classes.items(), key=lambda each: -sum(each[1]["pixels"].values()))
    shown = classes.items() if len(classes) <= _SHOWN_LINES else largest[:_SHOWN_LINES]
    lines = [(f"  {name}", _shares(each["share"])) for name, each in shown]
    left = len(classes) - len(lines)
    return [*lines, ("  and others", f"{left:,} classes with fewer pixels, all in check.json")] if left else lines


def _shares(shares: Mapping[str, float]) -> str:
    return ", ".join(f"{share:.2%} {split}" for split, share in shares.items())


def _tables(findings: Mapping[str, Any], splits: Sequence[str]) -> list[Any]:
    """Returns the tables of the page: faults, ids without a class, and pixels by class."""
    faults = [
        (MASK_FAULTS[kind].title, f"{each['n']:,}", _example(each["members"]), MASK_FAULTS[kind].remedy)
        for kind, each in findings["faults"].items()
    ]
    strange = [
        (each["id"], f"{each['masks']:,}", f"{each['pixels']:,}", each["example"]) for each in findings["unknown_ids"]
    ]
    classes = [
        (name, *(f"{each['share'][split]:.2%}  ({each['pictures'][split]:,} pictures)" for split in splits))
        for name, each in findings["classes"].items()
    ]
    return [
        ("Faults of masks", "", ("what", "n", "such as", "what it means"), faults),
        ("Ids and colours that no class has", "", ("id", "masks", "pixels", "such as"), strange),
        ("Share of pixels by class", "Of the pixels that are not ignored.", ("class", *splits), classes),
    ]


def _samples(found: Mapping[str, Sequence[Mapping[str, Any]]], masks: Sequence[_Mask]) -> list[FaultySample]:
    """Chooses the samples that the page shows: some of each kind of fault, those with most faults first, then some
    without."""
    reasons = defaultdict[tuple[str, int], list[str]](list)
    shown: dict[tuple[str, int], None] = {}
    for members in found.values():
        placed = [(each["split"], each["index"], each["reason"]) for each in members if each["split"] is not None]
        for split, index, reason in placed:
            reasons[split, index].append(reason)
        shown |= dict.fromkeys((split, index) for split, index, _ in placed[:_SHOWN_OF_A_KIND])
    worst = sorted(shown, key=lambda place: -len(reasons[place]))[:_SHOWN_FAULTY]
    sound = [mask for mask in masks if (mask.split, mask.index) not in reasons]
    some = sound[:: max(1, len(sound) // _SHOWN_SOUND)][:_SHOWN_SOUND]
    return [
        *(FaultySample(split, index, "; ".join(reasons[split, index])) for split, index in worst),
        *(FaultySample(mask.split, mask.index, "") for mask in some),
    ]


def mask_sections(pictures: Sequence[CheckedPicture], names: Sequence[str]) -> list[str]:
    """Builds sections that show pictures under their masks, those with faults first, with the colours of the
    classes."""
    faulty, sound = [each for each in pictures if each.why], [each for each in pictures if not each.why]
    about = "The mask lies over the picture; a mask of another size is stretched. What is ignored is not coloured."
    return [
        section("Masks with faults", _grid(faulty, names), about),
        section("Masks without faults", _grid(sound, names), about),
    ]


def mask_legend(names: Sequence[str], shown: Collection[int] | None = None) -> str:
    """Builds a line of HTML that gives the colour of each class.

    Args:
        names: The names of the classes.
        shown: The classes that are listed; None for all.
    """
    colours = class_colours(len(names))
    return " ".join(
        f'<span style="white-space:nowrap"><span style="display:inline-block;width:.8em;height:.8em;'
        f'background:rgb({",".join(map(str, colours[index].tolist()))})"></span> {text(name)}</span>'
        for index, name in enumerate(names)
        if shown is None or index in shown
    )


def _grid(pictures: Sequence[CheckedPicture], names: Sequence[str]) -> str:
    if not pictures:
        return ""
    figures = "".join(_figure(each, names) for each in pictures)
    masks = [each.annotation for each in pictures if each.annotation is not None]
    shown = {index for mask in masks for index in np.flatnonzero(np.bincount(mask.ravel())).tolist()}
    return f'<p>{mask_legend(names, shown)}</p><div class="group large">{figures}</div>'


def _figure(shown: CheckedPicture, names: Sequence[str]) -> str:
    pixels = shown.pixels
    if shown.annotation is not None:
        mask = nearest_pixels(shown.annotation, (pixels.shape[0], pixels.shape[1]))
        pixels = paint_mask(pixels, mask, len(names))
    caption = f"{text(shown.id)}, {text(shown.split)}" + (f"<br><b>{text(shown.why)}</b>" if shown.why else "")
    return f"<figure>{thumbnail(pixels)}<br>{caption}</figure>"


def nearest_pixels(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Takes the nearest pixels of a picture or a mask at another size. pixels: [rows, columns, ...]."""
    rows, columns = ((np.arange(count) * old) // count for count, old in zip(size, pixels.shape, strict=False))
    return pixels[rows][:, columns]
