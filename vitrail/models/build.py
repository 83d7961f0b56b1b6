"""From a configuration, or a name, to a model."""

from typing import Any

import torch

from vitrail.config import ModelConfig
from vitrail.models.resnet import ResNet
from vitrail.models.sizes import config_for
from vitrail.models.vit import ViT

Model = ViT | ResNet


def create(name: str | ModelConfig, **overrides: Any) -> Model:
    """A freshly initialised model: `create("B/16", num_classes=10, image_size=384)`."""
    config = name.with_(**overrides) if isinstance(name, ModelConfig) else config_for(name, **overrides)
    model = build(config)
    model.initialise()
    return model.eval()


def build(config: ModelConfig, device: str = "cpu") -> Model:
    """The modules alone, their weights yet to be filled; on device "meta" they take no memory."""
    with torch.device(device):
        return ResNet(config) if config.family == "resnet" else ViT(config)
