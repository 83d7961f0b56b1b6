"""Evaluation is timm's to the pixel; augmentation is a pure function of content and draws, and does what it says."""

import io
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from tests.data.conftest import encoded, picture, smooth
from vitrail.config import Preprocessing, TransformConfig
from vitrail.data.geometry import evaluation_crop, inception_box, shrink_factor
from vitrail.data.loader import Normaliser
from vitrail.data.mixup_cutmix import cut_box, mix
from vitrail.data.randaugment import OPERATIONS, randaugment
from vitrail.data.transforms import EvaluationTransform, TrainingTransform, erase, shift
from vitrail.errors import UserError
from vitrail.random_stream import RandomStream
from vitrail.tasks.classification.head import soft_labels

GREY = {"mean": (0.5,), "std": (0.5,)}


def draws(*key) -> RandomStream:
    return RandomStream("test", *key)


# Evaluation

SIZES = [(224, 224), (500, 375), (375, 500), (60, 61), (1, 1), (1, 30), (30, 1), (33, 777), (1024, 768), (249, 248)]


@pytest.mark.parametrize(("rows", "columns"), SIZES)
@pytest.mark.parametrize(
    ("size", "fraction", "resample", "crop"),
    [
        (224, 0.9, "bicubic", "center"),
        (224, 0.875, "bilinear", "center"),
        (64, 1.0, "bicubic", "center"),
        (37, 0.77, "lanczos", "center"),
        (32, 1.0, "bicubic", "squash"),
        (48, 1.0, "nearest", "squash"),
        ((64, 96), 0.9, "bilinear", "center"),
    ],
)
def test_evaluation_equals_timm_to_the_last_bit(peers, rows, columns, size, fraction, resample, crop):
    preprocessing = Preprocessing(
        image_size=size, crop_fraction=fraction, resample=resample, crop=crop, std=(0.3, 0.4, 0.5)
    )
    content = encoded(picture(rows, columns))
    theirs = peers.timm.data.create_transform(
        input_size=size,
        is_training=False,
        interpolation=resample,
        mean=preprocessing.mean,
        std=preprocessing.std,
        crop_pct=fraction,
        crop_mode=crop,
    )(Image.open(io.BytesIO(content)))
    ours = Normaliser(preprocessing)(EvaluationTransform(preprocessing)(content)[None])[0]
    assert torch.equal(ours, theirs)


