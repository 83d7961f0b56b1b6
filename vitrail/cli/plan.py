"""`vitrail plan`: what a training costs, before paying for it; without a name, the recipes there are."""

import math
from typing import Annotated, Literal

import tyro

from vitrail.cli import emit_json
from vitrail.config import DataConfig, ModelConfig, TrainConfig
from vitrail.errors import UserError
from vitrail.models.cost import Plan, plan
from vitrail.models.sizes import config_for
from vitrail.recipes import IMAGES, RECIPES, describe, find, near_miss, recipe


def command(
    recipe_or_model: Annotated[str, tyro.conf.Positional] = "",
    *,
    images: int | None = None,
    epochs: float | None = None,
    batch: int | None = None,
    image_size: int | None = None,
    num_classes: int | None = None,
    flops_per_second: float | None = None,
    optimizer: Literal["adamw", "sgd"] | None = None,
    half_precision: bool = False,
    gradient_checkpointing: bool = False,
    json: bool = False,
) -> None:
    """Parameters, FLOPs, memory and time of a training. Without a name: the recipes there are.

    FLOPs are counted as the paper counts them: three forward passes a step, two FLOPs a multiply-add. Memory is what
    one device would hold if it did the whole batch alone. What is not given is the recipe's.

    Args:
        recipe_or_model: A recipe's name, for example vit-b16-jft, or a model's, for example B/16.
        images: Images in the training set; needed for a model, and for a recipe on data of your own.
        epochs: Passes over them; 1 for a model.
        batch: Images a step; 4096 for a model.
        image_size: Side of the image in pixels, where it is not the model's own.
        num_classes: Classes of the head; 1000 for a model.
        flops_per_second: What the hardware sustains; gives the time.
        optimizer: AdamW keeps two numbers a weight, SGD with momentum one.
        half_precision: Activations of two bytes (bf16 or fp16).
        gradient_checkpointing: Keep each block's input only, and compute the rest again.
        json: Print one JSON document.
    """
    for flag, value in (
        ("--images", images),
        ("--epochs", epochs),
        ("--batch", batch),
        ("--flops-per-second", flops_per_second),
    ):
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{flag} must be above 0, not {value}")
    if not recipe_or_model:
        return _list(json)
    chosen = _chosen(recipe_or_model)
    images = images or IMAGES.get(chosen.data.source)
    if images is None:
        raise UserError(f"--images is needed: the number of training images for {recipe_or_model} is not known")
    batch = batch or chosen.batch_size
    if epochs is None:
        epochs = chosen.epochs if chosen.steps is None else chosen.steps * batch / images
    config = _changed(chosen.model, image_size, num_classes, gradient_checkpointing)
    bytes_each = 2 if half_precision or chosen.precision != "float32" else 4
    result = plan(
        *(config, images, epochs or 1.0, batch, flops_per_second), optimizer or chosen.optimizer.name, bytes_each
    )
    if json:
        return emit_json(
            {
                "parameters": result.parameters,
                "gmacs": result.gmacs,
                "steps": result.steps,
                "flops_per_step": result.flops_per_step,
                "exaflops": result.exaflops,
                "memory_bytes": {**result.memory, "total": sum(result.memory.values())},
                "seconds": result.seconds,
            }
        )
    title = ", ".join(name for name in (chosen.recipe, config.name) if name)
    return _show(f"{title}: {images:,} images x {epochs:.4g} epochs, batch {batch}", config, result)


def _chosen(name: str) -> TrainConfig:
    """A recipe; or a bare model, as a recipe of one epoch at the paper's batch on data nobody knows."""
    if found := find(name):
        return recipe(found)
    try:
        model = config_for(name)
    except UserError as error:
        # A name near a recipe's gets that suggested too; the bar is high, since most names here are models'.
        if near := near_miss(name, cutoff=0.7):
            message = f"{error}\nnor is {name!r} a recipe; did you mean {near}? (`vitrail plan` lists them)"
            raise UserError(message) from None
        raise
    return TrainConfig(model=model, data=DataConfig(""), epochs=1.0, batch_size=4096)


def _changed(
    model: ModelConfig, image_size: int | None, num_classes: int | None, gradient_checkpointing: bool
) -> ModelConfig:
    given = {"image_size": image_size, "num_classes": num_classes, "gradient_checkpointing": gradient_checkpointing}
    return model.with_(**{field: value for field, value in given.items() if value is not None and value is not False})


def _list(json: bool) -> None:
    if json:
        return emit_json([{"name": name, "description": describe(name)} for name in RECIPES])
    from rich.console import Console
    from rich.table import Table

    table = Table("recipe", "what it is", box=None)
    for name in RECIPES:
        table.add_row(name, describe(name))
    return Console().print(table)


def _show(title: str, config: ModelConfig, result: Plan) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, show_header=False)
    table.add_row("parameters", f"{result.parameters:,}")
    table.add_row(
        "forward",
        f"{result.gmacs:,.4g} GMACs an image, {config.tokens if config.family == 'vit' else '-'} tokens",
    )
    table.add_row("steps", f"{result.steps:,}")
    table.add_row("one step", f"{result.flops_per_step:.3g} FLOPs")
    table.add_row("in all", f"{result.exaflops:,.4g} exaFLOPs")
    for part, amount in result.memory.items():
        table.add_row(f"memory: {part}", _bytes(amount))
    table.add_row("memory: in all", _bytes(sum(result.memory.values())))
    time = _duration(result.seconds) if result.seconds else "give --flops-per-second to see it"
    table.add_row("time", time)
    console = Console()
    console.print(title, style="italic", highlight=False, soft_wrap=True)
    console.print(table)


def _bytes(amount: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:,.3g} {unit}"
        amount /= 1000
    return f"{amount:,.4g} TB"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    if minutes < 120:
        return f"{minutes:.0f} min"
    hours = minutes / 60
    return f"{hours:.1f} h" if hours < 72 else f"{hours / 24:,.1f} days"
