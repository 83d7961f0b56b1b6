"""The model that a fine-tuning starts from (`TrainConfig.init_from`), loaded once for all that is asked of it."""

from copy import deepcopy
from dataclasses import dataclass, field

from vitrail.checkpoints.load import adapt, load
from vitrail.config import Preprocessing, TrainConfig
from vitrail.models.build import Model


@dataclass
class StartingModel:
    """The model that a fine-tuning starts from. It is loaded when it is first needed and kept until training takes it,
    so that large files are read, and compared with their checksums, only once."""

    source: str
    """A MODEL argument, as `vitrail.load` takes it."""
    preprocessing: str | Preprocessing | None = None
    """The preprocessing to use in place of the model's own, as `vitrail.load` takes it."""
    _kept: Model | None = field(default=None, repr=False)

    def loaded(self) -> Model:
        """Returns the model as it was loaded. It must not be changed."""
        if self._kept is None:
            self._kept = load(self.source, preprocessing=self.preprocessing)
        return self._kept

    def resized(self, image_size: int | tuple[int, int]) -> Model:
        """Returns a copy of the model at another resolution, in pixels or (rows, columns)."""
        return adapt(deepcopy(self.loaded()), None, image_size)

    def take(self, config: TrainConfig) -> Model:
        """Returns the model with the classes, resolution and preprocessing of a training.

        It is kept no longer: beside the model that learns, it would only take memory. If it is needed again, it is
        loaded again.
        """
        model, self._kept = self.loaded(), None
        card = model.card
        card.notes = [note for note in card.notes if note != card.assumed]
        card.preprocessing, card.assumed = config.preprocessing, ""
        return adapt(model, config.model.num_classes, config.model.image_size)


def starting_model(config: TrainConfig, start: StartingModel | None) -> StartingModel:
    """Returns `start` if it is the model that the training starts from, else that one, not loaded yet."""
    if start is not None and start.source == config.init_from:
        return start
    return StartingModel(config.init_from)
