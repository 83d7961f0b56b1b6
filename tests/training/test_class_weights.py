"""--class-weights balanced: every class counts alike in the loss and in the probe, mixed pictures by their parts; the
numbers that are reported stay those of samples."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from sklearn.utils.class_weight import compute_class_weight

import vitrail
from tests.evaluation.test_closed_form import as_set
from tests.training.test_loop import settings, some_batch, supervised, trainer
from tests.training.test_probe import GREY, digit_model
from vitrail.config import TransformConfig
from vitrail.data.loader import Batch
from vitrail.data.mixup_cutmix import mix
from vitrail.errors import UserError
from vitrail.evaluation.features import Features
from vitrail.tasks import Meaning, ridge
from vitrail.tasks.classification.closed_form import leave_one_out_scores, ridge_head, signs, solve_classes, solve_head
from vitrail.tasks.classification.head import balanced, soft_labels
from vitrail.tasks.classification.meter import Accuracy
from vitrail.train import fit
from vitrail.training import snapshots
from vitrail.transfer import chosen_config

WEIGHTS = torch.tensor([0.5, 3.0, 1.0], dtype=torch.float64)


def test_the_weights_are_scikit_learns_and_have_a_mean_of_one():
    labels = np.array([0] * 70 + [1] * 20 + [3] * 10 + [-1] * 5)
    found = balanced(labels, 5)
    expected = compute_class_weight("balanced", classes=np.array([0, 1, 3]), y=labels[labels >= 0])
    assert np.allclose(found, [expected[0], expected[1], 0, expected[2], 0])
    assert found[labels[labels >= 0]].mean() == pytest.approx(1)


class Fixed(torch.nn.Module):
    """Gives its logits whatever it is shown."""

    def __init__(self, logits: torch.Tensor):
        super().__init__()
        self.logits = logits

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.logits


def one_loss(kind: str, logits: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    if kind == "softmax":
        return F.cross_entropy(logits[None], target[None])
    return F.binary_cross_entropy_with_logits(logits, target, reduction="sum")


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_mixed_picture_counts_as_the_pictures_it_is_made_of(kind, smoothing):
    labels = torch.tensor([0, 1, 2, 1])
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    hard = soft_labels(labels, 3, smoothing)
    images, config = torch.zeros(4, 1, 2, 2), TransformConfig(mixup=1.0, label_smoothing=smoothing)
    key = next(key for key in range(99) if not torch.equal(mix(images, hard, config, key)[1], hard))
    _, mixed = mix(images, hard, config, key)
    plain = mix(images, F.one_hot(labels, 3).float(), config, key)[1]  # the shares of the classes
    expected = sum(
        plain[row, label]
        * WEIGHTS[label]
        * one_loss(kind, logits[row], soft_labels(torch.tensor([label]), 3, smoothing)[0])
        for row in range(4)
        for label in range(3)
    )
    objective = supervised(kind, 3, WEIGHTS.float(), smoothing)
    batch = Batch(images, labels, list("abcd"), mixed, [], 0)
    assert float(objective(Fixed(logits), batch).loss) == pytest.approx(float(expected) / 4, rel=1e-5)


@pytest.mark.parametrize("kind", ["softmax", "sigmoid"])
def test_weights_of_one_change_nothing_and_others_weigh_the_samples(kind):
    batch = some_batch(12)
    logits = torch.randn(12, 10, generator=torch.Generator().manual_seed(1))
    plain = supervised(kind, 10)(Fixed(logits), batch).loss
    assert float(supervised(kind, 10, torch.ones(10))(Fixed(logits), batch).loss) == pytest.approx(
        float(plain), rel=1e-6
    )
    weights = torch.linspace(0.2, 2.0, 10)
    wanted = F.one_hot(batch.targets, 10).float()
    each = torch.stack([one_loss(kind, *pair) for pair in zip(logits, wanted, strict=True)])
    found = supervised(kind, 10, weights)(Fixed(logits), batch).loss
    assert float(found) == pytest.approx(float((each * weights[batch.targets]).mean()), rel=1e-5)


def test_a_batch_in_parts_gives_the_same_weights():
    found = []
    for parts in (1, 4):
        objective = supervised("softmax", 10, torch.linspace(0.2, 2.0, 10))
        run = trainer(settings(accumulate=parts, batch_size=16), some_batch(), objective)
        for _ in range(3):
            run.step(iter([some_batch()]))
        found.append(run.model.state_dict())
    assert all(torch.allclose(tensor, found[1][name], atol=2e-6) for name, tensor in found[0].items())


def uneven(seed: int, counts: tuple[int, ...], width: int = 6) -> Features:
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    centres = 0.8 * torch.randn(len(counts), width, generator=torch.Generator().manual_seed(9))
    values = centres[labels] + torch.randn(len(labels), width, generator=torch.Generator().manual_seed(seed))
    return Features([str(index) for index in range(len(labels))], values, labels, 0)


@pytest.mark.parametrize("width", [4, 60])
def test_in_closed_form_a_weight_of_two_is_the_sample_twice(width):
    data = uneven(0, (9, 5, 7), width)
    weights = torch.tensor([1.0, 2.0, 1.0], dtype=torch.float64)
    twice = data.where(torch.cat([torch.arange(21), torch.arange(9, 14)]))
    once = solve_classes(data.values, data.targets, 3, 5.0, weights)
    both = solve_classes(twice.values, twice.targets, 3, 5.0)
    assert torch.allclose(once.scores(data.values), both.scores(data.values), atol=1e-8)


@pytest.mark.parametrize("width", [4, 60])
def test_weighted_leaving_one_out_is_training_without_each_sample(width):
    data = uneven(0, (9, 5, 7), width)
    counts = WEIGHTS[data.targets]
    mean, std = ridge.moments(data.values, counts)
    x, y = ridge.standardised(data.values, mean, std), signs(data.targets, 3)
    for l2, scores, _ in leave_one_out_scores(data.values, data.targets, 3, (0.1, 10.0), WEIGHTS):
        for out in range(len(data)):
            kept = torch.arange(len(data)) != out
            rows = x[kept] * counts[kept, None]
            found = torch.linalg.solve(x[kept].T @ rows + l2 * torch.eye(x.shape[1], dtype=x.dtype), rows.T @ y[kept])
            assert torch.allclose(scores[out], x[out] @ found, atol=1e-7)


def recalls(head, data: Features) -> list[float]:
    right = head.outputs(data.values).argmax(dim=1) == data.targets
    return [float(right[data.targets == label].double().mean()) for label in range(2)]


def test_the_heads_say_a_rare_class_as_often_as_it_deserves():
    train, test = uneven(0, (400, 20)), uneven(1, (500, 500))
    weights = torch.from_numpy(balanced(train.targets.numpy(), 2))
    for held_out in (None, uneven(2, (100, 10))):
        held = None if held_out is None else as_set(held_out)
        plain, even = solve_head(as_set(train), held, 2), solve_head(as_set(train), held, 2, weights)
        assert recalls(plain, test)[1] < 0.5 < 0.65 < min(recalls(even, test))
    assert ridge_head(train.values, train.targets, 2, torch.ones(2, dtype=torch.float64)).method


def test_balanced_accuracy_is_the_mean_over_the_classes_that_have_samples():
    accuracy = Accuracy(Meaning(("a", "b", "c")))
    logits = torch.eye(3)[[0, 0, 0, 0, 1]]
    accuracy.add(list("12345"), torch.tensor([0, 0, 0, 1, 1]), logits)
    result = accuracy.result()
    assert (result["top1"], result["balanced_accuracy"]) == (0.8, 0.75)


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> str:
    """Grey pictures of two brightnesses that overlap, 60 of one and 12 of the other."""
    folder, generator = tmp_path_factory.mktemp("uneven"), np.random.default_rng(0)
    for split, counts in {"train": (60, 12), "val": (20, 6), "test": (20, 6)}.items():
        for place, count in enumerate(counts):
            (folder / split / f"class{place}").mkdir(parents=True)
            for index in range(count):
                pixels = np.clip(generator.normal(110 + 12 * place, 20) + generator.normal(0, 30, (8, 8)), 0, 255)
                Image.fromarray(pixels.astype(np.uint8)).save(folder / split / f"class{place}" / f"{index}.png")
    return str(folder)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model") / "model"
    vitrail.save(digit_model(), folder)
    return str(folder)


def test_a_run_weighs_probe_and_steps_and_is_resumed_exactly(model, photos, tmp_path, capsys, monkeypatch):
    transform = TransformConfig(crop="evaluation", mixup=0.2, label_smoothing=0.1)
    base = chosen_config(model, photos).with_(steps=6, evaluate_every=2, snapshot_every=3, transform=transform)
    config = base.with_(class_weights="balanced")
    result = fit(config, tmp_path / "whole", report=False)
    assert "class weights: from 0.6 (class0) to 3 (class1)" in capsys.readouterr().err
    assert {"top1", "balanced_accuracy"} <= result.metrics.keys()
    plain = fit(base, tmp_path / "plain", report=False)
    assert result.metrics["probe"]["balanced_accuracy"] > plain.metrics["probe"]["balanced_accuracy"]
    lines = [json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()]
    reached = [line["balanced_accuracy"] for line in lines if line["kind"] in ("probe", "val")]
    progress = snapshots.newest(tmp_path / "whole/snapshots")[0]
    assert len(reached) == 4
    assert progress is not None
    assert progress.best == max(reached), "the probe and the steps are compared by the balanced accuracy"
    # Killed after a snapshot, and gone on with: the same weights to the last bit.
    import vitrail.training.loop as loop

    original = loop.Trainer.step

    def dying(self, batches):
        if self.progress.step == 4:
            raise RuntimeError("killed")
        return original(self, batches)

    with monkeypatch.context() as patch:
        patch.setattr(loop.Trainer, "step", dying)
        with pytest.raises(RuntimeError, match="killed"):
            fit(config, tmp_path / "killed", report=False)
    fit(config, tmp_path / "killed", resume=True, report=False)
    same = [vitrail.load(tmp_path / run / "bundle").state_dict() for run in ("whole", "killed")]
    assert all(torch.equal(tensor, same[1][name]) for name, tensor in same[0].items())
    with pytest.raises(UserError, match="--class-weights"):
        fit(base, tmp_path / "killed", resume=True)


def test_steps_from_a_head_of_zeros_do_not_lean_to_the_larger_class(model, photos, tmp_path):
    leanings = []
    for weights in ("none", "balanced"):
        config = chosen_config(model, photos).with_(head="zero", steps=8, class_weights=weights)
        fit(config, tmp_path / weights, report=False)
        bias = vitrail.load(tmp_path / weights / "bundle").head.bias.detach()
        leanings.append(float(bias[0] - bias[1]))
    assert leanings[0] > 0
    assert abs(leanings[1]) < leanings[0] / 2


def test_best_is_chosen_by_what_is_trained_for():
    result = {"top1": 0.9, "balanced_accuracy": 0.6, "loss": 1.0}
    assert supervised("softmax", 2).score(result) == 0.9
    assert supervised("softmax", 2, torch.ones(2)).score(result) == 0.6


def test_objectives_without_labels_refuse_it():
    with pytest.raises(UserError, match="class_weights are for labels"):
        vitrail.recipe("digits").with_(objective="mae", class_weights="balanced")


def test_in_the_config_file_it_is_written(model, photos, tmp_path):
    fit(chosen_config(model, photos).with_(class_weights="balanced", freeze="backbone"), tmp_path / "run", report=False)
    assert json.loads(Path(tmp_path / "run/config.json").read_text())["train"]["class_weights"] == "balanced"
    assert vitrail.load(tmp_path / "run").card.preprocessing == GREY
