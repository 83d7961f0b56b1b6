"""What every matplotlib figure of this program is drawn with: a light and a dark theme, figures without a display, PNG.

matplotlib is imported only when a figure is drawn. Its objects are used and never pyplot, which has global state, so
any thread may draw.
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
    """The colours of a figure, as CSS hex codes; those of curves are from Okabe and Ito's colour-blind safe palette."""

    paper: str
    """The background."""
    ink: str
    """Titles and main text."""
    soft: str
    """Labels and other secondary text."""
    line: str
    """Grid lines and frames."""
    train: str
    """What was measured on training data."""
    val: str
    """What was measured on validation data."""
    full: str
    """The colour of the highest value in a heat map; the lowest has the colour of `paper`."""


LIGHT = Theme("#ffffff", "#1d2026", "#666b75", "#dfdcd4", "#0072b2", "#d55e00", "#08306b")
DARK = Theme("#1e2126", "#e8e6e1", "#9aa0aa", "#33373e", "#56b4e9", "#e69f00", "#9bd4f7")


def both(draw: Callable[[Theme], Drawn]) -> tuple[Drawn, Drawn]:
    """Calls `draw` with the light theme and with the dark theme and returns both results in this order."""
    return draw(LIGHT), draw(DARK)


def short(name: str, length: int) -> str:
    """Shortens a name to at most `length` characters by cutting out its middle, for labels in a figure.

    The middle is cut because names often differ only at their beginning or only at their end. Characters that the font
    lacks become boxes.
    """
    # matplotlib would draw the same boxes, but with a warning for each character.
    name = "".join(letter if ord(letter) in _glyphs() else "□" for letter in visible(name))
    if len(name) <= length:
        return name
    return f"{name[: length // 2]}…{name[len(name) - (length - 1 - length // 2) :]}"


@cache
def _glyphs() -> frozenset[int]:
    """Returns the code points that matplotlib's font has both in normal and in bold weight."""
    from matplotlib.font_manager import FontProperties, findfont, get_font

    plain, bold = (get_font(findfont(FontProperties(weight=weight))).get_charmap() for weight in ("normal", "bold"))
    return frozenset(plain) & frozenset(bold)


def blank_figure(columns: float, rows: float, theme: Theme, layout: Any = None) -> Any:
    """Creates an empty matplotlib Figure with a canvas that needs no display.

    Args:
        columns: Its width in inches.
        rows: Its height in inches.
        theme: Gives the background colour.
        layout: matplotlib's layout engine, such as "constrained"; None for none.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(columns, rows), dpi=144, layout=layout, facecolor=theme.paper)
    FigureCanvasAgg(figure)
    return figure


def dress(axes: Any, theme: Theme, grid: bool = True) -> None:
    """Colours axes by the theme and, if `grid` is set, draws grid lines behind the data."""
    axes.set_facecolor(theme.paper)
    axes.tick_params(colors=theme.soft, which="both")
    for spine in axes.spines.values():
        spine.set_color(theme.line)
    if grid:
        axes.grid(color=theme.line, linewidth=0.6)
        axes.set_axisbelow(True)


def sheet(columns: float, rows: float, theme: Theme) -> tuple[Any, Any]:
    """Creates a figure for many small pictures, and one Axes over all of it whose coordinates are inches.

    One Axes with many pictures (see `lay`) is drawn ten times faster than an Axes for each.

    columns, rows: the size in inches. Returns (figure, axes).
    """
    figure = blank_figure(columns, rows, theme)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, columns), ylim=(0, rows), autoscale_on=False)
    axes.set_axis_off()
    return figure, axes


def lay(
    axes: Any, pixels: Any, corner: tuple[float, float], side: float, theme: Theme, frame: str, line: float = 0.8
) -> None:
    """Draws a picture centred in a framed square, on the axes of a `sheet`.

    Args:
        axes: The axes of the sheet, in inches.
        pixels: uint8 [rows, columns] or [rows, columns, channels], or floats from 0 to 1, drawn as a heat map.
        corner: (x, y) of the square's lower left corner.
        side: The side of the square.
        theme: Gives the colour of the square where the picture does not cover it.
        frame: The colour of the frame.
        line: The width of the frame in points.
    """
    from matplotlib.patches import Rectangle

    if pixels.ndim == 3 and pixels.shape[2] != 3:
        pixels = pixels[:, :, 0]
    colours, highest = ("magma", 1) if pixels.dtype.kind == "f" else ("gray", 255)
    small = max(pixels.shape[:2]) <= 64
    half = side / 2 / max(pixels.shape[:2])
    down, across = half * pixels.shape[0], half * pixels.shape[1]
    middle = corner[0] + side / 2, corner[1] + side / 2
    axes.add_patch(Rectangle(corner, side, side, facecolor=theme.line, linewidth=0, zorder=-1))
    axes.imshow(
        pixels,
        cmap=colours,
        vmin=0,
        vmax=highest,
        interpolation="nearest" if small else "antialiased",
        extent=(middle[0] - across, middle[0] + across, middle[1] - down, middle[1] + down),
        aspect="auto",
    )
    axes.add_patch(Rectangle(corner, side, side, fill=False, edgecolor=frame, linewidth=line, zorder=2))


def png(figure: Any) -> bytes:
    """Renders a matplotlib figure as PNG."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png")
    return stream.getvalue()


def tiled(pictures: Sequence[bytes], columns: int = 2) -> bytes:
    """Joins PNGs of one size into one PNG, in rows of `columns` pictures."""
    images = [Image.open(io.BytesIO(picture)).convert("RGB") for picture in pictures]
    wide, high = images[0].size
    columns = min(columns, len(images))
    joined = Image.new("RGB", (wide * columns, high * math.ceil(len(images) / columns)), LIGHT.paper)
    for index, image in enumerate(images):
        joined.paste(image, (index % columns * wide, index // columns * high))
    stream = io.BytesIO()
    joined.save(stream, "PNG")
    return stream.getvalue()
