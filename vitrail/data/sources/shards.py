"""Tar shards, as WebDataset writes them: members that share a name up to the first dot are one sample.

Read with random access: one pass notes where each image lies, and reading a sample is one seek. Only images and
labels (.cls, .json, .txt) are ever read; pickled members (.pkl, .pyd, .pth) never are.
"""

import json
import os
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.decode import EXTENSIONS, BadImage
from vitrail.data.sources.base import MAX_SAMPLE_BYTES, Source, Split, SplitRule, finish
from vitrail.data.sources.classes import labels_by_name, numbered_classes
from vitrail.data.sources.listing import read_class_names
from vitrail.data.sources.splits import files_by_split
from vitrail.errors import UserError

_LABELS = (".cls", ".json", ".txt")
_PICKLES = (".pkl", ".pickle", ".pyd", ".pth", ".pt")
_MAX_LABEL_BYTES = 1 << 20
_JSON_KEYS = ("label", "cls", "class", "class_name", "class_id", "target")


@dataclass
class TarReader:
    """Reads images out of tar files by their place; files stay open, one handle a process."""

    files: tuple[str, ...]
    members: np.ndarray  # [samples]: which file
    offsets: np.ndarray
    sizes: np.ndarray
    _handles: dict[tuple[int, int], int] = field(default_factory=dict, repr=False)

    def read(self, row: int) -> bytes:
        size = int(self.sizes[row])
        if size > MAX_SAMPLE_BYTES:
            raise BadImage(f"is larger than {MAX_SAMPLE_BYTES >> 20} MB")
        try:
            content = os.pread(self._handle(int(self.members[row])), size, int(self.offsets[row]))
        except OSError as error:
            raise BadImage(f"cannot be read: {error.strerror or error}") from error
        if len(content) < size:
            raise BadImage("lies beyond the end of its shard, which is cut off")
        return content

    def size(self, row: int) -> int:
        return int(self.sizes[row])

    def _handle(self, member: int) -> int:
        # `pread` keeps no position, so threads can share a handle; a forked process opens its own.
        key = (os.getpid(), member)
        if key not in self._handles:
            opened = os.open(self.files[member], os.O_RDONLY)
            kept = self._handles.setdefault(key, opened)
            if kept != opened:
                os.close(opened)
        return self._handles[key]

    def close(self) -> None:
        for (process, _), handle in list(self._handles.items()):
            if process == os.getpid():
                os.close(handle)
        self._handles.clear()

    def __del__(self) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_handles": {}}


@dataclass
class _Entry:
    id: str
    member: int
    offset: int = -1
    size: int = 0
    label: int | str | None = None
    label_rank: int = len(_LABELS)


def open_shards(name: str, files: list[Path], root: Path, rule: SplitRule) -> Source:
    """Tar files; the split is told by their names, such as train-000001.tar."""
    groups = files_by_split(name, files, root)
    notes: list[str] = []
    entries = {split: _index(members, root, notes) for split, members in groups.items()}
    labels = [entry.label for group in entries.values() for entry in group]
    if not labels:
        raise UserError(f"{name}: no images with labels in {len(files)} tar file(s)")
    classes, numbers = _classes(name, labels, root)
    found, start = {}, 0
    for split, group in entries.items():
        reader = TarReader(
            tuple(str(file) for file in groups[split]),
            np.array([entry.member for entry in group], dtype=np.int64),
            np.array([entry.offset for entry in group], dtype=np.int64),
            np.array([entry.size for entry in group], dtype=np.int64),
        )
        found[split] = Split.of(split, [entry.id for entry in group], numbers[start : start + len(group)], reader)
        start += len(group)
    return finish(name, classes, found, rule, notes)


def _classes(name: str, labels: list[int | str | None], root: Path) -> tuple[tuple[str, ...], np.ndarray]:
    named = [label for label in labels if isinstance(label, str)]
    if not named:
        numbers = np.array([-1 if label is None else int(label) for label in labels], dtype=np.int64)
        return numbered_classes(name, numbers, read_class_names(root)), numbers
    odd = [label for label in labels if isinstance(label, int)]
    if odd:
        raise UserError(f"{name}: some labels are numbers ({odd[0]}) and some are names ({named[0]!r})")
    return labels_by_name([None if label is None else str(label) for label in labels])


def _index(files: list[Path], root: Path, notes: list[str]) -> list[_Entry]:
    """One pass over the headers of every file."""
    entries: dict[str, _Entry] = {}
    pickled = 0
    for member, file in enumerate(files):
        shard = file.relative_to(root).with_suffix("").as_posix()
        try:
            with tarfile.open(file, "r:") as archive:
                for info in archive:
                    pickled += _note(archive, info, shard, member, entries)
        except (tarfile.TarError, OSError, EOFError) as error:
            raise UserError(f"{file} is not a readable plain tar file ({error}); write or fetch it again") from error
    whole = [entry for entry in entries.values() if entry.offset >= 0]
    pictureless = len(entries) - len(whole)
    if pictureless:
        notes.append(f"{pictureless} sample(s) without an image were left out")
    if pickled:
        notes.append(f"{pickled} pickled member(s) were left alone: pickles are never read")
    return whole


def _note(archive: tarfile.TarFile, info: tarfile.TarInfo, shard: str, member: int, entries: dict[str, _Entry]) -> int:
    """Enter one tar member into the index; 1 if it is a pickle, which is passed over."""
    folder, _, base = info.name.rpartition("/")
    if not info.isreg() or info.issparse() or base.startswith("."):
        return 0
    stem, _, ending = base.partition(".")
    ending = "." + ending.lower()
    if ending.endswith(_PICKLES):
        return 1
    is_image, is_label = "." + ending.rpartition(".")[2] in EXTENSIONS, ending in _LABELS
    if not is_image and not is_label:
        return 0
    key = "/".join(part for part in (shard, folder.strip("./"), stem) if part)
    entry = entries.setdefault(key, _Entry(key, member))
    if is_image and entry.offset < 0:
        entry.offset, entry.size = info.offset_data, info.size
    elif is_image:
        raise UserError(f"{archive.name}: the sample {stem!r} has two images; give each sample a name of its own")
    elif _LABELS.index(ending) < entry.label_rank:
        label = _label(archive, info, ending)
        if label is not None:
            entry.label, entry.label_rank = label, _LABELS.index(ending)
    return 0


def _label(archive: tarfile.TarFile, info: tarfile.TarInfo, ending: str) -> int | str | None:
    """A number or a name; .cls before .json before .txt where a sample has several."""
    where = f"{archive.name}: {info.name}"
    stream = archive.extractfile(info)
    if stream is None or info.size > _MAX_LABEL_BYTES:
        raise UserError(f"{where} is too large to be a label")
    try:
        text = stream.read().decode("utf-8").strip()
        if ending != ".json":
            return int(text) if text.isascii() and text.lstrip("-").isdigit() else text or None
        document = json.loads(text)
    except ValueError as error:
        raise UserError(f"{where} cannot be read as a label: {error}") from error
    if isinstance(document, dict):
        document = next((document[key] for key in _JSON_KEYS if key in document), None)
    if document is None or (isinstance(document, int | str) and not isinstance(document, bool)):
        return document
    raise UserError(f"{where} must hold a number or a name under one of {', '.join(_JSON_KEYS)}")
