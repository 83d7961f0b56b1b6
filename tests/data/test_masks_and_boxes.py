"""A picture, its mask, its boxes and its points move alike under every transform, and come back to where they were."""

import functools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from scipy.ndimage import binary_dilation, binary_erosion
from scipy.optimize import linprog

from tests.data.conftest import encoded, smooth
from vitrail.config import Preprocessing, TransformConfig
from vitrail.data.decode import from_array, to_array
from vitrail.data.geometry import evaluation_shrink
from vitrail.data.randaugment import OPERATIONS
from vitrail.data.transforms import EvaluationTransform, TrainingTransform
from vitrail.masks_and_boxes import Frame
from vitrail.random_stream import RandomStream

IGNORE = 255
BLACK = {"mean": (0.0, 0.0, 0.0)}
"""Preprocessing: so that RandAugment, too, fills with black."""
ALONE = {"crop": "pad", "padding": 0, "flip": 0.0}
"""TransformConfig: a plain resize and nothing else."""
MOVING = (3, 11, 12, 13, 14)
"""Operations of RandAugment that move the picture: turn, shear and shift along either axis."""

TRANSFORMS = {
    "evaluation": None,
    "inception": {"flip": 0.0},
    "large inception": {"flip": 0.0, "area": (0.6, 1.0)},
    "evaluation and flip": {"crop": "evaluation"},
    "resize": ALONE,
    "shift": {"crop": "pad", "padding": 9, "flip": 0.0},
    "flip": {**ALONE, "flip": 1.0},
    "vertical flip": {**ALONE, "vertical_flip": 1.0},
    "turn": {**ALONE, "rotate": 40},
    "translate": {**ALONE, "translate": 0.3},
    "scale": {**ALONE, "scale": 0.4},
    "small affine": {"rotate": 25, "translate": 0.2, "scale": 0.3, "vertical_flip": 0.5, "area": (0.3, 1.0)},
    "turn, shift and flips": {**ALONE, "padding": 9, "rotate": 25, "scale": 0.3, "flip": 0.5, "vertical_flip": 0.5},
}
"""By what they do: fields of TransformConfig; None: the evaluation transform."""
over_transforms = pytest.mark.parametrize("name", TRANSFORMS)

sides = st.integers(40, 110)
sizes = st.tuples(sides, sides)
input_sizes = st.tuples(st.integers(24, 64), st.integers(24, 64))
seeds = st.integers(0, 10_000)
crops = st.sampled_from(["center", "squash"])


def draws(*key) -> RandomStream:
    return RandomStream("test", *key)


def transform_of(name: str, preprocessing: Preprocessing) -> EvaluationTransform | TrainingTransform:
    fields = TRANSFORMS[name]
    if fields is None:
        return EvaluationTransform(preprocessing)
    return TrainingTransform(TransformConfig(resample=preprocessing.resample, **fields), preprocessing)


def centres(size: tuple[int, int]) -> np.ndarray:
    """(rows, columns, 2), of x and y."""
    return np.stack(np.meshgrid(np.arange(size[1]) + 0.5, np.arange(size[0]) + 0.5), axis=-1)


def coordinates(size: tuple[int, int]) -> np.ndarray:
    """A picture of floats that says at each pixel where it is: shares of the size; then 1."""
    place = centres(size) / [size[1], size[0]]
    return np.concatenate([place, np.ones((*size, 1))], axis=2).astype(np.float32)


def check_coordinates(pixels: np.ndarray, frame: Frame, cubic: int = 0) -> int:
    """What `coordinates` became says where each pixel came from, to a tenth of a pixel; returns of how many.

    Left out is what filters smear: the neighbours of padding, and what lies at the border of the picture. The cubic
    filter of Pillow's affine transform bends a ramp by up to a tenth between two pixels, each time it is used.
    """
    edge = np.ones((3, 3))
    shown = frame.mask(np.zeros(frame.size, np.uint8), 1) == 0
    width = max(cubic, 1)  # the edge of padding is of whole pixels, after every step
    shrunk = functools.partial(binary_erosion, shown, edge, border_value=not frame.cuts)  # padding may lie just outside
    beside = binary_dilation(shown, edge, width) & ~shrunk(width)
    assert np.array_equal(pixels[:, :, 2][~beside] > 0.5, shown[~beside])
    came_from = frame.inverse_points(centres(frame.input_size))
    scale = max(1.0, np.hypot(*frame.source[:2]), np.hypot(*frame.source[3:5]))
    sides = np.array(frame.size[::-1])
    inside = ((came_from > 4 * scale) & (came_from < sides - 4 * scale)).all(axis=2)
    inside &= shrunk(4)
    apart = np.abs(pixels[:, :, :2] * sides - came_from)[inside]
    assert apart.max(initial=0.0) < 0.1 * scale * (1 + cubic)
    return int(inside.sum())


