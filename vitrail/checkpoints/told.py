"""What is said of a model beside its tensors: by the user (`--model`), by a file's header, by a config.json."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from vitrail.config import ModelConfig, pair
from vitrail.config.model import Activation, Interpolation, Pooling
from vitrail.errors import UserError
from vitrail.models.sizes import config_for

# The fields of ModelConfig that tensors do not show; a whole configuration settles all of them.
UNSEEN = ("activation", "norm_eps", "interpolation", "stem_arithmetic", "pooling", "positions", "num_heads")
CHOICES: dict[str, tuple[str, ...]] = {
    "activation": get_args(Activation),
    "pooling": get_args(Pooling),
    "interpolation": get_args(Interpolation),
    "positions": ("learned", "sincos", "none"),
}
FIELDS = ("num_heads", "norm_eps", *CHOICES, "image_size")


@dataclass(frozen=True)
class Told:
    """What is known of a model before its tensors are looked at."""

    config: ModelConfig | None = None
    """The model by name, or as a whole configuration."""
    whole: bool = False
    """Whether `config` was given as a configuration, which says what no tensor shows; a name says the size only."""
    fields: Mapping[str, Any] = field(default_factory=dict)
    """Single facts, as fields of ModelConfig."""

    @property
    def named(self) -> bool:
        """Whether somebody said what the model is."""
        return self.config is not None or bool(self.fields)

    @property
    def name(self) -> str:
        return self.config.name if self.config else ""

    def get(self, name: str, default: Any = None) -> Any:
        """What was said of a field, or the default."""
        if name in self.fields:
            return self.fields[name]
        if self.config is not None and ((self.whole and name in UNSEEN) or name == "num_heads"):
            return getattr(self.config, name)
        return default

    def joined(self, facts: Mapping[str, Any], who: str) -> "Told":
        """With the facts a folder states as well; what the user says must not contradict them."""
        if self.whole:
            return Told(self.config, True, {**facts, **self.fields, **{name: self.get(name) for name in UNSEEN}})
        for name, value in self.fields.items():
            if name in facts and facts[name] != value:
                raise UserError(f"--model says {name} {value}, {who} says {facts[name]}")
        return Told(self.config, False, {**facts, **self.fields})


NOTHING = Told()
"""Nothing is said: the tensors have to do."""


def note_of(assumed: Sequence[str]) -> list[str]:
    """The one line that says what was assumed of a file, and how to say otherwise; none where nothing was."""
    if not assumed:
        return []
    how = "--model says otherwise, by a name or fields such as num_heads=16,activation=gelu_tanh"
    return [f"assumed, since the tensors cannot say: {', '.join(assumed)} ({how})"]


def read_model(model: str | ModelConfig | None) -> Told:
    """`--model`: a name ("B/16"), fields that tensors do not show ("num_heads=16,pooling=average"), or both."""
    if model is None:
        return Told()
    if isinstance(model, ModelConfig):
        return Told(model, whole=True)
    first, *rest = (part.strip() for part in model.split(","))
    config = None
    if "=" in first:
        rest = [first, *rest]
    else:
        config = config_for(first)
    fields = dict(_field(text) for text in rest)
    if len(fields) < len(rest):
        raise UserError(f"--model {model}: names a field twice")
    return Told(config, fields=fields)


def _field(text: str) -> tuple[str, Any]:
    name, _, value = (part.strip() for part in text.partition("="))
    name = name.replace("-", "_")
    if name not in FIELDS or not value:
        raise UserError(f"--model: {text!r} is no field with its value; there are {', '.join(FIELDS)}")
    if name in CHOICES:
        if value not in CHOICES[name]:
            raise UserError(f"--model: {name} is {value!r}; choose one of {', '.join(CHOICES[name])}")
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
