"""What a model carries besides its weights: how to prepare its images, and what its classes are called."""

from dataclasses import dataclass, field
from typing import Any

from vitrail.config import Preprocessing
from vitrail.tasks import Meaning


@dataclass
class Card:
    """Read from and written to the bundle; a model made by `create` has an empty one."""

    preprocessing: Preprocessing | None = None
    label_names: tuple[str, ...] = ()
    """The classes in order. Scores are by these names, never by bare numbers."""
    label_descriptions: dict[str, str] = field(default_factory=dict)
    """Words for a name that is a code, as timm has them: n02113799 is a standard poodle."""
    constants: dict[str, Any] = field(default_factory=dict)
    """What the task found in the data and its answers need: thresholds, means and deviations."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Where it came from: recipe, data fingerprint, seed, versions, metrics, or the file it was converted from."""
    assumed: str = ""
    """The note on a preprocessing that the weights did not carry and nobody gave; empty where it is known."""
    notes: list[str] = field(default_factory=list)
    """What loading had to assume or leave out, a sentence each; shown to the user, not stored."""

    @property
    def meaning(self) -> Meaning:
        """What the model's outputs mean."""
        return Meaning(self.label_names, self.label_descriptions, self.constants)

    def settle(self, preprocessing: Preprocessing, note: str) -> None:
        """Put a preprocessing that was found out, and the note that says how, in place of the assumed one."""
        self.notes = [note if each == self.assumed else each for each in self.notes]
        self.preprocessing, self.assumed = preprocessing, ""