def test_evaluation_equals_timm_on_photos(peers, assets):
    theirs = peers.timm.data.create_transform(224, is_training=False, interpolation="bicubic", crop_pct=0.9)
    preprocessing = Preprocessing(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    transform, normalise = EvaluationTransform(preprocessing), Normaliser(preprocessing)
    for photo in sorted((assets / "imagenet-sample").glob("*/*"))[:25]:
        ours = normalise(transform(photo.read_bytes())[None])[0]
        assert torch.equal(ours, theirs(Image.open(photo).convert("RGB")))


def test_a_long_thin_picture_does_not_fill_the_memory():
    planes = (Image.fromarray(smooth(1, 200_000)),)
    (image,) = evaluation_crop(planes, Preprocessing())
    assert image.size == (224, 224)
    # The same path on a size that fits both ways gives nearly the same picture.
    tall = Preprocessing(image_size=32, crop_fraction=1.0)
    small = np.asarray(evaluation_crop((Image.fromarray(smooth(8, 4000)),), tall)[0]).astype(int)
    assert small.shape == (32, 32, 3)


@pytest.mark.parametrize("channels", [1, 2, 3, 4, 6])
def test_any_number_of_channels(channels):
    values = smooth(50, 40, channels=channels)
    preprocessing = Preprocessing(image_size=24, mean=(0.5,) * channels, std=(0.5,) * channels)
    config = TransformConfig(
        randaugment_layers=3, colour_jitter=0.2, rotate=5, erase=1.0, erase_fill="mean", vertical_flip=0.5
    )
    for transform in (EvaluationTransform(preprocessing), TrainingTransform(config, preprocessing)):
        for seed in range(10):
            pixels = transform(values, draws(seed))
            assert pixels.shape == (24, 24, channels)
            assert pixels.dtype == np.uint8
    one = EvaluationTransform(Preprocessing(image_size=24, **GREY))
    assert np.array_equal(EvaluationTransform(preprocessing)(values)[:, :, :1], one(values[:, :, :1]))


# Training


@given(
    rows=st.integers(1, 400),
    columns=st.integers(1, 400),
    low=st.floats(0.01, 1.0),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=200)
def test_the_inception_crop_stays_inside_and_keeps_area_and_aspect(rows, columns, low, seed):
    left, top, right, bottom = inception_box((rows, columns), (low, 1.0), (3 / 4, 4 / 3), draws(seed))
    assert 0 <= left < right <= columns
    assert 0 <= top < bottom <= rows
    width, height = right - left, bottom - top
    if min(width, height) > 20:
        assert 0.7 < width / height < 1.43
    if rows == columns and rows > 50:
        assert (width + 0.5) * (height + 0.5) >= low * rows * columns  # sides are rounded


def test_the_inception_crop_spans_its_range():
    boxes = [inception_box((300, 400), (0.05, 1.0), (3 / 4, 4 / 3), draws(seed)) for seed in range(2000)]
    areas = np.array([(box[2] - box[0]) * (box[3] - box[1]) / 120_000 for box in boxes])
    aspects = np.array([(box[2] - box[0]) / (box[3] - box[1]) for box in boxes])
    assert 0.045 < areas.min() < 0.07
    assert 0.9 < areas.max() <= 1.0
    assert abs(np.log(aspects).mean()) < 0.03
    assert aspects.min() < 0.77
    assert aspects.max() > 1.3


CONFIGS = [
    TransformConfig(),
    TransformConfig(crop="pad", padding=3),
    TransformConfig(crop="evaluation", flip=0),
    TransformConfig(crop="pad", rotate=12, translate=0.1, scale=0.1, flip=0),
    TransformConfig(randaugment_layers=2, erase=0.5, colour_jitter=0.3),
]


@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_augmentation_is_a_pure_function_of_content_and_draws(config):
    transform = TrainingTransform(config, Preprocessing(image_size=28))
    content = encoded(picture(50, 44), "JPEG")
    results = [transform(content, draws(seed)) for seed in (0, 1, 0)]
    assert np.array_equal(results[0], results[2])
    assert np.array_equal(results[0], results[1]) == (config.crop == "evaluation")
    array = smooth(28, 28)
    before = array.copy()
    for seed in range(5):
        transform(array, draws(seed))
    assert np.array_equal(array, before)


@pytest.mark.parametrize("config", CONFIGS, ids=range(len(CONFIGS)))
def test_a_file_and_an_array_of_the_same_pixels_are_augmented_alike(config):
    transform = TrainingTransform(config, Preprocessing(image_size=28))
    for seed in range(6):
        array, file = smooth(28, 28, seed=seed), encoded(picture(28, 28, seed=seed))
        assert np.array_equal(transform(array, draws(seed)), transform(file, draws(seed)))


def test_a_jpeg_is_drafted_only_while_the_crop_stays_twice_the_target():
    assert shrink_factor((0, 0, 4000, 3000), (224, 224)) == 4
    assert shrink_factor((0, 0, 895, 900), (224, 224)) == 1
    assert shrink_factor((0, 0, 896, 900), (224, 224)) == 2
    assert shrink_factor((100, 100, 10_100, 10_100), (224, 224)) == 8
    content = encoded(picture(900, 1200), "JPEG", quality=95)
    transform = TrainingTransform(TransformConfig(area=(0.3, 1.0)), Preprocessing(image_size=32))
    drafted = [transform(content, draws(seed)).astype(int) for seed in range(10)]
    whole = np.asarray(Image.open(io.BytesIO(content)))
    plain = [transform(whole, draws(seed)) for seed in range(10)]
    assert max(np.abs(a - b).mean() for a, b in zip(drafted, plain, strict=True)) < 2


@given(padding=st.integers(0, 12), seed=st.integers(0, 500))
@settings(deadline=None)
def test_shifting_is_padding_and_cropping(padding, seed):
    pixels = smooth(8, 9, seed=seed)
    moved = shift(pixels, padding, 7, draws(seed))
    padded = np.full((8 + 2 * padding, 9 + 2 * padding, 3), 7, np.uint8)
    padded[padding : padding + 8, padding : padding + 9] = pixels
    crops = [
        padded[top : top + 8, left : left + 9] for top in range(2 * padding + 1) for left in range(2 * padding + 1)
    ]
    assert any(np.array_equal(moved, crop) for crop in crops)


def test_flips_and_shifts_occur_as_often_as_they_should():
    pixels = np.arange(25, dtype=np.uint8).reshape(5, 5, 1)
    plain = Preprocessing(image_size=5, **GREY)
    flip = TrainingTransform(TransformConfig(crop="pad", padding=0, flip=0.3), plain)
    flipped = sum(np.array_equal(flip(pixels, draws(seed)), pixels[:, ::-1]) for seed in range(2000))
    assert abs(flipped / 2000 - 0.3) < 0.04
    assert len({shift(pixels, 1, 0, draws(seed)).tobytes() for seed in range(300)}) == 9


def test_the_small_affine_moves_as_it_says():
    pixels = np.zeros((21, 21, 1), np.uint8)
    pixels[10, 10] = 255
    config = TransformConfig(crop="pad", padding=0, flip=0, translate=0.2)
    transform = TrainingTransform(config, Preprocessing(image_size=21, **GREY))
    places = []
    for seed in range(300):
        moved = transform(pixels, draws(seed))[:, :, 0].astype(float)
        assert moved.sum() > 200
        places.append([(moved.sum(axis=axis) * np.arange(21)).sum() / moved.sum() for axis in (0, 1)])
    places = np.array(places)
    assert np.abs(places.mean(axis=0) - 10).max() < 0.5
    assert 3.5 < np.abs(places - 10).max() < 4.8
    turned = TrainingTransform(
        TransformConfig(crop="pad", padding=0, flip=0, rotate=20), Preprocessing(image_size=21, **GREY)
    )
    for seed in range(20):
        assert turned(pixels, draws(seed))[10, 10, 0] > 200


@given(seed=st.integers(0, 300), noise=st.booleans())
@settings(deadline=None, max_examples=60)
def test_erasing_overwrites_one_rectangle(seed, noise):
    pixels = np.full((40, 50, 3), 90, np.uint8)
    erased = erase(pixels, (0.02, 1 / 3), None if noise else (1, 2, 3), draws(seed))
    assert (pixels == 90).all()
    changed = (erased != 90).any(axis=2)
    rows, columns = np.flatnonzero(changed.any(axis=1)), np.flatnonzero(changed.any(axis=0))
    box = (rows[-1] - rows[0] + 1) * (columns[-1] - columns[0] + 1)
    assert 0.01 * 2000 < box < 0.36 * 2000
    assert changed.sum() > 0.98 * box
    if not noise:
        assert (erased[changed] == (1, 2, 3)).all()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda each: getattr(each, "__name__", ""))
