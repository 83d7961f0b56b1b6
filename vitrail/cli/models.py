"""`vitrail models`: what there is."""

from typing import Annotated

import tyro

from vitrail.cli import emit_json
from vitrail.errors import UserError
from vitrail.models.cost import cost
from vitrail.models.sizes import NAMES, config_for


def command(
    name: Annotated[tuple[str, ...], tyro.conf.Positional] = (),
    *,
    image_size: int = 224,
    json: bool = False,
) -> None:
    """List the models by name, with parameters, GMACs and tokens at 1000 classes.

    Args:
        name: Show these alone; any patch size works, for example Ti/8.
        image_size: Side of the square image in pixels.
        json: Print one JSON document.
    """
    rows = []
    for each in name or NAMES:
        try:
            config = config_for(each, image_size=image_size)
        except UserError:
            if name:
                raise
            continue  # of the whole list, those whose patches do not divide the size are left out
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
