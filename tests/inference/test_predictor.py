"""Predictions are evaluation's, in order, of every kind of picture, with a bounded number under way."""

import random
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import vitrail
from tests.conftest import toy
from tests.inference.conftest import described, encoded, picture
from vitrail.config import Preprocessing
from vitrail.data import open_source
from vitrail.data.decode import BadImage, decode_planes, to_array
from vitrail.data.geometry import evaluation_crop, evaluation_shrink
from vitrail.data.inputs import Input, find_pictures
from vitrail.data.loader import EvaluationLoader, Normaliser
from vitrail.data.preparation import ArrayNormaliser
from vitrail.data.transforms import EvaluationTransform
from vitrail.errors import UserError
from vitrail.evaluation.measure import measure
from vitrail.inference.api import embed, predict
from vitrail.inference.engines.torch import TorchEngine
from vitrail.inference.predictor import Predictor
from vitrail.tasks.classification.meter import Accuracy


class Echo:
    """An engine that answers with the first pixel, slowly and unevenly."""

    name, workers = "echo", 4

    def __init__(self, facts):
        self.facts = facts

    def outputs(self, images):
        time.sleep(random.random() / 200)
        return images[:, :1, 0, 0] * np.array([[1, -1]], np.float32)

    features = outputs

    def running(self):
        from contextlib import nullcontext

        return nullcontext()


def numbered(count: int, taken: list[int]):
    """Pictures whose pixels are their number; every tenth cannot be read."""

    def read(place: int):
        if place % 10 == 9:
            raise BadImage("is a tenth one")
        return np.full((32, 32, 3), place % 256, np.uint8)

    for place in range(count):
        taken.append(place)
        yield Input(str(place), lambda place=place: read(place))


def test_predictions_equal_evaluation(model, photos):
    source = open_source(photos)
    accuracy = Accuracy(model.card.meaning, np.arange(3))
    loader = EvaluationLoader(source.split("all"), model.card.preprocessing, batch_size=5)
    kept = measure(model, loader, accuracy, torch.device("cpu")).kept
    rows = {each.path.removeprefix(f"{photos}/"): each for each in predict(model, photos, top=1, batch_size=3)}
    assert len(rows) == 12
    assert len(kept) == 10
    for name, _, answer, score in kept:
        assert rows[name].top[0].label == model.card.label_names[answer]
        assert rows[name].top[0].score == pytest.approx(score, abs=1e-6)


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(0.05, 2)), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_normalising_without_torch_gives_the_same_bits(constants, seed):
    mean, std = zip(*constants, strict=True)
    preprocessing = Preprocessing(4, mean, std)
    pixels = np.random.default_rng(seed).integers(0, 256, (2, 4, 4, len(mean)), dtype=np.uint8)
    ours, theirs = ArrayNormaliser(preprocessing)(pixels), Normaliser(preprocessing)(pixels).numpy()
    assert ours.dtype == np.float32
    assert ours.flags.c_contiguous
    assert np.array_equal(ours, theirs)


@pytest.mark.parametrize(("count", "batch_size"), [(1, 16), (3, 16), (97, 4), (200, 7)])
def test_order_is_kept_and_every_picture_has_a_row(model, count, batch_size):
    predictor = Predictor(Echo(TorchEngine(model).facts), batch_size)
    rows = [each for batch in predictor.embeddings(numbered(count, [])) for each in batch]
    assert [each.path for each in rows] == [str(place) for place in range(count)]
    for place, each in enumerate(rows):
        if place % 10 == 9:
            assert each.vector is None
            assert each.error == "is a tenth one"
        else:
            assert each.vector is not None
            assert each.vector[0] == pytest.approx((place / 255 - 0.4) / 0.2, abs=1e-5)


def test_only_a_few_batches_are_under_way(model):
    taken: list[int] = []
    predictor = Predictor(Echo(TorchEngine(model).facts), 4)
    done, most = 0, 0
    for batch in predictor.embeddings(numbered(1000, taken)):
        most = max(most, len(taken) - done)
        done += len(batch)
    assert done == 1000
    assert most <= (2 * 4 + 1) * 4 + 4 * 4  # twice the workers and one, in batches of four, and the first look


def test_leaving_early_ends_the_work(model):
    taken: list[int] = []
    stream = Predictor(Echo(TorchEngine(model).facts), 4).embeddings(numbered(100_000, taken))
    next(stream)
    stream.close()
    assert len(taken) < 200


def alike(first, second) -> bool:
    """Equal up to the rounding by which batches of another size differ."""
    scores = [[guess.score for guess in top] for top in (first, second)]
    return [guess.label for guess in first] == [guess.label for guess in second] and np.allclose(*scores, atol=1e-6)


