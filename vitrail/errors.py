"""The one error that is meant for the person at the keyboard, and how others' errors are quoted in it."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NO_MEMORY = re.compile(
    r"(can.?t|cannot|could not|failed to) (allocate|reserve|map segment|start new thread)|bad.?alloc|out of memory|"
    r"not enough memory|memory allocation",
    re.IGNORECASE,
)
"""How libraries say that they were given no memory, or no thread for want of it."""


class UserError(Exception):
    """Something the user can fix, said in one or two lines: what is wrong, where, and the remedy.

    The command line prints the message without a traceback and exits with status 2. Everything else that
    escapes is a bug of ours and exits with status 1.
    """

    def __init__(self, message: str, said_by_another: bool = False):
        super().__init__(message)
        self.said_by_another = said_by_another
        """Another process of the same job tells the person; this one need not."""


def first_line(error: BaseException) -> str:
    """Returns the first line of another library's error, cut to 160 characters, or its class where it is empty."""
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) < 160 else text[:157] + "..."


@contextmanager
def naming(path: str | Path) -> Iterator[None]:
    """Puts the name of a file before what the block says is wrong with its content."""
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}", error.said_by_another) from error


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that there was not enough memory: Python's own, or that of a library."""
    known = isinstance(error, RuntimeError | OSError | ImportError) and _NO_MEMORY.search(str(error)) is not None
    return known or isinstance(error, MemoryError)


def unreadable(path: str | Path, kind: str, error: BaseException) -> UserError:
    """Makes the error for a file that a library has failed to read: it is damaged, or there is too little memory.

    Args:
        path: The file.
        kind: What it should be, such as "a safetensors file".
        error: What the library raised.
    """
    if is_out_of_memory(error):
        return UserError(
            f"{path}: there is not enough memory to read it ({first_line(error)}): raise the limit (ulimit -v), end "
            "other programs, or choose a smaller model"
        )
    return UserError(f"{path}: damaged or not {kind} ({first_line(error)})")


def printable(text: str) -> str:
    """Returns a text with control characters and halves of characters spelt out: a name in a file could hold what moves
    the cursor of a terminal, or what no terminal can write."""
    spelt = "".join(each if each.isprintable() or each == "\n" else ascii(each)[1:-1] for each in text)
    return spelt.encode("utf-8", "backslashreplace").decode("utf-8")
