"""What the tests of objectives without labels share: small configurations, trainers and batches."""

from pathlib import Path

import torch

from vitrail.config import (
    DataConfig,
    DinoConfig,
    MaeConfig,
    ModelConfig,
    OptimizerConfig,
    Preprocessing,
    ScheduleConfig,
    TrainConfig,
    TransformConfig,
)
from vitrail.data.loader import Batch
from vitrail.models.build import create
from vitrail.tasks.base import LossSettings
from vitrail.training import objectives
from vitrail.training.learner import Learner
from vitrail.training.loop import Trainer

CONFIG = TrainConfig(
    recipe="digits",
    model=ModelConfig(
        image_size=8, channels=1, patch_size=2, width=32, depth=2, num_heads=2, mlp_dim=64, num_classes=0
    ),
    data=DataConfig("digits", workers=0),
    transform=TransformConfig(crop="evaluation", flip=0.0, rotate=10, translate=0.1),
    preprocessing=Preprocessing(8, (0.5,), (0.5,), crop="squash"),
    optimizer=OptimizerConfig(lr=2e-3, weight_decay=0.05),
    schedule=ScheduleConfig(warmup_steps=5),
    objective="masked_patch",
    mae=MaeConfig(decoder_width=16, decoder_depth=1, decoder_heads=2),
    dino=DinoConfig(
        out_dim=32, hidden_dim=32, bottleneck_dim=16, local_crops=2, local_size=4, momentum=0.9, freeze_last_epochs=0.5
    ),
    steps=20,
    batch_size=48,
    evaluate_every=10,
    snapshot_every=4,
    log_every=5,
)
OBJECTIVES = ("masked_patch", "mae", "dino")


def settings(objective: str, **changes) -> TrainConfig:
    return CONFIG.with_(objective=objective, **changes)


def trainer(config: TrainConfig, folder: Path = Path("unused")) -> Trainer:
    torch.manual_seed(config.seed)
    model = create(config.model)
    return Trainer(
        config=config,
        run=folder,
        learner=Learner(model, objectives.create_objective(config, model, LossSettings(config.objective, 0))),
        total=config.total_steps(100),
        batches=lambda position: iter(()),
        evaluate=None,
        keep_best=lambda *_: None,
        epoch_samples=100,
    )


def some_batch(count: int = 16, views: bool = False, channels: int = 1, size: int = 8, seed: int = 2) -> Batch:
    """Random pictures; `views` adds a second large crop and two small ones."""
    generator = torch.Generator().manual_seed(seed)

    def draw(side: int) -> torch.Tensor:
        return torch.rand(count, channels, side, side, generator=generator) * 2 - 1

    images = draw(size)
    more = [draw(size), draw(size // 2), draw(size // 2)] if views else []
    return Batch(images, torch.full((count,), -1), [f"sample/{i}" for i in range(count)], views=more)
