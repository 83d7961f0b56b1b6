"""How every picture of ours is drawn: two themes, a figure without a display, its bytes as PNG.

matplotlib is imported when a picture is drawn, and only its objects are used, never pyplot: nothing global is changed,
so any thread may draw.
"""

import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeVar

from PIL import Image

from vitrail.drawing.page import visible

Drawn = TypeVar("Drawn")


@dataclass(frozen=True)
class Theme:
    """Colours after Okabe and Ito, which colour-blind people can tell apart."""

    paper: str
    ink: str
    soft: str
    line: str
    train: str
    val: str
    full: str
    """The strongest colour of a heat map, which begins at the paper's."""


LIGHT = Theme("#ffffff", "#1d2026", "#666b75", "#dfdcd4", "#0072b2", "#d55e00", "#08306b")
DARK = Theme("#1e2126", "#e8e6e1", "#9aa0aa", "#33373e", "#56b4e9", "#e69f00", "#9bd4f7")


def both(draw: Callable[[Theme], Drawn]) -> tuple[Drawn, Drawn]:
    """For the light and for the dark page."""
    return draw(LIGHT), draw(DARK)


def short(name: str, length: int) -> str:
    """The middle is left out: names that begin alike are common, and so are those that end alike."""
    # What the font lacks would be drawn as a box too, but with a warning for each; the HTML shows it rightly.
    name = "".join(each if ord(each) in _glyphs() else "□" for each in visible(name))
    if len(name) <= length:
        return name
    return f"{name[: length // 2]}…{name[len(name) - (length - 1 - length // 2) :]}"


@cache
def _glyphs() -> frozenset[int]:
    from matplotlib.font_manager import FontProperties, findfont, get_font

    plain, bold = (get_font(findfont(FontProperties(weight=weight))).get_charmap() for weight in ("normal", "bold"))
    return frozenset(plain) & frozenset(bold)


def blank_figure(columns: float, rows: float, theme: Theme, layout: Any = None) -> Any:
    """In inches, with the backend that draws without a display."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns, rows), dpi=144, layout=layout, facecolor=theme.paper)
    FigureCanvasAgg(figure)
    return figure


def dress(axes: Any, theme: Theme, grid: bool = True) -> None:
    axes.set_facecolor(theme.paper)
    axes.tick_params(colors=theme.soft, which="both")
    for spine in axes.spines.values():
        spine.set_color(theme.line)
    if grid:
        axes.grid(color=theme.line, linewidth=0.6)
        axes.set_axisbelow(True)


def sheet(columns: float, rows: float, theme: Theme) -> tuple[Any, Any]:
    """A figure and one pair of axes over all of it, in inches: for many pictures, which as axes of their own take ten
    times as long to draw."""
    figure = blank_figure(columns, rows, theme)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, columns), ylim=(0, rows), autoscale_on=False)
    axes.set_axis_off()
    return figure, axes


def lay(
    axes: Any, pixels: Any, corner: tuple[float, float], side: float, theme: Theme, frame: str, line: float = 0.8
) -> None:
    """A picture on a sheet, in a framed square whatever its shape. Floats from 0 to 1 are drawn as heat."""
    from matplotlib.patches import Rectangle

    if pixels.ndim == 3 and pixels.shape[2] != 3:
        pixels = pixels[:, :, 0]
    colours, most = ("magma", 1) if pixels.dtype.kind == "f" else ("gray", 255)
    small = max(pixels.shape[:2]) <= 64
    half = side / 2 / max(pixels.shape[:2])
    down, across = half * pixels.shape[0], half * pixels.shape[1]
    middle = corner[0] + side / 2, corner[1] + side / 2
    axes.add_patch(Rectangle(corner, side, side, facecolor=theme.line, linewidth=0, zorder=-1))
    axes.imshow(
        pixels,
        cmap=colours,
        vmin=0,
        vmax=most,
        interpolation="nearest" if small else "antialiased",
        extent=(middle[0] - across, middle[0] + across, middle[1] - down, middle[1] + down),
        aspect="auto",
    )
    axes.add_patch(Rectangle(corner, side, side, fill=False, edgecolor=frame, linewidth=line, zorder=2))


def png(figure: Any) -> bytes:
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def tiled(pictures: Sequence[bytes], columns: int = 2) -> bytes:
    """PNGs of one size as one picture, row by row."""
    images = [Image.open(io.BytesIO(each)).convert("RGB") for each in pictures]
    wide, high = images[0].size
    columns = min(columns, len(images))
    whole = Image.new("RGB", (wide * columns, high * math.ceil(len(images) / columns)), LIGHT.paper)
    for place, image in enumerate(images):
        whole.paste(image, (place % columns * wide, place // columns * high))
    stream = io.BytesIO()
    whole.save(stream, "PNG")
    return stream.getvalue()
