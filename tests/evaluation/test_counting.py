"""Every sample counts exactly once, whatever the batch size and the number of workers; what cannot be read is said."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from tests.conftest import toy
from vitrail.config import Preprocessing
from vitrail.data import BadImage, Split, files_split
from vitrail.data.loader import Batch, EvaluationLoader
from vitrail.errors import UserError
from vitrail.evaluation.features import extract
from vitrail.evaluation.measure import measure
from vitrail.tasks import Meaning
from vitrail.tasks.classification.meter import Accuracy

CLASSES = tuple("abcdefg")
PIXELS = Preprocessing(image_size=2, mean=(0.5,), std=(0.5,), crop="squash")
MOST = 33


class FromBrightness(nn.Module):
    """Seven logits from the brightness of the image, so that each sample has an answer and a loss of its own."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        value = (images.mean(dim=(1, 2, 3)) + 1) / 2 * 255
        return -((value[:, None] / 7 - torch.arange(7.0)) ** 2)

    head_input = forward


def labels_of(count: int) -> np.ndarray:
    return np.arange(count) * 3 % 7


def in_memory(count: int) -> Split:
    images = np.repeat(np.arange(count, dtype=np.uint8), 4).reshape(count, 2, 2)
    return Split.of_array("test", images, labels_of(count))


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> list[Path]:
    folder = tmp_path_factory.mktemp("files")
    for index in range(MOST):
        Image.fromarray(np.full((2, 2), index, np.uint8)).save(folder / f"{index:02d}.png")
    return sorted(folder.iterdir())


def on_disk(files: list[Path], count: int) -> Split:
    split = files_split(files[:count], "test")
    return Split("test", split.ids, labels_of(count), split.reader, split.rows)


def check(split: Split, batch_size: int, workers: int, expected: tuple[int, int, float]) -> None:
    loader = EvaluationLoader(split, PIXELS, batch_size=batch_size, workers=workers)
    accuracy = measure(FromBrightness(), loader, Accuracy(Meaning(CLASSES)), torch.device("cpu"))
    told = f"{len(split)} samples, batches of {batch_size}, {workers} workers"
    assert [name for name, *_ in accuracy.kept] == list(split.ids), told
    assert accuracy.confusion.sum() == accuracy.n == len(split), told
    assert accuracy.calibration().counts.sum() == len(split), told
    assert (accuracy.top1, accuracy.top5) == expected[:2], told
    assert accuracy.loss == pytest.approx(expected[2], rel=1e-5), told
    assert accuracy.skipped == 0


def worked_out(count: int) -> tuple[int, int, float]:
    """top-1, top-5 and the sum of losses, sample by sample without batches."""
    top1 = top5 = 0
    loss = 0.0
    for value, label in zip(range(count), labels_of(count), strict=True):
        logits = -((value / 7 - np.arange(7.0)) ** 2)
        order = np.argsort(-logits, kind="stable")
        top1 += order[0] == label
        top5 += label in order[:5]
        loss += float(np.log(np.exp(logits).sum()) - logits[label])
    return int(top1), int(top5), loss


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_one_to_33_samples_with_every_batch_size_count_each_once(workers):
    for count in range(1, MOST + 1):
        expected = worked_out(count)
        for batch_size in range(1, MOST + 2):
            check(in_memory(count), batch_size, workers, expected)


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_files_that_workers_decode_in_parts_count_once_too(files, workers):
    for count in (1, 7, 8, 9, 16, 17, 33):
        for batch_size in (1, 2, 7, 8, 9, 15, 16, 17, 32, 33, 34):
            check(on_disk(files, count), batch_size, workers, worked_out(count))


def test_features_are_the_models_own_in_order():
    model = toy(image_size=8, channels=1).train()
    split = Split.of_array("test", np.random.default_rng(0).integers(0, 256, (13, 8, 8), np.uint8), labels_of(13))
    preprocessing = Preprocessing(image_size=8, mean=(0.5,), std=(0.5,), crop="squash")
    whole = next(iter(EvaluationLoader(split, preprocessing, batch_size=13)))
    for batch_size in (1, 4, 13, 20):
        found = extract(model, EvaluationLoader(split, preprocessing, batch_size=batch_size), torch.device("cpu"))
        assert found.ids == list(split.ids)
        assert found.targets.tolist() == labels_of(13).tolist()
        assert found.values.dtype == torch.float32
        torch.testing.assert_close(found.values, model.eval().features(whole.images).detach(), atol=1e-5, rtol=1e-5)
        model.train()
    assert model.training, "left in the mode it was in"
    found.values.requires_grad_(True).sum().backward()  # features can be trained on