def test_every_kind_of_picture_gives_the_same_answer(model, tmp_path):
    image, content = picture(3), encoded(3)
    (tmp_path / "a.png").write_bytes(content)
    array = np.asarray(image)
    tensor = torch.from_numpy(array.copy()).permute(2, 0, 1)
    kinds = [str(tmp_path / "a.png"), tmp_path / "a.png", content, image, array, tensor, tensor / 255, array / 255.0]
    answers = model.predict(kinds, top=7)
    assert len(answers) == len(kinds)
    assert all(alike(each.top, answers[0].top) for each in answers)
    assert [each.path for each in answers[:3]] == [str(tmp_path / "a.png")] * 2 + [None]
    assert alike(model.predict(array)[0].top, answers[0].top[:5])
    assert predict(model, [Image.open(tmp_path / "a.png")])[0].path == str(tmp_path / "a.png")


def test_a_pillow_image_is_turned_upright_like_its_file(model, tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    picture(1).save(tmp_path / "turned.jpg", exif=exif)
    first, second = model.predict([tmp_path / "turned.jpg", Image.open(tmp_path / "turned.jpg")])
    assert alike(first.top, second.top)


def test_scores_are_the_softmax_and_labels_have_descriptions(model):
    (answer,) = model.predict(picture(1), top=99)
    assert len(answer.top) == 7
    assert sum(guess.score for guess in answer.top) == pytest.approx(1, abs=1e-9)
    assert [guess.score for guess in answer.top] == sorted((guess.score for guess in answer.top), reverse=True)
    assert {guess.label: guess.description for guess in answer.top}["n1"] == "a thing, of sorts"
    bare = toy()
    assert {guess.label for guess in bare.predict(picture(1), top=7)[0].top} == set("0123456")


def test_embeddings_are_the_models_features(model):
    pictures = [picture(place) for place in range(5)]
    transform, normalise = EvaluationTransform(model.card.preprocessing), ArrayNormaliser(model.card.preprocessing)
    images = normalise(np.stack([transform(each) for each in pictures]))
    with torch.inference_mode():
        expected = model.features(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(embed(model, pictures, batch_size=2), expected, atol=1e-5)
    assert embed(model, []).shape == (0, 32)
    with pytest.raises(UserError, match="picture 1: is empty"):
        embed(model, [encoded(1), b""])


def test_a_model_without_a_head_says_what_it_can_do():
    headless = described(toy(num_classes=0))
    assert embed(headless, picture(1)).shape == (1, 32)
    with pytest.raises(UserError, match="vitrail embed gives its features"):
        headless.predict(picture(1))


def test_the_model_and_torch_are_left_as_they_were(model):
    threads = torch.get_num_threads()
    model.train()
    try:
        first = TorchEngine(model, workers=2)
        list(Predictor(first).predictions(find_pictures([])))
        rows = [each for batch in Predictor(first).predictions(numbered(40, [])) for each in batch]
        assert model.training
    finally:
        model.eval()
    assert torch.get_num_threads() == threads
    again = [each for batch in Predictor(first).predictions(numbered(40, [])) for each in batch]
    assert all(alike(one.top, other.top) for one, other in zip(rows, again, strict=True))  # dropout was off


def test_large_photos_are_reduced_while_decoding_and_look_alike():
    preprocessing = Preprocessing(32, (0.5,) * 3, (0.5,) * 3)
    assert evaluation_shrink((375, 500), Preprocessing(224)) == 1  # ImageNet's photos are decoded whole
    assert evaluation_shrink((3000, 4000), Preprocessing(224)) == 4
    content = encoded(5, "JPEG", rows=601, columns=907)
    exact = to_array(evaluation_crop(decode_planes(content), preprocessing)).astype(int)
    quick = EvaluationTransform(preprocessing)(content).astype(int)
    assert 0 < np.abs(exact - quick).max() <= 3
    assert np.abs(exact - quick).mean() < 0.5


@pytest.mark.assets
def test_real_weights_on_real_photos(assets):
    real = vitrail.load(
        assets / "deit-ti16.safetensors", preprocessing="imagenet", labels=assets / "imagenet-labels.json"
    )
    golden = np.load(assets / "golden-deit-ti16.npz")
    paths = [next(assets.rglob(str(name).rpartition("/")[2])) for name in golden["files"]]
    answers = real.predict(paths, top=1)
    expected = golden["logits"].argmax(axis=1)
    assert [each.top[0].label for each in answers] == [real.card.label_names[place] for place in expected]


def test_a_model_in_training_predicts_without_dropout_and_goes_on_training():
    model = toy(dropout=0.5, attention_dropout=0.3, drop_path=0.5)
    model.card.preprocessing = Preprocessing(image_size=32)
    photo = np.random.default_rng(0).integers(0, 255, (32, 32, 3), dtype=np.uint8)
    plain = vitrail.embed(model.eval(), photo)
    assert np.array_equal(vitrail.embed(model.train(), photo), plain)
    assert model.training
