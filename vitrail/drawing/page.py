"""The building blocks of HTML reports: self-contained pages, light and dark, that need no network and run no script."""

import base64
import html
import io
import re
from collections.abc import Sequence

import numpy as np
from PIL import Image

# Characters in names of files that must not be shown as they are: control characters break the page, unpaired
# surrogates cannot be written as UTF-8, and direction marks can make one name look like another.
_UNSHOWABLE = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")

_STYLE = """
:root {
  color-scheme: light dark;
  --page: #f6f5f1; --card: #fff; --ink: #1d2026; --soft: #666b75; --line: #dfdcd4;
  --train: #33658a; --val: #d98e04; --test: #6a994e; --bad: #b3261e; --good: #2e7d4f;
}
@media (prefers-color-scheme: dark) {
  :root {
    --page: #15171b; --card: #1e2126; --ink: #e8e6e1; --soft: #9aa0aa; --line: #33373e;
    --train: #6fa8d6; --val: #f0b440; --test: #93c572; --bad: #f2837a; --good: #7ccf9b;
  }
  .tag { color: #15171b; }
}
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0; overflow-wrap: anywhere; }
h2 { font-size: 18px; margin: 0 0 12px; }
p { margin: 4px 0 12px; overflow-wrap: anywhere; }
code { font-size: 13px; overflow-wrap: anywhere; }
.soft { color: var(--soft); }
section { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 20px;
  margin-top: 18px; min-width: 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px; margin-top: 20px; }
.card { background: var(--card); border: 1px solid var(--line); border-radius: 10px; padding: 14px 16px; }
.card b { display: block; font-size: 26px; line-height: 1.2; overflow-wrap: anywhere; }
.card.bad b { color: var(--bad); }
.card.good b { color: var(--good); }
.card span { color: var(--soft); font-size: 13px; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(300px, 100%), 1fr)); gap: 0 18px;
  align-items: start; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
td, th { text-align: left; padding: 5px 10px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top;
  overflow-wrap: anywhere; }
th { color: var(--soft); font-weight: 500; overflow-wrap: normal; }
.bars { display: grid; grid-template-columns: minmax(60px, max-content) 1fr max-content; gap: 4px 12px;
  font-size: 13px; align-items: center; }
.bars .name { max-width: min(220px, 36vw); overflow: hidden; text-overflow: ellipsis; white-space: nowrap; }
.bar { display: flex; height: 14px; border-radius: 3px; overflow: hidden; }
.bar i { display: block; height: 100%; }
.train { background: var(--train); }
.val { background: var(--val); }
.test { background: var(--test); }
.key { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin: 0 5px 0 14px; }
.key:first-child { margin-left: 0; }
.group { display: flex; flex-wrap: wrap; gap: 14px; padding: 12px 0; border-bottom: 1px solid var(--line); }
.group:last-child { border-bottom: 0; padding-bottom: 0; }
figure { margin: 0; width: 132px; font-size: 12px; line-height: 1.35; overflow-wrap: anywhere; }
figure img { width: 132px; height: 99px; object-fit: contain; background: var(--page); border-radius: 6px; }
.large figure, .large figure img { width: 242px; }
.large figure img { height: 180px; }
img.tiny { image-rendering: pixelated; }
.tag { border-radius: 4px; padding: 0 6px; color: #fff; font-size: 11px; }
.tag.bad { background: var(--bad); }
"""


def visible(name: object) -> str:
    """Converts a name to text that is safe to show: control characters and their like become backslash escapes."""
    return _UNSHOWABLE.sub(lambda match: match[0].encode("unicode_escape").decode(), str(name))


def text(value: object) -> str:
    """Escapes a value for HTML: safe inside an element or a quoted attribute."""
    return html.escape(visible(value))


def page(title: str, body: str, style: str = "") -> str:
    """Builds a complete HTML document.

    Args:
        title: The heading, plain text.
        body: What follows the heading, HTML.
        style: CSS rules besides those that every report has.
    """
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{text(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<style>{_STYLE}{style}</style></head><body><main><h1>{text(title)}</h1>{body}</main></body></html>\n"
    )


def cards(values: Sequence[tuple[str, str, str]]) -> str:
    """Builds a row of cards, each with one large number.

    values: for each card the number, its label and the colour it is shown in: "good", "bad" or "" (neutral).
    """
    inner = "".join(
        f'<div class="card {kind}"><b>{text(value)}</b><span>{text(label)}</span></div>'
        for value, label, kind in values
    )
    return f'<div class="cards">{inner}</div>'


def section(title: str, inner: str, about: str = "") -> str:
    """Builds a titled box, or "" if `inner` is empty.

    inner: HTML; `title` and the explanation `about`, shown below it, are plain text.
    """
    sentence = f'<p class="soft">{text(about)}</p>' if about else ""
    return f"<section><h2>{text(title)}</h2>{sentence}{inner}</section>" if inner else ""


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Builds an HTML table of plain-text cells; without `heads` it has no header row."""
    head = "".join(f"<th>{text(title)}</th>" for title in heads)
    body = "".join(f"<tr>{''.join(f'<td>{text(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table>{f'<tr>{head}</tr>' if head else ''}{body}</table>"


def data_address(content: bytes, kind: str) -> str:
    """Encodes a picture as a `data:` URL, for the attribute `src`. kind: "png" or "jpeg"."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


def thumbnail(pixels: np.ndarray) -> str:
    """Builds an `img` element of at most 264 x 198 pixels that contains its picture.

    pixels: uint8 [rows, columns] or [rows, columns, channels]; of other than 3 channels the first is shown in grey.
    """
    if pixels.ndim == 3 and pixels.shape[2] != 3:
        pixels = pixels[:, :, 0]
    image = Image.fromarray(np.ascontiguousarray(pixels))
    # A tiny picture is kept exact, so that its pixels stay sharp; of a larger one, a compressed copy is enough.
    tiny = max(image.size) <= 64
    image.thumbnail((264, 198))
    stream = io.BytesIO()
    image.save(stream, "PNG" if tiny else "JPEG")
    address = data_address(stream.getvalue(), "png" if tiny else "jpeg")
    return f'<img alt="" class="{"tiny" if tiny else ""}" src="{address}">'


def picture(light: bytes, dark: bytes, description: str) -> str:
    """Builds a `picture` element that follows the light or dark theme of the reader.

    light, dark: the figure drawn for either theme, as PNG; description: the text for readers who cannot see it.
    """
    return (
        f'<picture><source media="(prefers-color-scheme: dark)" srcset="{data_address(dark, "png")}">'
        f'<img alt="{text(description)}" src="{data_address(light, "png")}"></picture>'
    )
