"""What is probably meant by a `vitrail train` that would run for nothing, or not at all."""

import shlex
from pathlib import Path

from vitrail.cli import note
from vitrail.config import TrainConfig
from vitrail.errors import UserError
from vitrail.launched import is_first
from vitrail.recipes import find

_SMALL = 64
"""Recipes of at most so many pixels are for digits and the like. Others are for photos, and nothing is looked at."""
_MUCH = 2
"""Pictures whose sides are more than so many times the model's are much larger."""


def check_recipe(given: str | None, from_model: bool) -> None:
    """Refuses what stands in the place of RECIPE and is none: data, a model, a recipe that starts from a model.

    Args:
        given: The argument, or None.
        from_model: Whether --init-from names a model.
    """
    if given is None:
        return
    path, quoted, found = Path(given).expanduser(), shlex.quote(given), find(given)
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
    if found is not None and found.partition("-")[0] == "finetune" and not from_model:
        raise UserError(
            f"the recipe {found} starts from a trained model: vitrail finetune MODEL --recipe {found} --data SRC"
        )


def check_pictures(config: TrainConfig, named: bool) -> None:
    """Refuses photos under the default recipe, which is for small grey digits; where the recipe was named, says what it
    makes of them.

    Args:
        config: The training.
        named: Whether the person named the recipe.
    """
    if max(config.model.rows_columns) > _SMALL:
        return
    from vitrail.data import open_data
    from vitrail.data.typical import typical

    source = open_data(config.data)
    if not config.self_supervised:
        source.check_labelled("train")  # what else is wrong with the recipe matters less
    found = typical(source.all)
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
    said = f"{config.data.source}: its pictures ({pictures}) become {becomes} by the recipe {config.recipe}"
    if named:
        if is_first():
            note(f"{said}; for photos start from a trained model: vitrail finetune MODEL --data {data}")
        return
    raise UserError(
        f"{said}, which is for digits. From a trained model: vitrail finetune MODEL --data {data}\n"
        f"From scratch, which needs very many pictures: vitrail train deit-ti16-in1k --data {data}; "
        f"or as it is: vitrail train {config.recipe} --data {data}",
        said_by_another=not is_first(),
    )
