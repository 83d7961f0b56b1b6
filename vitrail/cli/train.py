"""`vitrail train [RECIPE] [--data SRC] [--out RUN] [--resume]` and any field of the configuration."""

from vitrail.cli.configured import Flags, chosen_folder, command_line, read_fields, run_training
from vitrail.cli.launching import launch, without
from vitrail.errors import UserError
from vitrail.recipes import RECIPES, recipe

DEFAULT = "mnist5k"

DESCRIPTION = """vitrail train [RECIPE] [--data SRC] [--out RUN] [--resume] [--json] [--model.size S/16] [any field]

Train a model. RECIPE: {recipes}; without one, mnist5k on embedded data.
--data SRC: digits, mnist5k, a folder of class folders, .tar shards, .parquet, idx or CIFAR files, hf:owner/name.
--out RUN: the run folder (default: runs/RECIPE). --resume: go on with the run there, to the same bits.
--model.size: a model by name; other fields of the model can be given besides.
--processes N: share every batch among N processes of this machine; over several machines, start it by torchrun."""


def run(arguments: list[str]) -> None:
    flags = Flags(arguments, positional=True)
    if flags.resume and not flags.out:
        raise UserError("--resume needs --out RUN: the run to go on with")
    if flags.resume and not flags.help:
        from vitrail.training.run_folder import read_config

        default = read_config(str(flags.out))
    else:
        default = recipe(flags.positional or DEFAULT)
    description = DESCRIPTION.format(recipes=", ".join(RECIPES))
    config = read_fields(default, flags, "vitrail train", description)
    out = chosen_folder(flags, config.recipe or "train")
    if flags.processes is not None:
        return launch(flags.processes, ["train", *without(arguments, "--processes", "--out"), "--out", str(out)])
    return run_training(
        config, out, flags.resume, flags.json, lambda run: command_line("vitrail", "train", "--out", run, "--resume")
    )
