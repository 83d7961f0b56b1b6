"""The report of `vitrail data check`: the findings as one self-contained HTML page."""

from functools import partial
from typing import Any

import numpy as np

from vitrail.data.check import CheckResult, seen_as, valid_unicode
from vitrail.data.decode import BadImage, ValueLimits
from vitrail.data.decode_pool import BoundedDecoder
from vitrail.data.mask_check import MaskReading, stored_annotation
from vitrail.data.sources import Source, Split
from vitrail.data.sources.base import AnnotatedReader
from vitrail.drawing.page import cards, page, section, table, text, thumbnail
from vitrail.tasks import task
from vitrail.tasks.audits import Audit, CheckedPicture
from vitrail.tasks.base import Target

# The most that the page shows: rows of a table, groups of duplicates, pictures of a group, and classes.
_SHOWN_ROWS = 100
_SHOWN_GROUPS = 24
_SHOWN_MEMBERS = 6
_SHOWN_CLASSES = 60
_SHOWN_SIDE = 400
"""About the longer side, in pixels, of pictures that are shown with their right answers."""


def render_check(found: CheckResult, source: Source) -> str:
    """Builds the HTML page. The pictures that it shows are read from the source again and embedded.

    found: what `check.check_source` returned for the source.
    """
    findings, audited = found.findings, found.audit
    shown = source, findings["shown_range"]
    target = task(source.task).target
    pictures = _checked_pictures(audited, source, findings["shown_range"])
    sections = [
        _cards(findings, target, audited.cards),
        _notes(findings),
        _corrupt(findings),
        _groups(
            "Leaks between splits",
            "The same picture, or nearly the same, is in several splits: a test on it gives too good a result.",
            [(each["kind"], each["members"]) for each in findings["leaks"]],
            shown,
        ),
        _groups(
            "One picture, two labels" if target.contents == "labels" else f"One picture, different {target.contents}",
            f"Duplicates whose {target.contents} contradict each other.",
            [(each["kind"], each["members"]) for each in findings["conflicts"]],
            shown,
        ),
        f'<div class="columns">{_balance(findings, target.plural)}{_sizes(findings)}</div>',
        *(_table(title, heads, rows, about) for title, about, heads, rows in audited.tables),
        *target.checked_pages(pictures, source.classes),
        _groups(
            "Exact duplicates",
            "Pictures with exactly the same pixels.",
            [("exact", group) for group in findings["exact_duplicates"]],
            shown,
        ),
        _groups(
            "Near duplicates",
            "Pictures that look alike after being shrunk: copies that were resized or compressed again, "
            "neighbouring frames, or just simple pictures. Look at them before deciding.",
            [("near", group) for group in findings["near_duplicates"]],
            shown,
        ),
        _modes(findings),
    ]
    fingerprint = f'<p class="soft">Fingerprint <code>{text(findings["fingerprint"])}</code></p>'
    return page(f"Data check: {findings['source']}", fingerprint + "".join(sections))


def _checked_pictures(audited: Audit, source: Source, limits: ValueLimits) -> list[CheckedPicture]:
    """Reads the samples that the task wants to show, with their right answers; those that cannot be read are left out.

    limits: the range of values that is shown of pictures with more than 8 bits.
    """
    found = []
    for each in audited.samples:
        split = source.splits[each.split]
        try:
            seen = BoundedDecoder()(partial(_small, limits=limits), split.read(each.index))["pixels"]
        except BadImage:
            continue
        name = valid_unicode(split.ids[each.index])
        found.append(CheckedPicture(name, each.split, each.why, seen, _annotation(split, each.index)))
    return found


