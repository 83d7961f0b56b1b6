"""What may be given as images, and what is said of what may not."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import vitrail
from tests.conftest import toy
from vitrail.config import Preprocessing
from vitrail.data.transforms import EvaluationTransform
from vitrail.insight.images import Images, drawn, expand, short_names, spread, spread_first
from vitrail.insight.question import class_name, find_class


@pytest.fixture
def photo(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png", pixels


def test_a_path_a_pillow_image_an_array_and_a_tensor_are_the_same_image(photo):
    path, pixels = photo
    model = toy()
    model.card.preprocessing = Preprocessing(image_size=32, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    expected = Images(model, str(path))
    seen = EvaluationTransform(model.card.preprocessing)(path.read_bytes())
    assert np.array_equal(expected.pixels(0), seen), "prepared as the bundle says"
    tensor = (torch.tensor(seen).permute(2, 0, 1) / 255 - torch.tensor([0.4, 0.5, 0.6]).view(3, 1, 1)) / torch.tensor(
        [0.2, 0.3, 0.4]
    ).view(3, 1, 1)
    assert torch.allclose(expected.tensor(0), tensor, atol=1e-6)
    for other in (path, [path], Image.open(path), pixels, pixels[None], [pixels], tensor, tensor[None]):
        images = Images(model, other)
        assert len(images) == 1
        assert torch.allclose(images.tensor(0), tensor, atol=1e-6)
        assert np.array_equal(images.pixels(0), seen)


def test_folders_and_globs_are_their_images_sorted(tmp_path):
    for name in ("b/2.png", "a/1.png", "a/notes.txt", ".hidden/3.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert [path.name for path in expand(tmp_path)] == ["1.png", "2.png"]
    assert [path.name for path in expand([f"{tmp_path}/*/2.png", tmp_path / "a"])] == ["2.png", "1.png"]
    assert [path.name for path in expand(f"{tmp_path}/**/1.png")] == ["1.png"]


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "empty"), (b"not an image", "not an image"), (b"\x89PNG\r\n\x1a\n broken", "broken.png")],
)
def test_an_image_that_is_not_one_is_named(tmp_path, content, words):
    (tmp_path / "broken.png").write_bytes(content)
    model = toy()
    with pytest.raises(vitrail.UserError, match=r"broken\.png.*") as caught:
        vitrail.inspect.rollout(model, tmp_path / "broken.png")
    assert words in str(caught.value)


def test_nothing_to_look_at(tmp_path):
    model = toy()
    for nothing in ([], np.zeros((0, 32, 32, 3), np.uint8), torch.zeros(0, 3, 32, 32)):
        with pytest.raises(vitrail.UserError, match="empty"):
            vitrail.inspect.rollout(model, nothing)
    with pytest.raises(vitrail.UserError, match="no image in this folder"):
        vitrail.inspect.rollout(model, tmp_path)
    with pytest.raises(vitrail.UserError, match=r"no such image.*"):
        vitrail.inspect.rollout(model, tmp_path / "nowhere.jpg")
    with pytest.raises(vitrail.UserError, match="not a dict"):
        vitrail.inspect.rollout(model, {"a": 1})


def test_shapes_that_do_not_fit_are_said(tmp_path):
    model = toy()
    with pytest.raises(vitrail.UserError, match="cannot be cut into patches"):
        vitrail.inspect.rollout(model, torch.zeros(1, 3, 30, 32))
    with pytest.raises(vitrail.UserError, match="same shape"):
        vitrail.inspect.rollout(model, [torch.zeros(3, 32, 32), torch.zeros(3, 16, 32)])
    with pytest.raises(vitrail.UserError, match="channels"):
        vitrail.inspect.rollout(model, np.zeros((9, 9, 2), np.uint8))


def test_a_picture_is_read_when_it_is_asked_for_and_not_before(tmp_path):
    """Memory does not grow with the number of images: nothing is held but names."""
    path = tmp_path / "late.png"
    path.write_bytes(b"")
    images = Images(toy(), [path] * 3)
    Image.new("RGB", (40, 40)).save(path)
    assert images.tensor(2).shape == (3, 32, 32)


@settings(deadline=None)
@given(st.integers(0, 300), st.integers(1, 100))
def test_a_limit_spreads_evenly(count, limit):
    chosen = spread(list(range(count)), limit)
    assert len(chosen) == len(set(chosen)) == min(count, limit)
    gaps = np.diff([*chosen, count])
    assert count <= limit or gaps.max() - gaps.min() <= 1


@settings(deadline=None)
@given(st.integers(0, 300))
def test_those_shown_are_spread_over_all_and_none_is_lost(count):
    items = list(range(count))
    ordered = spread_first(items, (24, 6))
    assert sorted(ordered) == items
    assert ordered[:24] == [*ordered[:6], *sorted(set(ordered[:24]) - set(ordered[:6]))]
    if count > 24:
        assert max(ordered[:6]) > count // 2, "not all from the beginning"


def test_names_leave_out_the_folder_all_are_in():
    assert short_names(["/a/b/c.jpg", "/a/d.jpg"]) == ["b/c.jpg", "d.jpg"]
    assert short_names(["x/y.jpg"]) == ["y.jpg"]
    assert short_names(["/a/x.jpg", "b.jpg"]) == ["/a/x.jpg", "b.jpg"]
    assert short_names(["image 1", "image 2"]) == ["image 1", "image 2"]


@pytest.mark.parametrize("channels", [1, 2, 3, 5])
def test_drawings_of_any_number_of_channels(channels):
    model = toy(channels=channels, image_size=(16, 24))
    pictures = drawn(model)
    assert len({each.tobytes() for each in pictures}) == 4
    assert all(each.shape == (16, 24, channels) and each.dtype == np.uint8 for each in pictures)
    assert Images(model, pictures).tensor(0).shape == (channels, 16, 24)


def test_a_class_is_found_by_name_by_words_or_by_number():
    model = toy(num_classes=4)
    assert find_class(model, "3") == 3
    with pytest.raises(vitrail.UserError, match="number below 4"):
        find_class(model, "tench")
    model.card.label_names = ("n1", "n2", "n3", "n4")
    model.card.label_descriptions = {"n1": "tench, Tinca tinca", "n2": "crane", "n3": "crane machine", "n4": "crane"}
    assert [find_class(model, name) for name in ("n2", "tench, Tinca tinca", "TENCH", "machine")] == [1, 0, 0, 2]
    assert class_name(model, 0) == "tench, Tinca tinca"
    assert find_class(model, "crane") == 1, "an exact match comes first"
    with pytest.raises(vitrail.UserError, match="any of 3 classes"):
        find_class(model, "cran")
    with pytest.raises(vitrail.UserError, match="did you mean 'crane'"):
        find_class(model, "crahe")
    with pytest.raises(vitrail.UserError, match="no trained head"):
        find_class(vitrail.create("Ti/16", num_classes=3), "1")
