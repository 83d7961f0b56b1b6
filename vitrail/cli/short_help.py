"""Prints `train --help` and `finetune --help`: one screen of the most used options, with the defaults of this run."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from vitrail.config import TrainConfig

WIDTH, INDENT = 100, 27


@dataclass(frozen=True)
class Option:
    """An option and its line in the help."""

    flag: str
    """The flag with its value: `--data SRC`."""
    says: str
    """What the option does."""
    field: str = ""
    """The field of TrainConfig, dotted, whose value is the default."""
    unknown: str = ""
    """What is shown as the default while the model and the data that it depends on are not known."""

    def text(self, config: TrainConfig | None) -> str:
        """Returns the line, with the default if it is known."""
        if self.unknown and config is None:
            return f"{self.says} (default: {self.unknown})"
        value = reduce(getattr, self.field.split("."), config or _UNKNOWN) if self.field else None
        return self.says if value is None or value == "" else f"{self.says} (default: {_shown(value)})"


_UNKNOWN = TrainConfig(steps=1)
"""Any configuration, for defaults that depend on neither model nor data."""
DATA = (
    "digits, mnist5k, shapes, a folder of class folders, images with masks, a .csv table of image files, .tar shards, "
    ".parquet, COCO JSON, idx or CIFAR files, hf:owner/name"
)
"""The kinds of data that SRC can be."""

CHOSEN = "chosen for the data"
"""The default of options that are chosen for the data."""

SHARED = (
    Option("--task NAME", "the task that the data is for, if it could be for more than one (such as a table)"),
    Option("--out RUN", "the folder to write: model, report, snapshots to resume from (default: a new one in runs/)"),
    Option("--resume", "continue the run in --out; the result is bit-equal to a run that was not interrupted"),
    Option("--epochs N", "the number of passes over the training images", "epochs"),
    Option(
        "--steps N", "the number of steps, instead of --epochs; shorter runs have a shorter warm-up", "steps", CHOSEN
    ),
    Option("--batch-size N", "the number of images a step", "batch_size", CHOSEN),
    Option("--optimizer.lr X", "the peak learning rate", "optimizer.lr", CHOSEN),
    Option("--model.image-size N", "the rows and columns of images in pixels", "model.image_size", "the model's"),
    Option("--data.val-fraction X", "the share set aside for validation without a val split", "data.val_fraction"),
    Option("--class-weights balanced", "every class counts the same in the loss, however few its images"),
    Option("--patience N", "stop after N evaluations in a row without a better result"),
    Option("--seed N", "the seed of the order of images and of augmentation", "seed"),
    Option("--device NAME", "where to compute: auto, cpu, cuda or mps", "device"),
    Option("--processes N", "the number of processes on this machine that share every batch"),
    Option("--json", "print one JSON document"),
    Option("--help-all", "show every field of the configuration, as a flag"),
)
"""The options of both train and finetune."""


def screen(usage: str, about: str, options: Sequence[Option], config: TrainConfig | None) -> str:
    """Returns the help: how the command is called, what it does, and its options.

    Without a configuration, defaults that depend on the model and the data are not shown.
    """
    lines = [f"usage: {usage}", "", *textwrap.wrap(about, WIDTH), "", "options:"]
    for each in options:
        wrapped = textwrap.wrap(each.text(config), WIDTH - INDENT)
        lines += [f"  {each.flag:<{INDENT - 4}}  {wrapped[0]}", *(" " * INDENT + more for more in wrapped[1:])]
    return "\n".join(lines)


def _shown(value: Any) -> str:
    """Returns a value as it is typed on the command line."""
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
