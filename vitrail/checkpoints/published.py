"""Well-known public weights by name: `Ti/16`, `Ti/16@deit`, `deit_tiny_patch16_224.fb_in1k`. No torch here.

published.json has a row for each, taken from timm's registry by tests/checkpoints/timm_registry.py; the first of a name
is what the name alone means.
"""

import difflib
import functools
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from vitrail.config import Preprocessing
from vitrail.errors import UserError
from vitrail.models.sizes import config_for


@dataclass(frozen=True)
class Published:
    """Weights that anyone can fetch, and what is known of them before they are."""

    name: str
    """The paper's name of the model."""
    variant: str
    """Which of the weights for that model: how they were trained, on what if not ImageNet-1k last, at which size."""
    id: str
    """What timm calls them."""
    hub: str
    """owner/name on the Hugging Face hub."""
    file: str
    trained_on: str
    licence: str
    image_size: int
    num_classes: int
    """0: features only."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: str
    crop: str
    crop_fraction: float

    @property
    def full_name(self) -> str:
        return f"{self.name}@{self.variant}"

    @property
    def preprocessing(self) -> Preprocessing:
        return Preprocessing(
            image_size=self.image_size,
            mean=self.mean,
            std=self.std,
            resample=self.resample,  # pyright: ignore[reportArgumentType]
            crop=self.crop,  # pyright: ignore[reportArgumentType]
            crop_fraction=self.crop_fraction,
        )

    def to_json(self) -> dict[str, Any]:
        """`name` is what to type; `full_name` means the same, and nothing else in time to come."""
        shortest = self.name if by_name(self.name) is self else self.full_name
        return {**vars(self), "name": shortest, "full_name": self.full_name}

    def __str__(self) -> str:
        return (
            f"{self.full_name} ({self.hub}), trained on {self.trained_on} at {self.image_size} px, "
            f"licence {self.licence}"
        )


@functools.cache
def table() -> tuple[Published, ...]:
    text = resources.files("vitrail.checkpoints").joinpath("published.json").read_text("utf-8")
    rows = ({**row, "mean": tuple(row["mean"]), "std": tuple(row["std"])} for row in json.loads(text))
    return tuple(Published(**row) for row in rows)


def by_name(text: str) -> Published | None:
    """The weights a name means: of a model, of a model and a variant, timm's own; None where it is no name."""
    if found := _index().get(_key(text)):
        return found
    base, _, variant = text.partition("@")
    known = [each for each in table() if _key(each.name) == _key(base)]
    if not known:
        return None
    variants = [each.variant for each in known]
    near = difflib.get_close_matches(variant, variants, n=1)
    hint = f"did you mean {base}@{near[0]}?" if near else f"there are {', '.join(variants)}"
    raise UserError(f"{text}: there are no weights {variant!r} for {base}; {hint}")


def asked_for(source: str | Path) -> Published | None:
    """The published weights that a MODEL argument means; a file or folder of that name comes first."""
    if not isinstance(source, str) or Path(source).exists():
        return None
    return by_name(source)


def is_name(text: str) -> bool:
    """Whether published weights are called that, whatever files there are."""
    return _key(text) in _index()


def unknown(source: str) -> str:
    """Why a MODEL argument that is no path is no published name either, and what would be."""
    try:
        name = config_for(source).name
    except UserError:
        return "there is no such file or folder, nor are there published weights of that name"
    if by_name(name):
        return f"there is no such file or folder; the published weights of that model are called {name}"
    return (
        f"there is no such file or folder, and no published weights of {name} are known: `vitrail models --weights` "
        f"lists those that are, `vitrail train --model.size {name}` starts from none"
    )


@functools.cache
def _index() -> dict[str, Published]:
    found: dict[str, Published] = {}
    for each in table():
        for name in (each.name, each.full_name, each.id, each.hub):
            found.setdefault(_key(name), each)
    return found


def _key(name: str) -> str:
    return name.strip().lower().removeprefix("vit-")
