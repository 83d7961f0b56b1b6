"""`train --help` and `finetune --help`: one screen of what people use, with this run's defaults."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from vitrail.config import TrainConfig

WIDTH, INDENT = 100, 27


@dataclass(frozen=True)
class Option:
    flag: str
    """With what it takes: `--data SRC`."""
    says: str
    field: str = ""
    """Of TrainConfig, dotted: its value is the default."""
    unknown: str = ""
    """Where the default depends on a model and data: what to say of it before these are known."""

    def text(self, config: TrainConfig | None) -> str:
        if self.unknown and config is None:
            return f"{self.says} (default: {self.unknown})"
        value = reduce(getattr, self.field.split("."), config or _UNKNOWN) if self.field else None
        return self.says if value is None or value == "" else f"{self.says} (default: {_shown(value)})"


_UNKNOWN = TrainConfig(steps=1)
DATA = (
    "digits, mnist5k, a folder of class folders, a .csv table of image files, .tar shards, .parquet, COCO JSON, idx or "
    "CIFAR files, hf:owner/name"
)

CHOSEN = "chosen for the data"

SHARED = (
    Option("--task NAME", "what the data is taken to answer, where it could be more than one thing (a table, say)"),
    Option("--out RUN", "the folder to write: model, report, what is needed to go on (default: a free one in runs/)"),
    Option("--resume", "go on with the run in --out, to the same bits"),
    Option("--epochs N", "passes over the training images", "epochs"),
    Option("--steps N", "or so many steps; a shorter run has a shorter warm-up", "steps", CHOSEN),
    Option("--batch-size N", "images a step", "batch_size", CHOSEN),
    Option("--optimizer.lr X", "the peak learning rate", "optimizer.lr", CHOSEN),
    Option("--model.image-size N", "rows and columns in pixels", "model.image_size", "the model's"),
    Option("--data.val-fraction X", "set aside for validation where the data has none", "data.val_fraction"),
    Option("--class-weights balanced", "every class counts alike, however few its images"),
    Option("--patience N", "stop after N evaluations in a row that were no better"),
    Option("--seed N", "another order, other augmentation", "seed"),
    Option("--device NAME", "auto, cpu, cuda, mps", "device"),
    Option("--processes N", "share every batch among N processes of this machine"),
    Option("--json", "print one JSON document"),
    Option("--help-all", "every field there is, as a flag"),
)


def screen(usage: str, about: str, options: Sequence[Option], config: TrainConfig | None) -> str:
    """The help: how the command is called, what it does, and its options. Without a configuration, what depends on the
    model and the data has no default to show."""
    lines = [f"usage: {usage}", "", *textwrap.wrap(about, WIDTH), "", "options:"]
    for each in options:
        wrapped = textwrap.wrap(each.text(config), WIDTH - INDENT)
        lines += [f"  {each.flag:<{INDENT - 4}}  {wrapped[0]}", *(" " * INDENT + more for more in wrapped[1:])]
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return f"{value:g}" if isinstance(value, float) else str(value)
