"""What may be given as images, and what is said of what may not."""

import tarfile
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import vitrail
from tests.conftest import toy
from vitrail.config import Preprocessing
from vitrail.data.loader import Normaliser
from vitrail.data.transforms import EvaluationTransform
from vitrail.insight.explained_score import class_name, find_class
from vitrail.insight.images import Images, chosen, drawn, short_names, spread, spread_first


@pytest.fixture
def photo(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "photo.png")
    return tmp_path / "photo.png", pixels


def described():
    model = toy()
    model.card.preprocessing = Preprocessing(image_size=32, mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4))
    return model


def test_every_kind_of_picture_is_the_same_input_for_predict_and_for_inspect_bit_for_bit(photo):
    path, pixels = photo
    model = described()
    seen = EvaluationTransform(model.card.preprocessing)(path.read_bytes())
    expected = Normaliser(model.card.preprocessing)(seen[None])
    with tarfile.open(path.parent / "photos.tar", "w") as archive:
        archive.add(path, "photo.png")
    tensor = torch.tensor(pixels).permute(2, 0, 1)
    kinds = [
        *(path, str(path), f"{path.parent}/*.png", path.parent, path.parent / "photos.tar", path.read_bytes()),
        *(Image.open(path), Image.fromarray(pixels), pixels, pixels[None], pixels / 255.0),
        *(tensor, tensor[None], tensor.double() / 255, (tensor / 255).requires_grad_()),
    ]
    for kind in [*kinds, *([each] for each in kinds), *((each,) for each in kinds), kinds]:
        given = vitrail.preprocess(model, kind)
        images = Images(model, kind)
        assert len(images) == len(given)
        for place in range(len(images)):
            assert torch.equal(given[place], expected[0])
            assert torch.equal(images.tensor(place), expected[0])
            assert np.array_equal(images.pixels(place), seen)
    assert torch.equal(Images(model, (each for each in kinds)).tensor(len(kinds) - 1), expected[0]), "a generator"


