"""What is known about a model besides its tensors: from the user (`--model`), a file's header, or a config.json."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from vitrail.config import ModelConfig, pair
from vitrail.config.model import Activation, Interpolation, Pooling
from vitrail.errors import UserError
from vitrail.models.sizes import config_for

# The fields of ModelConfig that tensors do not show.
UNSEEN = ("activation", "norm_eps", "interpolation", "stem_arithmetic", "pooling", "positions", "num_heads")
_CHOICES: dict[str, tuple[str, ...]] = {
    "activation": get_args(Activation),
    "pooling": get_args(Pooling),
    "interpolation": get_args(Interpolation),
    "positions": ("learned", "sincos", "none"),
}
"""The allowed values of those fields of `FIELDS` that are words."""
_FIELDS = ("num_heads", "norm_eps", *_CHOICES, "image_size")
"""The fields that `--model` can set."""


@dataclass(frozen=True)
class Declared:
    """The knowledge about a model before its tensors are read."""

    config: ModelConfig | None = None
    """The configuration that the user or a header gave, or that of the model size the user named; None for neither."""
    whole: bool = False
    """True if `config` was given in full, so that its `UNSEEN` fields hold too; False if only its size was named."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Single fields of ModelConfig that are known, by name."""

    @property
    def named(self) -> bool:
        """Tells whether anything is known at all."""
        return self.config is not None or bool(self.fields)

    @property
    def name(self) -> str:
        """Returns the name of the model size ("B/16"), or "" if none is known."""
        return self.config.name if self.config else ""

    def get(self, name: str, default: Any = None) -> Any:
        """Returns what is known of a field of ModelConfig, or `default` if nothing is."""
        if name in self.fields:
            return self.fields[name]
        if self.config is not None and ((self.whole and name in UNSEEN) or name == "num_heads"):
            return getattr(self.config, name)
        return default

    def joined(self, facts: Mapping[str, Any], who: str) -> "Declared":
        """Adds the facts that a folder states.

        Args:
            facts: Fields of ModelConfig and their values.
            who: The file that states them, for the error message.

        Raises:
            UserError: If the user gave another value for one of these fields.
        """
        if self.whole:
            return Declared(self.config, True, {**facts, **self.fields, **{name: self.get(name) for name in UNSEEN}})
        for name, value in self.fields.items():
            if name in facts and facts[name] != value:
                raise UserError(f"--model says {name} {value}, {who} says {facts[name]}")
        return Declared(self.config, False, {**facts, **self.fields})


NOTHING = Declared()
"""Nothing is known besides the tensors."""


def note_of(assumed: Sequence[str]) -> list[str]:
    """Formats one note that lists what had to be assumed about a file and how to correct it; [] if nothing was.

    assumed: the assumptions in words, such as "exact GELU".
    """
    if not assumed:
        return []
    how = "if that is wrong, give --model a name or fields such as num_heads=16,activation=gelu_tanh"
    return [f"assumed, since the tensors do not show it: {', '.join(assumed)} ({how})"]


def read_model(model: str | ModelConfig | None) -> Declared:
    """Parses the value of `--model`: a name ("B/16"), fields that tensors do not show ("num_heads=16,pooling=average"),
    both ("B/16,pooling=average"), a ModelConfig, or None.

    Raises UserError if the name or a field is unknown or a value does not fit its field.
    """
    if model is None:
        return Declared()
    if isinstance(model, ModelConfig):
        return Declared(model, whole=True)
    first, *rest = (part.strip() for part in model.split(","))
    config = None
    if "=" in first:
        rest = [first, *rest]
    else:
        config = config_for(first)
    fields = dict(_field(text) for text in rest)
    if len(fields) < len(rest):
        raise UserError(f"--model {model}: names a field twice")
    return Declared(config, fields=fields)


def _field(text: str) -> tuple[str, Any]:
    """Parses "name=value" to the field's name and its value in the field's type."""
    name, _, value = (part.strip() for part in text.partition("="))
    name = name.replace("-", "_")
    if name not in _FIELDS or not value:
        raise UserError(f"--model: {text!r} is not FIELD=VALUE with one of the fields {', '.join(_FIELDS)}")
    if name in _CHOICES:
        if value not in _CHOICES[name]:
            raise UserError(f"--model: {name} is {value!r}; choose one of {', '.join(_CHOICES[name])}")
        return name, value
    kinds = {"num_heads": r"\d{1,6}", "image_size": r"\d{1,6}(x\d{1,6})?", "norm_eps": r"\d*\.?\d+(e-?\d+)?"}
    if not re.fullmatch(kinds[name], value):
        raise UserError(
            f"--model: {text!r} must be a number" + ", or rows and columns: 224x448" * (name == "image_size")
        )
    if name == "norm_eps":
        return name, float(value)
    numbers = [int(side) for side in value.split("x")]
    return name, pair((numbers[0], numbers[-1])) if name == "image_size" else numbers[0]
