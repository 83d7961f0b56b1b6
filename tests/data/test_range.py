"""Pictures with more than 8 bits a channel keep what lies in their range; those of 8 bits are what they always were."""

import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import encoded, picture, smooth
from vitrail.config import DataConfig, Preprocessing, TrainConfig, TransformConfig
from vitrail.data import BadImage, decode, open_source
from vitrail.data.check import check_source
from vitrail.data.check_report import render_check
from vitrail.data.decode import from_array, to_array
from vitrail.data.loader import EvaluationLoader, Normaliser, TrainingLoader
from vitrail.data.preparation import ArrayNormaliser
from vitrail.data.randaugment import OPERATIONS, colour_jitter
from vitrail.data.transforms import EvaluationTransform, TrainingTransform
from vitrail.data.value_range import measure_range, range_notes, resolved
from vitrail.errors import UserError
from vitrail.random_stream import RandomStream

TWELVE = (0.0, 4095.0)
ALL = np.arange(4096, dtype=np.uint16).reshape(64, 64)
"""Every value that 12 bits have, once."""
GREY = {"mean": (0.5,), "std": (0.5,), "crop": "squash", "range": TWELVE}
EVERYTHING = TransformConfig(
    rotate=10, translate=0.1, scale=0.1, fill=128, randaugment_layers=4, randaugment_probability=1.0, colour_jitter=0.3,
    vertical_flip=0.5, erase=1.0,
)  # fmt: skip


