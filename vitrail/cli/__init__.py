"""The `vitrail` command: one file a command, imported only when it is asked for, so that help is instant."""

import importlib
import json
import re
import signal
import sys
import time
from collections.abc import Callable
from inspect import cleandoc, unwrap  # the package has an `inspect` of its own
from typing import Any

from vitrail.errors import UserError

COMMANDS = {
    "train": "train a model: a recipe by name, on embedded data or your own",
    "finetune": "start from a trained model and a folder of photos",
    "evaluate": "how good a model is on a data set: accuracy, mAP or R2, over all and by class",
    "fewshot": "how good a model's features are with a few labelled images of each class",
    "inspect": "look inside a model: filters, positions, attention, and what its answers rest on",
    "study": "the paper's studies: sweeps of trainings with a table, a picture and a conclusion",
    "predict": "what is in pictures: one photo, a folder, an archive of a million",
    "embed": "the features of pictures, for search and clustering",
    "export": "a model as ONNX, OpenVINO or torch.export, checked before it is kept",
    "serve": "models over HTTP: predictions, features, attention, and a page to look at them",
    "models": "the models there are: parameters, GMACs, tokens",
    "plan": "parameters, FLOPs, memory and time of a training before paying for it",
    "bench": "speed beside timm, transformers, torchvision and others, as ratios with their spread",
    "convert": "weights from one format to another, with a parity report",
    "data": "check: find what is wrong with a data set; shard: write it as .tar files",
}

GROUPS = {"data": ("check", "shard")}

SECONDS_TO_BE_ENDED = 10.0
"""How long a process waits for its launcher to end it, once another process says what is wrong with their job."""


def main(arguments: list[str] | None = None) -> None:
    """Entry point: find the command, run it, and turn what goes wrong into one clear message."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        _run(arguments)
    except UserError as error:
        if error.said_by_another:
            _wait_to_be_ended()
        else:
            print(f"vitrail: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("vitrail: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output went away (`vitrail models | head`): nothing is wrong.
        sys.stderr.close()
        sys.exit(0)


def _wait_to_be_ended() -> None:
    """Wait until the launcher ends this process, because another one says what is wrong and ends.

    A launcher ends all processes as soon as one has failed: were this one the first to end, the other would be ended
    before it had spoken, and nobody would have said anything. Returns where no launcher ends it within the time.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(SECONDS_TO_BE_ENDED)


def emit_json(document: Any) -> None:
    """The one JSON document a command prints on stdout under --json."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """A line for the person, on stderr, so that stdout stays what was asked for."""
    print(text, file=sys.stderr)


def _run(arguments: list[str]) -> None:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(_help())
        return
    if arguments[0] in ("-V", "--version"):
        from vitrail import __version__

        print(f"vitrail {__version__}")
        return
    name, rest = arguments[0], arguments[1:]
    if name not in COMMANDS:
        raise UserError(_unknown("command", name, COMMANDS))
    module = importlib.import_module(f"vitrail.cli.{name}")
    if name in GROUPS:
        if not rest or rest[0] in ("-h", "--help"):
            print(f"usage: vitrail {name} {{{','.join(GROUPS[name])}}} ...\n\n{COMMANDS[name]}")
            return
        if rest[0] not in GROUPS[name]:
            raise UserError(_unknown(f"`vitrail {name}` command", rest[0], GROUPS[name]))
        name, command, rest = f"{name} {rest[0]}", getattr(module, rest[0]), rest[1:]
    elif hasattr(module, "run"):  # commands whose flags are the fields of a configuration read them themselves
        module.run(rest)
        return
    else:
        command = module.command
    read_flags(command, rest, name)


def read_flags(command: Callable[..., None], arguments: list[str], name: str) -> None:
    """Call a command with what its flags say."""
    import tyro

    from vitrail.cli.spelling import check_flags, command_flags

    check_flags(arguments, command_flags(command), f"vitrail {name}")
    documented = unwrap(command)
    # A sentence over two lines of the code is one in the help.
    documented.__doc__ = re.sub(r"\n {8,}", " ", cleandoc(documented.__doc__ or ""))
    style = (tyro.conf.FlagCreatePairsOff, tyro.conf.PositionalMetavarFromFieldName, tyro.conf.DisallowNone)
    tyro.cli(command, args=arguments, prog=f"vitrail {name}", config=style)


def _unknown(kind: str, given: str, known: Any) -> str:
    import difflib

    near = difflib.get_close_matches(given, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    return f"there is no {kind} {given!r}; {hint}"


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {text}" for name, text in COMMANDS.items()]
    return "\n".join(
        [
            "vitrail: the Vision Transformer, from a folder of photos to a served model",
            "",
            "usage: vitrail COMMAND ...      (vitrail COMMAND --help explains each)",
            "",
            *lines,
            "",
            "Every command takes --json: one JSON document on stdout, everything else on stderr.",
            "Exit status: 0 done, 2 something you can fix, 1 a bug, 129, 130 or 143 interrupted.",
        ]
    )
