"""`vitrail plan`: computes what a training costs in advance; without a name, lists the recipes."""

import math
from typing import Annotated, Any, Literal, get_args

import tyro

from vitrail.cli import emit_json
from vitrail.config import DataConfig, ModelConfig, TrainConfig
from vitrail.config.training import Parallel
from vitrail.errors import UserError
from vitrail.models.cost import Plan, plan
from vitrail.models.cost_at_scale import pace, scale, shards
from vitrail.models.sizes import config_for
from vitrail.recipes import IMAGES, RECIPES, describe_recipe, find_recipe, near_miss, recipe


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
    accelerators: int | None = None,
    parallel: Parallel | None = None,
    accelerator_flops: float | None = None,
    bandwidth: str | None = None,
    image_bytes: str = "115kB",
    shard_size: str = "256MB",
    json: bool = False,
) -> None:
    """Computes parameters, FLOPs, memory and time of a training. Without a name: lists the recipes.

    FLOPs are counted as in the paper: three forward passes a step, two FLOPs for each multiply-add. Memory is what one
    device would hold if it computed the whole batch alone. By default all values are the recipe's.

    With --accelerators it also shows what each of them holds and sends, under ddp and under fsdp, and how fast they are
    together.

    Args:
        recipe_or_model: The name of a recipe, for example vit-b16-jft, or of a model, for example B/16.
        images: The number of images in the training set; needed for a model, and for a recipe on data of your own.
        epochs: The number of passes over the training images; 1 for a model.
        batch: The number of images a step; 4096 for a model.
        image_size: The side of the image in pixels, if it is not the model's own.
        num_classes: The number of classes of the head; 1000 for a model.
        flops_per_second: The FLOPs a second that all the hardware together sustains; with it the time is computed.
        optimizer: The optimizer: adamw keeps two numbers for each weight, sgd with momentum keeps one.
        half_precision: Compute activations in two bytes (bf16 or fp16 by autocast), with copies of the weights.
        gradient_checkpointing: Keep only each block's input for the backward pass, and compute the rest again.
        accelerators: The number of accelerators that share every batch.
        parallel: The way of sharing whose time is the plan's: ddp holds the whole model on each accelerator, fsdp a
            part of it.
        accelerator_flops: The FLOPs a second that one accelerator sustains; with it the time is computed.
        bandwidth: The bytes that an accelerator sends in a second, such as 25GB; without it sending takes no time.
        image_bytes: The average size of an encoded image file; 115kB is that of ImageNet.
        shard_size: The size of a .tar shard, as vitrail data shard writes them.
        json: Print one JSON document.
    """
    for flag, value in (
        ("--images", images),
        ("--epochs", epochs),
        ("--batch", batch),
        ("--flops-per-second", flops_per_second),
        ("--accelerators", accelerators),
        ("--accelerator-flops", accelerator_flops),
    ):
        if value is not None and not 0 < value < math.inf:
            raise UserError(f"{flag} must be above 0, not {value}")
    if not recipe_or_model:
        return _list(json)
    for flag, value in (("parallel", parallel), ("accelerator-flops", accelerator_flops), ("bandwidth", bandwidth)):
        if accelerators is None and value is not None:
            raise UserError(f"--{flag} goes with --accelerators")
    if flops_per_second and accelerator_flops:
        raise UserError("--flops-per-second is of all accelerators, --accelerator-flops of one: give one of them")
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
    seconds, many = result.seconds, None
    if accelerators is not None:
        many = _many(
            config,
            images=images,
            epochs=epochs or 1.0,
            batch=batch,
            accelerators=accelerators,
            optimizer=optimizer or chosen.optimizer.name,
            half=bytes_each == 2,
            flops=accelerator_flops or (flops_per_second and flops_per_second / accelerators),
            bandwidth=bandwidth,
            image_bytes=image_bytes,
            shard_size=shard_size,
        )
        many["parallel"] = parallel or chosen.parallel
        seconds = many[many["parallel"]]["seconds"]
    if json:
        return emit_json(
            {
                "parameters": result.parameters,
                "gmacs": result.gmacs,
                "steps": result.steps,
                "flops_per_step": result.flops_per_step,
                "exaflops": result.exaflops,
                "memory_bytes": {**result.memory, "total": sum(result.memory.values())},
                "seconds": seconds,
                **({"scale": many} if many else {}),
            }
        )
    title = ", ".join(name for name in (chosen.recipe, config.name) if name)
    _show(f"{title}: {images:,} images x {epochs:.4g} epochs, batch {batch}", config, result, many)
    return _show_many(many) if many else None


