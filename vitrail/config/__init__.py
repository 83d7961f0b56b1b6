"""What can be configured, as frozen dataclasses. No torch here: reading a configuration must be instant."""

from vitrail.config.data import DataConfig, TransformConfig
from vitrail.config.fields import check_fields, pair
from vitrail.config.model import Interpolation, ModelConfig
from vitrail.config.preprocessing import IMAGENET_MEAN, IMAGENET_STD, Preprocessing

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "DataConfig",
    "Interpolation",
    "ModelConfig",
    "Preprocessing",
    "TransformConfig",
    "check_fields",
    "pair",
]