def test_every_operation_keeps_size_and_mode_and_grows_with_strength(operation):
    for mode in ("RGB", "L"):
        planes = (picture(30, 40, mode=mode),)
        for strength in (0.0, 0.5, 1.0):
            (result,) = operation(planes, strength, draws(1), (128,) * 3)
            assert result.size == (40, 30)
            assert result.mode == mode
    planes = (picture(30, 40),)

    def change(strength: float) -> float:
        (result,) = operation(planes, strength, draws(3), (128,) * 3)
        return float(np.abs(np.asarray(result).astype(int) - np.asarray(planes[0])).mean())

    without_strength = 3  # autocontrast, equalize, invert
    if OPERATIONS.index(operation) >= without_strength:
        assert change(0.0) == 0
        assert change(1.0) > change(0.15) > 0


def test_randaugment_uses_every_operation_and_leaves_some_pictures_alone():
    transform = TrainingTransform(
        TransformConfig(crop="pad", padding=0, flip=0, randaugment_layers=1), Preprocessing(image_size=28)
    )
    pixels = smooth(28, 28)
    results = [transform(pixels, draws(seed)) for seed in range(400)]
    alone = sum(np.array_equal(result, pixels) for result in results) / 400
    assert 0.42 < alone < 0.62
    assert len({result.tobytes() for result in results}) > 100


