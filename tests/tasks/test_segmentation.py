"""Segmentation with a linear head: logits, losses, the closed form, the numbers, masks in the pictures' own pixels."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.config import ModelConfig
from vitrail.errors import UserError
from vitrail.masks_and_boxes import Frame, mirror
from vitrail.models.build import create
from vitrail.tasks import Meaning, task
from vitrail.tasks.answers import AnswerOptions
from vitrail.tasks.base import Annotation, FeatureSet, LossSettings
from vitrail.tasks.segmentation.answer import mask_of
from vitrail.tasks.segmentation.closed_form import class_shares, majority
from vitrail.tasks.segmentation.colours import class_colours, paint_mask
from vitrail.tasks.segmentation.raster import raster
from vitrail.tasks.segmentation.target import IGNORE

SEGMENTATION = task("segmentation")
NAMES = ("sky", "road", "tree")
TINY = ModelConfig(image_size=(32, 48), patch_size=8, width=16, depth=2, num_heads=2, mlp_dim=32, num_classes=3)


def dense(**changes):
    return SEGMENTATION.head.adapted(TINY.with_(**changes)).with_(task="segmentation")


def trained(config):
    model = create(config)
    with torch.no_grad():
        model.head.weight.normal_()
        model.head.bias.normal_()
    return model


@pytest.mark.parametrize("changes", [{}, {"registers": 3}, {"distillation_token": True}, {"pooling": "average"}])
def test_the_logits_are_one_linear_map_of_each_patch_token(changes):
    model = trained(dense(**changes))
    images = torch.randn(2, 3, 32, 48)
    with torch.no_grad():
        logits, tokens = model(images), model.encode(model.embed(images))
    assert logits.shape == (2, 3, 4, 6)
    prefix = model.config.prefix_tokens
    for row in range(4):
        for column in range(6):
            token = tokens[:, prefix + row * 6 + column]
            assert torch.allclose(logits[:, :, row, column], token @ model.head.weight.T + model.head.bias, atol=1e-5)


def test_its_features_are_one_vector_a_picture():
    model = trained(dense())
    images = torch.randn(2, 3, 32, 48)
    with torch.no_grad():
        assert torch.equal(model.features(images), model.head_input(images).mean(dim=1))


def test_a_model_without_patches_is_refused():
    with pytest.raises(UserError, match="needs the patches of a Vision Transformer"):
        SEGMENTATION.head.adapted(ModelConfig(family="resnet", stages=(3, 4, 6, 3)))


def test_another_task_reads_one_vector_again():
    assert task("classification").head.adapted(dense()).pooling == "class"
    assert task("regression").head.adapted(dense(class_token=False, pooling="average")).pooling == "average"


def masks_like(shape, classes=3, seed=0, ignored=0.2):
    random = np.random.default_rng(seed)
    masks = random.integers(0, classes, shape).astype(np.uint8)
    masks[random.random(shape) < ignored] = IGNORE
    return torch.from_numpy(masks)


def test_the_loss_is_the_mean_over_the_pixels_that_have_a_class():
    """By hand at every compared point: 4 points a side of each patch, logits interpolated between patches."""
    logits, masks = torch.randn(2, 3, 4, 6), masks_like((2, 32, 48))
    loss = SEGMENTATION.head.loss(LossSettings("cross_entropy", 3))
    points = masks[:, 1::2, 1::2]
    enlarged = F.interpolate(logits, scale_factor=4, mode="bilinear", align_corners=False).log_softmax(1)
    summed, count = 0.0, 0
    for batch, row, column in np.argwhere(points.numpy() != IGNORE):
        summed -= float(enlarged[batch, int(points[batch, row, column]), row, column])
        count += 1
    assert float(loss(logits, masks, None)) == pytest.approx(summed / count, rel=1e-5)


def test_a_batch_without_any_class_has_no_loss_and_no_broken_gradient():
    logits = torch.randn(1, 3, 4, 6, requires_grad=True)
    nothing = torch.full((1, 32, 48), IGNORE, dtype=torch.uint8)
    for kind in ("cross_entropy", "cross_entropy_dice"):
        loss = SEGMENTATION.head.loss(LossSettings(kind, 3))(logits, nothing, None)
        loss.backward()
        assert float(loss.detach()) == 0.0
        assert bool((logits.grad == 0).all())


def test_class_weights_count_pixels_and_weigh_the_loss():
    masks = [np.zeros((4, 4), np.uint8), np.array([[0, 1], [1, IGNORE]], np.uint8), None]
    weights = SEGMENTATION.head.weights(masks, 3)
    assert weights.tolist() == pytest.approx([19 / (2 * 17), 19 / (2 * 2), 1.0])
    logits, targets = torch.randn(2, 3, 4, 6), masks_like((2, 32, 48))
    weight = torch.tensor([1.0, 5.0, 0.5])
    loss = SEGMENTATION.head.loss(LossSettings("cross_entropy", 3, weight))
    enlarged = F.interpolate(logits, scale_factor=4, mode="bilinear", align_corners=False)
    wanted = F.cross_entropy(enlarged, raster(targets, (4, 6)), weight, ignore_index=-100)
    assert float(loss(logits, targets, None)) == pytest.approx(float(wanted), rel=1e-5)


def test_dice_is_nothing_for_a_perfect_answer_and_one_for_a_wrong_one():
    masks = torch.zeros(1, 32, 48, dtype=torch.uint8)
    masks[:, :16] = 1
    right = torch.full((1, 3, 4, 6), -50.0)
    right[:, 1, :2], right[:, 0, 2:] = 50.0, 50.0
    enlarged = F.interpolate(right, scale_factor=4, mode="nearest")
    from vitrail.tasks.segmentation.head import dice_loss

    assert float(dice_loss(enlarged, raster(masks, (4, 6)))) < 1e-3
    assert float(dice_loss(-enlarged, raster(masks, (4, 6)))) > 0.99


def test_shares_of_patches_leave_out_what_is_ignored():
    masks = torch.full((1, 4, 4), IGNORE, dtype=torch.uint8)
    masks[0, 0, :2], masks[0, 1, 0] = 0, 2
    assert class_shares(masks, (2, 2), 3)[0].tolist() == [[0.5, 0, 0.25], [0, 0, 0], [0, 0, 0], [0, 0, 0]]
    assert majority(masks, (2, 2), 3)[0].tolist() == [0, IGNORE, IGNORE, IGNORE]


def test_the_closed_form_finds_a_linear_map_that_is_there():
    random = torch.Generator().manual_seed(0)
    features = torch.randn(20, 24, 8, generator=random)
    true = torch.randn(3, 8, generator=random)
    classes = (features @ true.T).argmax(dim=2).to(torch.uint8).reshape(20, 4, 6)
    masks = classes.repeat_interleave(8, dim=1).repeat_interleave(8, dim=2)
    solved = SEGMENTATION.head.solve(FeatureSet(features, masks), None, LossSettings("cross_entropy", 3))
    found = solved.outputs(features).argmax(dim=2).reshape(20, 4, 6)
    assert float((found == classes).float().mean()) > 0.9


def test_a_mask_is_what_interpolated_logits_say_in_every_pixel_of_the_picture():
    logits = np.random.default_rng(0).normal(size=(5, 6, 7)).astype(np.float32)
    frame = Frame.of((61, 43), (96, 112))
    wanted = F.interpolate(torch.from_numpy(logits)[None], size=(61, 43), mode="bilinear", align_corners=False)[0]
    best = wanted.topk(2, dim=0).values
    sure = (best[0] - best[1] > 1e-4).numpy()
    assert (mask_of(logits, frame) == wanted.argmax(dim=0).numpy())[sure].all()
    assert sure.mean() > 0.99


def test_what_the_model_did_not_see_has_no_class_and_a_threshold_leaves_more_out():
    logits = np.zeros((2, 4, 4), np.float32)
    logits[1, :, :2] = 2.0  # probability 0.88 on the left, 0.5 on the right
    cropped = mask_of(logits, Frame.of((32, 64), (32, 32), (16, 0, 48, 32)))
    assert (cropped[:, :16] == IGNORE).all()
    assert (cropped[:, 48:] == IGNORE).all()
    assert (cropped[:, 16:28] == 1).all()
    unsure = mask_of(logits, Frame.of((32, 32), (32, 32)), threshold=0.8)
    assert (unsure[:, :8] == 1).all()
    assert (unsure[:, 24:] == IGNORE).all()


def test_targets_move_with_their_pictures():
    mask = np.arange(32 * 48, dtype=np.uint8).reshape(32, 48) % 3
    frame = Frame.of((32, 48), (32, 48)).then(mirror((32, 48)))
    assert (SEGMENTATION.target.moved(mask, frame) == mask[:, ::-1]).all()
    assert (SEGMENTATION.target.moved(None, frame) == IGNORE).all()
    with pytest.raises(ValueError, match="is 48 x 32 pixels, but its mask is 32 x 48"):
        SEGMENTATION.target.moved(mask.T.copy(), frame)


def measured(true, logits, places=None, names=NAMES, ids=None):
    """A meter of pictures whose own pixels are the model's input."""
    meter = SEGMENTATION.meter(Meaning(names), places)
    frames = [Frame.of(mask.shape, mask.shape) for mask in true]
    ids = ids or [f"{index:03d}" for index in range(len(true))]
    meter.add(
        ids, torch.from_numpy(np.stack(true)), logits, [Annotation(*each) for each in zip(true, frames, strict=True)]
    )
    return meter


