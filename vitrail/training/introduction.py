"""The lines a user reads before the first step: assumptions, data, model, number of steps."""

from vitrail.config import ModelConfig, TrainConfig
from vitrail.data import Source, Split
from vitrail.data.value_range import measure_range as measure_values
from vitrail.data.value_range import range_notes
from vitrail.models.build import Model
from vitrail.models.cost import cost
from vitrail.tasks import task
from vitrail.tasks.base import LossSettings
from vitrail.training.objectives import objective_class


def introduction(config: TrainConfig, source: Source, model: Model, settings: LossSettings, place: str) -> list[str]:
    """Returns the lines. settings: what the loss is made from; place: where and how the model is trained, in words."""
    asked = task(source.task)
    balance = [] if settings.weights is None else [asked.head.weights_line(settings.weights.numpy(), source.classes)]
    parts = ", ".join(f"{len(split)} {name}" for name, split in source.splits.items())
    shape = config.model
    summary = (
        f"{source.name}: {asked.target.counted(source.classes) if source.classes else 'no labels'}, {parts}\n"
        f"model: {shape.name or _shape(shape)} at {shape.rows_columns[0]} x {shape.rows_columns[1]} px, "
        f"{cost(shape).parameters:,} parameters, {place}"
        + (f"\nobjective {config.objective}: labels are not used" if not objective_class(config).labelled else "")
    )
    return [*_notes(config, source, model), *_range_notes(config, source.split("train")), *balance, summary]


def _notes(config: TrainConfig, source: Source, model: Model) -> list[str]:
    """Returns notes on the source, the model, a warm-up that is too long, and a head that has no closed form."""
    notes = [*source.notes, *model.card.notes]
    warmup, steps = config.schedule.warmup_steps, config.total_steps(len(source.split("train")))
    if warmup >= steps > 1:  # as if a recipe for a million pictures is used for a few hundred
        notes.append(
            f"warm-up takes {warmup:,} steps and the run has {steps:,}: the learning rate stays below its peak; give a "
            f"shorter one, such as --schedule.warmup-steps {steps // 10}"
        )
    if config.head == "zero":
        return notes
    if (reason := obstacle(config, model)) is not None:
        return [*notes, f"{reason}: it begins at {'random' if config.model.query_tokens else 'zero'}"]
    return [
        line for line in notes if "the head is" not in line
    ]  # the note that the head is new will not be true for long


def obstacle(config: TrainConfig, model: Model) -> str | None:
    """Returns why a head has no closed form, or None if it has one."""
    if not objective_class(config).labelled:
        return f"objective {config.objective} has no head in closed form"
    if getattr(model, "head_dist", None) is not None:
        return "a model with a distillation token has two heads, which have no closed form"
    return task(config.model.task).head.unsolvable(config.objective)


def _range_notes(config: TrainConfig, split: Split) -> list[str]:
    """Returns notes on the range of stored pixel values."""
    limits = config.preprocessing.range
    lines = [f"range: stored values from {limits[0]:g} to {limits[1]:g} are taken as 0 to 1"] if limits else []
    return [*lines, *range_notes(measure_values(split, config.data.max_pixels), limits)]


def _shape(model: ModelConfig) -> str:
    """Describes a model that has no name in a few words."""
    sizes = f"width {model.width}, depth {model.depth}, patch {model.patch_size}"
    if model.stages is None:
        return sizes
    stem = f"{model.stem_width} channels, stages {model.stages}"
    return f"ResNet of {stem}" if model.family == "resnet" else f"hybrid, {model.stem} stem of {stem}, {sizes}"
