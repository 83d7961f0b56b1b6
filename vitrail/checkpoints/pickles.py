"""Bounds the work that a pickle asks for, before it is read.

Reading a pickle computes hashes of what it uses as keys. The hash of a tuple is computed from those of its items each
time: one that holds another twice, which holds another twice, takes twice as long for each level, and one that lies in
a hundred thousand others overflows the stack.
"""

import pickletools
from pathlib import Path
from typing import IO, NamedTuple

from vitrail.errors import UserError, first_line

MOST_REPEATED = 1_000_000
"""Items of tuples that a pickle may refer to again, those inside other tuples counted too."""
DEEPEST_TUPLE = 50
"""Tuples that may lie in each other."""


class _Size(NamedTuple):
    """The size of an object: all 0 for those that no hash looks into."""

    items: int = 0
    """Its items, and those of the tuples in it, each as often as a hash would come to it."""
    depth: int = 0
    """The tuples that lie in each other in it, itself included."""


def check_pickle(path: Path, file: IO[bytes]) -> None:
    """Refuses a pickle whose tuples would take too long to hash. The file is read as far as the pickle's end.

    Only the sizes of objects are followed. What the restricted unpickler does not know need not be right: it refuses
    that by itself.

    Args:
        path: The file to name in messages.
        file: The open file, where a pickle begins.
    """
    stack: list[_Size] = []
    marks: list[int] = []
    memo: dict[int, _Size] = {}
    repeated = 0
    try:
        for operation, argument, _ in pickletools.genops(file):
            name, popped = operation.name, len(operation.stack_before)
            if name == "MARK":
                marks.append(len(stack))
            elif name in ("BINPUT", "LONG_BINPUT"):
                memo[int(argument or 0)] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET"):
                stack.append(memo[int(argument or 0)])
                repeated += stack[-1].items
            else:
                if pickletools.stackslice in operation.stack_before:  # all above the mark, and perhaps one below it
                    popped = len(stack) - marks.pop() + popped - 2
                parts = [stack.pop() for _ in range(popped)]
                made = _Size()
                if "TUPLE" in name or name in ("REDUCE", "NEWOBJ"):
                    items = sum(each.items + 1 for each in parts)
                    made = _Size(items, max((each.depth for each in parts), default=0) + 1)
                stack += [made] * len(operation.stack_after)
            if repeated > MOST_REPEATED or (stack and stack[-1].depth > DEEPEST_TUPLE):
                raise UserError(f"{path}: is damaged or hostile: its tuples repeat or nest without end; refused unread")
    except (ValueError, KeyError, IndexError) as error:
        raise UserError(f"{path}: damaged or not a PyTorch file ({first_line(error)})") from error
