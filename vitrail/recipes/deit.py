"""DeiT's recipe: ImageNet-1k alone, made to suffice by strong augmentation (Touvron and others, arXiv 2012.12877)."""

from collections.abc import Callable

from vitrail.config import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    DataConfig,
    OptimizerConfig,
    Preprocessing,
    ScheduleConfig,
    TrainConfig,
    TransformConfig,
)
from vitrail.models.sizes import config_for

_BATCH = 1024
"""Images in a step."""
IMAGES = 1_281_167
"""Training images of ImageNet-1k."""


def deit_ti16_in1k() -> TrainConfig:
    """Trains Ti/16 on ImageNet-1k as DeiT, 300 epochs.

    vitrail train deit-ti16-in1k --data FOLDER --out RUN

    Cost: 2.9 exaFLOPs, as `vitrail plan` counts. Expect: 72.2 % on ImageNet at 224 px, as DeiT's authors report.
    """
    return _deit("deit-ti16-in1k", "Ti/16")


def deit_s16_in1k() -> TrainConfig:
    """Trains S/16 on ImageNet-1k as DeiT, 300 epochs.

    vitrail train deit-s16-in1k --data FOLDER --out RUN

    Cost: 11 exaFLOPs, as `vitrail plan` counts. Expect: 79.8 % on ImageNet at 224 px, as DeiT's authors report.
    """
    return _deit("deit-s16-in1k", "S/16")


def deit_b16_in1k() -> TrainConfig:
    """Trains B/16 on ImageNet-1k as DeiT, 300 epochs.

    vitrail train deit-b16-in1k --data FOLDER --out RUN

    Cost: 41 exaFLOPs, as `vitrail plan` counts. Expect: 81.8 % on ImageNet at 224 px, as DeiT's authors report.
    """
    return _deit("deit-b16-in1k", "B/16")


def _deit(name: str, model: str) -> TrainConfig:
    return TrainConfig(
        recipe=name,
        model=config_for(model, drop_path=0.1),
        data=DataConfig("imagenet"),
        transform=TransformConfig(
            area=(0.08, 1.0),
            randaugment_layers=2,
            randaugment_magnitude=9.0,
            randaugment_std=0.5,
            erase=0.25,
            mixup=0.8,
            cutmix=1.0,
            label_smoothing=0.1,
            repeats=3,
        ),
        preprocessing=Preprocessing(mean=IMAGENET_MEAN, std=IMAGENET_STD, crop="center", crop_fraction=0.875),
        # The learning rate is 5e-4 for every 512 images of the batch.
        optimizer=OptimizerConfig("adamw", lr=5e-4 * _BATCH / 512, weight_decay=0.05, clip=0.0),
        schedule=ScheduleConfig("cosine", warmup_steps=round(5 * IMAGES / _BATCH), final_lr=1e-5),
        epochs=300,
        batch_size=_BATCH,
    )


RECIPES: dict[str, Callable[[], TrainConfig]] = {
    "deit-ti16-in1k": deit_ti16_in1k,
    "deit-s16-in1k": deit_s16_in1k,
    "deit-b16-in1k": deit_b16_in1k,
}