def _small(content: bytes | np.ndarray, limits: ValueLimits) -> dict[str, np.ndarray]:
    """Decodes a picture for display and leaves pixels out until it is small."""
    pixels = seen_as(content, limits)
    step = max(1, max(pixels.shape[:2]) // _SHOWN_SIDE)
    return {"pixels": np.ascontiguousarray(pixels[::step, ::step])}


def _annotation(split: Split, index: int) -> np.ndarray | None:
    """Reads the right answer of a sample as far as it is valid; None if it has none or it cannot be read."""
    if not split.known[index]:
        return None
    assert isinstance(split.reader, AnnotatedReader)
    return stored_annotation(split.reader, int(split.rows[index]), MaskReading(BoundedDecoder())).values


def _cards(findings: dict[str, Any], target: Target, own: list[tuple[str, str, str]]) -> str:
    """Builds the row of main numbers. target: the task's words for its classes and targets; own: the task's numbers."""
    splits = ", ".join(f"{count:,} {name}" for name, count in findings["splits"].items())
    duplicates = (
        f"groups of duplicates ({len(findings['exact_duplicates']):,} exact, {len(findings['near_duplicates']):,} near)"
    )
    kind = "bad" if findings["conflicts"] else "good"
    conflicts = (f"{len(findings['conflicts']):,}", f"contradicting {target.contents}", kind)
    return cards(
        [
            (f"{findings['n']:,}", f"images ({splits})", ""),
            *([(f"{len(findings['classes']):,}", target.plural, "")] if findings["classes"] else []),
            (f"{len(findings['corrupt']):,}", "unreadable", "bad" if findings["corrupt"] else "good"),
            (f"{len(findings['leaks']):,}", "leaks between splits", "bad" if findings["leaks"] else "good"),
            *([conflicts] if findings["classes"] and not target.in_pixels else []),
            *own,
            (f"{len(findings['exact_duplicates']) + len(findings['near_duplicates']):,}", duplicates, ""),
        ]
    )


def _notes(findings: dict[str, Any]) -> str:
    notes = list(findings["notes"])
    if findings["made_splits"]:
        notes.append(f"Chosen at random by this program, not by the data set: {', '.join(findings['made_splits'])}.")
    if findings["turned_by_exif"]:
        notes.append(f"{findings['turned_by_exif']:,} pictures are turned upright by their EXIF data.")
    if findings["unlabelled"] and findings["classes"]:
        notes.append(f"{len(findings['unlabelled']):,} samples have no label, such as {findings['unlabelled'][0]}.")
    if findings["near_duplicates_limited"]:
        notes.append("There are so many near duplicates that the search for them was cut short.")
    return section("Good to know", "".join(f"<p>{text(note)}</p>" for note in notes))


def _corrupt(findings: dict[str, Any]) -> str:
    rows = [(each["id"], each["split"], each["reason"]) for each in findings["corrupt"]]
    shards = [(each["shard"], each["reason"]) for each in findings["damaged_shards"]]
    return _table("Damaged shards", ("shard", "why: it ..."), shards) + _table(
        "Unreadable images", ("image", "split", "why: the file ..."), rows
    )


def _modes(findings: dict[str, Any]) -> str:
    counts = [(mode or "unknown", f"{count:,}") for mode, count in findings["modes"].items()]
    kinds = [(kind or "unknown", f"{count:,}") for kind, count in findings["formats"].items()]
    odd = [(each["id"], each["split"], each["mode"]) for each in findings["odd_modes"]]
    misnamed = [(each["id"], each["split"], each["format"]) for each in findings["misnamed"]]
    return (
        f'<div class="columns">{_table("Pixel modes", ("mode", "images"), counts)}'
        f"{_table('Formats', ('format', 'images'), kinds)}</div>"
        + _table("Unusual modes, converted on reading", ("image", "split", "mode"), odd)
        + _table("Named like another format", ("image", "split", "really"), misnamed)
    )


def _table(title: str, heads: tuple[str, ...], rows: list[tuple[str, ...]], about: str = "") -> str:
    return section(title, table(heads, rows[:_SHOWN_ROWS]) + _more(rows, _SHOWN_ROWS), about) if rows else ""


def _more(items: list[Any], shown: int) -> str:
    """Builds the line that says how many items are not shown; "" if all are."""
    left = len(items) - shown
    return f'<p class="soft">and {left:,} more, all listed in check.json</p>' if left > 0 else ""


def _balance(findings: dict[str, Any], plural: str) -> str:
    """Builds the section with a bar for the number of images of each class."""
    balance: dict[str, dict[str, int]] = findings["class_balance"]
    if not balance:
        return ""
    totals = {name: sum(counts.values()) for name, counts in balance.items()}
    most = max(totals.values(), default=0) or 1
    names = list(balance)
    if len(names) > _SHOWN_CLASSES:
        # The largest and the smallest classes are enough to see whether they are balanced.
        ranked = sorted(names, key=lambda name: -totals[name])
        names = ranked[: _SHOWN_CLASSES // 2] + ranked[-_SHOWN_CLASSES // 2 :]
    rows = "".join(
        f'<span class="name" title="{text(name)}">{text(name)}</span><span class="bar">'
        + "".join(
            f'<i class="{split}" style="width:{100 * count / most:.2f}%" title="{split}: {count:,}"></i>'
            for split, count in balance[name].items()
        )
        + f"</span><span>{totals[name]:,}</span>"
        for name in names
    )
    keys = "".join(f'<span class="key {split}"></span>{split}' for split in findings["splits"])
    few = min(totals.values(), default=0)
    ratio = f"The largest has {most / few:.3g} times the images of the smallest." if few else ""
    cut = f" Shown: the {_SHOWN_CLASSES} largest and smallest." if len(balance) > _SHOWN_CLASSES else ""
    return (
        f'<section><h2>{plural.capitalize()}</h2><p class="soft">{ratio}{cut}</p><p class="soft">{keys}</p>'
        f'<div class="bars">{rows}</div></section>'
    )


def _sizes(findings: dict[str, Any]) -> str:
    sizes = findings["sizes"]
    if not sizes:
        return ""
    most = max(each["n"] for each in sizes["shorter_side"])
    distinct = "All alike" if sizes["distinct"] == 1 else f"{sizes['distinct']:,} different sizes"
    rows = "".join(
        f'<span class="name">{_span(each)} px</span><span class="bar">'
        f'<i class="train" style="width:{100 * each["n"] / most:.2f}%"></i></span><span>{each["n"]:,}</span>'
        for each in sizes["shorter_side"]
    )
    columns = ("least", "median", "most")
    table = "".join(
        f"<tr><td>{side}</td>{''.join(f'<td>{sizes[side][key]:,}</td>' for key in columns)}</tr>"
        for side in ("rows", "columns")
    )
    return (
        f'<section><h2>Sizes</h2><p class="soft">{distinct}. Images by their shorter side:</p>'
        f'<div class="bars">{rows}</div><p></p><table><tr><th></th><th>least</th><th>median</th><th>most</th></tr>'
        f"{table}</table></section>"
    )


def _span(interval: dict[str, int]) -> str:
    """Formats a bar's interval of lengths: "224" or "200 to 299"."""
    low, high = interval["from"], interval["to"]
    return f"{low}" if low == high else f"{low} to {high}"


def _groups(
    title: str, about: str, groups: list[tuple[str, list[dict[str, Any]]]], shown_from: tuple[Source, ValueLimits]
) -> str:
    """Builds a section that shows groups of pictures.

    groups: for each its kind and its members; shown_from: the source they are read from, and the range of values shown.
    """
    if not groups:
        return ""
    source, limits = shown_from
    places = {
        (split.name, valid_unicode(name)): (split, index)
        for split in source.splits.values()
        for index, name in enumerate(split.ids)
    }
    shown = []
    for kind, members in groups[:_SHOWN_GROUPS]:
        figures = []
        for member in members[:_SHOWN_MEMBERS]:
            split, index = places[member["split"], member["id"]]
            figures.append(_figure(split.read(index), member, limits))
        left = len(members) - _SHOWN_MEMBERS
        more = f'<p class="soft">and {left} more</p>' if left > 0 else ""
        shown.append(f'<div class="group" title="{kind}">{"".join(figures)}{more}</div>')
    return section(title, "".join(shown) + _more(groups, _SHOWN_GROUPS), about)


def _figure(content: bytes | np.ndarray, member: dict[str, Any], limits: ValueLimits) -> str:
    label = "" if member["label"] is None else f"<b>{text(member['label'])}</b>, "
    caption = f"{text(member['id'])}<br>{label}{text(member['split'])}"
    try:
        shown = BoundedDecoder()(partial(_shown, limits=limits), content)["element"]
        return f"<figure>{shown}<br>{caption}</figure>"
    except BadImage:
        return f"<figure>{caption}</figure>"


def _shown(content: bytes | np.ndarray, limits: ValueLimits) -> dict[str, str]:
    """Returns the HTML element of a thumbnail, in a form that a process that decodes can send."""
    return {"element": thumbnail(seen_as(content, limits))}