def test_fields_that_make_no_sense_are_refused():
    for fields in (
        {"crop": "round"},
        {"area": (0.5, 0.1)},
        {"flip": 1.5},
        {"randaugment_magnitude": 11},
        {"repeats": 0},
        {"label_smoothing": 1.0},
        {"fill": 300},
    ):
        with pytest.raises(UserError, match=next(iter(fields))):
            TransformConfig(**fields)
    config = TransformConfig(crop="pad", area=(0.2, 0.8), mixup=0.2)
    assert TransformConfig.from_json(config.to_json()) == config
    with pytest.raises(UserError, match="did you mean mixup"):
        TransformConfig.from_json({"mixupp": 1})


# Mixing


def test_label_smoothing_spreads_what_it_takes():
    targets = soft_labels(torch.tensor([2, 0]), 4, 0.1)
    assert torch.allclose(targets[0], torch.tensor([0.025, 0.025, 0.925, 0.025]))
    assert torch.allclose(targets.sum(dim=1), torch.ones(2))
    assert torch.equal(soft_labels(torch.tensor([1]), 3, 0.0), torch.tensor([[0.0, 1.0, 0.0]]))


def one_hot_batch(count: int = 8, side: int = 16) -> tuple[torch.Tensor, torch.Tensor]:
    """Image i has the value i everywhere, and the label i."""
    images = torch.arange(count, dtype=torch.float32).view(-1, 1, 1, 1).expand(-1, 3, side, side).contiguous()
    return images, torch.eye(count)


@pytest.mark.parametrize("kind", ["mixup", "cutmix"])
def test_mixed_targets_are_the_shares_of_the_mixed_images(kind):
    images, targets = one_hot_batch()
    values = torch.arange(8, dtype=torch.float32)
    shares = []
    for step in range(60):
        mixed, soft = mix(images, targets, TransformConfig(**{kind: 1.0}), 0, step, 0)
        assert torch.allclose(soft.sum(dim=1), torch.ones(8), atol=1e-6)
        assert torch.allclose(mixed.mean(dim=(1, 2, 3)), soft @ values, atol=1e-4)
        if kind == "cutmix":
            assert torch.equal(mixed, mixed.round())
        shares.append(float(soft.max(dim=1).values.min()))
        again = mix(images, targets, TransformConfig(**{kind: 1.0}), 0, step, 0)
        assert torch.equal(again[0], mixed)
        assert torch.equal(again[1], soft)
    assert len(set(shares)) > 30
    assert torch.equal(images, one_hot_batch()[0])


def test_mixing_happens_as_often_as_asked_and_by_both_kinds():
    images, targets = one_hot_batch()
    config = TransformConfig(mixup=1.0, cutmix=1.0, mix_probability=0.6)
    kinds = {"none": 0, "cutmix": 0, "mixup": 0}
    for step in range(500):
        mixed, _ = mix(images, targets, config, 0, step, 0)
        if torch.equal(mixed, images):
            kinds["none"] += 1
        else:
            kinds["cutmix" if torch.equal(mixed, mixed.round()) else "mixup"] += 1
    assert 160 < kinds["none"] < 260
    assert 100 < kinds["mixup"] < 200
    assert 90 < kinds["cutmix"] < 200
    alone, same = mix(images[:1], targets[:1], TransformConfig(mixup=1.0), 0, 0, 0)
    assert torch.equal(alone, images[:1])
    assert torch.equal(same, targets[:1])


