"""Reads the flags of train and finetune: a few of their own, and every field of TrainConfig."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitrail.cli import emit_json, note
from vitrail.cli.spelling import check_flags, field_flags
from vitrail.config import ModelConfig, TrainConfig
from vitrail.config.training import scaled_warmup
from vitrail.environment import is_distributed, is_first
from vitrail.errors import UserError
from vitrail.models.sizes import size_fields

if TYPE_CHECKING:
    from vitrail.checkpoints.starting_model import StartingModel


class OwnFlags:
    """The command's own flags, taken off the list of arguments; those left are fields of the configuration."""

    def __init__(self, arguments: list[str], positional: bool):
        self.rest = list(arguments)
        self.own: list[str] = []
        """The flags that the command takes for itself, without the two hyphens."""
        self.help_all = self.switch("--help-all")
        self.help = self.switch("-h") | self.switch("--help") | self.help_all
        self.positional = self.rest.pop(0) if positional and self.rest and not self.rest[0].startswith("-") else None
        self.json, self.resume = self.switch("--json"), self.switch("--resume")
        self.out, self.size = self.value("--out"), self.value("--model.size")
        self.processes = self.value("--processes")
        self.task = self.value("--task")
        if self.task is not None:
            self.rest += ["--data.task", self.task]
        short, source = self.value("--data"), self.value("--data.source")
        self.source = source if short is None else short
        if self.source is not None:
            self.rest += ["--data.source", self.source]

    def switch(self, name: str) -> bool:
        """Takes a flag without a value off the list; tells whether it was there."""
        found = name in self.rest
        self.own.append(name.removeprefix("--"))
        self.rest = [each for each in self.rest if each != name]
        return found

    def given(self, name: str) -> bool:
        """Tells whether a flag is among the arguments that are left."""
        return any(each == name or each.startswith(name + "=") for each in self.rest)

    def value(self, name: str) -> str | None:
        """Takes `--name VALUE` or `--name=VALUE` off the list and returns the value; the last one counts."""
        found, kept, index = None, [], 0
        self.own.append(name.removeprefix("--"))
        while index < len(self.rest):
            each = self.rest[index]
            if each == name:
                if index + 1 >= len(self.rest):
                    raise UserError(f"{name} needs a value")
                found, index = self.rest[index + 1], index + 2
            elif each.startswith(name + "="):
                found, index = each.partition("=")[2], index + 1
            else:
                kept.append(each)
                index += 1
        self.rest = kept
        return found


def show_help(text: str, config: TrainConfig | None, flags: OwnFlags, prog: str) -> None:
    """Prints the help of a command; with --help-all also every field of the configuration."""
    print(text)
    if flags.help_all:
        flags.rest = ["--help"]
        read_fields(config or TrainConfig(epochs=1), flags, prog, "Every field of the configuration is a flag too.")


def read_fields(default: TrainConfig, flags: OwnFlags, prog: str, description: str = "") -> TrainConfig:
    """Returns the configuration with the fields that were given on the command line.

    A run that is made shorter gets a shorter warm-up, unless the warm-up is given too.
    """
    import tyro

    check_flags(flags.rest, [*flags.own, *field_flags(default)], prog)
    planned = default
    arguments = [*_size_flags(flags.size, default.model), *flags.rest] if flags.size is not None else flags.rest
    steps, epochs = flags.given("--steps"), flags.given("--epochs")
    if steps != epochs:  # the given one replaces the other, whichever the recipe has
        default = default.with_(steps=1, epochs=None) if steps else default.with_(steps=None, epochs=1)
    style = (tyro.conf.FlagCreatePairsOff, tyro.conf.AvoidSubcommands)
    config = tyro.cli(TrainConfig, default=default, args=arguments, prog=prog, description=description, config=style)
    if steps == epochs or flags.given("--schedule.warmup-steps"):
        return config
    scaled = scaled_warmup(config, planned, lambda: _training_samples(config))
    if scaled != config and is_first() and flags.processes is None:
        now, before = scaled.schedule.warmup_steps, config.schedule.warmup_steps
        note(f"warm-up: {now} steps in place of {before}, since the run is shorter (else --schedule.warmup-steps)")
    return scaled


def _training_samples(config: TrainConfig) -> int:
    """Returns the number of training samples."""
    from vitrail.data import open_data

    return len(open_data(config.data).split("train"))


def _size_flags(size: str, default: ModelConfig) -> list[str]:
    """Returns the flags of the fields that a model's name stands for.

    They come before the given flags, which override them. All are checked together, because a size need not fit the
    recipe's other fields, only those of the requested model.
    """
    found = []
    for name, value in size_fields(size).items():
        flag = name.replace("_", "-")
        if isinstance(value, bool):
            if value != getattr(default, name):
                found.append(f"--model.{flag}" if value else f"--model.no-{flag}")
        else:
            found += [f"--model.{flag}", *map(str, value if isinstance(value, tuple) else [value])]
    return found


def free_folder(name: str) -> Path:
    """Returns runs/NAME, or if that exists runs/NAME-2 and so on."""
    number = 1
    while True:
        path = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if not path.exists():
            return path
        number += 1


def chosen_folder(flags: OwnFlags, name: str) -> Path:
    """Returns --out, or a new folder; with several processes --out is required, since each would find another."""
    if flags.out:
        return Path(flags.out)
    if is_distributed():
        raise UserError("under torchrun give --out RUN: the run folder that all processes share")
    return free_folder(name)


def run_training(
    config: TrainConfig,
    out: Path,
    resume: bool,
    json: bool,
    again: Callable[[Path], str],
    start: "StartingModel | None" = None,
) -> None:
    """Trains, then prints the result; if it is interrupted, prints the command (`again`) that continues it. start: the
    model that fine-tuning starts from, if it has been loaded already."""
    from vitrail.train import fit
    from vitrail.training.interruption import Interrupted

    try:
        result = fit(config, out, resume, start=start)
    except Interrupted as interrupted:
        if is_first():
            note(f"{interrupted}: the state is saved; go on with\n  {again(out)}")
        sys.exit(interrupted.status)
    if not is_first():
        return
    if json:
        emit_json(result.to_json())
        return
    print(result.summary())
    print(f"model:  {result.bundle}\nreport: {result.run / 'report.html'}")
    name = shlex.quote(str(out))
    if config.self_supervised:
        # Nearest neighbours were measured if the data has labels; else other data is needed for fine-tuning.
        data = shlex.quote(config.data.source) if "knn_top1" in result.metrics else "FOLDER_OF_CLASS_FOLDERS"
        print(f"next:   vitrail finetune {name} --data {data}")
    else:
        print(f"next:   vitrail predict {name} PHOTO\n        vitrail serve {name}")


def command_line(*parts: Any) -> str:
    """Returns the words as a command that can be pasted into a shell."""
    return shlex.join(str(part) for part in parts)
