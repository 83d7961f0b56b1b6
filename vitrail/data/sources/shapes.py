"""Pictures of shapes that the program draws itself, with exact masks and boxes: data for examples of segmentation.

Discs, squares and triangles lie on textures and partly cover each other. Hues lean to one for each kind of shape, but
overlap, so that colour alone does not tell them apart. Every picture is a function of its split and number.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np

from vitrail.data.sources.base import AnnotatedReader, ArrayReader, Source, Split, SplitRule, build_source
from vitrail.data.sources.mask_reading import MASK_TASK
from vitrail.random_stream import RandomStream

CLASSES = ("background", "disc", "square", "triangle")
"""The classes of pixels."""
SIDE = 64
"""Pixels of a picture's side."""
COUNTS = {"train": 300, "val": 50, "test": 100}
"""The number of pictures in each split."""
_MOST_SHAPES = 5
_ATTEMPTS = 30
"""Shapes that are tried; one that would hide another is not drawn."""
_LEAST_VISIBLE = 0.4
"""The share of a shape that others leave visible, at least."""
_HUES = (0.0, 0.02, 0.36, 0.62)
"""The hue, of 1, that each class leans to."""
_HUE_SPREAD = 0.19
"""The most by which a shape's hue differs from it."""


@dataclass(frozen=True)
class Scene:
    """A picture of shapes, and what is in it."""

    pixels: np.ndarray
    """uint8 [rows, columns, 3]"""
    mask: np.ndarray
    """The class of each pixel, uint8 [rows, columns]."""
    instances: np.ndarray
    """The number of the shape that each pixel shows, from 1, 0 for the background: uint8 [rows, columns]."""
    kinds: np.ndarray
    """The class of each shape, int64 [shapes]."""
    boxes: np.ndarray
    """The box around the visible pixels of each shape: left, top, right, bottom, float32 [shapes, 4]."""


def draw_scene(*key: int | str) -> Scene:
    """Draws a picture that is determined by a key, such as `draw_scene("train", 0)`."""
    draws = RandomStream("shapes", *key)
    ground = _colour(draws.uniform(), draws.uniform(0.05, 0.5), draws.uniform(0.25, 0.9))
    pixels = _painted(_shade(draws, 0.45), ground)
    instances = np.zeros((SIDE, SIDE), dtype=np.uint8)
    kinds: list[int] = []
    areas: list[int] = []
    wanted = 2 + draws.integer(_MOST_SHAPES - 1)
    for _ in range(_ATTEMPTS):
        kind = 1 + draws.integer(len(CLASSES) - 1)
        inside = _shape(draws, kind)
        hue = _HUES[kind] + draws.uniform(-_HUE_SPREAD, _HUE_SPREAD)
        colour, shade = _colour(hue % 1, draws.uniform(0.5, 0.95), draws.uniform(0.5, 1)), _shade(draws, 0.2)
        covered = np.where(inside, len(kinds) + 1, instances).astype(np.uint8)
        visible = np.bincount(covered.ravel(), minlength=len(kinds) + 2)[1:]
        whole = [*areas, int(inside.sum())]
        if (visible < _LEAST_VISIBLE * np.array(whole)).any():
            continue
        instances, areas = covered, whole
        kinds.append(kind)
        pixels[inside] = _painted(shade[inside], colour)
        if len(kinds) == wanted:
            break
    found = np.array(kinds, dtype=np.int64)
    mask = np.concatenate([[0], found]).astype(np.uint8)[instances]
    return Scene(pixels, mask, instances, found, np.stack([_box(instances == 1 + row) for row in range(len(found))]))


