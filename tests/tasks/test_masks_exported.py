"""Models that give masks, as exported files: the same masks as torch, merged tokens put back, the gate by mean IoU."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from sklearn.metrics import jaccard_score

import vitrail
from tests.mask_models import NAMES, mask_folder, mask_model, picture_file
from vitrail.cli import main
from vitrail.errors import UserError
from vitrail.inference.compare import CheckSet, compare_scores
from vitrail.inference.engines.facts import ExportMetadata
from vitrail.inference.engines.onnxruntime import OnnxEngine
from vitrail.inference.engines.torch import TorchEngine
from vitrail.inference.export import export
from vitrail.inference.score_drop import PairedCounts
from vitrail.inference.token_merging import merge_map, merged
from vitrail.tasks import Meaning, task


def run(*arguments) -> int:
    try:
        main([str(each) for each in arguments])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


@pytest.mark.parametrize(("ending", "to"), [(".onnx", "onnx"), (".xml", "openvino")])
def test_an_exported_file_gives_the_masks_of_torch_without_torch(ending, to, tmp_path):
    model = mask_model()
    file = export(model, tmp_path / f"model{ending}", to).files[0]
    photo, rows = tmp_path / "photo.png", tmp_path / "rows.jsonl"
    photo.write_bytes(picture_file())
    arguments = ["predict", str(file), str(photo), "--out", str(rows)]
    code = f"import sys; from vitrail.cli import main; main({arguments!r}); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
    (expected,) = model.predict(photo)
    assert len(expected.shares) > 1, "a mask of one class would prove little"
    assert json.loads(rows.read_text())["mask"] == expected.to_json()["mask"]


def test_the_output_of_an_exported_file_is_called_by_the_task_and_features_are_one_vector(tmp_path):
    model = mask_model()
    engine = OnnxEngine(export(model, tmp_path / "model.onnx").files[0])
    assert engine.names == {"mask_logits", "features"}
    images = torch.randn(3, 3, 32, 48, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        assert np.abs(engine.outputs(images.numpy()) - model(images).numpy()).max() < 1e-4
        features = engine.features(images.numpy())
        assert features.shape == (3, engine.facts.features_width)
        assert np.abs(features - model.features(images).numpy()).max() < 1e-4


# Merged tokens


@pytest.mark.parametrize("changes", [{}, {"registers": 3}, {"class_token": False, "pooling": "average"}])
@pytest.mark.parametrize("image_size", [(32, 48), (24, 40)])
def test_merged_tokens_are_put_back_to_all_their_patches(changes, image_size):
    """Patches that `merge_map` finds in one token have equal logits, others have not: and none is left out."""
    model = mask_model(image_size=image_size, **changes)
    light = merged(model, 5)
    images = torch.randn(2, 3, *image_size, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        logits, groups = light(images), merge_map(light, images)
    assert logits.shape[2:] == model.config.grid
    for picture, numbers in zip(logits.flatten(2).transpose(1, 2), groups.flatten(1), strict=True):
        distances = torch.cdist(picture, picture)
        same = numbers[:, None] == numbers[None]
        assert (~same).sum() > 0
        assert same.sum() > len(same), "nothing was merged"
        assert distances[same].max() < 1e-4
        assert distances[~same].min() > 1e-4


@torch.inference_mode()
def test_merging_none_changes_no_bit_and_its_features_are_the_mean_over_the_patches():
    model = mask_model(registers=2)
    images = torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(0))
    assert torch.equal(merged(model, 0)(images), model(images))
    light = merged(model, 4)
    assert torch.equal(light.features(images), light.head_input(images).mean(dim=1))
    assert light.head_input(images).shape == (2, 24, 32)


@torch.inference_mode()
def test_merged_tokens_export(tmp_path):
    light = merged(mask_model(), 4)
    images = torch.randn(3, 3, 32, 48, generator=torch.Generator().manual_seed(0))
    engine = OnnxEngine(export(light, tmp_path / "light.onnx", changes={"merge_tokens": 4}).files[0])
    assert np.abs(engine.outputs(images.numpy()) - light(images).numpy()).max() < 1e-3


# The gate by mean IoU


@pytest.fixture(scope="module")
def checked(tmp_path_factory):
    """A model and pictures with masks that it nearly gives."""
    model = mask_model()
    return model, mask_folder(tmp_path_factory.mktemp("masks") / "data", model)


def test_the_score_of_both_models_is_counted_over_all_pixels(checked):
    model, folder = checked
    other = mask_model()
    with torch.no_grad():
        other.head.bias += torch.tensor([0.0, 1.5, 0.0])
    pictures = CheckSet(ExportMetadata.of(model.config, model.card), str(folder), split="all", batch_size=4)
    found = compare_scores(TorchEngine(model), TorchEngine(other), pictures)
    true, answers = [], ([], [])
    from PIL import Image

    for file in sorted((folder / "images").iterdir()):
        with Image.open(folder / "masks" / file.name) as mask:
            true.append(np.asarray(mask).ravel())
        for kept, each in zip(answers, (model, other), strict=True):
            kept.append(each.predict(file)[0].mask.ravel())
    expected = [jaccard_score(np.concatenate(true), np.concatenate(each), average="macro") for each in answers]
    assert [found.loss.before, found.loss.after] == pytest.approx(expected)
    assert found.loss.expected == pytest.approx(100 * (expected[0] - expected[1]))
    assert found.loss.bound > found.loss.expected > 0.5
    same = compare_scores(TorchEngine(model), TorchEngine(model), pictures)
    assert (same.n, same.skipped, same.loss.bound) == (6, 0, 0.0)


def test_a_check_writes_what_keeps_its_score_and_nothing_else(checked, tmp_path, capsys):
    model, folder = checked
    vitrail.save(model, tmp_path / "model")
    out = tmp_path / "model.onnx"
    assert run("export", tmp_path / "model", "--out", out, "--check", folder, "--json") == 0
    document = json.loads(capsys.readouterr().out)["check"]
    assert document["score"] == "mIoU"
    assert document["before"] == pytest.approx(document["after"], abs=1e-3)
    light = tmp_path / "light.onnx"
    flags = ("--out", light, "--merge-tokens", "5", "--check", folder)
    assert run("export", tmp_path / "model", *flags, "--max-drop", "0.1") == 2
    error = capsys.readouterr().err
    assert "--max-drop 0.1 cannot be promised: at most " in error
    assert "points of mIoU lost" in error
    assert not light.exists()
    assert run("export", tmp_path / "model", *flags, "--max-drop", "100") == 0
    assert "mIoU " in capsys.readouterr().out


def test_what_mean_iou_cannot_judge_is_refused_with_the_remedy(checked, tmp_path, capsys):
    model, folder = checked
    vitrail.save(model, tmp_path / "model")
    for flags, words in (
        (("--check", folder, "--fast"), "give --int8 or --merge-tokens with --check instead"),
        (("--check", folder, "--unlabelled", folder / "images"), "--unlabelled goes with classes"),
        (("--check", "digits"), "is data for classification, and the model is for segmentation"),
    ):
        assert run("export", tmp_path / "model", "--out", tmp_path / "a.onnx", *flags) == 2
        assert words in capsys.readouterr().err
    assert not (tmp_path / "a.onnx").exists()


def counts_of(random: np.random.Generator, pictures: int, damage: float) -> PairedCounts:
    """Pictures of a world in which a model finds 9 of 10 pixels, and a changed one loses a part of them, more in some
    pictures than in others."""
    paired = PairedCounts()
    for _ in range(pictures):
        areas = random.integers(200, 2000, 2)
        before, after = np.zeros((2, 3), np.int64), np.zeros((2, 3), np.int64)
        lost = damage * random.gamma(0.5, 2.0)
        for true, area in enumerate(areas.tolist()):
            for counts, right in ((before, 0.9), (after, max(0.0, 0.9 - lost))):
                counts[true, true] = round(right * area)
                counts[true, 1 - true] = area - counts[true, true]
        paired.add(before, after, 0.0)
    return paired


def test_the_bound_is_above_the_true_loss_as_often_as_it_says():
    score = task("segmentation").meter(Meaning(("a", "b"))).tally_score
    random = np.random.default_rng(0)
    truth = _truth(score)
    held = [counts_of(random, 40, 0.01).drop(score, "mIoU").bound >= truth for _ in range(200)]
    assert sum(held) >= 0.95 * 200 - 3 * (200 * 0.95 * 0.05) ** 0.5
    errors = [counts_of(random, 40, 0.01).drop(score, "mIoU") for _ in range(200)]
    assert np.mean([each.error for each in errors]) == pytest.approx(np.std([e.expected for e in errors]), rel=0.25)


def _truth(score) -> float:
    """The loss over very many pictures, whose counts are added up before the score is computed."""
    random, totals = np.random.default_rng(9), [np.zeros((2, 3), np.int64), np.zeros((2, 3), np.int64)]
    for _ in range(100):
        paired = counts_of(random, 100, 0.01)
        totals = [total + paired._total(rows) for total, rows in zip(totals, paired._rows, strict=True)]
    return 100 * (score(totals[0]) - score(totals[1]))


def test_pictures_in_which_nothing_changed_still_promise_no_more_than_they_can():
    score = task("segmentation").meter(Meaning(("a", "b"))).tally_score
    counts, paired = np.array([[90, 10, 0], [10, 90, 0]]), PairedCounts()
    for _ in range(20):
        paired.add(counts, counts, 0.3)
    found = paired.drop(score, "mIoU")
    assert found.expected == 0.0
    assert 1.0 < found.bound < 5.0
    assert found.pictures_needed(0.5) is not None
    with pytest.raises(AssertionError, match="nothing to compare"):
        PairedCounts().drop(score, "mIoU")


def test_a_class_that_no_picture_has_is_no_part_of_the_score():
    meter = task("segmentation").meter(Meaning(NAMES))
    assert meter.tally_score(np.array([[8, 2, 0, 0], [0, 10, 0, 0], [0, 0, 0, 0]])) == pytest.approx(
        (0.8 + 10 / 12) / 2
    )


def test_data_without_masks_is_refused_by_a_check(checked, tmp_path):
    model, _ = checked
    with pytest.raises(UserError, match="data for classification"):
        CheckSet(ExportMetadata.of(model.config, model.card), "digits")
