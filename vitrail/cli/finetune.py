"""`vitrail finetune MODEL --data SRC --out RUN`: trains a trained model further, as the paper does unless told
otherwise."""

from pathlib import Path

from vitrail.cli import note
from vitrail.cli.processes import launch, without
from vitrail.cli.short_help import DATA, SHARED, Option, screen
from vitrail.cli.train_flags import OwnFlags, chosen_folder, command_line, read_fields, run_training, show_help
from vitrail.environment import is_distributed, is_first
from vitrail.errors import UserError

USAGE = "vitrail finetune MODEL --data SRC [--out RUN] [options]"
ABOUT = """Start from a trained MODEL: a name such as Ti/16 (vitrail models --weights lists them), a bundle, a run, a
weights file, hf:owner/name. First the features of the training images are computed once and a head is solved on them:
RUN/probe, a model that can be used at once. Then the whole model is fine-tuned from there, and the better of the two on
validation is kept. Positions are interpolated if the image size differs."""
OPTIONS = (
    Option("--data SRC", DATA),
    Option("--quick", "stop after the probe: only the head learns (as with --freeze backbone)"),
    Option("--recipe NAME", "a recipe of the paper (finetune-cifar10, finetune-flowers ...); its head begins at zero"),
    Option(
        "--preprocessing NAME",
        "how images are prepared, for weights that do not say it: half, imagenet, or crop_fraction=0.875 and the like; "
        "without it both usual means and deviations are tried on training images",
    ),
    Option("--search-lr", "try the paper's learning rates on a dev split and use the best"),
    *SHARED,
)


def run(arguments: list[str]) -> None:
    """Runs the command with these arguments."""
    flags = OwnFlags(arguments, positional=True)
    name, search = flags.value("--recipe"), flags.switch("--search-lr")
    preprocessing, quick = flags.value("--preprocessing"), flags.switch("--quick")
    if flags.help:
        return _help(flags, name, preprocessing)
    if flags.resume:
        return _resume(flags, arguments)
    if flags.positional is None:
        raise UserError("vitrail finetune needs a MODEL: Ti/16 or another name, a bundle, a run, a weights file")
    if flags.source is None:
        raise UserError("vitrail finetune needs --data SRC: a folder of class folders, or another source")
    if quick and name is not None:
        raise UserError("--quick solves the head in closed form, --recipe trains it from zero: leave one of them out")
    from vitrail.checkpoints.starting_model import StartingModel
    from vitrail.transfer import check_quick, chosen_config, search_learning_rate, with_preprocessing

    start = StartingModel(flags.positional, preprocessing)
    default = chosen_config(start, flags.source, name, None, flags.task)
    if quick:
        default = default.with_(freeze="backbone")
    config = read_fields(default, flags, "vitrail finetune")
    if quick:
        check_quick(config)
    out = chosen_folder(flags, "finetune")
    if flags.processes is not None:
        return launch(flags.processes, ["finetune", *without(arguments, "--processes", "--out"), "--out", str(out)])
    if search and is_distributed():
        raise UserError(
            "--search-lr trains many small runs: do it in one process, then give --optimizer.lr to the rest"
        )
    given = preprocessing is not None or flags.given("--preprocessing.mean") or flags.given("--preprocessing.std")
    if not given and is_first():  # the other processes take the configuration of the first
        config = with_preprocessing(config, note, start)
    if search:
        config = search_learning_rate(config, out, note)
    return run_training(config, out, False, flags.json, _again, start)


def _help(flags: OwnFlags, name: str | None, preprocessing: str | None) -> None:
    """Prints the help; with a model and data, it shows the defaults chosen for them."""
    default = None
    if flags.positional is not None and flags.source is not None:
        from vitrail.transfer import chosen_config

        default = chosen_config(flags.positional, flags.source, name, preprocessing, flags.task)
    show_help(screen(USAGE, ABOUT, OPTIONS, default), default, flags, "vitrail finetune")


def _resume(flags: OwnFlags, arguments: list[str]) -> None:
    """Continues the run in --out."""
    from vitrail.training.run_folder import read_config

    if not flags.out:
        raise UserError("--resume needs --out RUN: the run to go on with")
    config = read_fields(read_config(flags.out), flags, "vitrail finetune")
    if flags.processes is not None:
        return launch(flags.processes, ["finetune", *without(arguments, "--processes")])
    return run_training(config, Path(flags.out), True, flags.json, _again)


def _again(run: Path) -> str:
    """Returns the command that continues a run."""
    return command_line("vitrail", "finetune", "--out", run, "--resume")
