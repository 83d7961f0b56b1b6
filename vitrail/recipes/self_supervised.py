"""Trainings without labels: the paper's masked patches, a masked autoencoder, self-distillation; and fine-tuning after
them.

The small ones share a model, so that what each has learned can be compared after the same fine-tuning.
"""

from collections.abc import Callable

from vitrail.config import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    DataConfig,
    DinoConfig,
    MaeConfig,
    MaskedPatchConfig,
    OptimizerConfig,
    Preprocessing,
    ScheduleConfig,
    TrainConfig,
    TransformConfig,
)
from vitrail.models.sizes import config_for
from vitrail.recipes import paper
from vitrail.recipes.small import GREY, mnist5k

SMALL, MOVED = mnist5k().model.with_(num_classes=0), mnist5k().transform
"""The model and the augmentation of the recipe mnist5k."""
IMAGES, BATCH = 1_281_167, 4096
"""Training images of ImageNet-1k, and images in a step of MAE's training."""


def mnist5k_masked_patch() -> TrainConfig:
    """Trains by masked patches on 4000 digits, no labels.

    vitrail train mnist5k-masked-patch --out RUN

    Expect: after 30 of its epochs, 69.2 % of the 500 test images were right by their 20 nearest neighbours (seed 0).
    """
    return TrainConfig(
        recipe="mnist5k-masked-patch",
        model=SMALL,
        data=DataConfig("mnist5k"),
        transform=MOVED,
        preprocessing=GREY,
        optimizer=OptimizerConfig("adamw", lr=1.5e-3, weight_decay=0.05),
        schedule=ScheduleConfig("cosine", warmup_steps=100),
        objective="masked_patch",
        masked_patch=MaskedPatchConfig(target="small"),
        epochs=48,
        batch_size=64,
    )


def mnist5k_mae() -> TrainConfig:
    """Trains a masked autoencoder on 4000 digits, no labels.

    vitrail train mnist5k-mae --out RUN

    Expect: 82.6 % of the 500 test images right by their 20 nearest neighbours (seed 0).
    """
    return TrainConfig(
        recipe="mnist5k-mae",
        model=SMALL,
        data=DataConfig("mnist5k"),
        transform=MOVED,
        preprocessing=GREY,
        optimizer=OptimizerConfig("adamw", lr=2e-3, weight_decay=0.05, betas=(0.9, 0.95)),
        schedule=ScheduleConfig("cosine", warmup_steps=100),
        objective="mae",
        # The usual 0.75 would leave four of 16 patches: too few to tell one digit from another.
        mae=MaeConfig(fraction=0.6, decoder_width=64, decoder_depth=2, decoder_heads=4),
        epochs=60,
        batch_size=64,
    )


def mnist5k_dino() -> TrainConfig:
    """Trains by self-distillation (DINO) on 4000 digits.

    vitrail train mnist5k-dino --out RUN

    Expect little: it shows how self-distillation runs. In half of its epochs neighbours did not get better than at the
    start (60.2 % of the 500 test images, seed 0), and fine-tuning from it was no better than from scratch.
    """
    return TrainConfig(
        recipe="mnist5k-dino",
        model=SMALL,
        data=DataConfig("mnist5k"),
        transform=TransformConfig(area=(0.5, 1.0), flip=0.0, rotate=10, translate=0.1, scale=0.1),
        preprocessing=GREY,
        optimizer=OptimizerConfig("adamw", lr=1e-3, weight_decay=0.05),
        schedule=ScheduleConfig("cosine", warmup_steps=100, final_lr=1e-5),
        objective="dino",
        dino=DinoConfig(
            out_dim=512,
            hidden_dim=256,
            bottleneck_dim=64,
            local_crops=4,
            local_size=14,
            local_area=(0.2, 0.5),
            momentum=0.99,
        ),
        epochs=12,
        batch_size=64,
    )


def finetune_mnist5k() -> TrainConfig:
    """Fine-tunes a small model on digits, 1200 steps.

    vitrail finetune MODEL --recipe finetune-mnist5k --data mnist5k --out RUN

    MODEL is a run of one of the recipes above, or of mnist5k. AdamW as in training from scratch: the model is small,
    and what it learned without labels is a start rather than an end. Steps, not epochs: with few labels
    (`--data.train-size 100`) an epoch is only a few steps.
    """
    return TrainConfig(
        recipe="finetune-mnist5k",
        model=SMALL.with_(num_classes=10),
        data=DataConfig("mnist5k"),
        transform=MOVED,
        preprocessing=GREY,
        optimizer=OptimizerConfig("adamw", lr=2e-3, weight_decay=0.05),
        schedule=ScheduleConfig("cosine", warmup_steps=50),
        steps=1200,
        batch_size=64,
    )


