"""What a model carries besides its weights: how to prepare its images, and what its classes are called."""

from dataclasses import dataclass, field
from typing import Any

from vitrail.config import Preprocessing


@dataclass
class Card:
    """Read from and written to the bundle; a model made by `create` has an empty one."""

    preprocessing: Preprocessing | None = None
    label_names: tuple[str, ...] = ()
    """The classes in order. Scores are by these names, never by bare numbers."""
    label_descriptions: dict[str, str] = field(default_factory=dict)
    """Words for a name that is a code, as timm has them: n02113799 is a standard poodle."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """Where it came from: recipe, data fingerprint, seed, versions, metrics, or the file it was converted from."""
    notes: list[str] = field(default_factory=list)
    """What loading had to assume or leave out, a sentence each; shown to the user, not stored."""