def test_what_cannot_be_read_is_skipped_and_said(tmp_path, files):
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"not an image")
    paths = [broken, *files[:4], broken]
    split = files_split(paths, "test")
    split = Split("test", split.ids, np.array([0, *labels_of(4), 0]), split.reader, split.rows)
    for batch_size in (1, 2, 6):
        loader = EvaluationLoader(split, PIXELS, batch_size=batch_size)
        result = measure(FromBrightness(), loader, Accuracy(Meaning(CLASSES)), torch.device("cpu")).result()
        assert (result["n"], result["skipped"]) == (4, 2)
        found = extract(FromBrightness(), loader, torch.device("cpu"))  # pyright: ignore[reportArgumentType]
        assert (len(found), found.skipped) == (4, 2)
    only_bad = files_split([broken], "test")
    found = extract(toy(), EvaluationLoader(only_bad, PIXELS, batch_size=1), torch.device("cpu"))
    assert (len(found), found.skipped, tuple(found.values.shape)) == (0, 1, (0, 0))


def test_a_sample_without_a_label_is_never_scored_as_one_of_the_last_class():
    split = Split.of_array("test", np.zeros((2, 2, 2), np.uint8), [0, -1])
    for mapping in (None, np.arange(7)):
        loader = EvaluationLoader(split, PIXELS, batch_size=2)
        with pytest.raises(UserError, match="test/000001: has no label"):
            measure(FromBrightness(), loader, Accuracy(Meaning(CLASSES), mapping), torch.device("cpu"))


@pytest.mark.parametrize("output", [math.nan, math.inf])
def test_outputs_that_are_no_numbers_are_refused_and_not_scored(output):
    logits = torch.zeros(3, 7)
    logits[1, 4] = output
    accuracy = Accuracy(Meaning(CLASSES))
    with pytest.raises(UserError, match="second: the model's outputs are not numbers"):
        accuracy.add(["first", "second", "third"], torch.zeros(3, dtype=torch.long), logits)
    assert accuracy.n == 0


def test_the_mode_comes_back_when_reading_fails():
    model = FromBrightness().train()

    def failing():
        raise BadImage("gone")
        yield

    for run in (lambda: measure(model, failing(), Accuracy(Meaning(CLASSES)), torch.device("cpu")),
                lambda: extract(model, failing(), torch.device("cpu"))):  # fmt: skip
        with pytest.raises(BadImage):
            run()
        assert model.training


def test_the_confusion_has_true_classes_in_rows_and_classes_are_scored_by_their_own_samples():
    logits = torch.eye(7)[torch.tensor([1, 1, 0, 1, 2])]
    parts = [Accuracy(Meaning(CLASSES)), Accuracy(Meaning(CLASSES))]
    parts[0].add(["v", "w", "x"], torch.tensor([0, 0, 0]), logits[:3])
    parts[1].add(["y", "z"], torch.tensor([1, 2]), logits[3:])
    found = parts[0].of_all(parts, ["v", "w", "x", "y", "z"])
    expected = np.zeros((7, 7), int)
    expected[0, 1], expected[0, 0], expected[1, 1], expected[2, 2] = 2, 1, 1, 1
    assert found.confusion.tolist() == expected.tolist()
    result = found.result()
    assert (result["n"], result["top1"], result["top5"]) == (5, 0.6, 1.0)
    assert {name: (each["n"], each["top1"]) for name, each in result["per_class"].items()} == {
        "a": (3, pytest.approx(1 / 3)),
        "b": (1, 1.0),
        "c": (1, 1.0),
    }
    assert [row[:3] for row in found.kept] == [
        *(("v", 0, 1), ("w", 0, 1), ("x", 0, 0)),
        *(("y", 1, 1), ("z", 2, 2)),
    ]


def test_a_model_is_measured_in_evaluation_mode_and_left_as_it_was():
    model = toy(dropout=0.5).train()
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    batch = Batch(images, torch.arange(4), list("wxyz"))
    found = measure(model, [batch], Accuracy(Meaning(CLASSES)), torch.device("cpu"))
    assert model.training
    plain = Accuracy(Meaning(CLASSES))
    with torch.no_grad():
        plain.add(batch.ids, batch.targets, model.eval()(images))
    assert found.loss == pytest.approx(plain.loss)
