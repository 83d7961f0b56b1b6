"""Writes any source as tar shards that `sources/shards.py` and WebDataset read."""

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.decode import BadImage, open_header
from vitrail.data.doctor import printable
from vitrail.data.sources import UNLABELLED, Source, Split
from vitrail.errors import UserError

_ENDINGS = {"JPEG": "jpg", "MPO": "jpg", "JPEG2000": "jp2"}


def write_shards(source: Source, out: Path, *, shard_bytes: int = 256 << 20) -> dict[str, Any]:
    """Every split as `SPLIT-000000.tar`, `SPLIT-000001.tar` ..., and the class names as classes.txt.

    The same source gives the same bytes. A shard appears under its name only once it is whole. What cannot be read is
    left out and listed in the result.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any(out.iterdir()):
            raise UserError(f"{out} is not empty: give a new folder, so that old shards are not mixed with new ones")
        if any("\n" in name or name != name.strip() for name in source.classes):
            raise UserError("a class name has line breaks or spaces at its ends: classes.txt cannot hold it")
        (out / "classes.txt").write_text("".join(f"{name}\n" for name in source.classes), "utf-8")
        skipped: list[dict[str, str]] = []
        counts = {name: _write_split(split, out, shard_bytes, skipped) for name, split in source.splits.items()}
    except OSError as error:
        raise UserError(f"the shards cannot be written to {out}: {error.strerror or error}") from error
    return {"out": str(out), "splits": counts, "skipped": skipped}


def _write_split(split: Split, out: Path, shard_bytes: int, skipped: list[dict[str, str]]) -> int:
    members = _members(split, skipped)
    count, number, waiting = 0, 0, next(members, None)
    while waiting is not None:
        path = out / f"{split.name}-{number:06d}.tar"
        partial = path.with_suffix(".part")
        with tarfile.open(partial, "w") as archive:
            while waiting is not None and (archive.offset == 0 or archive.offset < shard_bytes):
                for name, content in waiting:
                    info = tarfile.TarInfo(name)
                    info.size = len(content)
                    archive.addfile(info, io.BytesIO(content))
                count, waiting = count + 1, next(members, None)
        partial.rename(path)
        number += 1
    return count


def _members(split: Split, skipped: list[dict[str, str]]) -> Iterator[list[tuple[str, bytes]]]:
    for index in range(len(split)):
        try:
            ending, content = _encoded(split.read(index))
        except BadImage as error:
            skipped.append({"id": printable(split.ids[index]), "reason": str(error)})
            continue
        key, label = f"{index:08d}", int(split.labels[index])
        members = [(f"{key}.{ending}", content)]
        if label != UNLABELLED:
            members.append((f"{key}.cls", str(label).encode()))
        yield members


def _encoded(content: bytes | np.ndarray) -> tuple[str, bytes]:
    """How a sample is stored: its ending and its bytes."""
    stream = io.BytesIO()
    if isinstance(content, bytes):
        if content[:6] == b"\x93NUMPY":
            return "npy", content
        try:
            kind = open_header(content).format or ""
        except BadImage:
            raise
        except Exception as error:
            raise BadImage("is not an image in any known format") from error
        return _ENDINGS.get(kind, kind.lower()), content
    if content.shape[2] not in (1, 3):
        np.save(stream, content)
        return "npy", stream.getvalue()
    Image.fromarray(content if content.shape[2] == 3 else content[:, :, 0]).save(stream, "PNG")
    return "png", stream.getvalue()
