"""Runs the `vitrail` command. Each command is one file, imported only when it is called, so that help is instant."""

import importlib
import json
import re
import signal
import sys
import time
from collections.abc import Callable
from inspect import cleandoc, unwrap  # the package has its own module `inspect`
from typing import Any

from vitrail.environment import silence_pillow
from vitrail.errors import UserError, first_line, is_out_of_memory, printable

COMMANDS = {
    "train": "train a model by a recipe, on embedded data or your own",
    "finetune": "train a trained model further, on a folder of photos or other data",
    "evaluate": "measure a model on a data set: accuracy, mAP or R2, in total and by class",
    "fewshot": "measure a model's features: learn from a few labelled images of each class",
    "inspect": "look inside a model: filters, positions, attention, what its answers depend on",
    "study": "repeat a study of the paper: many trainings, a table, a picture and a conclusion",
    "predict": "say what pictures show: one photo, a folder, an archive of a million",
    "embed": "compute the features of pictures, for search and clustering",
    "export": "write a model as ONNX, OpenVINO or torch.export, and check its accuracy",
    "serve": "serve models over HTTP: predictions, features, attention, and a page",
    "models": "list the models: parameters, GMACs, tokens; or the published weights",
    "plan": "compute parameters, FLOPs, memory and time of a training in advance",
    "bench": "compare the speed with timm, transformers, torchvision and others",
    "convert": "convert weights from one format to another, with a parity report",
    "data": "check a data set for errors, or write it as .tar shards",
}
"""Each command with its line in the help."""

COMMAND_GROUPS = {"data": ("check", "shard")}
"""The commands that have commands of their own."""

SECONDS_TO_BE_ENDED = 10.0
"""How long a process waits for its launcher to end it after another process has reported their error."""


def main(arguments: list[str] | None = None) -> None:
    """Finds the command and runs it; what goes wrong becomes one clear message on stderr and an exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        _run(arguments)
    except UserError as error:
        if error.said_by_another:
            _wait_to_be_ended()
        else:
            print(f"vitrail: {printable(str(error))}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("vitrail: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        # The reader of our output has ended (`vitrail models | head`), which is no error.
        sys.stderr.close()
        sys.exit(0)
    except (MemoryError, RuntimeError, OSError, ImportError) as error:
        if not is_out_of_memory(error):
            raise
        line = printable(first_line(error))
        print(
            f"vitrail: there is not enough memory ({line}): raise the limit (ulimit -v), end other programs, or choose "
            "a smaller model, batch or image",
            file=sys.stderr,
        )
        sys.exit(2)


def _wait_to_be_ended() -> None:
    """Waits until the launcher ends this process, because another one reports the error.

    A launcher ends all processes as soon as one has failed. If this one ended first, the other would be ended before it
    could report the error, and nobody would. Returns if no launcher ends it in time.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    time.sleep(SECONDS_TO_BE_ENDED)


def emit_json(document: Any) -> None:
    """Prints the one JSON document of a command under --json to stdout."""
    print(json.dumps(document, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """Prints a line for the person to stderr, so that stdout holds only what was asked for."""
    print(text, file=sys.stderr)


def _run(arguments: list[str]) -> None:
    """Runs the command that the arguments name."""
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
    silence_pillow()
    module = importlib.import_module(f"vitrail.cli.{name}")
    if name in COMMAND_GROUPS:
        if not rest or rest[0] in ("-h", "--help"):
            print(f"usage: vitrail {name} {{{','.join(COMMAND_GROUPS[name])}}} ...\n\n{COMMANDS[name]}")
            return
        if rest[0] not in COMMAND_GROUPS[name]:
            raise UserError(_unknown(f"`vitrail {name}` command", rest[0], COMMAND_GROUPS[name]))
        name, command, rest = f"{name} {rest[0]}", getattr(module, rest[0]), rest[1:]
    elif hasattr(module, "run"):  # these commands read their flags themselves
        module.run(rest)
        return
    else:
        command = module.command
    read_flags(command, rest, name)


def read_flags(command: Callable[..., None], arguments: list[str], name: str) -> None:
    """Calls a command with the values of its flags."""
    import tyro

    from vitrail.cli.spelling import check_flags, command_flags

    check_flags(arguments, command_flags(command), f"vitrail {name}")
    documented = unwrap(command)
    # The help joins what is wrapped in the code.
    documented.__doc__ = re.sub(r"\n {8,}", " ", cleandoc(documented.__doc__ or ""))
    style = (tyro.conf.FlagCreatePairsOff, tyro.conf.PositionalMetavarFromFieldName, tyro.conf.DisallowNone)
    tyro.cli(command, args=arguments, prog=f"vitrail {name}", config=style)


def _unknown(kind: str, given: str, known: Any) -> str:
    """Returns the message for a name that does not exist, with the nearest that does."""
    import difflib

    near = difflib.get_close_matches(given, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(known)}"
    return f"there is no {kind} {given!r}; {hint}"


def _help() -> str:
    """Returns the help of `vitrail` itself."""
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