@over_transforms
def test_the_frame_says_where_each_pixel_came_from(name):
    checked = []

    @given(size=sizes, input_size=input_sizes, crop=crops, seed=seeds)
    @settings(deadline=None, max_examples=25)
    def check(size, input_size, crop, seed):
        preprocessing = Preprocessing(input_size, range=(0.0, 1.0), crop=crop, **BLACK)
        pixels, frame = transform_of(name, preprocessing).with_frame(coordinates(size), draws(seed))
        assert (frame.size, frame.input_size) == (size, input_size)
        checked.append(check_coordinates(pixels, frame))

    check()
    assert np.mean(np.array(checked) > 0) > 0.5


def moving_only(seed: int, layers: int) -> bool:
    """Whether so many layers of RandAugment draw nothing but operations that move the picture."""
    drawn = draws(seed)
    for _ in range(layers):
        if drawn.integer(len(OPERATIONS)) not in MOVING:
            return False
        drawn.chance(1.0)
        drawn.normal()
        drawn.chance(0.5)  # the direction
    return True


RANDAUGMENT_SEEDS = [seed for seed in range(300) if moving_only(seed, 2)]


@pytest.mark.parametrize("seed", RANDAUGMENT_SEEDS)
def test_the_frame_knows_what_randaugment_moves(seed):
    strength = {"randaugment_magnitude": 4, "randaugment_std": 0, "randaugment_probability": 1.0}
    config = TransformConfig(**{**ALONE, "padding": 5, "flip": 0.5}, randaugment_layers=2, **strength)
    transform = TrainingTransform(config, Preprocessing((64, 72), range=(0.0, 1.0), **BLACK))
    pixels, frame = transform.with_frame(coordinates((64, 72)), draws(seed))
    assert check_coordinates(pixels, frame, cubic=2) > 300


@given(st.lists(st.tuples(st.sampled_from(MOVING), st.floats(0, 0.6), seeds), max_size=3), sizes)
@settings(deadline=None, max_examples=40)
def test_operations_one_after_the_other_are_one_frame(steps, size):
    planes, moves = from_array(coordinates(size)), []
    for operation, strength, seed in steps:
        planes = OPERATIONS[operation](planes, strength, draws(seed), (0,), moves)
    assert len(moves) == len(steps)
    check_coordinates(to_array(planes), Frame.of(size, size).then(*moves), cubic=len(steps))


