"""What a model carries besides its weights: how to prepare its images, and what its classes are called."""

from dataclasses import dataclass, field
from typing import Any, Self

from vitrail.config import ModelConfig, Preprocessing
from vitrail.errors import UserError
from vitrail.tasks import Meaning


@dataclass
class Card:
    """A model's preprocessing, class names and origin. It is read from and written to the bundle; `create` makes an
    empty one."""

    preprocessing: Preprocessing | None = None
    """How images are prepared for the model; None if it is not known."""
    label_names: tuple[str, ...] = ()
    """The names of the outputs, in order. Predictions give names, never bare numbers."""
    label_descriptions: dict[str, str] = field(default_factory=dict)
    """What a name that is a code stands for: n02113799 is a standard poodle."""
    constants: dict[str, Any] = field(default_factory=dict)
    """What the task found in the training data and its answers depend on: thresholds, means, standard deviations."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Where the model came from: recipe, fingerprint of the data, seed, versions, metrics, or the file it was converted
    from."""
    assumed: str = ""
    """The note that says the preprocessing was assumed, since neither the weights nor the user gave it; empty if it is
    known."""
    notes: list[str] = field(default_factory=list)
    """What loading had to assume or leave out, a sentence each. Shown to the user, not stored."""

    @classmethod
    def from_json(cls, section: dict[str, Any], config: ModelConfig) -> Self:
        """Makes the card of a model from what a bundle or an exported file says; every part of it is looked at.

        Args:
            section: `preprocessing`, `label_names`, `label_descriptions`, `constants` and `provenance`, each of which
                may be missing.
            config: The model's, which the parts must go with.
        """
        preprocessing = Preprocessing.from_json(section.get("preprocessing") or {})
        if len(preprocessing.mean) != config.channels:
            raise UserError(f"preprocessing has {len(preprocessing.mean)} means, the model {config.channels} channels")
        names = section.get("label_names") or []
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise UserError("label_names must be a list of texts, one a class")
        if names and len(names) != config.num_classes:
            raise UserError(f"names {len(names)} classes, but its model has {config.num_classes}")
        objects = {name: section.get(name) or {} for name in ("label_descriptions", "constants", "provenance")}
        if wrong := [name for name, value in objects.items() if not isinstance(value, dict)]:
            raise UserError(f"{wrong[0]} must be an object")
        words = {name: str(text) for name, text in objects["label_descriptions"].items()}
        return cls(preprocessing, tuple(names), words, objects["constants"], objects["provenance"])

    @property
    def meaning(self) -> Meaning:
        """Returns what the model's outputs stand for."""
        return Meaning(self.label_names, self.label_descriptions, self.constants)

    def preprocessing_for(self, config: ModelConfig) -> Preprocessing:
        """Returns how images are prepared for a model with this card. Where that is not known, pixels are scaled to
        [-1, 1], as in the paper.

        config: the model's.
        """
        half = (0.5,) * config.channels
        return self.preprocessing or Preprocessing(image_size=config.image_size, mean=half, std=half)

    def settle(self, preprocessing: Preprocessing, note: str) -> None:
        """Replaces the assumed preprocessing by one that was found out. note: says how, and replaces the note on the
        assumption."""
        self.notes = [note if each == self.assumed else each for each in self.notes]
        self.preprocessing, self.assumed = preprocessing, ""
