"""What a configuration means where nothing is said: the published defaults, steps of epochs, sizes that fit."""

import inspect

import pytest
import torch

from vitrail.config import (
    DinoConfig,
    MaeConfig,
    MaskedPatchConfig,
    ModelConfig,
    OptimizerConfig,
    Preprocessing,
    ScheduleConfig,
    TrainConfig,
    TransformConfig,
)
from vitrail.errors import UserError


def test_epochs_are_rounded_to_whole_steps_and_there_is_at_least_one():
    config = TrainConfig(epochs=1, batch_size=10)
    assert [config.total_steps(samples) for samples in (1, 14, 16, 100)] == [1, 1, 2, 10]
    assert TrainConfig(epochs=2.5, batch_size=10).total_steps(100) == 25
    assert TrainConfig(steps=7, batch_size=10).total_steps(100) == 7


def test_the_optimizers_defaults_are_the_fields():
    """AdamW's betas as PyTorch has them; the paper's decay, momentum and clipping."""
    theirs = inspect.signature(torch.optim.AdamW).parameters["betas"].default
    assert OptimizerConfig().betas == theirs == (0.9, 0.999)
    found = OptimizerConfig()
    assert (found.weight_decay, found.momentum, found.clip, found.layer_decay) == (0.1, 0.9, 1.0, 1.0)
    assert (ScheduleConfig().kind, ScheduleConfig().final_lr, ScheduleConfig().warmup_steps) == ("cosine", 0.0, 0)


def test_training_and_evaluation_see_pictures_as_the_field_does():
    """Inception crops of 5 to 100 % at 3/4 to 4/3, half of them mirrored; timm's crop fraction for its ViTs."""
    found = TransformConfig()
    assert (found.area, found.aspect, found.flip) == ((0.05, 1.0), (3 / 4, 4 / 3), 0.5)
    assert (found.erase_area, found.randaugment_magnitude, found.randaugment_std) == ((0.02, 1 / 3), 9.0, 0.5)
    assert (found.mixup, found.cutmix, found.label_smoothing, found.erase) == (0.0, 0.0, 0.0, 0.0)
    own = Preprocessing()
    assert (own.crop, own.crop_fraction, own.resample, own.mean, own.std) == (
        *("center", 0.9, "bicubic"),
        *((0.5,) * 3, (0.5,) * 3),
    )


def test_objectives_without_labels_have_their_papers_settings():
    dino = DinoConfig()
    assert (dino.student_temperature, dino.teacher_temperature, dino.centre_momentum) == (0.1, 0.04, 0.9)
    assert (dino.momentum, dino.local_crops, dino.local_area) == (0.996, 8, (0.05, 0.4))
    assert (dino.out_dim, dino.hidden_dim, dino.bottleneck_dim) == (65_536, 2048, 256)
    mae = MaeConfig()
    assert (mae.fraction, mae.decoder_width, mae.decoder_depth, mae.decoder_heads) == (0.75, 512, 8, 16)
    masked = MaskedPatchConfig()
    assert (masked.fraction, masked.masked, masked.replaced) == (0.5, 0.8, 0.1)


@pytest.mark.parametrize(("size", "patch", "expected"), [(224, 16, 96), (224, 14, 98), (32, 4, 12), (8, 4, 4)])
def test_small_crops_are_three_sevenths_of_the_picture_in_whole_patches(size, patch, expected):
    """As 96 is of 224."""
    config = TrainConfig(model=ModelConfig(image_size=size, patch_size=patch), objective="dino", epochs=1)
    assert config.local_size == (expected, expected)


def test_a_size_that_patches_do_not_divide_is_told_the_nearest_that_they_do():
    config = ModelConfig(image_size=(32, 48), patch_size=16)
    assert (config.grid, config.tokens) == ((2, 3), 7)
    with pytest.raises(UserError, match="the nearest size that can is 32 x 48"):
        config.grid_for((30, 50))
