"""Changes to good files: of bytes, of JSON documents, and of what lies inside archives and headers."""

import copy
import io
import json
import random
import struct
import zipfile
from collections.abc import Callable
from typing import Any

import numpy as np

ODD: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, -0.0, 0.5, 1e308, float("inf"), float("-inf"), float("nan")),
    *(2**31, 2**31 - 1, 2**63, -(2**63), 2**64 + 1, 10**400, "", "x", "x" * 100_000, "\ud800", "\x1b[2J\n", "../../x"),
    *([], {}, [[]], [0, -1], [2**40, 2**40], ["x"] * 1000, {"x": "y"}, [1] * 99),
)
"""Values that a document of anyone else may hold."""
NUMBERS = (0, 1, -1, 255, 2**15, 2**31, 2**31 - 1, 2**32, 2**62, -(2**63), 0x7FFFFFFFFFFFFFFF)


def mutate_bytes(content: bytes, rng: random.Random, most: int = 4) -> bytes:
    """Changes a few places: flips, cuts, repeats, moves, and numbers that are too large."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, most)):
        rng.choice(_CHANGES)(changed, rng)
    return bytes(changed)


def _flip(content: bytearray, rng: random.Random) -> None:
    if content:
        content[rng.randrange(len(content))] ^= 1 << rng.randrange(8)


def _cut(content: bytearray, rng: random.Random) -> None:
    del content[rng.randrange(len(content) + 1) :]


def _remove(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content) + 1)
    del content[start : start + rng.choice((1, 2, 8, 100))]


def _repeat(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content) + 1)
    content[start:start] = content[start : start + rng.choice((1, 8, 100, 1000))] * rng.choice((1, 2, 50))


def _overwrite(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content) + 1)
    count = rng.choice((1, 4, 16))
    content[start : start + count] = rng.choice((b"\0", b"\xff", b"[", b'"', bytes([rng.randrange(256)]))) * count


def _number(content: bytearray, rng: random.Random) -> None:
    start = rng.randrange(len(content) + 1)
    form = rng.choice(("<q", ">q", "<i", ">i"))
    value = rng.choice(NUMBERS)
    if form.endswith("i"):
        value = (value + 2**31) % 2**32 - 2**31
    packed = struct.pack(form, value)
    content[start : start + len(packed)] = packed


_CHANGES: tuple[Callable[[bytearray, random.Random], None], ...] = (_flip, _cut, _remove, _repeat, _overwrite, _number)


def mutate_document(document: Any, rng: random.Random) -> Any:
    """Changes a few values, keys or places of a JSON document."""
    document = copy.deepcopy(document)
    for _ in range(rng.randint(1, 3)):
        holder, key = rng.choice(_places(document) or [([document], 0)])
        what = rng.random()
        if what < 0.7:
            holder[key] = copy.deepcopy(rng.choice(ODD))
        elif what < 0.8:
            del holder[key]
        elif what < 0.9 and isinstance(holder, dict):
            holder[rng.choice(("x", "", "\x1b", "vitrail", "model", "shape"))] = holder.pop(key)
        else:
            for _ in range(rng.choice((1, 50, 500))):
                holder[key] = [holder[key]]
    return document


def _places(document: Any) -> list[tuple[Any, Any]]:
    found, waiting = [], [document]
    while waiting:
        holder = waiting.pop()
        keys = list(holder) if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            found.append((holder, key))
            waiting.append(holder[key])
    return found


def dump(document: Any) -> bytes:
    """Writes a document as JSON, its odd numbers and halves of characters too."""
    try:
        return json.dumps(document).encode()
    except RecursionError:
        return b"[" * 100_000


def mutate_json(content: bytes, rng: random.Random) -> bytes:
    return dump(mutate_document(json.loads(content), rng))


def mutate_safetensors(content: bytes, rng: random.Random) -> bytes:
    """Changes the header, whose length is made to fit again."""
    length = struct.unpack("<Q", content[:8])[0]
    header = json.loads(content[8 : 8 + length])
    if rng.random() < 0.3:
        name = rng.choice(list(header))
        header[odd_name(name, rng)] = header.pop(name)
    else:
        header = mutate_document(header, rng)
    text = dump(header)
    return struct.pack("<Q", len(text)) + text + content[8 + length :]


def odd_name(name: str, rng: random.Random) -> str:
    number = rng.choice(("9999999999", "1", "-1", "0" * 5000 + "1", "9" * 5000, "0x1", "٣"))
    return rng.choice(
        (name.replace("0", number), f"{name}.{number}", name[::-1], f"module.{name}", "\n" + name, "x" * 10**5)
    )


def mutate_archive(content: bytes, rng: random.Random) -> bytes:
    """Changes a member of an archive, or its name; its checksums are right again."""
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as source, zipfile.ZipFile(result, "w", zipfile.ZIP_DEFLATED) as target:
        members = source.namelist()
        chosen = next((each for each in members if each.endswith("data.pkl")), rng.choice(members))
        if rng.random() < 0.2:
            chosen = rng.choice(members)
        for member in members:
            inside, name = source.read(member), member
            if member == chosen:
                if rng.random() < 0.2:
                    name = odd_name(member.removesuffix(".npy"), rng)[:60_000] + member[-4:]
                elif member.endswith(".npy") and rng.random() < 0.7:
                    inside = odd_array(inside, rng)
                else:
                    inside = mutate_bytes(inside, rng)
            target.writestr(name, inside)
    return result.getvalue()


def odd_array(content: bytes, rng: random.Random) -> bytes:
    """Writes another header above an array."""
    array = np.load(io.BytesIO(content))
    shape: Any = rng.choice(((), (2**40, 2**20), (-1,), (0,), (1,) * 99, array.shape[::-1], (2**31,), (array.size,)))
    header = {
        "descr": rng.choice(("<f4", "<f2", "|O", "<c16", "|V10", "<M8[s]")),
        "fortran_order": False,
        "shape": shape,
    }
    result = io.BytesIO()
    np.lib.format.write_array_header_2_0(result, header)  # pyright: ignore[reportArgumentType]
    return result.getvalue() + array.tobytes()
