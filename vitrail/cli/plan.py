"""`vitrail plan`: what a training costs, before paying for it."""

from typing import Annotated, Literal

import tyro

from vitrail.cli import emit_json
from vitrail.errors import UserError
from vitrail.models.cost import plan
from vitrail.models.sizes import config_for


def command(
    model: Annotated[str, tyro.conf.Positional],
    *,
    images: int,
    epochs: float = 1.0,
    batch: int = 4096,
    image_size: int | None = None,
    num_classes: int = 1000,
    flops_per_second: float | None = None,
    optimizer: Literal["adamw", "sgd"] = "adamw",
    half_precision: bool = False,
    gradient_checkpointing: bool = False,
    json: bool = False,
) -> None:
    """Parameters, FLOPs, memory and time of a training.

    FLOPs are counted as the paper counts them: three forward passes a step, two FLOPs a multiply-add. Memory is what
    one device would hold if it did the whole batch alone.

    Args:
        model: A model's name, for example B/16.
        images: Images in the training set.
        epochs: Passes over them.
        batch: Images a step.
        image_size: Side of the image in pixels, where it is not the model's own.
        num_classes: Classes of the head.
        flops_per_second: What the hardware sustains; gives the time.
        optimizer: AdamW keeps two numbers a weight, SGD with momentum one.
        half_precision: Activations of two bytes (bf16 or fp16).
        gradient_checkpointing: Keep each block's input only, and compute the rest again.
        json: Print one JSON document.
    """
    for flag, value in (("--images", images), ("--epochs", epochs), ("--batch", batch)):
        if value <= 0:
            raise UserError(f"{flag} must be above 0, not {value}")
    if flops_per_second is not None and flops_per_second <= 0:
        raise UserError(f"--flops-per-second must be above 0, not {flops_per_second}")
    config = config_for(model, num_classes=num_classes, gradient_checkpointing=gradient_checkpointing)
    if image_size is not None:
        config = config.with_(image_size=image_size)
    bytes_each = 2 if half_precision else 4
    result = plan(config, images, epochs, batch, flops_per_second, optimizer, bytes_each)
    total = sum(result.memory.values())
    if json:
        emit_json(
            {
                "parameters": result.parameters,
                "gmacs": result.gmacs,
                "steps": result.steps,
                "flops_per_step": result.flops_per_step,
                "exaflops": result.exaflops,
                "memory_bytes": {**result.memory, "total": total},
                "seconds": result.seconds,
            }
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"{config.name}: {images:,} images x {epochs:g} epochs, batch {batch}", box=None)
    table.title_justify = "left"
    table.show_header = False
    table.add_row("parameters", f"{result.parameters:,}")
    table.add_row(
        "forward",
        f"{result.gmacs:,.2f} GMACs an image, {config.tokens if config.family == 'vit' else '-'} tokens",
    )
    table.add_row("steps", f"{result.steps:,}")
    table.add_row("one step", f"{result.flops_per_step:.3g} FLOPs")
    table.add_row("in all", f"{result.exaflops:,.4g} exaFLOPs")
    for part, amount in result.memory.items():
        table.add_row(f"memory: {part}", _bytes(amount))
    table.add_row("memory: in all", _bytes(total))
    time = _duration(result.seconds) if result.seconds else "give --flops-per-second to see it"
    table.add_row("time", time)
    Console().print(table)


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
