"""Objectives: what a model is trained for. Each turns a batch into a loss."""

from vitrail.config import TrainConfig
from vitrail.config.entries import imported
from vitrail.config.self_supervision import SELF_SUPERVISED
from vitrail.models.build import Model
from vitrail.models.vit import ViT
from vitrail.tasks.base import LossSettings
from vitrail.training.objectives.base import Illustration, Losses, Moment, Objective
from vitrail.training.objectives.supervised import Supervised

__all__ = ["Illustration", "Losses", "Moment", "Objective", "create", "objective_class"]


def create_objective(config: TrainConfig, model: Model, settings: LossSettings) -> Objective:
    """Makes the objective that a configuration names, with its own parameters freshly initialised. settings: what its
    loss is made from, if it learns from targets."""
    asked = objective_class(config)
    assert asked.labelled or isinstance(model, ViT), "the configuration has refused everything else"
    return asked.create(config, model, settings)


def objective_class(config: TrainConfig) -> type[Objective]:
    """Returns the class of the objective that a configuration names. A name that is not among those without labels is a
    loss of the task, which `Supervised` uses."""
    kind = SELF_SUPERVISED.get(config.objective)
    return Supervised if kind is None else imported("vitrail.training.objectives", kind.computed_by)