def npy(values: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.save(stream, values)
    return stream.getvalue()


def colour_png(values: np.ndarray, row_filter: int = 0) -> bytes:
    """A PNG of 16 bits in 2, 3 or 4 channels, which Pillow cannot write; lines by one of the format's filters."""
    rows, columns, channels = values.shape
    width = 2 * channels
    lines = np.frombuffer(values.astype(">u2").tobytes(), np.uint8).reshape(rows, columns * width).astype(int)
    left, above = np.zeros_like(lines), np.zeros_like(lines)
    left[:, width:], above[1:] = lines[:, :-width], lines[:-1]
    corner = np.zeros_like(lines)
    corner[1:, width:] = lines[:-1, :-width]
    first = left + above - corner
    near = [abs(first - each) for each in (left, above, corner)]
    paeth = np.where((near[0] <= near[1]) & (near[0] <= near[2]), left, np.where(near[1] <= near[2], above, corner))
    guess = (0, left, above, (left + above) // 2, paeth)[row_filter]
    data = np.concatenate([np.full((rows, 1), row_filter), (lines - guess) % 256], axis=1).astype(np.uint8).tobytes()
    kind = {2: 4, 3: 2, 4: 6}[channels]
    parts = (b"IHDR", struct.pack(">IIBBBBB", columns, rows, 16, kind, 0, 0, 0)), (b"IDAT", zlib.compress(data))
    chunks = [
        struct.pack(">I", len(part)) + name + part + struct.pack(">I", zlib.crc32(name + part))
        for name, part in (*parts, (b"IEND", b""))
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


FORMS = {
    "png": encoded(Image.fromarray(ALL)),
    "tiff": encoded(Image.fromarray(ALL), "TIFF"),
    "big-endian tiff": encoded(Image.fromarray(ALL.astype(">u2")), "TIFF"),
    "32-bit tiff": encoded(Image.fromarray(ALL.astype(np.int32)), "TIFF"),
    "float tiff": encoded(Image.fromarray(ALL.astype(np.float32)), "TIFF"),
    "npy": npy(ALL),
    "signed npy": npy(ALL.astype(np.int16)),
    "array": ALL,
    "colour png": colour_png(np.repeat(ALL[:, :, None], 3, axis=2)),
}


# What is kept


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("channels", [1, 3])
def test_all_levels_of_twelve_bits_reach_the_model(form, channels):
    preprocessing = Preprocessing(64, (0.5,) * channels, (0.5,) * channels, crop="squash", range=TWELVE)
    pixels = EvaluationTransform(preprocessing)(FORMS[form])
    tensor = Normaliser(preprocessing)(pixels[None])
    assert [len(np.unique(plane)) for plane in tensor[0].numpy()] == [4096] * channels
    wanted = (ALL / 4095 - 0.5) / 0.5
    assert np.abs(tensor[0].numpy() - wanted).max() < 1e-6
    assert np.array_equal(ArrayNormaliser(preprocessing)(pixels[None]), tensor.numpy())


def test_without_a_range_sixteen_levels_are_left():
    preprocessing = Preprocessing(64, (0.5,), (0.5,), crop="squash")
    assert len(np.unique(EvaluationTransform(preprocessing)(FORMS["png"]))) <= 17


@pytest.mark.parametrize("crop", ["inception", "pad", "evaluation"])
def test_training_keeps_them_too(crop):
    preprocessing = Preprocessing(48, **GREY)
    pixels = TrainingTransform(TransformConfig(crop=crop, rotate=5), preprocessing)(
        FORMS["png"], RandomStream("test", 1)
    )
    assert pixels.dtype == np.float32
    assert 0 <= pixels.min() < pixels.max() <= 1
    assert len(np.unique(pixels)) > 1000


@pytest.mark.parametrize("row_filter", range(5))
@pytest.mark.parametrize("channels", [2, 3, 4])
def test_colour_of_sixteen_bits_is_read_whole(row_filter, channels):
    values = np.random.default_rng(0).integers(0, 65536, (9, 7, channels), dtype=np.uint16)
    found = decode(colour_png(values, row_filter), channels, limits=(0, 65535))
    assert np.array_equal(np.rint(found * 65535), values)
    assert decode(colour_png(values, row_filter), 3, limits=(0, 65535)).shape == (9, 7, 3)
    # The high bytes are what Pillow reads, of grey with alpha as colour with alpha.
    pillow = np.asarray(Image.open(io.BytesIO(colour_png(values, row_filter))))
    assert np.array_equal(pillow[:, :, -channels:], values >> 8)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_deep_pictures_are_turned_upright_like_others(orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    shallow = encoded(Image.fromarray(smooth(6, 9)), exif=exif)
    deep = colour_png(smooth(6, 9).astype(np.uint16) * 257)
    start = shallow.index(b"eXIf") - 4
    (length,) = struct.unpack(">I", shallow[start : start + 4])
    deep = deep[:33] + shallow[start : start + 12 + length] + deep[33:]
    assert np.array_equal(np.rint(decode(deep, 3, limits=(0, 65535)) * 255), decode(shallow, 3))


def test_values_outside_of_the_range_are_clipped():
    found = decode(np.array([[-5.0, 0.0, 5.0, 10.0, 1e30]]), 1, limits=(0, 10))
    assert found.ravel().tolist() == [0, 0, 0.5, 1, 1]


def test_a_range_far_from_zero_keeps_neighbours_apart():
    found = decode(npy(np.array([[2**30, 2**30 + 1, 2**30 + 2]], np.int32)), 1, limits=(2**30, 2**30 + 2))
    assert found.ravel().tolist() == [0, 0.5, 1]


# 8 bits


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("format", ["PNG", "JPEG"])
def test_pictures_of_eight_bits_are_the_same_with_and_without_a_range(channels, format):  # noqa: A002
    content = encoded(picture(300, 200), format)
    plain = Preprocessing(32, (0.4,) * channels, (0.3,) * channels)
    ranged = Preprocessing(32, (0.4,) * channels, (0.3,) * channels, range=TWELVE)
    for make in (EvaluationTransform, lambda each: TrainingTransform(EVERYTHING, each)):
        for seed in range(5):
            first, second = (
                Normaliser(each)(make(each)(content, RandomStream("test", seed))[None]) for each in (plain, ranged)
            )
            assert np.array_equal(first.numpy(), second.numpy())


def test_the_loaders_give_floats_for_deep_and_bytes_for_others_in_one_batch(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for index in range(4):
            deep = Image.fromarray(ALL[:, ::-1] if index % 2 else ALL)
            (deep if index < 2 else picture(64, 64, index, "L")).save(tmp_path / name / f"{index}.png")
    split = open_source(tmp_path, val_fraction=0, test_fraction=0).split("train")
    preprocessing = Preprocessing(64, **GREY)
    (batch,) = EvaluationLoader(split, preprocessing, batch_size=8)
    levels = [len(each.unique()) for each in batch.images]
    assert sorted(levels)[-4:] == [4096] * 4
    assert max(sorted(levels)[:4]) <= 256
    small = Preprocessing(32, **GREY)
    views = [(EVERYTHING, small), (TransformConfig(crop="evaluation", flip=0), preprocessing)]
    loader = TrainingLoader(
        split, EVERYTHING, preprocessing, batch_size=8, seed=0, num_classes=2, workers=2, views=views
    )
    batch = next(iter(loader))
    assert [tuple(view.shape) for view in batch.views] == [(8, 1, 32, 32), (8, 1, 64, 64)]
    assert sorted(len(each.unique()) for each in batch.views[1])[-4:] == [4096] * 4  # not scaled twice
    assert float(batch.images.abs().max()) <= 1


# Colour operations


@pytest.mark.parametrize("operation", range(len(OPERATIONS)))
@pytest.mark.parametrize("channels", [1, 3])
def test_every_augmentation_does_to_floats_what_it_does_to_bytes(operation, channels):
    pixels = smooth(120, 100, seed=3, channels=channels)
    for strength in (0.2, 0.7):
        results = [
            to_array(OPERATIONS[operation](from_array(each), strength, RandomStream("test", 5), (99,) * channels))
            for each in (pixels, pixels.astype(np.float32) / np.float32(255))
        ]
        apart = np.abs(results[0] / 255 - results[1])
        # Pillow's equalize counts by whole steps, so a level may end up a few further.
        assert apart.max() <= (6 if operation == 1 else 2.1) / 255, OPERATIONS[operation]


def test_colour_jitter_does_to_floats_what_it_does_to_bytes():
    pixels = smooth(24, 20, seed=3)
    results = [
        to_array(colour_jitter(from_array(each), 0.4, RandomStream("test", 5)))
        for each in (pixels, pixels.astype(np.float32) / np.float32(255))
    ]
    assert np.abs(results[0] / 255 - results[1]).max() <= 3 / 255


# Finding the range, and telling of it


def write(folder, high=4096, count=12, dtype=np.uint16):
    generator = np.random.default_rng(0)
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            values = generator.integers(7, high, (20, 20)).astype(dtype)
            Image.fromarray(values).save(folder / name / f"{index:02d}.tif")
    return open_source(folder, val_fraction=0, test_fraction=0).split("train")


def test_the_range_is_found_in_the_data_once_and_for_all(tmp_path):
    split = write(tmp_path)
    low, high = resolved("auto", None, split)
    assert 7 <= low < 20
    assert 4080 < high < 4096
    assert resolved("auto", None, split) == (low, high)
    middle = resolved("25%,75%", None, split)
    assert middle == pytest.approx((1029, 3073), abs=120)
    assert resolved("0,4095", None, split) == (0, 4095)
    assert resolved("-10,1e4", None, split) == (-10, 10000)
    assert resolved("dtype", (1, 2), split) is None
    assert resolved(None, (1, 2), split) == (1, 2)


def test_a_note_says_when_less_than_a_tenth_of_the_range_is_used(tmp_path):
    few = measure_range(write(tmp_path / "few"))
    (note,) = range_notes(few, None)
    assert "--data.range auto" in note
    assert "6.2% of it" in note
    assert range_notes(few, TWELVE) == []
    assert "clipped" in range_notes(few, (0, 1000))[0]
    assert "--data.range" in range_notes(few, (0, 1e6))[0]
    assert range_notes(measure_range(write(tmp_path / "many", high=65536)), None) == []
    assert range_notes(measure_range(write(tmp_path / "bytes", high=20, dtype=np.uint8)), None) == []


def test_pictures_of_eight_bits_have_no_range_to_find(tmp_path):
    split = write(tmp_path, high=256, dtype=np.uint8)
    with pytest.raises(UserError, match="8 bits"):
        resolved("auto", None, split)
    assert "8, and are taken from 0 to 255" in range_notes(measure_range(split), TWELVE)[0]


def test_bad_pictures_do_not_count_in_the_sample(tmp_path):
    split = write(tmp_path)
    (tmp_path / "a" / "00.tif").write_bytes(b"junk")
    Image.fromarray(np.full((20, 20), np.nan, np.float32)).save(tmp_path / "a" / "01.tif")
    found = measure_range(split)
    assert (found.n, found.deep) == (22, 22)


# What is refused


@pytest.mark.parametrize("text", ["", "5,5", "9,1", "nan,3", "0,inf", "1", "1,2,3", "1%,2", "99%,1%", "-1%,50%", "x,y"])
def test_a_range_that_is_none_is_refused_by_its_flag(text):
    with pytest.raises(UserError, match=r"--data\.range"):
        DataConfig(range=text)


@pytest.mark.parametrize("values", [(5, 5), (9, 1), (np.nan, 1), (0, np.inf), (1,), "ab", 5, (-1e308, 1e308)])
def test_preprocessing_refuses_it_too(values):
    with pytest.raises(UserError, match="range"):
        Preprocessing(range=values)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("limits", [None, TWELVE])
def test_values_that_are_not_finite_make_a_bad_image(value, limits):
    values = np.full((5, 5), 0.5, np.float32)
    values[2, 2] = value
    for content in (encoded(Image.fromarray(values), "TIFF"), npy(values)):
        with pytest.raises(BadImage, match="not finite"):
            decode(content, 1, limits=limits)


@pytest.mark.parametrize("dtype", [np.complex64, "U3", "datetime64[s]"])
def test_arrays_of_no_numbers_are_refused(dtype):
    with pytest.raises(BadImage, match="array"):
        decode(npy(np.zeros((5, 5), dtype)), 1, limits=TWELVE)


def test_damaged_colour_of_sixteen_bits_is_a_bad_image():
    whole = colour_png(np.random.default_rng(0).integers(0, 65536, (40, 40, 3), dtype=np.uint16))
    flipped = whole[:60] + bytes([whole[60] ^ 255]) + whole[61:]
    interlaced = whole[:28] + b"\1" + struct.pack(">I", zlib.crc32(whole[12:28] + b"\1")) + whole[33:]
    for content, reason in ((whole[:2000], "cut off|decoded"), (flipped, "checksum"), (interlaced, "interlac")):
        with pytest.raises(BadImage, match=reason):
            decode(content, 3, limits=TWELVE)


def test_a_tiff_of_sixteen_bit_colour_is_refused_rather_than_reduced():
    pixels = np.random.default_rng(0).integers(0, 65536, (4, 4, 3), dtype="<u2").tobytes()
    tags = [(256, 3, 1, 4), (257, 3, 1, 4), (258, 3, 3, 122), (259, 3, 1, 1), (262, 3, 1, 2), (273, 4, 1, 128),
            (277, 3, 1, 3), (278, 3, 1, 4), (279, 4, 1, len(pixels))]  # fmt: skip
    directory = struct.pack("<H", len(tags)) + b"".join(struct.pack("<HHII", *tag) for tag in tags) + bytes(4)
    content = (b"II*\0" + struct.pack("<I", 8) + directory).ljust(122, b"\0") + struct.pack("<3H", 16, 16, 16) + pixels
    assert decode(content, 3).shape == (4, 4, 3)
    with pytest.raises(BadImage, match=r"16-bit colour.*\.npy"):
        decode(content, 3, limits=TWELVE)


# What is written


def test_a_configuration_without_a_range_is_written_as_it_always_was():
    config = TrainConfig(epochs=1)
    for document in (config.to_json(), TrainConfig.from_json(config.to_json()).to_json()):
        assert "range" not in document["data"]
        assert "range" not in document["preprocessing"]
    ranged = TrainConfig(epochs=1, data=DataConfig(range="auto"), preprocessing=Preprocessing(range=TWELVE))
    assert ranged.to_json()["preprocessing"]["range"] == TWELVE
    assert TrainConfig.from_json(ranged.to_json()) == ranged


# The check of a data set


@pytest.mark.parametrize("channels", [1, 2, 4, 5, 12])
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16])
def test_any_number_of_channels_can_be_checked(tmp_path, channels, dtype):
    for number, name in enumerate(("a", "b")):
        (tmp_path / name).mkdir()
        for index in range(4):
            values = smooth(12, 12, seed=9 * number + index % 3, channels=channels).astype(dtype) * 10
            np.save(tmp_path / name / f"{index}.npy", values)
    source = open_source(tmp_path, val_fraction=0, test_fraction=0)
    checked = check_source(source)
    findings = checked.to_json()
    assert findings["corrupt"] == []
    assert len(findings["exact_duplicates"]) == 2
    assert findings["modes"] == {f"{channels} channel{'s' * (channels > 1)} of {np.dtype(dtype)}": 8}
    page = render_check(checked, source)
    assert page.count("<figure><img") == 4
    assert ("--data.range" in page) == (dtype == np.uint16)


def test_pictures_that_differ_in_low_bits_alone_are_no_duplicates(tmp_path):
    split = write(tmp_path, high=200, count=4)
    findings = check_source(open_source(tmp_path, val_fraction=0, test_fraction=0)).to_json()
    assert len(split) == findings["n"] == 8
    assert findings["exact_duplicates"] == []
    assert findings["shown_range"][1] == pytest.approx(199, abs=3)


def test_arrays_outside_of_their_types_range_need_one_to_be_read(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / "0.npy", smooth(12, 12, seed=len(name)).astype(np.int16) - 1000)
    source = open_source(tmp_path, val_fraction=0, test_fraction=0)
    assert "--data.range" in check_source(source).to_json()["corrupt"][0]["reason"]
    assert check_source(source, limits=(-1000, -700)).to_json()["corrupt"] == []
