"""`vitrail models`: lists the models, or the published weights."""

from typing import Annotated

import tyro

from vitrail.cli import emit_json
from vitrail.errors import UserError
from vitrail.models.cost import cost
from vitrail.models.sizes import MODEL_NAMES, config_for

_WIDE = 130
"""The width of a terminal from which on the names on the hub are shown."""


def command(
    name: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    *,
    image_size: int = 224,
    weights: bool = False,
    json: bool = False,
) -> None:
    """Lists the models by name, with parameters, GMACs and tokens for 1000 classes.

    Args:
        name: The models to show, instead of all; any patch size works, for example Ti/8.
        image_size: The side of the square image, in pixels.
        weights: List the published weights instead, by the names that every command takes for a MODEL.
        json: Print one JSON document.
    """
    if weights:
        _list_weights(name, json)
        return
    rows = []
    for each in name or MODEL_NAMES:
        try:
            config = config_for(each, image_size=image_size)
        except UserError:
            if name:
                raise
            continue  # without names, models whose patches do not divide the size are left out
        price = cost(config)
        rows.append(
            {
                "name": config.name,
                "parameters": price.parameters,
                "gmacs": round(price.macs / 1e9, 3),
                "tokens": price.tokens or None,
            }
        )
    if json:
        emit_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Models at {image_size} px, 1000 classes", title_justify="left", box=None)
    table.add_column("name")
    for column in ("parameters", "GMACs", "tokens"):
        table.add_column(column, justify="right")
    for row in rows:
        tokens = str(row["tokens"] or "-")
        table.add_row(row["name"], f"{row['parameters']:,}", f"{row['gmacs']:,.2f}", tokens)
    Console().print(table)


def _list_weights(names: tuple[str, ...], json: bool) -> None:
    """Prints the published weights, of these models or of all."""
    from vitrail.checkpoints.published import published_models

    wanted = {config_for(each).name for each in names}
    chosen = [each for each in published_models() if not names or each.name in wanted]
    if not chosen:
        raise UserError(f"no published weights of {' or '.join(names)} are known; without a name, all are listed")
    rows = [each.to_json() for each in chosen]
    if json:
        emit_json(rows)
        return
    from rich.console import Console
    from rich.table import Table

    console = Console()
    wide = console.width >= _WIDE
    title = "Published weights, fetched from the hub when first used (--json says all)"
    shown = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for column in ("name", "trained on"):
        shown.add_column(column, no_wrap=True)
    for column in ("classes", "px"):
        shown.add_column(column, justify="right")
    for column in ("licence", "on the hub")[: 1 + wide]:
        shown.add_column(column, no_wrap=True)
    for row in rows:
        name = row["name"] if row["name"] == row["full_name"] else f"{row['name']} (@{row['variant']})"
        facts = (row["trained_on"].replace(", then", " +"), str(row["num_classes"] or "-"), str(row["image_size"]))
        shown.add_row(name, *facts, row["licence"], *[row["hub"]] * wide)
    console.print(shown)
