"""Recognises a `vitrail train` that cannot do what was probably meant, and says what to do instead."""

import shlex
from pathlib import Path

from vitrail.cli import note
from vitrail.config import TrainConfig
from vitrail.environment import is_first
from vitrail.errors import UserError
from vitrail.recipes import find_recipe, starts_from_a_model

_SMALL = 64
"""The largest image size of recipes for digits, in pixels. Recipes with larger images are for photos and are not
checked."""
_MUCH = 2
"""Pictures count as much larger than the model's images if their sides are more than so many times as long."""


def check_recipe(given: str | None, from_model: bool) -> None:
    """Raises a UserError if data, a model, or a recipe that needs a model is given in the place of RECIPE.

    Args:
        given: The argument, or None.
        from_model: Whether --init-from names a model.
    """
    if given is None:
        return
    path, quoted, found = Path(given).expanduser(), shlex.quote(given), find_recipe(given)
    if found is None and (path / "config.json").is_file():
        raise UserError(
            f"{given} is a model or a run, not a recipe. To learn other data: vitrail finetune {quoted} --data SRC\n"
            f"To go on with a run that was interrupted: vitrail train --out {quoted} --resume"
        )
    if found is None and (path.exists() or given.startswith("hf:") or "://" in given):
        raise UserError(
            f"{given} is data, not a recipe. From a trained model: vitrail finetune MODEL --data {quoted}\n"
            f"From scratch, which needs very many pictures: vitrail train RECIPE --data {quoted} "
            "(`vitrail plan` lists the recipes)"
        )
    if found is not None and starts_from_a_model(found) and not from_model:
        raise UserError(
            f"the recipe {found} starts from a trained model: vitrail finetune MODEL --recipe {found} --data SRC"
        )


def check_pictures(config: TrainConfig, named: bool) -> None:
    """Raises a UserError for photos under the default recipe, which is for small grey digits.

    If the person named the recipe, a note says what it makes of the photos.

    Args:
        config: The configuration of the training.
        named: Whether the person named the recipe.
    """
    if max(config.model.rows_columns) > _SMALL:
        return
    from vitrail.data import open_data
    from vitrail.data.typical_picture import typical_picture

    source = open_data(config.data)
    if not config.self_supervised:
        source.check_labelled("train")  # missing labels are the more important error
    found = typical_picture(source.all)
    if found is None:
        return
    rows, columns = config.model.rows_columns
    large = found.rows > _MUCH * rows and found.columns > _MUCH * columns
    made_grey = found.colour and config.model.channels == 1
    if not large and not made_grey:
        return
    pictures = f"about {found.rows} x {found.columns} px" + (", in colour" if found.colour else "")
    becomes = f"{rows} x {columns} px" + (" and grey" if made_grey else "")
    data = shlex.quote(config.data.source)
    finding = f"{config.data.source}: its pictures ({pictures}) become {becomes} by the recipe {config.recipe}"
    if named:
        if is_first():
            note(f"{finding}; for photos start from a trained model: vitrail finetune MODEL --data {data}")
        return
    raise UserError(
        f"{finding}, which is for digits. From a trained model: vitrail finetune MODEL --data {data}\n"
        f"From scratch, which needs very many pictures: vitrail train deit-ti16-in1k --data {data}; "
        f"or as it is: vitrail train {config.recipe} --data {data}",
        said_by_another=not is_first(),
    )
