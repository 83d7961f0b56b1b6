"""The findings of `vitrail data check` as one self-contained HTML page, light and dark."""

import base64
import html
import io
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.decode import BadImage, decode
from vitrail.data.doctor import printable
from vitrail.data.sources import Source

_SHOWN_ROWS = 100
_SHOWN_GROUPS = 24
_SHOWN_MEMBERS = 6
_SHOWN_CLASSES = 60

_STYLE = """
:root { color-scheme: light dark; --page: #f6f5f1; --card: #fff; --ink: #1d2026; --soft: #666b75; --line:
#dfdcd4; --train: #33658a; --val: #d98e04; --test: #6a994e; --bad: #b3261e; --good: #2e7d4f; } @media
(prefers-color-scheme: dark) { :root { --page: #15171b; --card: #1e2126; --ink: #e8e6e1; --soft: #9aa0aa;
--line: #33373e; --train: #6fa8d6; --val: #f0b440; --test: #93c572; --bad: #f2837a; --good: #7ccf9b; } } * {
box-sizing: border-box; } body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-
ui, sans-serif; } main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; } h1 { font-size: 26px;
margin: 0; overflow-wrap: anywhere; } h2 { font-size: 18px; margin: 0 0 12px; } p { margin: 4px 0 12px; }
.soft { color: var(--soft); } code { font-size: 13px; overflow-wrap: anywhere; } section { background:
var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 20px; margin-top: 18px; } .cards {
display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; margin-top: 20px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.card b { display: block; font-size: 26px; line-height: 1.2; } .card.bad b { color: var(--bad); } .card.good b
{ color: var(--good); } .card span { color: var(--soft); font-size: 13px; } .columns { display: grid; grid-
template-columns: repeat(auto-fit, minmax(300px, 1fr)); gap: 0 18px; align-items: start; } table { border-
collapse: collapse; width: 100%; font-size: 14px; } td, th { text-align: left; padding: 5px 10px 5px 0;
border-bottom: 1px solid var(--line); vertical-align: top; overflow-wrap: anywhere; } th { color: var(--soft);
font-weight: 500; } .bars { display: grid; grid-template-columns: minmax(60px, max-content) 1fr max-content;
gap: 4px 12px; font-size: 13px; align-items: center; } .bars .name { max-width: 220px; overflow: hidden; text-
overflow: ellipsis; white-space: nowrap; } .bar { display: flex; height: 14px; border-radius: 3px; overflow:
hidden; } .bar i { display: block; height: 100%; } .train { background: var(--train); } .val { background:
var(--val); } .test { background: var(--test); } .key { display: inline-block; width: 11px; height: 11px;
border-radius: 2px; margin: 0 5px 0 14px; } .key:first-child { margin-left: 0; } .group { display: flex; flex-
wrap: wrap; gap: 14px; padding: 12px 0; border-bottom: 1px solid var(--line); } .group:last-child { border-
bottom: 0; padding-bottom: 0; } figure { margin: 0; width: 132px; font-size: 12px; line-height: 1.35;
overflow-wrap: anywhere; } figure img { width: 132px; height: 99px; object-fit: contain; background:
var(--page); border-radius: 6px; image-rendering: auto; } figure.tiny img { image-rendering: pixelated; } .tag
{ border-radius: 4px; padding: 0 6px; color: #fff; font-size: 11px; } .tag.bad { background: var(--bad); }
@media (prefers-color-scheme: dark) { .tag { color: #15171b; } }
"""


def render(findings: dict[str, Any], source: Source) -> str:
    """The whole page; pictures of the duplicates are read from the source again, and embedded."""
    sections = [
        _cards(findings),
        _notes(findings),
        _corrupt(findings),
        _groups(
            "Leaks between splits",
            "The same picture, or nearly, trains and tests: the test then says more than it should.",
            [(each["kind"], each["members"]) for each in findings["leaks"]],
            source,
        ),
        _groups(
            "One picture, two labels",
            "Duplicates whose labels contradict each other.",
            [(each["kind"], each["members"]) for each in findings["conflicts"]],
            source,
        ),
        f'<div class="columns">{_balance(findings)}{_sizes(findings)}</div>',
        _groups(
            "Exact duplicates",
            "Pictures with the very same pixels.",
            [("exact", group) for group in findings["exact_duplicates"]],
            source,
        ),
        _groups(
            "Near duplicates",
            "Pictures that look alike after being shrunk: copies that were resized or compressed again, "
            "neighbouring frames, or just simple pictures. Look at them before deciding.",
            [("near", group) for group in findings["near_duplicates"]],
            source,
        ),
        _modes(findings),
    ]
    name = html.escape(findings["source"])
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Data check: {name}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}</style></head><body><main>"
        f"<h1>Data check: {name}</h1>"
        f'<p class="soft">Fingerprint <code>{findings["fingerprint"]}</code></p>'
        f"{''.join(sections)}</main></body></html>\n"
    )


def _cards(findings: dict[str, Any]) -> str:
    splits = ", ".join(f"{count:,} {name}" for name, count in findings["splits"].items())
    duplicates = (
        f"groups of duplicates ({len(findings['exact_duplicates']):,} exact, {len(findings['near_duplicates']):,} near)"
    )
    cards = [
        (f"{findings['n']:,}", f"images ({splits})", ""),
        (f"{len(findings['classes']):,}", "classes", ""),
        (f"{len(findings['corrupt']):,}", "unreadable", "bad" if findings["corrupt"] else "good"),
        (f"{len(findings['leaks']):,}", "leaks between splits", "bad" if findings["leaks"] else "good"),
        (
            f"{len(findings['conflicts']):,}",
            "contradicting labels",
            "bad" if findings["conflicts"] else "good",
        ),
        (f"{len(findings['exact_duplicates']) + len(findings['near_duplicates']):,}", duplicates, ""),
    ]
    inner = "".join(f'<div class="card {kind}"><b>{value}</b><span>{text}</span></div>' for value, text, kind in cards)
    return f'<div class="cards">{inner}</div>'


