"""What a model is trained for: each objective turns a batch into losses."""

from vitrail.config import TrainConfig
from vitrail.config.entries import imported
from vitrail.config.self_supervision import SELF_SUPERVISED
from vitrail.models.build import Model
from vitrail.models.vit import ViT
from vitrail.tasks.base import LossSettings
from vitrail.training.objectives.base import Illustration, Losses, Moment, Objective
from vitrail.training.objectives.supervised import Supervised

__all__ = ["Illustration", "Losses", "Moment", "Objective", "create", "objective_class"]


def create(config: TrainConfig, model: Model, settings: LossSettings) -> Objective:
    """Makes the objective a configuration asks for; what it has of its own is freshly initialised. settings: of the
    loss of an objective that learns from targets."""
    asked = objective_class(config)
    assert asked.labelled or isinstance(model, ViT), "the configuration has refused everything else"
    return asked.create(config, model, settings)


def objective_class(config: TrainConfig) -> type[Objective]:
    """Gives the class of the objective, which says before there is a model what training by it needs. A name that is
    none of those that need no labels is a loss of the task."""
    kind = SELF_SUPERVISED.get(config.objective)
    return Supervised if kind is None else imported("vitrail.training.objectives", kind.computed_by)
