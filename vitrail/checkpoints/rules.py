"""Two-way name maps. A Rule says which foreign tensors make one of ours, and how to go there and back.

A format is a list of rules for a configuration. Reading and writing use the same list, so a round trip is exact by
construction, and the parity report can say where every tensor came from.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from vitrail.config import ModelConfig
from vitrail.errors import UserError

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Rule:
    """One native tensor and the foreign ones it is made of."""

    native: str
    foreign: tuple[str, ...]
    read: Callable[[Sequence[Tensor]], Tensor]
    write: Callable[[Tensor], Sequence[Tensor]]


def same(native: str, foreign: str) -> Rule:
    return Rule(native, (foreign,), lambda parts: parts[0], lambda tensor: [tensor])


def through(native: str, foreign: str, read: Callable[[Tensor], Tensor], write: Callable[[Tensor], Tensor]) -> Rule:
    """One tensor that changes its shape on the way."""
    return Rule(native, (foreign,), lambda parts: read(parts[0]), lambda tensor: [write(tensor)])


def stacked(native: str, foreign: Sequence[str]) -> Rule:
    """Query, key and value, apart there and fused here."""
    return Rule(
        native,
        tuple(foreign),
        lambda parts: torch.cat(list(parts)),
        lambda tensor: tensor.chunk(len(foreign)),
    )


@dataclass
class Reading:
    """A foreign checkpoint in our names."""

    format: str
    config: ModelConfig
    state: Tensors
    origin: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Native name -> the foreign names it was made of."""
    dropped: dict[str, str] = field(default_factory=dict)
    """Foreign name -> why it is not used."""
    notes: list[str] = field(default_factory=list)


def read(rules: Iterable[Rule], tensors: Mapping[str, Tensor], what: str) -> tuple[Tensors, dict[str, tuple[str, ...]]]:
    """Apply the rules to foreign tensors; one that is missing or of a wrong shape is a UserError."""
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


def write(rules: Iterable[Rule], state: Mapping[str, Tensor]) -> Tensors:
    result: Tensors = {}
    for rule in rules:
        parts = rule.write(state[rule.native])
        result |= {name: part.contiguous() for name, part in zip(rule.foreign, parts, strict=True)}
    return result


def require(config: ModelConfig, format: str, **wanted: object) -> None:  # noqa: A002
    """Refuse to write what a format cannot express, naming the field."""
    for name, value in wanted.items():
        allowed = value if isinstance(value, tuple) else (value,)
        if getattr(config, name) not in allowed:
            raise UserError(
                f"{format} cannot express this model: {name} is {getattr(config, name)!r}, "
                f"it knows {' or '.join(map(repr, allowed))} only"
            )
