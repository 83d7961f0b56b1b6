"""The base of every configuration: fields are checked by their annotations, and written to and read from JSON.

A field's annotation says what it may be: a type, a Literal, or `Annotated[type, rule]`. The rule is called with the
value and what to call it in a message, and returns the value to keep or raises a UserError:

    depth: Annotated[int, Whole(1, 1000)] = 12
"""

import difflib
import sys
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from math import inf
from typing import Annotated, Any, ClassVar, Literal, Self, Union, get_args, get_origin, get_type_hints

from vitrail.errors import UserError

LARGEST_SIDE = 2**17
"""Pixels of a picture's side, beyond any there is: what asks for more is damaged or hostile."""
_MOST = 2**24
"""More than any count there is: a configuration file that asks for more is damaged or hostile."""


@dataclass(frozen=True)
class Within:
    """Accepts numbers between two bounds, which belong to them unless said otherwise."""

    least: float = -inf
    most: float = inf
    above: bool = False
    """Whether the number must be above `least`."""
    below: bool = False
    """Whether the number must be below `most`."""

    def __call__(self, value: Any, called: str) -> Any:
        """Returns the value; raises a UserError, which calls it `called`, if it is no number between the bounds."""
        too_low = _is_number(value) and (value <= self.least if self.above else value < self.least)
        too_high = _is_number(value) and (value >= self.most if self.below else value > self.most)
        if _is_number(value) and not too_low and not too_high:
            return value
        low = f"{'above' if self.above else 'at least'} {self.least:g}" if self.least > -inf else ""
        high = f"{'below' if self.below else 'at most'} {self.most:g}" if self.most < inf else ""
        raise UserError(f"{called} must be {' and '.join(filter(None, (low, high))) or 'a number'}, not {value!r:.200}")


@dataclass(frozen=True)
class Whole:
    """Accepts whole numbers between two bounds, which belong to them."""

    least: int
    most: int | None = None

    def __call__(self, value: Any, called: str) -> int:
        """Returns the value; raises a UserError if it is no whole number between the bounds."""
        whole = isinstance(value, int) and not isinstance(value, bool)
        if whole and self.least <= value and (self.most is None or value <= self.most):
            return value
        bounds = f"of at least {self.least}" if self.most is None else f"from {self.least} to {self.most}"
        raise UserError(f"{called} must be a whole number {bounds}, not {value!r:.200}")


@dataclass(frozen=True)
class Rising:
    """Accepts two numbers above 0, the second at least as large as the first."""

    most: float = inf

    def __call__(self, value: Any, called: str) -> tuple[float, float]:
        """Returns the two numbers as floats; raises a UserError if they are not two that rise."""
        if isinstance(value, (list, tuple)) and len(value) == 2 and all(map(_is_number, value)):
            low, high = map(float, value)
            if 0 < low <= high <= self.most:
                return low, high
        bounds = "above 0" if self.most == inf else f"above 0 and at most {self.most:g}"
        raise UserError(f"{called} must be two numbers, rising, {bounds}, not {value!r:.200}")


def pair(size: Any, called: str = "image_size") -> tuple[int, int]:
    """Returns an image size as (rows, columns); one number means a square."""
    if isinstance(size, int) and not isinstance(size, bool):
        return size, size
    if not isinstance(size, (list, tuple)) or len(size) != 2 or not all(map(_is_number, size)):
        given = list(size) if isinstance(size, (list, tuple)) else repr(size)
        raise UserError(f"{called} must be one number or two (rows, columns), not {given}")
    return int(size[0]), int(size[1])


Count = Annotated[int, Whole(1, _MOST)]
CountOrZero = Annotated[int, Whole(0, _MOST)]
"""A count that may be 0."""
Positive = Annotated[float, Within(0, above=True)]
NotNegative = Annotated[float, Within(0)]
Share = Annotated[float, Within(0, 1)]
SharePositive = Annotated[float, Within(0, 1, above=True)]
ShareBelowOne = Annotated[float, Within(0, 1, below=True)]
ImageSize = Annotated[int | tuple[int, int], pair]