def test_a_picture_on_its_side_is_turned_upright_in_memory_too(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    pixels = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(tmp_path / "turned.png", exif=exif)
    images = Images(described(), [tmp_path / "turned.png", Image.open(tmp_path / "turned.png")])
    assert torch.equal(images.tensor(0), images.tensor(1))
    assert images.ids == [str(tmp_path / "turned.png")] * 2


def test_what_is_prepared_goes_through_predict_and_inspect_as_it_is(photo):
    path, model = photo[0], described()
    prepared = vitrail.preprocess(model, path)
    assert prepared.min() < 0
    for values in (prepared, prepared[0], prepared.double(), prepared.numpy(), prepared.clone().requires_grad_()):
        wrapped = vitrail.Prepared(values)
        assert torch.equal(vitrail.preprocess(model, wrapped), prepared)
        images = Images(model, wrapped)
        assert torch.equal(images.tensor(0), prepared[0])
        assert np.array_equal(images.pixels(0), Images(model, path).pixels(0))
    wrapped = vitrail.Prepared(prepared)
    both = [wrapped, path]
    assert torch.equal(vitrail.preprocess(model, both), vitrail.preprocess(model, [path, path])), "beside a file"
    assert model.predict(both)[0].top == model.predict([path, path])[0].top
    assert np.array_equal(vitrail.embed(model, wrapped), vitrail.embed(model, path))
    assert np.array_equal(vitrail.inspect.attention(model, wrapped), vitrail.inspect.attention(model, path))
    three = vitrail.Prepared(prepared.repeat(3, 1, 1, 1))
    assert len(model.predict(three)) == len(Images(model, three)) == 3


def test_what_is_prepared_but_not_said_to_be_is_refused_with_the_remedy(photo):
    model = described()
    prepared = vitrail.preprocess(model, photo[0])
    for unsaid in (prepared, prepared[0], prepared[0].permute(1, 2, 0).numpy(), [prepared]):
        (answer,) = model.predict(unsaid)
        assert not answer.top
        refusals = [refusal(each, model, unsaid) for each in (vitrail.embed, vitrail.inspect.rollout)]
        for said in (answer.error, *refusals):
            assert "outside 0..1" in said
            assert "vitrail.Prepared(" in said


def test_what_is_prepared_must_fit(photo):
    model = described()
    small = vitrail.Prepared(torch.randn(2, 3, 16, 32))
    first, second, third = model.predict([small, photo[0]])
    assert first.error == second.error == "is prepared input of shape (3, 16, 32), where the model takes (3, 32, 32)"
    assert third.top
    assert vitrail.inspect.rollout(model, small).shape == (2, 2, 4), "inspect takes any grid"
    for wrong, words in (
        (torch.zeros(3, 32, 32, dtype=torch.uint8), "floats"),
        (torch.zeros(32, 32), "(channels, rows, columns)"),
        ("photo.png", "not a str"),
    ):
        assert words in refusal(vitrail.Prepared, wrong)


def test_half_precision_is_taken_as_pixels_and_as_prepared():
    model = described()
    exact = (torch.arange(3 * 32 * 32) % 2).view(3, 32, 32)
    for kind in (torch.bfloat16, torch.float16):
        assert torch.equal(Images(model, exact.to(kind)).tensor(0), Images(model, exact.float()).tensor(0))
        assert torch.equal(Images(model, vitrail.Prepared(exact.to(kind))).tensor(0), exact.float())


def refusal(function, *arguments) -> str:
    with pytest.raises(vitrail.UserError) as caught:
        function(*arguments)
    return str(caught.value)


def names(given, limit: int | None = None) -> list[str]:
    return [Path(each.path).name for each in chosen(given, limit)]


def test_folders_and_globs_are_their_images_sorted(tmp_path):
    for name in ("b/2.png", "a/1.png", "a/notes.txt", ".hidden/3.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"")
    assert names(tmp_path) == ["1.png", "2.png"]
    assert names([f"{tmp_path}/*/2.png", tmp_path / "a"]) == ["2.png", "1.png"]
    assert names(f"{tmp_path}/**/1.png") == ["1.png"]


def test_of_an_archive_or_a_generator_no_more_is_held_than_is_looked_at(tmp_path):
    with tarfile.open(tmp_path / "many.tar", "w") as archive:
        for number in range(100):
            archive.addfile(tarfile.TarInfo(f"{number:02d}.png"))
    expected = [f"many.tar::{number:02d}.png" for number in range(0, 100, 10)]
    assert names(tmp_path / "many.tar", 10) == names([tmp_path / "many.tar"], 10) == expected
    alive = []

    def drawn_later(count: int):
        for number in range(count):
            image = Image.new("L", (4, 4), number)
            alive.append(weakref.ref(image))
            yield image
            del image
            assert sum(each() is not None for each in alive) <= 2 * 10 + 2

    for once in (drawn_later(200), [drawn_later(200)]):
        kept = [each.read().getpixel((0, 0)) for each in chosen(once, 10)]
        assert len(kept) == 10
        assert kept[0] == 0
        assert np.diff([*kept, 200]).max() <= 32, "spread over all of them"
    assert len(chosen(drawn_later(7), 10)) == 7


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
    none = torch.zeros(0, 3, 32, 32)
    for nothing in ([], np.zeros((0, 32, 32, 3), np.uint8), none, vitrail.Prepared(none)):
        with pytest.raises(vitrail.UserError, match="empty"):
            vitrail.inspect.rollout(model, nothing)
    Image.new("RGB", (9, 9)).save(tmp_path / "there.png")
    (tmp_path / "empty").mkdir()
    for wrong, words in (
        (tmp_path / "empty", "there is no picture in"),
        (tmp_path / "nowhere.jpg", "there is no such file"),
        (f"{tmp_path}/*.jpg", "nothing matches"),
        ("-", "there is no such file"),
    ):
        assert words in refusal(vitrail.inspect.rollout, model, wrong)
        assert words in refusal(chosen, [tmp_path / "there.png", wrong], 1), "one of many, and not even looked at"
    assert refusal(vitrail.inspect.rollout, model, {"a": 1}).startswith("a dict is not a picture")


def test_shapes_that_do_not_fit_are_said(tmp_path):
    model = toy()
    with pytest.raises(vitrail.UserError, match="cannot be cut into patches"):
        vitrail.inspect.rollout(model, vitrail.Prepared(torch.zeros(1, 3, 30, 32)))
    with pytest.raises(vitrail.UserError, match="same shape"):
        vitrail.inspect.rollout(model, [vitrail.Prepared(torch.zeros(3, side, 32)) for side in (32, 16)])
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
