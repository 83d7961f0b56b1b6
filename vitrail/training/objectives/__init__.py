"""What a model is trained for: each objective turns a batch into losses."""

from vitrail.config import TrainConfig
from vitrail.models.build import Model
from vitrail.models.vit import ViT
from vitrail.training.objectives.base import Illustration, Losses, Moment, Objective
from vitrail.training.objectives.dino import SelfDistillation
from vitrail.training.objectives.mae import MaskedAutoencoder
from vitrail.training.objectives.masked_patch import MaskedPatch
from vitrail.training.objectives.pixels import Pixels
from vitrail.training.objectives.supervised import Supervised

__all__ = ["Illustration", "Losses", "Moment", "Objective", "create"]


def create(config: TrainConfig, model: Model) -> Objective:
    """The objective a configuration asks for; what it has of its own is freshly initialised."""
    if config.objective in ("softmax", "sigmoid"):
        return Supervised(config.objective, model.config.num_classes)
    assert isinstance(model, ViT), "the configuration has refused everything else"
    if config.objective == "masked_patch":
        return MaskedPatch(config.masked_patch, model.config, config.preprocessing)
    if config.objective == "mae":
        return MaskedAutoencoder(config.mae, model.config, config.preprocessing)
    return SelfDistillation(config.dino, model, Pixels(config.preprocessing))
