"""Recipes: functions that return a TrainConfig. No torch here.

`paper.py` has the paper's Tables 3 and 4, `deit.py` DeiT's ImageNet-1k recipe, `self_supervised.py` what learns without
labels, `small.py` what runs on any machine.
A recipe's docstring states the command, the cost and the result to expect.
"""

import difflib
import inspect
import re
from collections.abc import Callable

from vitrail.config import TrainConfig
from vitrail.errors import UserError
from vitrail.recipes import deit, paper, self_supervised, small
from vitrail.recipes.paper import DEV_FRACTIONS, LEARNING_RATES

__all__ = ["DEV_FRACTIONS", "IMAGES", "LEARNING_RATES", "RECIPES", "describe", "find", "near_miss", "recipe"]

RECIPES: dict[str, Callable[[], TrainConfig]] = {
    **small.RECIPES,
    **self_supervised.RECIPES,
    **deit.RECIPES,
    **paper.RECIPES,
}

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
"""Training images of the sources that recipes name; of digits and mnist5k, what the splits leave; of few-photos, which
are anyone's own, a round number."""


def recipe(name: str) -> TrainConfig:
    """The configuration a recipe stands for; `ViT-B/16-JFT` and `b16-jft` are `vit-b16-jft`."""
    return RECIPES[_known(name)]()


def describe(name: str) -> str:
    """A recipe in one line: the first of its docstring."""
    return (inspect.getdoc(RECIPES[_known(name)]) or "").partition("\n")[0]


def find(name: str) -> str | None:
    """The recipe that a spelling means, or None."""
    return _SPELLINGS.get(_plain(name))


def near_miss(name: str, cutoff: float = 0.5) -> str | None:
    """The recipe that was probably meant by a name that is none, if any is near."""
    near = difflib.get_close_matches(_plain(name), _SPELLINGS, n=1, cutoff=cutoff)
    return _SPELLINGS[near[0]] if near else None


def _known(name: str) -> str:
    if (found := find(name)) is not None:
        return found
    near = near_miss(name)
    hint = f"did you mean {near}?" if near else "for example mnist5k, vit-b16-in21k or finetune-cifar10"
    raise UserError(f"there is no recipe named {name!r}; {hint} (`vitrail plan` lists them)")


def _plain(name: str) -> str:
    """What all spellings of a name share: model names accept the same, a missing `vit-` included."""
    return re.sub(r"\b(vit|bit)[-_ ]|[-_/ ]", "", name.strip().lower())


_SPELLINGS = {_plain(name): name for name in RECIPES}
assert len(_SPELLINGS) == len(RECIPES), "two recipes share a spelling"
