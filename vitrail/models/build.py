"""Makes a model from a configuration or a name."""

from typing import Any

import torch

from vitrail.config import ModelConfig
from vitrail.models.resnet import ResNet
from vitrail.models.sizes import config_for
from vitrail.models.vit import ViT

Model = ViT | ResNet


def create(name: str | ModelConfig, **overrides: Any) -> Model:
    """Makes a model with freshly initialised weights, in evaluation mode: `create("B/16", num_classes=10,
    image_size=384)`.

    Args:
        name: a model of the paper, such as "B/16", "R50+B/16" or "BiT-R50x1" (`vitrail models` lists them), or a
            ModelConfig.
        overrides: fields of ModelConfig to set, such as num_classes or image_size.

    Returns:
        A `ViT`, or a `ResNet` for names that begin with BiT.

    Raises:
        UserError: if there is no such model, or a field has a value that does not fit.
    """
    config = name.with_(**overrides) if isinstance(name, ModelConfig) else config_for(name, **overrides)
    model = build(config)
    model.initialise()
    return model.eval()


def build(config: ModelConfig, device: str = "cpu") -> Model:
    """Makes the modules of a model without initialising its weights. On the device "meta" they take no memory."""
    with torch.device(device):
        return ResNet(config) if config.family == "resnet" else ViT(config)
