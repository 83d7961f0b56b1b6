"""Recipes: functions that return a TrainConfig. Without torch.

`paper.py` has the paper's Tables 3 and 4, `deit.py` DeiT's training on ImageNet-1k, `self_supervised.py` trainings
without labels, `segmentation.py` trainings on masks, `small.py` trainings that run on any machine. The docstring of a
recipe says the command, the cost and the result to expect.
"""

import difflib
import inspect
import re
from collections.abc import Callable

from vitrail.config import TrainConfig
from vitrail.errors import UserError
from vitrail.recipes import deit, paper, segmentation, self_supervised, small
from vitrail.recipes.paper import DEV_FRACTIONS, LEARNING_RATES

__all__ = [
    "DEV_FRACTIONS",
    "IMAGES",
    "LEARNING_RATES",
    "RECIPES",
    "describe_recipe",
    "find_recipe",
    "near_miss",
    "recipe",
    "starts_from_a_model",
]

RECIPES: dict[str, Callable[[], TrainConfig]] = {
    **small.RECIPES,
    **self_supervised.RECIPES,
    **segmentation.RECIPES,
    **deit.RECIPES,
    **paper.RECIPES,
}
"""All recipes by name."""

IMAGES: dict[str, int] = {
    "jft": 303_000_000,
    "imagenet21k": 14_200_000,
    "imagenet": 1_281_167,
    "cifar10": 50_000,
    "cifar100": 50_000,
    "pets": 3_680,
    "flowers": 1_020,
    "vtab": 1_000,
    "few-photos": 1_000,
    "fashion-mnist": 60_000,
    "mnist5k": 4_000,
    "digits": 1_437,
}
"""Training images of the data that recipes name: what is left by the splits of digits and mnist5k, and a round number
for few-photos, which are the user's own."""


def recipe(name: str) -> TrainConfig:
    """Returns the configuration of a recipe: what `vitrail train NAME` trains.

    Args:
        name: the recipe's name; other spellings are accepted: `ViT-B/16-JFT` and `b16-jft` are `vit-b16-jft`.

    Raises:
        UserError: if there is no such recipe; the message suggests the nearest name.
    """
    return RECIPES[_known(name)]()


def starts_from_a_model(name: str) -> bool:
    """Tells whether a recipe is for `vitrail finetune`, by the first word of its name."""
    return name.partition("-")[0] in ("finetune", "segment")


def describe_recipe(name: str) -> str:
    """Returns a recipe in one line, the first of its docstring."""
    return (inspect.getdoc(RECIPES[_known(name)]) or "").partition("\n")[0]


def find_recipe(name: str) -> str | None:
    """Returns the recipe with a name, in any of its spellings; None if there is none."""
    return _SPELLINGS.get(_plain(name))


def near_miss(name: str, cutoff: float = 0.5) -> str | None:
    """Returns the recipe whose name is nearest to a name that does not exist; None if none is near. cutoff: similarity
    from 0 to 1."""
    near = difflib.get_close_matches(_plain(name), _SPELLINGS, n=1, cutoff=cutoff)
    return _SPELLINGS[near[0]] if near else None


def _known(name: str) -> str:
    """Returns the recipe with a name, or raises a UserError."""
    if (found := find_recipe(name)) is not None:
        return found
    near = near_miss(name)
    hint = f"did you mean {near}?" if near else "for example mnist5k, vit-b16-in21k or finetune-cifar10"
    raise UserError(f"there is no recipe named {name!r}; {hint} (`vitrail plan` lists them)")


def _plain(name: str) -> str:
    """Reduces a name to what all its spellings have in common; `vit-` may be missing."""
    return re.sub(r"\b(vit|bit)[-_ ]|[-_/ ]", "", name.strip().lower())


_SPELLINGS = {_plain(name): name for name in RECIPES}
"""Recipe names by what all their spellings have in common."""
assert len(_SPELLINGS) == len(RECIPES), "two recipes share a spelling"
