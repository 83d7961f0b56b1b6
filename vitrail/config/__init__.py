"""Configuration as frozen dataclasses that check themselves. Without torch, so that a configuration is read at once."""

from vitrail.config.data import DataConfig, TransformConfig
from vitrail.config.fields import check_fields, pair
from vitrail.config.model import Interpolation, ModelConfig
from vitrail.config.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing
from vitrail.config.self_supervision import DinoConfig, MaeConfig, MaskedPatchConfig
from vitrail.config.training import OptimizerConfig, ScheduleConfig, TrainConfig

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "DataConfig",
    "DinoConfig",
    "Interpolation",
    "MaeConfig",
    "MaskedPatchConfig",
    "ModelConfig",
    "OptimizerConfig",
    "Preprocessing",
    "ScheduleConfig",
    "TrainConfig",
    "TransformConfig",
    "check_fields",
    "pair",
]