def _notes(findings: dict[str, Any]) -> str:
    notes = list(findings["notes"])
    if findings["made_splits"]:
        notes.append(f"Cut by seed, not by the data set itself: {', '.join(findings['made_splits'])}.")
    if findings["turned_by_exif"]:
        notes.append(f"{findings['turned_by_exif']:,} pictures are turned upright by their EXIF data.")
    if findings["unlabelled"]:
        notes.append(f"{len(findings['unlabelled']):,} samples have no label, such as {findings['unlabelled'][0]}.")
    if findings["near_duplicates_limited"]:
        notes.append("There are so many near duplicates that the search for them was cut short.")
    if not notes:
        return ""
    return f"<section><h2>Good to know</h2>{''.join(f'<p>{html.escape(note)}</p>' for note in notes)}</section>"


def _corrupt(findings: dict[str, Any]) -> str:
    rows = [(each["id"], each["split"], each["reason"]) for each in findings["corrupt"]]
    return _table("Unreadable images", ("image", "split", "why: the file ..."), rows)


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


def _table(title: str, heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{html.escape(each)}</th>" for each in heads)
    body = "".join(
        f"<tr>{''.join(f'<td>{html.escape(str(cell))}</td>' for cell in row)}</tr>" for row in rows[:_SHOWN_ROWS]
    )
    return f"<section><h2>{title}</h2><table><tr>{head}</tr>{body}</table>{_more(rows, _SHOWN_ROWS)}</section>"


def _more(items: list[Any], shown: int) -> str:
    left = len(items) - shown
    return f'<p class="soft">and {left:,} more, all listed in check.json</p>' if left > 0 else ""


def _balance(findings: dict[str, Any]) -> str:
    balance: dict[str, dict[str, int]] = findings["class_balance"]
    totals = {name: sum(counts.values()) for name, counts in balance.items()}
    most = max(totals.values(), default=0) or 1
    names = list(balance)
    if len(names) > _SHOWN_CLASSES:
        # The largest and the smallest tell whether the classes are balanced.
        ranked = sorted(names, key=lambda name: -totals[name])
        names = ranked[: _SHOWN_CLASSES // 2] + ranked[-_SHOWN_CLASSES // 2 :]
    rows = "".join(
        f'<span class="name" title="{html.escape(name)}">{html.escape(name)}</span><span class="bar">'
        + "".join(
            f'<i class="{split}" style="width:{100 * count / most:.2f}%" title="{split}: {count:,}"></i>'
            for split, count in balance[name].items()
        )
        + f"</span><span>{totals[name]:,}</span>"
        for name in names
    )
    keys = "".join(f'<span class="key {split}"></span>{split}' for split in findings["splits"])
    few = min(totals.values(), default=0)
    ratio = f"The largest class has {most / few:.3g} times the images of the smallest." if few else ""
    cut = f" Shown: the {_SHOWN_CLASSES} largest and smallest." if len(balance) > _SHOWN_CLASSES else ""
    return (
        f'<section><h2>Classes</h2><p class="soft">{ratio}{cut}</p><p class="soft">{keys}</p>'
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


def _span(each: dict[str, int]) -> str:
    return f"{each['from']}" if each["from"] == each["to"] else f"{each['from']} to {each['to']}"


def _groups(title: str, text: str, groups: list[tuple[str, list[dict[str, Any]]]], source: Source) -> str:
    if not groups:
        return ""
    places = {
        (split.name, printable(name)): (split, index)
        for split in source.splits.values()
        for index, name in enumerate(split.ids)
    }
    shown = []
    for kind, members in groups[:_SHOWN_GROUPS]:
        figures = []
        for member in members[:_SHOWN_MEMBERS]:
            split, index = places[member["split"], member["id"]]
            figures.append(_figure(split.read(index), member))
        left = len(members) - _SHOWN_MEMBERS
        more = f'<p class="soft">and {left} more</p>' if left > 0 else ""
        shown.append(f'<div class="group" title="{kind}">{"".join(figures)}{more}</div>')
    return (
        f'<section><h2>{title}</h2><p class="soft">{text}</p>{"".join(shown)}{_more(groups, _SHOWN_GROUPS)}</section>'
    )


def _figure(content: bytes | np.ndarray, member: dict[str, Any]) -> str:
    caption = f"{html.escape(member['id'])}<br><b>{html.escape(str(member['label']))}</b>, {member['split']}"
    try:
        if isinstance(content, np.ndarray) and content.shape[2] not in (1, 3):
            content = content[:, :, :1]
        image = Image.fromarray(decode(content))
    except BadImage:
        return f"<figure>{caption}</figure>"
    tiny = "tiny" if max(image.size) <= 64 else ""
    image.thumbnail((264, 198))
    stream = io.BytesIO()
    image.save(stream, "PNG" if tiny else "JPEG")
    data = base64.b64encode(stream.getvalue()).decode()
    kind = "png" if tiny else "jpeg"
    return f'<figure class="{tiny}"><img alt="" src="data:image/{kind};base64,{data}"><br>{caption}</figure>'