def test_the_cut_has_the_area_that_is_not_kept():
    boxes = [cut_box(40, 80, 0.75, draws(seed)) for seed in range(200)]
    areas = [(bottom - top) * (right - left) for top, bottom, left, right in boxes]
    assert max(areas) == 20 * 40, "a quarter, where nothing is clipped"
    assert min(areas) < 20 * 40, "and some are"


def test_random_crops_are_as_often_wide_as_high():
    boxes = [inception_box((300, 300), (0.1, 0.2), (1 / 3, 3), draws(seed)) for seed in range(1000)]
    assert 450 < sum(right - left > bottom - top for left, top, right, bottom in boxes) < 550
    edges = np.array([inception_box((8, 8), (0.3, 0.5), (1, 1), draws(seed)) for seed in range(300)])
    assert edges.min(axis=0)[:2].tolist() == [0, 0]
    assert edges.max(axis=0)[2:].tolist() == [8, 8], "they reach every edge"


def changed_by(pixels: np.ndarray, **fields) -> np.ndarray:
    """One random transform that does nothing but what the fields say."""
    config = TransformConfig(**{"crop": "pad", "padding": 0, "flip": 0.0, **fields})
    return TrainingTransform(config, Preprocessing(image_size=pixels.shape[0]))(pixels, draws(0))


def test_a_vertical_flip_is_upside_down_and_no_mirror():
    pixels = smooth(20, 20)
    assert np.array_equal(changed_by(pixels, vertical_flip=1.0), pixels[::-1])
    assert np.array_equal(changed_by(pixels, flip=1.0), pixels[:, ::-1])


def test_erasing_fills_as_configured():
    white = np.full((40, 40, 3), 255, np.uint8)
    mean = changed_by(white, erase=1.0, erase_fill="mean")
    assert set(np.unique(mean).tolist()) == {128, 255}
    noise = changed_by(white, erase=1.0, erase_fill="noise")
    assert len(np.unique(noise)) > 10


def test_randaugment_has_a_tenth_of_its_strength_at_magnitude_1():
    planes = (picture(30, 40),)
    config = TransformConfig(
        randaugment_layers=1, randaugment_magnitude=1, randaugment_std=0, randaugment_probability=1.0
    )
    for seed in range(40):
        (found,) = randaugment(planes, config, draws(seed), (128,) * 3)
        again = draws(seed)
        operation, _, _ = OPERATIONS[again.integer(len(OPERATIONS))], again.chance(1.0), again.normal()
        (expected,) = operation(planes, 0.1, again, (128,) * 3)
        assert found.tobytes() == expected.tobytes()


def test_what_has_a_direction_goes_either_way():
    planes = (picture(30, 40),)
    ways = [len({each(planes, 0.5, draws(seed), (0,) * 3)[0].tobytes() for seed in range(20)}) for each in OPERATIONS]
    # autocontrast, equalize, invert, rotate; posterize, both solarizes; four colours, two shears, two shifts
    assert ways == [1, 1, 1, 2, 1, 1, 1, *[2] * 8]


def test_a_turn_is_in_degrees_and_goes_either_way():
    pixels = np.zeros((101, 101, 1), np.uint8)
    pixels[8:13, 48:53] = 255  # above the centre
    config = TransformConfig(crop="pad", padding=0, flip=0, rotate=20)
    transform = TrainingTransform(config, Preprocessing(image_size=101, **GREY))
    angles = []
    for seed in range(60):
        turned = transform(pixels, draws(seed))[:, :, 0].astype(float)
        down, right = ((turned.sum(axis=axis) * np.arange(101)).sum() / turned.sum() - 50 for axis in (1, 0))
        angles.append(math.degrees(math.atan2(right, -down)))
    assert -20.5 < min(angles) < -15
    assert 15 < max(angles) < 20.5
