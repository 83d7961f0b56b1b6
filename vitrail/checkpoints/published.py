"""Well-known public weights by name: `Ti/16`, `Ti/16@deit`, `deit_tiny_patch16_224.fb_in1k`. Does not import torch.

published.json has a row for each, taken from timm's registry by tests/checkpoints/timm_registry.py. Where several have
the name of one model size, such as `Ti/16`, that name alone means the first.
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
    """Weights that anyone can download, and what is known about them before they are."""

    name: str
    """The paper's name of the model size: "Ti/16"."""
    variant: str
    """A name that tells weights of one size apart, made of the training method, the data if it was last trained on
    other than ImageNet-1k, and the image size: "deit"."""
    id: str
    """timm's name of the weights."""
    hub: str
    """owner/name on the Hugging Face hub."""
    file: str
    """The weights file in that repository."""
    trained_on: str
    licence: str
    image_size: int
    """The side of the square input, in pixels."""
    num_classes: int
    """The number of classes; 0 for weights without a head, which give features only."""
    mean: tuple[float, ...]
    std: tuple[float, ...]
    resample: str
    crop: str
    crop_fraction: float

    @property
    def full_name(self) -> str:
        """Returns the name of the size with the variant: "Ti/16@deit"."""
        return f"{self.name}@{self.variant}"

    @property
    def preprocessing(self) -> Preprocessing:
        """Returns the preprocessing for evaluation that the weights were published with."""
        return Preprocessing(
            image_size=self.image_size,
            mean=self.mean,
            std=self.std,
            resample=self.resample,  # pyright: ignore[reportArgumentType]
            crop=self.crop,  # pyright: ignore[reportArgumentType]
            crop_fraction=self.crop_fraction,
        )

    def to_json(self) -> dict[str, Any]:
        """Returns the row that `vitrail models --weights --json` prints.

        `name` is the shortest name that means these weights. `full_name` is the one that will never mean others.
        """
        shortest = self.name if by_name(self.name) is self else self.full_name
        return {**vars(self), "name": shortest, "full_name": self.full_name}

    def __str__(self) -> str:
        return (
            f"{self.full_name} ({self.hub}), trained on {self.trained_on} at {self.image_size} px, "
            f"licence {self.licence}"
        )


@functools.cache
def published_models() -> tuple[Published, ...]:
    """Returns all published weights that are known, in the order of published.json."""
    text = resources.files("vitrail.checkpoints").joinpath("published.json").read_text("utf-8")
    rows = ({**row, "mean": tuple(row["mean"]), "std": tuple(row["std"])} for row in json.loads(text))
    return tuple(Published(**row) for row in rows)


def by_name(text: str) -> Published | None:
    """Finds published weights by the name of a model size, by size and variant, by timm's name or by the hub's.

    Returns None if the text names no weights or model size. Raises UserError if the size is known and the variant not.
    """
    if found := _index().get(_key(text)):
        return found
    base, _, variant = text.partition("@")
    known = [each for each in published_models() if _key(each.name) == _key(base)]
    if not known:
        return None
    variants = [each.variant for each in known]
    near = difflib.get_close_matches(variant, variants, n=1)
    hint = f"did you mean {base}@{near[0]}?" if near else f"there are {', '.join(variants)}"
    raise UserError(f"{text}: there are no weights {variant!r} for {base}; {hint}")


def asked_for(source: str | Path) -> Published | None:
    """Returns the published weights that a MODEL argument means, or None; a file or folder of that name has
    precedence."""
    if not isinstance(source, str) or Path(source).exists():
        return None
    return by_name(source)


def is_name(text: str) -> bool:
    """Tells whether published weights have this name, whatever files have it too."""
    return _key(text) in _index()


def unknown(source: str) -> str:
    """Explains why a MODEL argument that is not a path is not the name of published weights either, with a remedy."""
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
    """Returns the published weights by each of their names; a name that several have means the first."""
    found: dict[str, Published] = {}
    for each in published_models():
        for name in (each.name, each.full_name, each.id, each.hub):
            found.setdefault(_key(name), each)
    return found


def _key(name: str) -> str:
    """Brings a name into the form in which names are compared."""
    return name.strip().lower().removeprefix("vit-")