@given(seed=st.integers(0, 10_000), classes=st.integers(2, 5))
@settings(max_examples=25)
def test_miou_is_what_scikit_learn_computes_of_all_pixels(seed, classes):
    from sklearn.metrics import accuracy_score, f1_score, jaccard_score

    true = list(masks_like((3, 16, 16), classes, seed).numpy())
    logits = torch.from_numpy(np.random.default_rng(seed).normal(size=(3, classes, 4, 4)).astype(np.float32))
    result = measured(true, logits, names=tuple("abcdefgh"[:classes])).result()
    answers = np.stack([mask_of(each.numpy(), Frame.of((16, 16), (16, 16))) for each in logits])
    known = np.stack(true) != IGNORE
    truth, said = np.stack(true)[known], answers[known]
    present = sorted({*truth.tolist(), *said.tolist()})
    for key, oracle in (("iou", jaccard_score), ("dice", f1_score)):
        wanted = oracle(truth, said, labels=present, average=None)
        found = [result["per_class"]["abcdefgh"[index]][key] for index in present]
        assert found == pytest.approx(wanted.tolist(), abs=1e-12)
    assert result["miou"] == pytest.approx(
        float(np.mean(jaccard_score(truth, said, labels=present, average=None))), abs=1e-12
    )
    assert result["pixel_accuracy"] == pytest.approx(accuracy_score(truth, said), abs=1e-12)
    assert result["pixels"] == known.sum()


