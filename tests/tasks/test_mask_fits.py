"""What a mask's loss, closed form and shares count: known pixels alone, whatever the scale and the shape."""

import numpy as np
import pytest
import torch

from vitrail.masks_and_boxes import Frame
from vitrail.tasks import Meaning, task
from vitrail.tasks.answers import AnswerOptions
from vitrail.tasks.base import FeatureSet, LossSettings
from vitrail.tasks.segmentation.closed_form import class_shares
from vitrail.tasks.segmentation.head import dice_loss
from vitrail.tasks.segmentation.raster import NO_CLASS
from vitrail.tasks.segmentation.target import IGNORE

SEGMENTATION = task("segmentation")


def test_dice_does_not_see_what_is_ignored():
    logits = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    wanted = torch.randint(0, 3, (2, 8, 8), generator=torch.Generator().manual_seed(1))
    wanted[:, 5:] = NO_CLASS
    other = logits.clone()
    other[:, :, 5:] = torch.randn(2, 3, 3, 8, generator=torch.Generator().manual_seed(2))
    assert float(dice_loss(other, wanted)) == pytest.approx(float(dice_loss(logits, wanted)), rel=1e-6)
    assert float(dice_loss(logits[:, :, :5], wanted[:, :5])) == pytest.approx(
        float(dice_loss(logits, wanted)), rel=1e-6
    )


def test_the_share_of_right_pixels_is_of_those_that_have_a_class():
    masks = torch.zeros(2, 16, 16, dtype=torch.uint8)
    masks[0, 8:] = IGNORE
    masks[1, :, 8:] = 1
    outputs = torch.zeros(2, 2, 4, 4)
    outputs[:, 0] = 1.0  # says class 0 everywhere: all of what the first picture has, half of the second
    assert SEGMENTATION.head.loss(LossSettings("cross_entropy", 2)).measures(outputs, masks) == {"pixel_accuracy": 1.5}


def drawn(noise: float, scale: torch.Tensor | None = None) -> FeatureSet:
    """Pictures whose patches tell their class by a linear map, but for some noise in what is true."""
    random = torch.Generator().manual_seed(0)
    features = torch.randn(20, 24, 8, generator=random)
    logits = features @ torch.randn(8, 3, generator=random)
    other = torch.randn(20, 24, 3, generator=random)
    classes = ((1 - noise) * logits + noise * other).argmax(dim=2).to(torch.uint8).reshape(20, 4, 6)
    masks = classes.repeat_interleave(8, dim=1).repeat_interleave(8, dim=2)
    return FeatureSet(features if scale is None else features * scale, masks)


def test_the_scale_of_features_changes_nothing_in_closed_form():
    scale = 10 ** torch.linspace(-2, 2, 8)
    plain, scaled = (
        SEGMENTATION.head.solve(found, None, LossSettings("cross_entropy", 3))
        for found in (drawn(0.0), drawn(0.0, scale))
    )
    before, after = plain.outputs(drawn(0.0).features), scaled.outputs(drawn(0.0, scale).features)
    assert torch.allclose(before, after, atol=0.05 * float(before.abs().max()))
    assert float((before.argmax(dim=2) == after.argmax(dim=2)).float().mean()) > 0.99


def test_the_strength_is_the_one_that_held_out_pictures_like_best():
    clean, noise = (
        SEGMENTATION.head.solve(found, None, LossSettings("cross_entropy", 3)).method
        for found in (drawn(0.0), drawn(1.0))
    )
    assert clean.endswith("l2 0.0004"), "what is there is followed closely"
    assert noise.endswith("l2 0.01"), "what is not there is held down"


def test_shares_are_those_of_the_patch_in_its_row_and_column():
    masks = np.random.default_rng(0).integers(0, 3, (2, 32, 48)).astype(np.uint8)
    masks[0, :8, :16] = IGNORE
    found = class_shares(torch.from_numpy(masks), (4, 6), 3)
    for row in range(4):
        for column in range(6):
            cell = masks[:, row * 8 : row * 8 + 8, column * 8 : column * 8 + 8]
            wanted = [[(each == index).mean() for index in range(3)] for each in cell]
            np.testing.assert_allclose(found[:, row * 6 + column], wanted, atol=1e-6)


def test_shares_of_a_picture_are_of_all_its_pixels():
    """Of those that the model did not see too: nothing is said of them, so what it saw adds up to less than 1."""
    frame = Frame.of((32, 64), (32, 32), (16, 0, 48, 32))
    said = SEGMENTATION.answer.prediction(
        "a.jpg", np.ones((1, 4, 4), np.float32), None, Meaning(("sky",)), AnswerOptions(), frame
    )
    assert said.to_json()["shares"] == {"sky": 0.5}