def _many(
    config: ModelConfig,
    *,
    images: int,
    epochs: float,
    batch: int,
    accelerators: int,
    optimizer: str,
    half: bool,
    flops: float | None,
    bandwidth: str | None,
    image_bytes: str,
    shard_size: str,
) -> dict[str, Any]:
    """Computes what many accelerators do together, as JSON: what ddp and fsdp share, and a document for each of
    them."""
    from vitrail.io.sizes import byte_count

    each_image, each_shard = byte_count(image_bytes, "--image-bytes"), byte_count(shard_size, "--shard-size")
    speed = None if bandwidth is None else byte_count(bandwidth, "--bandwidth")
    shared = scale(config, batch, accelerators, optimizer, half)
    many: dict[str, Any] = {
        "accelerators": accelerators,
        "batch": shared.batch,
        "data_bytes": images * each_image,
        "shards": shards(images, each_image, each_shard),
    }
    for kind in get_args(Parallel):
        held, sent = shared.memory[kind], shared.traffic[kind]
        many[kind] = {
            "memory_bytes": {**held, "total": sum(held.values())},
            "sent_bytes": {"forward": sent.forward, "backward": sent.backward, "total": sent.total},
            "seconds": None,
        }
        if flops:
            found = pace(config, batch, accelerators, sent, flops, speed)
            many[kind] |= {
                "step_seconds": found.step_seconds,
                "compute_seconds": found.compute_seconds,
                "images_per_second": found.images_per_second,
                "tokens_per_second": found.tokens_per_second,
                "read_bytes_per_second": found.images_per_second * each_image,
                "seconds": images * epochs / found.images_per_second,
            }
    return many


def _chosen(name: str) -> TrainConfig:
    """Returns a recipe; or a model as a recipe of one epoch at the paper's batch size, on unknown data."""
    if found := find_recipe(name):
        return recipe(found)
    try:
        model = config_for(name)
    except UserError as error:
        # A similar recipe is suggested too; the cutoff is high, since most names given here are those of models.
        if near := near_miss(name, cutoff=0.7):
            message = f"{error}\nnor is {name!r} a recipe; did you mean {near}? (`vitrail plan` lists them)"
            raise UserError(message) from None
        raise
    return TrainConfig(model=model, data=DataConfig(""), epochs=1.0, batch_size=4096)


def _changed(
    model: ModelConfig, image_size: int | None, num_classes: int | None, gradient_checkpointing: bool
) -> ModelConfig:
    """Returns the model with the fields that flags change."""
    given = {"image_size": image_size, "num_classes": num_classes, "gradient_checkpointing": gradient_checkpointing}
    return model.with_(**{field: value for field, value in given.items() if value is not None and value is not False})


def _list(json: bool) -> None:
    """Prints the recipes."""
    if json:
        return emit_json([{"name": name, "description": describe_recipe(name)} for name in RECIPES])
    from rich.console import Console
    from rich.table import Table

    table = Table("recipe", "what it is", box=None)
    for name in RECIPES:
        table.add_row(name, describe_recipe(name))
    return Console().print(table)


def _show(title: str, config: ModelConfig, result: Plan, many: dict[str, Any] | None) -> None:
    """Prints the costs as a table."""
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
    if many is None:  # with accelerators, memory and time are in the second table
        for part, amount in result.memory.items():
            table.add_row(f"memory: {part}", _bytes(amount))
        table.add_row("memory: in all", _bytes(sum(result.memory.values())))
        time = _duration(result.seconds) if result.seconds else "give --flops-per-second to see it"
        table.add_row("time", time)
    else:
        table.add_row("data", f"{_bytes(many['data_bytes'])} in {many['shards']:,} shards")
    console = Console()
    console.print(title, style="italic", highlight=False, soft_wrap=True)
    console.print(table)


def _show_many(many: dict[str, Any]) -> None:
    """Prints a table of what each accelerator holds, sends and computes, a column for each way of sharing."""
    from rich.console import Console
    from rich.table import Table

    kinds = get_args(Parallel)
    table = Table(f"{many['accelerators']:,} accelerators, {many['batch']:,} images a step each", *kinds, box=None)

    def add(title: str, value: Any) -> None:
        """Adds a line with one value for each way of sharing."""
        table.add_row(title, *(value(many[kind]) for kind in kinds))

    for part in ("weights", "gradients", "optimizer", "copies", "gathered", "activations", "total"):
        if not any(part in many[kind]["memory_bytes"] for kind in kinds):
            continue
        name = "in all" if part == "total" else part
        add(f"memory: {name}", lambda each, part=part: _bytes(each["memory_bytes"].get(part, 0)))
    add("sent by each in a step", lambda each: _bytes(each["sent_bytes"]["total"]))
    if many["ddp"]["seconds"] is not None:
        add("one step", lambda each: f"{1000 * each['step_seconds']:,.4g} ms")
        add("  of it computing", lambda each: f"{each['compute_seconds'] / each['step_seconds']:.1%}")
        add("images a second", lambda each: f"{each['images_per_second']:,.0f}")
        add("tokens a second", lambda each: f"{each['tokens_per_second']:,.0f}")
        add("read from the shards", lambda each: f"{_bytes(each['read_bytes_per_second'])}/s")
        add("time", lambda each: _duration(each["seconds"]))
    console = Console()
    console.print(table)
    if many["ddp"]["seconds"] is None:
        console.print("give --accelerator-flops to see the time", style="italic", highlight=False)


def _bytes(amount: float) -> str:
    """Returns a size with its unit, such as 1.5 GB."""
    for unit in ("B", "kB", "MB", "GB"):
        if amount < 1000:
            return f"{amount:,.3g} {unit}"
        amount /= 1000
    return f"{amount:,.4g} TB"


def _duration(seconds: float) -> str:
    """Returns a time with its unit, such as 3.2 h."""
    if seconds < 120:
        return f"{seconds:.1f} s"
    minutes = seconds / 60
    if minutes < 120:
        return f"{minutes:.0f} min"
    hours = minutes / 60
    return f"{hours:.1f} h" if hours < 72 else f"{hours / 24:,.1f} days"
