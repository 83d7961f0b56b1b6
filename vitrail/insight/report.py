"""Writes the report: PNG files, numbers.json and one self-contained page that needs no knowledge of the paper."""

import json
from collections.abc import Callable, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.drawing.page import cards, data_address, page, picture, section, text
from vitrail.drawing.plots import LIGHT, Theme, both
from vitrail.insight import captions, figures
from vitrail.insight.captions import Caption
from vitrail.insight.figures import named_maps
from vitrail.insight.findings import Findings, Progress, silent
from vitrail.insight.overlays import coloured, jpeg, marked, mosaic, overlay, shown
from vitrail.io.folders import report_folder

REPORT, NUMBERS = "report.html", "numbers.json"
PICTURES = ("filters", "positions", "distance", "attention", "maps", "features", "neighbours", "merging")
"""The names of the PNG files."""
OUTPUTS = frozenset((REPORT, NUMBERS, *(f"{name}.png" for name in PICTURES)))
"""All files that the report may consist of."""


def write_inspection(
    out: Path, title: str, examine: Callable[[], Findings], progress: Progress = silent
) -> dict[str, Any]:
    """Writes the report to a folder.

    Args:
        out: The folder; it is checked that it can be written before `examine` is called.
        title: The page's title.
        examine: Computes what is shown.
        progress: Is called as work proceeds.

    Returns:
        The content of numbers.json.
    """
    with report_folder(out, OUTPUTS) as folder:
        findings = examine()
        numbers = findings.to_json()
        progress("page", 0, 2)
        drawn = _draw(findings, numbers)
        progress("page", 1, 2)
        for name, (light, _) in drawn.items():
            (folder / f"{name}.png").write_bytes(light)
        document = json.dumps(numbers, indent=2, ensure_ascii=False) + "\n"
        (folder / NUMBERS).write_bytes(document.encode("utf-8", "backslashreplace"))
        (folder / REPORT).write_bytes(render(title, findings, numbers, drawn).encode("utf-8", "backslashreplace"))
        progress("page", 1, 2)
    return numbers


def _draw(findings: Findings, numbers: dict[str, Any]) -> dict[str, tuple[bytes, bytes | None]]:
    """Draws the PNGs by name, light and dark. Those with photos appear on the page as single tiles, so one version is
    enough."""

    def themed(draw: Callable[[Theme], bytes]) -> tuple[bytes, bytes | None]:
        """Draws a figure light and dark."""
        return both(draw)

    names = findings.distances.names
    drawn = {"filters": themed(lambda theme: figures.filters(findings.filters, theme))}
    if (similarity := findings.similarity) is not None:
        by_distance = numbers["position_similarity"]["by_distance"]
        drawn["positions"] = themed(lambda theme: figures.positions(similarity, by_distance, theme))
    drawn["distance"] = themed(lambda theme: figures.distance(findings.distances, theme))
    drawn["attention"] = themed(lambda theme: figures.attention(findings.maps[0], names, theme))
    drawn["maps"] = figures.maps(findings.maps, LIGHT), None
    drawn["features"] = figures.features(findings.maps, findings.colours, LIGHT), None
    if any(len(each.places) for each in findings.neighbours):
        pixels = _compared(findings)
        drawn["neighbours"] = figures.neighbours(pixels, findings.neighbours, findings.grid, LIGHT), None
    if (groups := findings.groups) is not None:
        drawn["merging"] = figures.merging(findings.maps, groups, LIGHT), None
    return drawn


def render(
    title: str, findings: Findings, numbers: dict[str, Any], drawn: dict[str, tuple[bytes, bytes | None]]
) -> str:
    """Returns the page as HTML."""

    def plotted(name: str, caption: Caption, title: str, narrow: bool = False) -> str:
        """Returns the section of a drawn figure."""
        light, dark = drawn[name]
        assert dark is not None
        inner = f'<div class="{"narrow" if narrow else ""}">{picture(light, dark, caption.shows)}</div>'
        return _section(title, caption, inner)

    reader = findings.explorer.reader
    body = [
        _headline(numbers),
        section("Notes", "".join(f"<p>{text(each)}</p>" for each in numbers["notes"])),
        _explorer(findings),
        _section("What the answer rests on", captions.maps(numbers), _maps(findings)),
        plotted("distance", captions.distance(numbers), "How far the heads look"),
        plotted("attention", captions.attention(numbers, reader), "Attention, layer by layer and head by head"),
    ]
    if "positions" in drawn:
        body.append(plotted("positions", captions.positions(numbers), "What the model knows of places"))
    body += [
        plotted("filters", captions.filters(numbers), "What the first layer looks for", True),
        _section("What the patches have become", captions.features(numbers), _features(findings)),
    ]
    if "neighbours" in drawn:
        body.append(_section("Patches that are alike", captions.neighbours(numbers), _neighbours(findings)))
    if "merging" in drawn:
        body.append(_section("Patches that could be one", captions.merging(numbers), _merging(findings)))
    body.append(
        section("In this folder", f"<p>The pictures as PNG ({', '.join(drawn)}), and every number as {NUMBERS}.</p>")
    )
    return page(title, "".join(body) + _script(findings), _file("report.css"))