def rectangle(data, size: tuple[int, int]) -> tuple[int, int, int, int]:
    """left, top, right, bottom: at least a quarter of each side."""
    rows, columns = size
    left, top = data.draw(st.integers(0, columns // 2)), data.draw(st.integers(0, rows // 2))
    right = data.draw(st.integers(left + columns // 4, columns))
    return left, top, right, data.draw(st.integers(top + rows // 4, rows))


def drawn_rectangle(size: tuple[int, int], box: tuple[int, int, int, int]) -> np.ndarray:
    """A mask: 1 inside of the box, else 0."""
    mask = np.zeros(size, np.uint8)
    mask[box[1] : box[3], box[0] : box[2]] = 1
    return mask


def hull(mask: np.ndarray) -> list[int]:
    rows, columns = np.flatnonzero(mask.any(axis=1)), np.flatnonzero(mask.any(axis=0))
    return [columns[0], rows[0], columns[-1] + 1, rows[-1] + 1]


@over_transforms
@given(data=st.data(), size=sizes, input_size=input_sizes, crop=crops, seed=seeds)
@settings(deadline=None, max_examples=25)
def test_picture_mask_and_boxes_move_alike(name, data, size, input_size, crop, seed):
    box = rectangle(data, size)
    mask = drawn_rectangle(size, box)
    picture = np.repeat(255 * mask[:, :, None], 3, axis=2)
    transform = transform_of(name, Preprocessing(input_size, crop=crop, **BLACK))
    pixels, frame = transform.with_frame(picture, draws(seed))
    moved = frame.mask(mask, IGNORE)
    bright, inside = pixels[:, :, 0] > 127, moved == 1
    assert not bright[moved == IGNORE].any()
    # Beside the rectangle's edge, where filters smear, pixels may go either way: not so many of a large one.
    if binary_erosion(inside, iterations=2).sum() > 40:
        assert (bright & inside).sum() > 0.65 * (bright | inside).sum()
    came_from = frame.inverse_points(centres(input_size))
    depth = np.minimum(came_from - box[:2], box[2:] - came_from).min(axis=2)  # how far inside, in the picture's pixels
    beyond = 1.5 * max(1.0, np.hypot(*frame.source[:2]), np.hypot(*frame.source[3:5]))
    for each in (bright, inside):
        assert each[(depth > beyond) & (moved != IGNORE)].all()
        assert not each[depth < -beyond].any()
    (found,) = frame.boxes(np.array([box]))
    at = centres(input_size)[inside]
    assert ((at > found[:2] - 1e-9) & (at < found[2:] + 1e-9)).all(), "the box holds all that the mask shows"


def least_box(frame: Frame, box: tuple[int, int, int, int]) -> list[float] | None:
    """Around all that shows of a box, by linear programming; None where nothing shows."""
    rows, columns = frame.input_size
    windows = [(frame.source, box), *((cut, (0, 0, columns, rows)) for cut in frame.cuts)]
    above, limits = [], []
    for (a, b, c, d, e, f), (left, top, right, bottom) in windows:
        above += [[a, b], [-a, -b], [d, e], [-d, -e]]
        limits += [right - c, c - left, bottom - f, f - top]
    bounds = [(0, columns), (0, rows)]
    ends = [linprog(way, above, limits, bounds=bounds) for way in ([1, 0], [0, 1], [-1, 0], [0, -1])]
    if any(end.status == 2 for end in ends):
        return None
    return [ends[0].fun, ends[1].fun, -ends[2].fun, -ends[3].fun]


@over_transforms
@given(data=st.data(), size=sizes, seed=seeds)
@settings(deadline=None, max_examples=8)
def test_a_box_holds_what_shows_and_no_more(name, data, size, seed):
    box = rectangle(data, size)
    _, frame = transform_of(name, Preprocessing((40, 36), **BLACK)).with_frame(smooth(*size), draws(seed))
    (found,), expected = frame.boxes([box]), least_box(frame, box)
    if expected is None or min(expected[2] - expected[0], expected[3] - expected[1]) < 1e-5:
        assert (found[2:] - found[:2]).min() < 1e-5
    else:
        assert np.abs(found - expected).max() < 1e-5
    left, top, right, bottom = box
    corners = frame.points([[left, top], [right, top], [left, bottom], [right, bottom]])
    assert np.allclose(frame.boxes([box], clip=False), [[*corners.min(axis=0), *corners.max(axis=0)]])


@over_transforms
@given(size=sizes, input_size=input_sizes, seed=seeds)
@settings(deadline=None, max_examples=25)
def test_what_is_moved_comes_back(name, size, input_size, seed):
    transform = transform_of(name, Preprocessing(input_size, **BLACK))
    _, frame = transform.with_frame(smooth(*size), draws(seed))
    points = np.random.default_rng(seed).uniform(0, [size[1], size[0]], (20, 2))
    assert np.abs(frame.inverse_points(frame.points(points)) - points).max() < 1e-6
    places = centres(input_size)
    assert np.abs(frame.points(frame.inverse_points(places)) - places).max() < 1e-6
    left, top, right, bottom = frame.inverse_boxes(frame.boxes([[10, 5, 30, 25]], clip=False))[0]
    assert (left < 10 + 1e-6) & (top < 5 + 1e-6) & (right > 30 - 1e-6) & (bottom > 25 - 1e-6)
    assert min(left, top) >= 0
    assert (right <= size[1]) & (bottom <= size[0])


@over_transforms
def test_a_frame_takes_no_draw_and_changes_no_pixel(name):
    for content in (smooth(50, 60), encoded(Image.fromarray(smooth(300, 200)), "JPEG"), from_array(smooth(32, 24))):
        transform = transform_of(name, Preprocessing((32, 24), **BLACK))
        for seed in range(4):
            alone, both = draws(seed), draws(seed)
            assert np.array_equal(transform(content, alone), transform.with_frame(content, both)[0])
            assert alone.raw() == both.raw()


# Evaluation

PLACES = [(40, 57, 24, 24), (57, 40, 24, 24), (64, 64, 32, 32), (90, 61, 24, 40), (61, 90, 40, 24), (9, 7, 24, 24)]


def numbered(rows: int, columns: int) -> np.ndarray:
    """A picture that names each of its pixels by column and row."""
    return np.stack(np.broadcast_arrays(np.arange(columns), np.arange(rows)[:, None], 0), axis=2).astype(np.uint8)


def check_numbered(pixels: np.ndarray, frame: Frame) -> None:
    """By the nearest pixel, Pillow took the very pixels that `mask` takes; halfway between two, either of them."""
    came_from = frame.inverse_points(centres(frame.input_size))
    halfway = np.abs(came_from - np.rint(came_from)) < 1e-6
    for axis in (0, 1):
        expected = frame.mask(numbered(*frame.size)[:, :, axis], IGNORE).astype(int)
        apart = np.abs(pixels[:, :, axis].astype(int) - expected)
        assert (apart[~halfway[:, :, axis]] == 0).all()
        assert apart.max() <= 1


@pytest.mark.parametrize("crop", ["center", "squash"])
@pytest.mark.parametrize(("rows", "columns", "down", "across"), PLACES)
def test_an_evaluation_frame_takes_the_very_pixels_that_pillow_takes(rows, columns, down, across, crop):
    for fraction in (0.7, 0.9, 1.0):
        preprocessing = Preprocessing((down, across), crop=crop, crop_fraction=fraction, resample="nearest")
        check_numbered(*EvaluationTransform(preprocessing).with_frame(numbered(rows, columns)))


@pytest.mark.parametrize("name", ["inception", "resize", "shift", "flip", "vertical flip", "evaluation and flip"])
@given(size=sizes, input_size=input_sizes, seed=seeds)
@settings(deadline=None, max_examples=25)
def test_a_training_frame_takes_the_very_pixels_that_pillow_takes(name, size, input_size, seed):
    preprocessing = Preprocessing(input_size, resample="nearest", **BLACK)
    fields = {**TRANSFORMS[name], "resample": "nearest", "fill": IGNORE}
    transform = TrainingTransform(TransformConfig(**fields), preprocessing)
    check_numbered(*transform.with_frame(numbered(*size), draws(seed)))


def test_the_centre_of_a_photo_is_where_it_is_computed_to_be():
    preprocessing = Preprocessing(224, crop_fraction=0.875)  # 480 x 640 becomes 256 x 341, of which the middle is cut
    _, frame = EvaluationTransform(preprocessing).with_frame(np.zeros((480, 640, 3), np.uint8))
    left, top = 58, 16
    expected = [[0 * 341 / 640 - left, 0 * 256 / 480 - top], [320 * 341 / 640 - left, 100 * 256 / 480 - top]]
    assert np.allclose(frame.points([[0, 0], [320, 100]]), expected)
    assert np.allclose(frame.inverse_boxes([[0, 0, 224, 224]]), [[58 * 640 / 341, 30, 282 * 640 / 341, 450]])
    assert np.allclose(frame.boxes([[0, 0, 640, 480]]), [[0, 0, 224, 224]])
    assert frame.boxes([[0, 0, 90, 480]]).tolist() == [[0, 0, 0, 0]], "left of the crop"
    assert frame.shows([[-1, 100], [0, 0], [223, 223], [100, 225]]).tolist() == [False, True, True, False]


def test_a_long_thin_picture_is_framed_though_it_is_never_resized_whole():
    picture = np.zeros((4, 20_000, 3), np.uint8)
    picture[:, 10_000:10_001] = 255
    for content in (picture, picture.transpose(1, 0, 2)):
        pixels, frame = EvaluationTransform(Preprocessing(128, crop_fraction=0.8)).with_frame(content)
        assert frame.size == content.shape[:2]
        (left, top, right, bottom), *_ = frame.boxes([hull(content[:, :, 0])])
        weight = pixels[:, :, 0].astype(float)
        for axis, middle in ((0, (left + right) / 2), (1, (top + bottom) / 2)):
            place = weight.sum(axis=axis)
            assert abs((place * (np.arange(128) + 0.5)).sum() / place.sum() - middle) < 0.5


# Files

ORIENTATION = 0x0112
STORED: dict[int, Callable[[np.ndarray], np.ndarray]] = {
    1: lambda upright: upright,
    2: lambda upright: upright[:, ::-1],
    3: lambda upright: upright[::-1, ::-1],
    4: lambda upright: upright[::-1],
    5: lambda upright: upright.transpose(1, 0, 2),
    6: lambda upright: np.rot90(upright),
    7: lambda upright: np.rot90(upright, 2).transpose(1, 0, 2),
    8: lambda upright: np.rot90(upright, -1),
}
"""How a picture that is to be seen upright is stored, by the EXIF orientation that is written beside it."""


@functools.cache
def photo(size: tuple[int, int], box: tuple[int, int, int, int], orientation: int) -> bytes:
    """A JPEG of a white rectangle on black."""
    upright = np.repeat(255 * drawn_rectangle(size, box)[:, :, None], 3, axis=2)
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(Image.fromarray(np.ascontiguousarray(STORED[orientation](upright))), "JPEG", quality=95, exif=exif)


def measured_box(pixels: np.ndarray) -> list[float]:
    """left, top, right, bottom of a white rectangle that lies wholly inside, to a fraction of a pixel."""
    bright = pixels[:, :, 0].astype(float) / 255
    width, height = bright.sum(axis=1).max(), bright.sum(axis=0).max()
    rows, columns = np.arange(bright.shape[0]) + 0.5, np.arange(bright.shape[1]) + 0.5
    x, y = (bright * columns).sum() / bright.sum(), (bright * rows[:, None]).sum() / bright.sum()
    return [x - width / 2, y - height / 2, x + width / 2, y + height / 2]


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("size", [(90, 120), (1001, 1203)], ids=["whole", "reduced"])
def test_a_frame_is_of_the_upright_picture_at_its_full_size(size, orientation):
    rows, columns = size
    box = (2 * columns // 5, 3 * rows // 10, 7 * columns // 10, rows // 2)
    content = photo(size, box, orientation)
    # Reduced and turned, a JPEG's pixels may start up to 7/8 of a pixel late, where an input's pixel is two at least.
    near = 0.15 if orientation == 1 or rows < 100 else 0.5
    assert evaluation_shrink(size, Preprocessing(48)) == (8 if rows > 100 else 1)
    for crop in ("center", "squash"):
        transform = EvaluationTransform(Preprocessing(48, crop=crop, crop_fraction=1.0))
        pixels, frame = transform.with_frame(content)
        assert frame.size == size
        assert np.abs(frame.boxes([box])[0] - measured_box(pixels)).max() < near
    config = TransformConfig(area=(0.9, 1.0), aspect=(1.0, 1.4), flip=0.5)
    transform = TrainingTransform(config, Preprocessing(48))
    for seed in range(6):
        pixels, frame = transform.with_frame(content, draws(seed))
        assert frame.size == size
        assert np.abs(frame.boxes([box])[0] - measured_box(pixels)).max() < near


# What is known exactly


def test_nothing_changes_in_a_picture_that_is_the_input_already():
    picture, mask = smooth(20, 30), np.arange(600, dtype=np.uint16).reshape(20, 30)
    for name in ("evaluation", "resize"):
        transform = transform_of(name, Preprocessing((20, 30), crop="squash"))
        pixels, frame = transform.with_frame(picture, draws(0))
        assert np.array_equal(pixels, picture)
        assert frame == Frame.of((20, 30), (20, 30))
        assert np.array_equal(frame.mask(mask, 999), mask)
        assert np.array_equal(frame.inverse_mask(mask, 999), mask)
        boxes = np.array([[0, 0, 30, 20], [1.25, 2.5, 3.75, 17]])
        assert np.array_equal(frame.boxes(boxes), boxes)
        assert np.array_equal(frame.inverse_boxes(boxes), boxes)
        scores = smooth(20, 30).transpose(2, 0, 1).astype(np.float32)
        assert np.array_equal(frame.inverse_scores(scores), scores)


@over_transforms
@given(size=sizes, seed=seeds)
@settings(deadline=None, max_examples=10)
def test_scores_come_back_to_where_they_belong(name, size, seed):
    input_size = (36, 44)
    transform = transform_of(name, Preprocessing(input_size, **BLACK))
    _, frame = transform.with_frame(smooth(*size), draws(seed))
    places = frame.points(centres(size))
    back = frame.inverse_scores(centres(input_size).transpose(2, 0, 1)).transpose(1, 2, 0)
    known = frame.shows(places)
    assert np.array_equal(np.isnan(back).any(axis=2), ~known)
    assert np.allclose(back[known], np.clip(places[known], 0.5, [input_size[1] - 0.5, input_size[0] - 0.5]))