def _shape(draws: RandomStream, kind: int) -> np.ndarray:
    """Chooses the place, size and direction of a shape; returns which pixels have their centre inside: bool."""
    radius = draws.uniform(7, 15)
    left, top = (draws.uniform(radius, SIDE - radius) for _ in range(2))
    turn = draws.uniform(0, 2 * math.pi)
    x, y = np.arange(SIDE)[None] + 0.5 - left, np.arange(SIDE)[:, None] + 0.5 - top
    if kind == 1:
        return x * x + y * y <= radius * radius
    corners = 4 if kind == 2 else 3
    # The distance of each side from the centre: square and triangle have the radius around them, and are a bit larger.
    reach = 1.1 * radius * math.cos(math.pi / corners)
    angles = [turn + 2 * math.pi * side / corners for side in range(corners)]
    sides = [x * math.cos(angle) + y * math.sin(angle) <= reach for angle in angles]
    return np.logical_and.reduce(sides)


def _colour(hue: float, saturation: float, value: float) -> np.ndarray:
    """Converts a hue of 0 to 1, a saturation and a value to red, green and blue of 0 to 255, float64 [3]."""
    corners = np.abs((np.array([hue * 6, hue * 6 + 4, hue * 6 + 2]) % 6) - 3) - 1
    return 255 * value * (1 - saturation + saturation * np.clip(corners, 0, 1))


def _painted(shade: np.ndarray, colour: np.ndarray) -> np.ndarray:
    """Returns a colour in these shades [...] as uint8 [..., 3]."""
    return np.rint(shade[..., None] * colour).astype(np.uint8)


def _shade(draws: RandomStream, strength: float) -> np.ndarray:
    """Draws a texture of blots, stripes or checks, with a fine grain: float64 [rows, columns].

    strength: the most by which it is below 1.
    """
    kind, cells = draws.integer(3), 4 + draws.integer(5)
    steps = np.arange(SIDE) * cells / SIDE
    if kind == 0:
        grid = np.frombuffer(draws.bytes((cells + 1) ** 2), np.uint8).reshape(cells + 1, cells + 1) / 255
        whole, part = steps.astype(np.int64), steps % 1
        rows = grid[whole] * (1 - part[:, None]) + grid[whole + 1] * part[:, None]
        shade = rows[:, whole] * (1 - part) + rows[:, whole + 1] * part
    else:
        slope = draws.uniform(-1, 1) if kind == 1 else 0.0
        bands = (np.floor(steps[None] + slope * steps[:, None]) + (np.floor(steps)[:, None] if kind == 2 else 0)) % 2
        shade = np.broadcast_to(bands, (SIDE, SIDE))
    grain = np.frombuffer(draws.bytes(SIDE * SIDE), np.uint8).reshape(SIDE, SIDE) / 255
    return 1 - strength * (0.75 * shade + 0.25 * grain)


def _box(shown: np.ndarray) -> np.ndarray:
    """Returns the box around the pixels that are shown, bool [rows, columns]: float32 [4]."""
    rows, columns = np.flatnonzero(shown.any(axis=1)), np.flatnonzero(shown.any(axis=0))
    return np.array([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1], dtype=np.float32)


@dataclass(frozen=True)
class MaskArrayReader(ArrayReader, AnnotatedReader):
    """Reads samples with masks from memory."""

    masks: np.ndarray
    """uint8 [samples, rows, columns]"""

    def size(self, row: int) -> int:
        """Returns the size of the pixels and the mask of a sample in bytes."""
        return super().size(row) + int(self.masks[row].nbytes)

    def annotation(self, row: int) -> np.ndarray:
        return self.masks[row]


@cache
def _drawn(split: str) -> MaskArrayReader:
    """Draws the pictures of a split."""
    scenes = [draw_scene(split, number) for number in range(COUNTS[split])]
    return MaskArrayReader(np.stack([scene.pixels for scene in scenes]), np.stack([scene.mask for scene in scenes]))


def open_shapes(rule: SplitRule) -> Source:
    """Opens the pictures of shapes: 450 of 64 x 64, each of two to five shapes, with a mask."""
    found = {}
    for split, count in COUNTS.items():
        ids = [f"{split}/{number:06d}" for number in range(count)]
        targets = np.ones(count, dtype=np.int8)
        found[split] = Split(split, ids, targets, _drawn(split), np.arange(count, dtype=np.int64), MASK_TASK)
    return build_source("shapes", CLASSES, found, rule)