@dataclass(frozen=True)
class Configuration:
    """Describes a part of a run or model in fields that are checked when it is made: one that exists is right.

    Whatever concerns several fields is checked in `__post_init__` of the class, after `super().__post_init__()`.
    """

    part: ClassVar[str] = ""
    """Stands before the names of fields in messages: the name of the configuration within a TrainConfig."""
    left_out: ClassVar[tuple[str, ...]] = ()
    """Fields left out of JSON where they have their default: younger than files that must stay as they are."""

    def __post_init__(self) -> None:
        for name, annotation in _annotations(type(self)).items():
            value = getattr(self, name)
            kept = _checked(annotation, value, f"{self.part}: {name}" if self.part else name)
            if kept is not value:
                object.__setattr__(self, name, kept)

    def with_(self, **changes: Any) -> Self:
        """Returns a copy with some fields changed; an unknown field is a UserError with a near miss suggested."""
        check_fields(type(self), changes)
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a dict that JSON can hold, those of configurations inside as dicts too."""
        found = {}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name not in self.left_out or value != field.default:
                found[field.name] = value.to_json() if isinstance(value, Configuration) else value
        return found

    @classmethod
    def from_json(cls, values: Any, called: str = "") -> Self:
        """Makes the configuration of what `to_json` gave; fields that are not there have their defaults.

        Args:
            values: Parsed JSON from anywhere: whatever is wrong with it is a UserError.
            called: What a message calls it, if not by the name of its class.
        """
        if not isinstance(values, Mapping):
            raise UserError(f"{called or cls.__name__} must be an object with fields, not {values!r:.100}")
        check_fields(cls, values)
        return cls(**values)


def check_fields(kind: type, values: Mapping[str, Any]) -> None:
    """Refuses names that `kind`, a dataclass, does not have; suggests the one that was probably meant."""
    known = [field.name for field in fields(kind)]
    for name in values:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"
            raise UserError(f"{kind.__name__} has no field {name!r}{hint}")


@lru_cache
def _annotations(kind: type[Configuration]) -> dict[str, Any]:
    """Returns what each field is annotated with."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: hints[field.name] for field in fields(kind)}


def _checked(annotation: Any, value: Any, called: str) -> Any:
    """Returns the value as it is kept, lists as tuples; raises a UserError where the annotation does not allow it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        for rule in arguments[1:]:
            value = rule(value, called)
        return value
    if origin in (Union, types.UnionType):
        if value is None and types.NoneType in arguments:
            return None
        inner = [each for each in arguments if each is not types.NoneType]
        assert len(inner) == 1, f"{called}: annotate a union of types with a rule"
        return _checked(inner[0], value, called)
    if origin is Literal:
        if value not in arguments:
            raise UserError(f"{called} is {value!r:.200}; choose one of {', '.join(map(str, arguments))}")
        return value
    if origin is tuple:
        return _checked_tuple(arguments, value, called)
    if isinstance(annotation, type) and issubclass(annotation, Configuration):
        return value if isinstance(value, annotation) else annotation.from_json(value, called)
    accepts, meant = _PLAIN[annotation]
    if not accepts(value):
        raise UserError(f"{called} must be {meant}, not {value!r:.200}")
    return value


def _checked_tuple(annotations: tuple[Any, ...], value: Any, called: str) -> tuple[Any, ...]:
    """Returns the tuple as it is kept; numbers annotated as float are floats."""
    several = len(annotations) == 2 and annotations[1] is Ellipsis
    right = isinstance(value, (list, tuple)) and (several or len(value) == len(annotations))
    if not right:
        raise UserError(f"{called} must be {'' if several else f'{len(annotations)} '}numbers, not {value!r:.200}")
    inner = [annotations[0]] * len(value) if several else annotations
    kept = [_checked(each, item, f"{called}: each of {value!r:.200}") for each, item in zip(inner, value, strict=True)]
    return tuple(float(item) if _is_float(each) else item for each, item in zip(inner, kept, strict=True))


def _is_float(annotation: Any) -> bool:
    return annotation is float or (get_origin(annotation) is Annotated and get_args(annotation)[0] is float)


def _is_number(value: Any) -> bool:
    """Whether a value is a number that a float can hold, and neither infinite nor NaN."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


_PLAIN = {
    bool: (lambda value: isinstance(value, bool), "true or false"),
    int: (lambda value: isinstance(value, int) and not isinstance(value, bool), "a whole number"),
    float: (_is_number, "a number"),
    str: (lambda value: isinstance(value, str), "a text"),
}
"""What is accepted for an annotation that is a plain type, and what a message calls it."""
