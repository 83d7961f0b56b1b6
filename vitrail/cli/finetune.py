"""`vitrail finetune MODEL --data SRC --out RUN`: transfer, the paper's way unless told otherwise."""

from pathlib import Path

from vitrail.cli import note
from vitrail.cli.configured import Flags, chosen_folder, command_line, read_fields, run_training
from vitrail.cli.launching import launch, without
from vitrail.config import TrainConfig
from vitrail.errors import UserError
from vitrail.launched import started_together

DESCRIPTION = """vitrail finetune MODEL --data SRC [--out RUN] [--recipe NAME] [--search-lr] [--resume] [any field]

Start from a trained model: the head is new and zero, positions are interpolated where --model.image-size differs.
MODEL: a bundle or run folder, a weights file, hf:owner/name. SRC: a folder of class folders, or any other source.
--recipe NAME: one of the paper's (finetune-cifar10, finetune-flowers ...); without it batch and steps are chosen for
the size of the data, and printed. --freeze backbone: only the head learns (a linear probe).
--processes N: share every batch among N processes of this machine.
--search-lr: try the learning rates of the paper's Table 4 on a dev split cut from the training data, keep the best."""


def run(arguments: list[str]) -> None:
    flags = Flags(arguments, positional=True)
    name, search = flags.value("--recipe"), flags.switch("--search-lr")
    if flags.resume:
        return _resume(flags, arguments)
    if flags.help:
        read_fields(TrainConfig(epochs=1), flags, "vitrail finetune", DESCRIPTION)
    if flags.positional is None:
        raise UserError("vitrail finetune needs a MODEL: a bundle, a run, a weights file or hf:owner/name")
    if "--data.source" not in flags.rest:
        raise UserError("vitrail finetune needs --data SRC: a folder of class folders, or another source")
    from vitrail.transfer import chosen_config, search_learning_rate

    source = flags.rest[len(flags.rest) - 1 - flags.rest[::-1].index("--data.source") + 1]
    default = chosen_config(flags.positional, source, name)
    config = read_fields(default, flags, "vitrail finetune", DESCRIPTION)
    out = chosen_folder(flags, "finetune")
    if flags.processes is not None:
        return launch(flags.processes, ["finetune", *without(arguments, "--processes", "--out"), "--out", str(out)])
    if search and started_together():
        raise UserError(
            "--search-lr trains many small runs: do it in one process, then give --optimizer.lr to the rest"
        )
    if search:
        config = search_learning_rate(config, out, note)
    return run_training(config, out, False, flags.json, _again)


def _resume(flags: Flags, arguments: list[str]) -> None:
    from vitrail.training.run_folder import read_config

    if not flags.out:
        raise UserError("--resume needs --out RUN: the run to go on with")
    config = read_fields(read_config(flags.out), flags, "vitrail finetune", DESCRIPTION)
    if flags.processes is not None:
        return launch(flags.processes, ["finetune", *without(arguments, "--processes")])
    return run_training(config, Path(flags.out), True, flags.json, _again)


def _again(run: Path) -> str:
    return command_line("vitrail", "finetune", "--out", run, "--resume")
