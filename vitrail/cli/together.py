"""Commands that several processes can share: started by torchrun, or by `--processes N` on this machine."""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from vitrail.cli import read_flags
from vitrail.cli.launching import launch, without
from vitrail.errors import UserError
from vitrail.launched import is_first


def run(name: str, command: Callable[..., None], arguments: list[str]) -> None:
    """Read the arguments of a command and do it; given --processes, by so many of them."""

    @functools.wraps(command)
    def chosen(*values: Any, processes: int | None = None, **named: Any) -> None:
        if processes is None:
            return command(*values, **named)
        return launch(str(processes), [name, *without(arguments, "--processes")])

    read_flags(chosen, arguments, name)


@contextmanager
def alike() -> Iterator[None]:
    """Around what goes the same in every process, before they are connected: the first says what is wrong."""
    try:
        yield
    except UserError as error:
        raise UserError(str(error), said_by_another=not is_first()) from error
