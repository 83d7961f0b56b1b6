"""What a model is trained for: each objective turns a batch into losses."""

from vitrail.config import TrainConfig
from vitrail.models.build import Model
from vitrail.models.vit import ViT
from vitrail.tasks.base import LossSettings
from vitrail.training.objectives.base import Illustration, Losses, Moment, Objective
from vitrail.training.objectives.dino import SelfDistillation
from vitrail.training.objectives.mae import MaskedAutoencoder
from vitrail.training.objectives.masked_patch import MaskedPatch
from vitrail.training.objectives.supervised import Supervised

__all__ = ["OBJECTIVES", "Illustration", "Losses", "Moment", "Objective", "create", "objective_class"]

OBJECTIVES: dict[str, type[Objective]] = {
    "masked_patch": MaskedPatch,
    "mae": MaskedAutoencoder,
    "dino": SelfDistillation,
}
"""Those that need no labels, by the names that a configuration has for them; every other name is a loss of a task."""


def create(config: TrainConfig, model: Model, settings: LossSettings) -> Objective:
    """Makes the objective a configuration asks for; what it has of its own is freshly initialised. settings: of the
    loss of an objective that learns from targets."""
    asked = objective_class(config)
    assert asked.labelled or isinstance(model, ViT), "the configuration has refused everything else"
    return asked.create(config, model, settings)


def objective_class(config: TrainConfig) -> type[Objective]:
    """Gives the class of the objective, which says before there is a model what training by it needs."""
    return OBJECTIVES.get(config.objective, Supervised)