def vit_b16_jft_masked_patch() -> TrainConfig:
    """Trains B/16 by masked patches on JFT-300M, 1M steps.

    vitrail train vit-b16-jft-masked-patch --data FOLDER --out RUN

    The paper's Appendix B.1.2: half of the patches corrupted, their mean colours predicted; little is gained after
    100,000 steps. No weight decay is stated there, so there is none here.
    Cost: 432 exaFLOPs, as `vitrail plan` counts.
    Expect: 79.9 % on ImageNet after fine-tuning, as the paper reports: 2 above training from scratch, 4 below
    pre-training with labels.
    """
    return TrainConfig(
        recipe="vit-b16-jft-masked-patch",
        model=config_for("B/16", num_classes=0),
        data=DataConfig("jft"),
        transform=paper.TRANSFORM,
        preprocessing=paper.PREPROCESSING,
        optimizer=OptimizerConfig("adamw", lr=2e-4, weight_decay=0.0, clip=0.0),
        schedule=ScheduleConfig("cosine", warmup_steps=10_000),
        objective="masked_patch",
        steps=1_000_000,
        batch_size=4096,
    )


def mae_b16_in1k() -> TrainConfig:
    """Trains MAE with B/16 on ImageNet-1k, 1600 epochs.

    vitrail train mae-b16-in1k --data FOLDER --out RUN

    As its authors have it (He and others, arXiv 2111.06377): a decoder of width 512 and depth 8, three patches of
    four masked, each patch's pixels normalised, 1.5e-4 as the learning rate for every 256 images of the batch.
    Cost: 216 exaFLOPs, as `vitrail plan` counts; it counts every patch in the encoder and no decoder.
    Expect: 83.6 % on ImageNet after fine-tuning, as its authors report.
    """
    return TrainConfig(
        recipe="mae-b16-in1k",
        model=config_for("B/16", num_classes=0, positions="sincos"),
        data=DataConfig("imagenet"),
        transform=TransformConfig(area=(0.2, 1.0)),
        preprocessing=Preprocessing(mean=IMAGENET_MEAN, std=IMAGENET_STD, crop="center", crop_fraction=0.875),
        optimizer=OptimizerConfig("adamw", lr=1.5e-4 * BATCH / 256, weight_decay=0.05, betas=(0.9, 0.95), clip=0.0),
        schedule=ScheduleConfig("cosine", warmup_steps=round(40 * IMAGES / BATCH)),
        objective="mae",
        epochs=1600,
        batch_size=BATCH,
    )


def mae_small() -> TrainConfig:
    """Trains MAE with Ti/16 on hundreds of photos or more.

    vitrail train mae-small --data FOLDER --out RUN

    For anyone's own photos, on two CPU cores or one GPU: 128 px, so that the encoder sees 16 of 64 patches, and a light
    decoder. Steps, not epochs: with few photos an epoch is only a few steps.
    Cost: 0.000287 exaFLOPs, as `vitrail plan` counts. On two CPU cores 20 steps ran at 136 images a second, which makes
    16 minutes for all 2,000; the whole was not run.
    Expect: with `--steps 150` on 400 photos of ImageNet the training loss began at 1.25, and that of 50 others was
    0.860 after 50 steps and 0.831 after 150 (seed 0). What fine-tuning gains from it was not measured: where public
    weights fit, begin with those.
    """
    return TrainConfig(
        recipe="mae-small",
        model=config_for("Ti/16", num_classes=0, positions="sincos", image_size=128),
        data=DataConfig("few-photos"),
        transform=TransformConfig(area=(0.2, 1.0)),
        preprocessing=Preprocessing(
            image_size=128, mean=IMAGENET_MEAN, std=IMAGENET_STD, crop="center", crop_fraction=0.875
        ),
        optimizer=OptimizerConfig("adamw", lr=1e-3, weight_decay=0.05, betas=(0.9, 0.95)),
        schedule=ScheduleConfig("cosine", warmup_steps=200),
        objective="mae",
        mae=MaeConfig(decoder_width=128, decoder_depth=2, decoder_heads=4),
        steps=2000,
        batch_size=64,
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    "mnist5k-masked-patch": mnist5k_masked_patch,
    "mnist5k-mae": mnist5k_mae,
    "mnist5k-dino": mnist5k_dino,
    "finetune-mnist5k": finetune_mnist5k,
    "vit-b16-jft-masked-patch": vit_b16_jft_masked_patch,
    "mae-b16-in1k": mae_b16_in1k,
    "mae-small": mae_small,
}
"""The recipes by name."""
