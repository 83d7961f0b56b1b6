"""What train and finetune share: their flags are a few of their own and every field of TrainConfig."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitrail.cli import emit_json, note
from vitrail.config import TrainConfig
from vitrail.errors import UserError
from vitrail.launched import is_first, started_together
from vitrail.models.sizes import config_for

SIZE_FIELDS = ("name", "width", "depth", "num_heads", "mlp_dim", "patch_size", "stages", "stem_width", "family")


class Flags:
    """The command's own flags, taken off the list; what is left are fields of the configuration."""

    def __init__(self, arguments: list[str], positional: bool):
        self.rest = list(arguments)
        self.help = any(flag in self.rest for flag in ("-h", "--help"))
        self.positional = self.rest.pop(0) if positional and self.rest and not self.rest[0].startswith("-") else None
        self.json, self.resume = self.switch("--json"), self.switch("--resume")
        self.out, self.size = self.value("--out"), self.value("--model.size")
        self.processes = self.value("--processes")
        if (source := self.value("--data")) is not None:
            self.rest += ["--data.source", source]

    def switch(self, name: str) -> bool:
        found = name in self.rest
        self.rest = [each for each in self.rest if each != name]
        return found

    def given(self, name: str) -> bool:
        return any(each == name or each.startswith(name + "=") for each in self.rest)

    def value(self, name: str) -> str | None:
        """The value of `--name VALUE` or `--name=VALUE`, both accepted; the last one counts."""
        found, kept, index = None, [], 0
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


def read_fields(default: TrainConfig, flags: Flags, prog: str, description: str) -> TrainConfig:
    """The configuration with the fields that were given on the command line."""
    import tyro

    if flags.size is not None:
        size = config_for(flags.size, image_size=default.model.image_size)
        default = default.with_(model=default.model.with_(**{name: getattr(size, name) for name in SIZE_FIELDS}))
    steps, epochs = flags.given("--steps"), flags.given("--epochs")
    if steps != epochs:  # one of them takes the place of the other, whichever the recipe has
        default = default.with_(steps=1, epochs=None) if steps else default.with_(steps=None, epochs=1)
    style = (tyro.conf.FlagCreatePairsOff, tyro.conf.AvoidSubcommands)
    return tyro.cli(TrainConfig, default=default, args=flags.rest, prog=prog, description=description, config=style)


def free_folder(name: str) -> Path:
    """runs/NAME, or runs/NAME-2 and so on where that is taken."""
    number = 1
    while True:
        path = Path("runs") / (name if number == 1 else f"{name}-{number}")
        if not path.exists():
            return path
        number += 1


def chosen_folder(flags: Flags, name: str) -> Path:
    """--out, or a free folder; processes that were started together cannot each look for one."""
    if flags.out:
        return Path(flags.out)
    if started_together():
        raise UserError("under torchrun give --out RUN: the run folder that all processes share")
    return free_folder(name)


def run_training(config: TrainConfig, out: Path, resume: bool, json: bool, again: Callable[[Path], str]) -> None:
    """Train, then say what came of it; interrupted, say how to go on."""
    from vitrail.train import fit
    from vitrail.training.loop import Interrupted

    try:
        result = fit(config, out, resume)
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
    verb = "finetune" if config.self_supervised else "evaluate"
    print(f"next:   vitrail {verb} {shlex.quote(str(out))} --data {shlex.quote(config.data.source)}")


def command_line(*parts: Any) -> str:
    return shlex.join(str(part) for part in parts)
