"""Reading the plain data in a pickle without unpickling it.

The Python version of CIFAR is distributed as pickles. A pickle is a program, which Python's own reader would execute.
Here its opcodes are only listed (`pickletools.genops`, which executes nothing), and the few that build numbers,
strings, lists, dicts and uint8 arrays are interpreted. Any other opcode, and any name other than numpy's array
constructor, is a UserError. Names are compared as text and never looked up or called.
"""

import pickletools
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.errors import UserError

_LIMIT = 1 << 29
"""The largest file that is read, in bytes; CIFAR-100's training set has 150 million."""
_STEPS = 1_000_000
"""The most opcodes that are interpreted, so that a hostile file cannot fill the memory; CIFAR-100 has a quarter."""
# The names that a pickle of CIFAR contains.
_NAMES = {
    *("numpy.core.multiarray _reconstruct", "numpy._core.multiarray _reconstruct"),
    *("numpy ndarray", "numpy dtype", "_codecs encode"),
}
# Opcodes without effect on the data, and opcodes that push a value.
_CONSTANTS = {"PROTO", "FRAME"}
_VALUES = {
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "BINFLOAT", "FLOAT"),
    *("STRING", "BINSTRING", "SHORT_BINSTRING", "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8"),
    *("BINBYTES", "SHORT_BINBYTES", "BINBYTES8"),
}
_MARK = object()  # what the opcode MARK pushes


class _Name(str):
    """The name of a class or function in the pickle, as text."""


class _Pending:
    """An array or dtype that the pickle is building. kind: "array" or "dtype"; code: the name of the dtype."""

    def __init__(self, kind: str, code: str = "") -> None:
        self.kind = kind
        self.code = code
        self.array: np.ndarray | None = None


def read_plain_pickle(file: Path) -> Any:
    """Reads a pickle of one dictionary of plain data; its keys become text.

    Raises UserError if the file cannot be read, is too large, or contains anything but plain data.
    """
    try:
        if file.stat().st_size > _LIMIT:
            raise UserError(f"{file} is larger than {_LIMIT >> 20} MB: not a CIFAR file")
        return _resolve(_Machine().run(file.read_bytes()))
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
        AttributeError,
        RecursionError,
        OverflowError,
    ) as error:
        raise UserError(
            f"{file} is not a plain CIFAR pickle ({error}); nothing in it was executed. "
            "Fetch it again, or use the binary version"
        ) from error


class _Machine:
    """Interprets the harmless opcodes of the pickle language, which is that of a stack machine."""

    def __init__(self) -> None:
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> Any:
        """Interprets a pickle and returns its value. Raises ValueError for anything but plain data."""
        stack, memo = self.stack, self.memo
        for step, (opcode, argument, _) in enumerate(pickletools.genops(content)):
            name = opcode.name
            if step >= _STEPS:
                raise ValueError("it has too many steps")
            if name in _VALUES:
                stack.append(argument)
            elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
                memo[_expect(argument, int)] = stack[-1]
            elif name == "MEMOIZE":
                memo[len(memo)] = stack[-1]
            elif name in ("BINGET", "LONG_BINGET", "GET"):
                stack.append(memo[_expect(argument, int)])
            elif name == "STOP":
                return stack.pop()
            elif name not in _CONSTANTS:
                self._build(name, argument)
        raise ValueError("it has no end")

    def _build(self, name: str, argument: Any) -> None:
        """Interprets one opcode that builds a container, an array or a name."""
        stack = self.stack
        if name == "MARK":
            stack.append(_MARK)
        elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
            stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            stack.append({"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}[name]())
        elif name in ("TUPLE", "LIST", "DICT"):
            items = self._since_mark()
            container = {"TUPLE": tuple, "LIST": list, "DICT": _pairs}[name](items)
            stack.append(container)
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            count = int(name[-1])
            stack[-count:] = [tuple(stack[-count:])]
        elif name == "APPEND":
            item = stack.pop()
            _expect(stack[-1], list).append(item)
        elif name == "APPENDS":
            items = self._since_mark()
            _expect(stack[-1], list).extend(items)
        elif name == "SETITEM":
            value, key = stack.pop(), stack.pop()
            _expect(stack[-1], dict)[_key(key)] = value
        elif name == "SETITEMS":
            items = self._since_mark()
            _expect(stack[-1], dict).update(_pairs(items))
        elif name == "GLOBAL":
            stack.append(_name(argument))
        elif name == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            stack.append(_name(f"{module} {attribute}"))
        elif name == "REDUCE":
            arguments, called = stack.pop(), stack.pop()
            stack.append(_reduce(called, arguments))
        elif name == "BUILD":
            state = stack.pop()
            _build_state(_expect(stack[-1], _Pending), state)
        else:
            raise ValueError(f"it uses {name}, which plain data does not need")

    def _since_mark(self) -> list[Any]:
        """Takes off the stack all items above the last mark, and the mark."""
        stack = self.stack
        for index in range(len(stack) - 1, -1, -1):
            if stack[index] is _MARK:
                items = stack[index + 1 :]
                del stack[index:]
                return items
        raise ValueError("a mark is missing")


def _name(text: str) -> _Name:
    if text not in _NAMES:
        raise ValueError(f"it names {text!r}")
    return _Name(text)


def _reduce(called: Any, arguments: Any) -> Any:
    """Does what calling one of the known names would do."""
    if not isinstance(called, _Name) or not isinstance(arguments, tuple):
        raise ValueError("it calls something that is not a name")
    if called.endswith("_reconstruct"):
        return _Pending("array")
    if called == "numpy dtype":
        code = str(_text(arguments[0]))
        if code not in ("u1", "uint8", "|u1"):
            raise ValueError(f"it holds an array of {code!r}, not of bytes")
        return _Pending("dtype", code)
    if called == "_codecs encode":
        return str(arguments[0]).encode("latin-1")
    raise ValueError(f"it calls {called}")


def _build_state(pending: _Pending, state: Any) -> None:
    """Completes an array from its state: version, shape, dtype, order and bytes."""
    if pending.kind == "dtype":
        return  # the state of a dtype is its byte order, and bytes have none
    _, shape, kind, fortran, data = state
    if not isinstance(kind, _Pending) or kind.kind != "dtype":
        raise ValueError("its array has no type")
    content = data.encode("latin-1") if isinstance(data, str) else bytes(_expect(data, bytes))
    # In some batches CIFAR's arrays are stored column by column.
    pending.array = np.frombuffer(content, dtype=np.uint8).reshape(shape, order="F" if fortran else "C")


def _resolve(value: Any) -> Any:
    """Replaces the descriptions of arrays in the top-level dictionary, which is where CIFAR has them, by the arrays."""
    if isinstance(value, dict):
        return {key: item.array if isinstance(item, _Pending) else item for key, item in value.items()}
    raise ValueError("it is not a dict")


def _pairs(items: list[Any]) -> dict[str, Any]:
    if len(items) % 2:
        raise ValueError("a key has no value")
    return {_key(key): value for key, value in zip(items[::2], items[1::2], strict=True)}


def _key(key: Any) -> str:
    return str(_text(key))


def _text(value: Any) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else _expect(value, str)


def _expect(value: Any, kind: type) -> Any:
    """Returns the value. Raises ValueError if it is not of this type."""
    if not isinstance(value, kind):
        raise ValueError(f"it has {type(value).__name__} where {kind.__name__} belongs")
    return value