def _headline(numbers: dict[str, Any]) -> str:
    """Returns the cards with the most important numbers."""
    model, distance, places = numbers["model"], numbers["attention_distance"], numbers["position_similarity"]
    kind = "drawings" if numbers["images"]["drawn_by_the_program"] else "images"
    side, early, by_layer = model["patch_pixels"], distance["early_layers"], distance["by_layer"]
    first = "first layer" if early == 1 else f"first {early} layers"
    begun, last = captions.pixels(by_layer[0]), captions.pixels(by_layer[-1])
    values = [
        (f"{model['parameters'] / 1e6:,.3g} M", f"parameters, {model['layers']} layers of {model['heads']} heads", ""),
        (" x ".join(map(str, model["grid"])), f"patches of {side} x {side} pixels", ""),
        (f"{numbers['images']['n']:,}", f"{kind} looked at", ""),
        (f"{distance['early_global_share']:.0%}", f"of the heads in the {first} are global", ""),
        (last, f"attention distance in the last layer, {begun} in the first", ""),
    ]
    if places and places["near"] is not None and places["far"] is not None:
        values.append((f"{places['near']:.2f} / {places['far']:.2f}", "similarity of places near / far", ""))
    return cards(values)


def _section(title: str, caption: Caption, inner: str) -> str:
    """Returns a section with its caption."""
    how = f'<p class="soft">{text(caption.how)}</p>' if caption.how else ""
    return section(title, f'<p class="own">{text(caption.says)}</p>{inner}{how}', caption.shows)


def _explorer(findings: Findings) -> str:
    """Returns the section of the interactive view of attention."""
    found = findings.explorer
    first = found.images[0]
    coarse = [each.grid for each in (first.average, *first.heads) if each and each.grid != found.full_grid]
    note = ""
    if coarse:
        note = f"To keep the page small, some of it is on a coarser grid of {coarse[-1][0]} x {coarse[-1][1]} cells. "
    about = (
        "Click a patch, or press the arrow keys on the picture, to see where it attends: bright is much. The small "
        f"maps show every layer at once. {note}Colours are by the root, each map stretched to its own largest share."
    )
    inner = (
        '<div id="explorer"><div><canvas data-part="canvas" tabindex="0" role="application" '
        'aria-label="The image under its attention; arrow keys move the patch"></canvas></div><div>'
        '<label>image<select data-part="image"></select></label>'
        '<label>head<select data-part="head"></select></label>'
        '<label>layer <b data-part="layer-name"></b>'
        '<input data-part="layer" type="range" min="1" step="1"></label>'
        f'<button type="button" data-part="reader">what the classifier reads ({text(found.reader)})</button>'
        '<p data-part="said" aria-live="polite"></p><div data-part="layers"></div></div></div>'
        "<noscript><p>This part needs JavaScript; the pictures below do not.</p></noscript>"
    )
    return section("Where a patch looks", inner, about)


def _script(findings: Findings) -> str:
    """Returns the view's data and script."""
    # Inside a script element only "<" could end it: as an escape it means the same to JSON.
    data = json.dumps(findings.explorer.to_json()).replace("<", "\\u003c")
    return f'<script type="application/json" id="explorer-data">{data}</script><script>{_file("explorer.js")}</script>'


def _maps(findings: Findings) -> str:
    """Returns the rows of maps, one for each image."""
    rows = []
    for each in findings.maps:
        tiles = [_tile(shown(each.pixels), "image")]
        for name, values in named_maps(each):
            fall = f": the score falls by up to {values.max():.2f}" if name == "occlusion" else ""
            tiles.append(_tile(overlay(each.pixels, values), name + fall))
        sure = "" if each.probability is None else f" ({each.probability:.0%} sure)"
        heading = each.name if each.label is None else f"{each.name}: why {each.label}{sure}?"
        rows.append(_row(heading, tiles))
    return f'<div class="rows">{"".join(rows)}</div>'


def _features(findings: Findings) -> str:
    """Returns the tiles of patch features."""
    tiles = []
    for each, colours in zip(findings.maps, findings.colours, strict=True):
        tiles += [_tile(shown(each.pixels), each.name), _tile(coloured(colours, each.pixels), "its features")]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _neighbours(findings: Findings) -> str:
    """Returns the rows of nearest patches."""
    pixels, rows = _compared(findings), []
    for each in findings.neighbours:
        image, row, column = each.query
        tiles = [_tile(marked(pixels[image], findings.grid, row, column), "this patch")]
        for place, cosine in zip(each.places, each.cosines, strict=True):
            other, row, column = (int(number) for number in place)
            tiles.append(_tile(marked(pixels[other], findings.grid, row, column), f"cosine {cosine:.2f}"))
        rows.append(_row(findings.images.names[image], tiles))
    return f'<div class="rows">{"".join(rows)}</div>'


def _merging(findings: Findings) -> str:
    """Returns the tiles of merged patches."""
    assert findings.groups is not None
    tiles = []
    for each, groups in zip(findings.maps, findings.groups, strict=True):
        left = len(np.unique(groups))
        tiles += [_tile(shown(each.pixels), each.name), _tile(mosaic(each.pixels, groups), f"{left} tokens left")]
    return f'<div class="tiles">{"".join(tiles)}</div>'


def _compared(findings: Findings) -> dict[int, np.ndarray]:
    """Returns the pixels, by image, of all images that contain a nearest patch."""
    wanted = {each.query[0] for each in findings.neighbours}
    wanted |= {int(place[0]) for each in findings.neighbours for place in each.places}
    return {index: findings.images.pixels(index) for index in sorted(wanted)}


def _row(title: str, tiles: Sequence[str]) -> str:
    """Returns a row of tiles with its title."""
    return f'<div class="row"><h3>{text(title)}</h3><div class="tiles">{"".join(tiles)}</div></div>'


def _tile(pixels: np.ndarray, caption: str) -> str:
    """Returns a picture with its caption."""
    return f'<figure><img alt="{text(caption)}" src="{data_address(jpeg(pixels), "jpeg")}">{text(caption)}</figure>'


def _file(name: str) -> str:
    """Reads a style sheet or script of this folder."""
    return (files("vitrail.insight") / name).read_text(encoding="utf-8")
