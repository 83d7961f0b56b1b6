"""Two-way maps of tensor names. A Rule says which foreign tensors make one of this program's, and how to convert both
ways.

A format has a list of rules for each configuration. Reading and writing use the same list, so a round trip is exact by
construction, and the parity report can say where every tensor came from.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitrail.config import ModelConfig
from vitrail.errors import UserError

Tensors = dict[str, Tensor]
"""Tensors by name."""


@dataclass(frozen=True)
class Rule:
    """A tensor of this program (native) and the tensors of another program (foreign) that it is made of."""

    native: str
    """Its name in this program."""
    foreign: tuple[str, ...]
    """The names of the foreign tensors."""
    read: Callable[[Sequence[Tensor]], Tensor]
    """Makes the native tensor of the foreign ones, in the order of `foreign`."""
    write: Callable[[Tensor], Sequence[Tensor]]
    """Makes the foreign tensors, in the order of `foreign`, of the native one."""


def same(native: str, foreign: str) -> Rule:
    """Returns the rule of a tensor that differs in its name only."""
    return Rule(native, (foreign,), lambda parts: parts[0], lambda tensor: [tensor])


def through(native: str, foreign: str, read: Callable[[Tensor], Tensor], write: Callable[[Tensor], Tensor]) -> Rule:
    """Returns the rule of one tensor that `read` and `write` convert, for example by a transposition."""
    return Rule(native, (foreign,), lambda parts: read(parts[0]), lambda tensor: [write(tensor)])


def stacked(native: str, foreign: Sequence[str]) -> Rule:
    """Returns the rule of several foreign tensors that are concatenated along the first dimension, such as query, key
    and value."""
    return Rule(
        native,
        tuple(foreign),
        lambda parts: torch.cat(list(parts)),
        lambda tensor: tensor.chunk(len(foreign)),
    )


@dataclass
class Reading:
    """A foreign checkpoint, translated."""

    format: str
    """The name of the format it was read in."""
    config: ModelConfig
    """The model's configuration."""
    state: Tensors
    """The tensors by this program's names."""
    origin: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """The foreign names that each tensor was made of, by this program's name."""
    dropped: dict[str, str] = field(default_factory=dict)
    """The reason why a foreign tensor is not used, by its name."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the user."""


def read_by_rules(
    rules: Iterable[Rule], tensors: Mapping[str, Tensor], what: str
) -> tuple[Tensors, dict[str, tuple[str, ...]]]:
    """Applies the rules to foreign tensors.

    Args:
        rules: One rule for each tensor of the model.
        tensors: The foreign tensors by name.
        what: What error messages call the checkpoint ("the .npz file").

    Returns:
        The model's tensors by name, and the foreign names that each was made of.

    Raises:
        UserError: If a foreign tensor is missing, has a wrong shape or is not of floating-point numbers.
    """
    state, origin = {}, {}
    for rule in rules:
        if missing := [name for name in rule.foreign if name not in tensors]:
            raise UserError(f"{what} lacks the tensor {missing[0]!r}, from which {rule.native} is made")
        for name in rule.foreign:
            if not tensors[name].is_floating_point():
                raise UserError(f"{what}: {name} is of type {tensors[name].dtype}, not floating-point numbers")
        try:
            state[rule.native] = rule.read([tensors[name] for name in rule.foreign])
        except (RuntimeError, IndexError, TypeError, ValueError) as error:
            shapes = ", ".join(f"{name} {tuple(tensors[name].shape)}" for name in rule.foreign)
            raise UserError(f"{what}: {rule.native} cannot be made of {shapes}") from error
        origin[rule.native] = rule.foreign
    return state, origin


def write_by_rules(rules: Iterable[Rule], state: Mapping[str, Tensor]) -> Tensors:
    """Applies the rules in the other direction: makes the foreign tensors of the model's."""
    result: Tensors = {}
    for rule in rules:
        parts = rule.write(state[rule.native])
        result |= {name: part.contiguous() for name, part in zip(rule.foreign, parts, strict=True)}
    return result


def require(config: ModelConfig, format: str, **wanted: object) -> None:  # noqa: A002
    """Raises UserError unless the configuration's fields have values that a format can express.

    Args:
        config: The model to write.
        format: What the error message calls the format.
        wanted: For each field its allowed value, or a tuple of them.
    """
    for name, value in wanted.items():
        allowed = value if isinstance(value, tuple) else (value,)
        if getattr(config, name) not in allowed:
            raise UserError(
                f"{format} cannot express this model: {name} is {getattr(config, name)!r}, "
                f"it supports {' or '.join(map(repr, allowed))} only"
            )
