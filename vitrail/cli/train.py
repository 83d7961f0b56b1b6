"""`vitrail train [RECIPE] [--data SRC] [--out RUN] [--resume]`: trains a model; every field of the configuration is a
flag."""

from vitrail.cli.mistakes import check_pictures, check_recipe
from vitrail.cli.processes import launch, without
from vitrail.cli.short_help import DATA, SHARED, Option, screen
from vitrail.cli.train_flags import OwnFlags, chosen_folder, command_line, read_fields, run_training, show_help
from vitrail.errors import UserError
from vitrail.recipes import RECIPES, recipe

_DEFAULT = "mnist5k"
"""The recipe that is used if none is named."""
_EMBEDDED = ("digits", "mnist5k")
"""The data that comes with the package."""
EXAMPLES = ("deit-s16-in1k", "vit-b16-in21k")
"""Recipes of the papers that the help names."""

USAGE = "vitrail train [RECIPE] [--data SRC] [--out RUN] [options]"
ABOUT = """Train a model. RECIPE: {recipes}, or one of the papers' ({examples} ...; `vitrail plan` lists all); without
one, {default} on embedded data. To learn your own photos, `vitrail finetune` starts from a trained model."""
OPTIONS = (
    Option("--data SRC", DATA, "data.source"),
    Option("--model.size NAME", "a model by name, such as S/16", "model.name"),
    *SHARED,
)


def run(arguments: list[str]) -> None:
    """Runs the command with these arguments."""
    flags = OwnFlags(arguments, positional=True)
    if flags.help:
        return _help(flags)
    if flags.resume and not flags.out:
        raise UserError("--resume needs --out RUN: the run to go on with")
    if flags.resume:
        from vitrail.training.run_folder import read_config

        default = read_config(str(flags.out))
    else:
        check_recipe(flags.positional, from_model=flags.given("--init-from"))
        default = recipe(flags.positional or _DEFAULT)
    config = read_fields(default, flags, "vitrail train")
    if flags.source is not None and not flags.resume:
        check_pictures(config, named=flags.positional is not None)
    out = chosen_folder(flags, config.recipe or "train")
    if flags.processes is not None:
        return launch(flags.processes, ["train", *without(arguments, "--processes", "--out"), "--out", str(out)])
    return run_training(
        config, out, flags.resume, flags.json, lambda run: command_line("vitrail", "train", "--out", run, "--resume")
    )


def _help(flags: OwnFlags) -> None:
    """Prints the help, with the defaults of the recipe."""
    default = recipe(flags.positional or _DEFAULT)
    small = [name for name in RECIPES if recipe(name).data.source in _EMBEDDED and not name.startswith("finetune")]
    about = ABOUT.format(recipes=", ".join(small), examples=", ".join(EXAMPLES), default=_DEFAULT)
    show_help(screen(USAGE, about, OPTIONS, default), default, flags, "vitrail train")