def test_the_totals_of_two_processes_are_those_of_one():
    true, logits = list(masks_like((5, 16, 16)).numpy()), torch.randn(5, 3, 4, 4)
    ids = ["e", "b", "a", "d", "c"]
    alone = measured(true, logits, ids=ids)
    parts = [measured(true[rank::2], logits[rank::2], ids=ids[rank::2]) for rank in (0, 1)]
    together = alone.of_all(parts, ids)
    assert together.result() == alone.result()
    assert together.kept == alone.kept
    assert together.masks.keys() == alone.masks.keys()


def test_the_loss_is_the_cross_entropy_of_the_pixels_of_the_input():
    true, logits = list(masks_like((3, 16, 16)).numpy()), torch.randn(3, 3, 4, 4)
    wanted = torch.from_numpy(np.stack(true)).long()
    wanted[wanted == IGNORE] = -100
    enlarged = F.interpolate(logits, size=(16, 16), mode="bilinear", align_corners=False)
    assert measured(true, logits).result()["loss"] == pytest.approx(float(F.cross_entropy(enlarged, wanted)), rel=1e-5)


def test_data_with_some_of_the_classes_in_another_order_is_measured_by_name():
    true, logits = [np.array([[0, 1], [1, 1]], np.uint8)], torch.full((1, 3, 2, 2), -9.0)
    logits[0, 2, 0, 0] = logits[0, 0, 0, 1] = logits[0, 0, 1, 0] = logits[0, 1, 1, 1] = 9.0
    result = measured(true, logits, places=np.array([2, 0])).result()  # the data's classes are tree and sky
    assert set(result["per_class"]) == {"sky", "tree"}
    assert result["pixel_accuracy"] == 0.75
    assert result["per_class"]["tree"]["iou"] == 1.0
    assert result["per_class"]["sky"]["iou"] == pytest.approx(2 / 3)


def test_classes_that_occur_nowhere_are_left_out_of_the_mean():
    true, logits = [np.zeros((4, 4), np.uint8)], torch.zeros(1, 3, 2, 2)
    logits[:, 0] = 1.0
    result = measured(true, logits).result()
    assert result["miou"] == 1.0
    assert result["per_class"]["tree"]["iou"] is None
    nothing = measured([np.full((4, 4), IGNORE, np.uint8)], logits).result()
    assert math.isnan(nothing["miou"])
    assert SEGMENTATION.meter.score(nothing) < 0


def test_a_prediction_says_the_share_of_each_class():
    logits = np.full((3, 2, 2), -9.0, np.float32)
    logits[0, :, 0], logits[1, :, 1] = 9.0, 9.0
    frame = Frame.of((8, 8), (32, 32))
    said = SEGMENTATION.answer.prediction("a.jpg", logits, None, Meaning(NAMES), AnswerOptions(), frame)
    document = said.to_json()
    assert document["shares"] == {"sky": 0.5, "road": 0.5}
    assert set(document["mask"]) == {"sky", "road"}
    columns = SEGMENTATION.answer.columns(Meaning(NAMES), AnswerOptions())
    assert columns.cells(columns.row(said)) == ["a.jpg", "", "0.500000", "0.500000", "0.000000", ""]
    broken = columns.row(SEGMENTATION.answer.prediction("b.jpg", None, "is empty", Meaning(NAMES), AnswerOptions()))
    assert columns.cells(broken) == ["b.jpg", "", "", "", "", "is empty"]


def test_colours_of_many_classes_differ_and_the_rest_is_black():
    colours = class_colours(40)
    assert len({tuple(each) for each in colours[:40].tolist()}) == 40
    assert (colours[40:] == 0).all()
    picture = np.full((2, 2, 3), 100, np.uint8)
    painted = paint_mask(picture, np.array([[0, IGNORE], [1, 1]], np.uint8), 2, opacity=1.0)
    assert painted[0, 0].tolist() == colours[0].tolist()
    assert painted[0, 1].tolist() == [100, 100, 100]
