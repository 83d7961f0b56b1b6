"""The loss of a head of queries: that of transformers' Eomt, its parts and its gradients; and how masks end."""

import builtins
import subprocess
import sys

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment

from tests.tasks.test_query_head import SHAPES, TINY, oracle, trained
from tests.training.killing import QUERIES
from tests.training.test_resume import ROOT, assert_same_tensors_and_records
from vitrail.checkpoints.eomt import completed, written_rules
from vitrail.checkpoints.name_maps import write_by_rules
from vitrail.errors import UserError
from vitrail.tasks import task
from vitrail.tasks.base import LossSettings
from vitrail.tasks.segmentation.query_loss import QueryLoss, Segments, masked_shares
from vitrail.tasks.segmentation.target import IGNORE
from vitrail.train import fit
from vitrail.training.loop import Trainer
from vitrail.training.objectives.base import Moment
from vitrail.training.objectives.supervised import Supervised

POINTS = 64
SETTINGS = LossSettings("matched_masks", 3)


def blobs(batch=2, side=48, classes=(0, 1, 2), seed=0):
    """Masks whose classes have several pixels beside each other."""
    coarse = np.random.default_rng(seed).choice(classes, (batch, side // 8, side // 8)).astype(np.uint8)
    return torch.from_numpy(coarse).repeat_interleave(8, dim=1).repeat_interleave(8, dim=2)


def as_labels(masks):
    """The same masks as transformers' model takes them."""
    labels = [torch.tensor([each for each in mask.unique().tolist() if each != IGNORE]) for mask in masks]
    return [(mask[None] == each[:, None, None]).float() for mask, each in zip(masks, labels, strict=True)], labels


@pytest.mark.parametrize("classes", [(0, 1, 2), (1,)])
@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_loss_and_gradients_equal_transformers(changes, classes):
    """Random points, auxiliary layers and masked attention are those of the same seed, in training mode."""
    model, masks = trained(TINY.with_(**changes), seed=1), blobs(classes=classes)
    theirs = oracle(model, train_num_points=POINTS).train()
    theirs.attn_mask_probs.fill_(1.0)
    images, loss = torch.randn(2, 3, 48, 48), QueryLoss(SETTINGS, points=POINTS)
    loss.begin(0.0)
    torch.manual_seed(5)
    outputs = loss.outputs(model.train(), images)
    found = loss(outputs, masks, None)
    found.backward()
    torch.manual_seed(5)
    mask_labels, class_labels = as_labels(masks)
    wanted = theirs(images, mask_labels=mask_labels, class_labels=class_labels).loss
    wanted.backward()
    assert len(outputs) == model.config.query_layers + 1
    assert float(found.detach()) == pytest.approx(float(wanted.detach()), abs=1e-4, rel=1e-5)
    own = {name: torch.zeros_like(each) if each.grad is None else each.grad for name, each in model.named_parameters()}
    config, own, _ = completed(model.config, own)
    gradients = write_by_rules(written_rules(config), own)
    compared = 0
    for name, parameter in theirs.named_parameters():
        if parameter.grad is not None and name in gradients:
            assert torch.allclose(gradients[name], parameter.grad, atol=1e-4, rtol=1e-3), name
            compared += 1
    assert compared > 40


def test_each_part_equals_transformers():
    model, masks = trained(TINY, seed=2), blobs(seed=2)
    theirs, loss = oracle(model, train_num_points=POINTS), QueryLoss(SETTINGS, points=POINTS)
    mask_labels, class_labels = as_labels(masks)
    with torch.no_grad():
        ((classes, logits),) = model.query_predictions(torch.randn(2, 3, 48, 48))
        torch.manual_seed(7)
        found = loss.parts(classes, logits, [Segments.of(mask) for mask in masks])
        torch.manual_seed(7)
        wanted = theirs.criterion(logits, classes, mask_labels, class_labels)
    assert float(found[0]) == pytest.approx(float(wanted["loss_cross_entropy"]), abs=1e-5)
    assert float(found[1]) == pytest.approx(float(wanted["loss_mask"]), abs=1e-5)
    assert float(found[2]) == pytest.approx(float(wanted["loss_dice"]), abs=1e-5)


def test_each_class_is_matched_with_the_query_that_says_it():
    """Queries that are right already are found, whatever their order, and cost next to nothing."""
    masks = blobs(batch=1)
    wanted = Segments.of(masks[0])
    order = [4, 0, 3]
    logits, classes = torch.full((6, 48, 48), -20.0), torch.zeros(6, 4)
    for segment, query in enumerate(order):
        logits[query] = 40 * wanted.masks[segment] - 20
        classes[query, wanted.labels[segment]] = 20
    for query in {0, 1, 2, 3, 4, 5} - set(order):
        classes[query, 3] = 20
    loss = QueryLoss(SETTINGS, points=500)
    queries, segments = loss.matched(classes, logits, wanted, 500)
    assert dict(zip(segments.tolist(), queries.tolist(), strict=True)) == dict(enumerate(order))
    right, wrong = (float(loss([(classes[None], each[None])], masks, None)) for each in (logits, -logits))
    assert right < wrong / 5  # not 0: the points of the loss lie where classes meet, and logits are interpolated


def test_what_a_model_says_of_ignored_pixels_costs_nothing():
    """Two answers that differ there alone cost the same, about: the points that are drawn differ."""
    masks, classes = blobs(batch=1), torch.randn(1, 6, 4)
    masks[:, 8:40, 8:24] = IGNORE
    logits = 6 * torch.nn.functional.one_hot(masks.clamp(max=3).long(), 6).movedim(-1, 1).float() - 3
    other = logits.clone()
    other[:, :3, 9:39, 9:23] = 9.0
    wanted = [Segments.of(masks[0])]
    assert wanted[0].labels.tolist() == [0, 1, 2]
    loss, found = QueryLoss(SETTINGS, points=20_000), []
    for each in (logits, other):
        torch.manual_seed(0)
        found.append([float(part) for part in loss.parts(classes, each, wanted)])
    assert found[0] == pytest.approx(found[1], abs=0.1)
    masks[masks == IGNORE] = 3  # a class of its own: then it matters
    one, two = (float(loss.parts(classes, each, wanted_of(masks))[1]) for each in (logits, other))
    assert two - one > 0.3


def wanted_of(masks):
    """The classes but the last, with every pixel known."""
    found = Segments.of(masks[0])
    return [Segments(found.labels[:3], found.masks[:3], None)]


def test_pictures_without_any_class_teach_only_that_there_is_no_object():
    loss, masks = QueryLoss(SETTINGS, points=POINTS), torch.full((2, 48, 48), IGNORE, dtype=torch.uint8)
    classes, logits = torch.randn(2, 6, 4, requires_grad=True), torch.randn(2, 6, 12, 12, requires_grad=True)
    value = loss([(classes, logits)], masks, None)
    value.backward()
    nothing = torch.full((2, 6), 3)
    wanted = 2 * torch.nn.functional.cross_entropy(classes.transpose(1, 2), nothing)
    assert float(value.detach()) == pytest.approx(float(wanted.detach()), rel=1e-5)
    assert bool((logits.grad == 0).all())


def test_class_weights_weigh_the_classes_of_queries():
    weights = torch.tensor([0.5, 2.0, 0.25])
    loss = QueryLoss(LossSettings("matched_masks", 3, weights))
    assert loss.weights.tolist() == pytest.approx([0.5, 2.0, 0.25, 0.1])


def test_masks_end_in_one_layer_after_the_other():
    assert masked_shares(0.0, 3) == [1, 1, 1]
    assert masked_shares(0.2, 3) == [1, 1, 1]
    assert masked_shares(0.3, 3) == pytest.approx([0.5**0.9, 1, 1])
    assert masked_shares(0.5, 3) == pytest.approx([0, 0.5**0.9, 1])
    assert masked_shares(0.8, 3) == pytest.approx([0, 0, 0], abs=1e-9)
    assert masked_shares(0.95, 3) == [0, 0, 0]


def test_a_training_ends_without_masks():
    objective = Supervised("segmentation", SETTINGS)
    shares = []
    for step in (0, 8, 15):
        objective.begin(Moment(step, 16, 0.0))
        shares.append(masked_shares(objective.loss.share, 2))
    assert shares[0] == [1, 1]
    assert shares[1] == pytest.approx([0, 1])
    assert shares[2] == [0, 0]


def test_the_loss_is_chosen_by_the_head():
    head = task("segmentation").head
    assert head.losses_for(TINY) == ("matched_masks",)
    assert head.losses_for(TINY.with_(head="linear")) == ("cross_entropy", "cross_entropy_dice")
    assert head.unsolvable("matched_masks") == "a head of queries has no closed form, so there is no probe"
    assert task("classification").head.adapted(TINY).head == "linear"


def test_pixel_accuracy_is_that_of_the_final_answer():
    model, masks = trained(TINY), blobs()
    loss, images = QueryLoss(SETTINGS), torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        found = loss.measures(loss.outputs(model, images), masks)
        loss.begin(1.0)
        answer = torch.nn.functional.interpolate(model(images), size=(48, 48), mode="bilinear").argmax(1)
        last = loss.measures(loss.outputs(model, images), masks)
    assert 0 <= found["pixel_accuracy"] <= 2
    assert last["pixel_accuracy"] == pytest.approx(float((answer == masks).float().mean((1, 2)).sum()), abs=0.05)


def test_resumed_a_training_of_queries_ends_in_the_same_bits(tmp_path, monkeypatch):
    """It ends without warning after a snapshot in which masked attention has begun to end."""
    fit(QUERIES, tmp_path / "whole", report=False)
    saved = Trainer.save

    def die_after_the_write(trainer):
        saved(trainer)
        if trainer.progress.step == 8:
            raise SystemExit

    with monkeypatch.context() as patch, pytest.raises(SystemExit):
        patch.setattr(Trainer, "save", die_after_the_write)
        fit(QUERIES, tmp_path / "killed", report=False)
    fit(QUERIES, tmp_path / "killed", resume=True, report=False)
    assert_same_tensors_and_records(tmp_path / "whole", tmp_path / "killed")


@pytest.mark.slow
def test_killed_a_training_of_queries_ends_in_the_same_bits(tmp_path):
    """Masked attention, points and matching follow from seed and step alone."""
    command = [sys.executable, "-m", "tests.training.killing", str(tmp_path), "2", "0", "matched_masks"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2 kills" in result.stdout
    assert_same_tensors_and_records(tmp_path / "whole", tmp_path / "killed")


def test_a_missing_scipy_is_named(monkeypatch):
    """scipy is an extra. Its absence is simulated in the import alone."""
    real = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("scipy"):
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match=r'pip install "vitrail\[tasks\]"'):
        QueryLoss(SETTINGS)
    assert linear_sum_assignment is not None
