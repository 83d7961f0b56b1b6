"""Indexing a tar shard that has no index, by reading the headers of its members once.

Of the members' contents only labels (.cls, .json, .txt) are read; pickled members (.pkl, .pyd, .pth) never are. Where
masks (.seg.png) lie is noted.
"""

import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vitrail.data.decode import EXTENSIONS
from vitrail.data.sources.annotation_index import AnnotationTable
from vitrail.data.sources.shard_index import LONGEST, SampleTable, Shard
from vitrail.errors import UserError
from vitrail.io.documents import parse_json

_LABELS = (".cls", ".json", ".txt")
"""The endings of labels; an earlier one is preferred to a later one."""
_MASKS = (".seg.png", ".mask.png")
"""The endings of masks."""
_PICKLES = (".pkl", ".pickle", ".pyd", ".pth", ".pt")
_MAX_LABEL_BYTES = 1 << 20
"""The largest member that is read as a label."""
WRITTEN = "vitrail"
"""The key in a .json member of this program's shards; its value is the task of the target."""
_JSON_KEYS = ("label", "cls", "class", "class_name", "class_id", "target")
"""The keys under which a .json member may have the label."""


@dataclass
class _Entry:
    """A sample of which some members have been found."""

    key: str
    offset: int = -1
    """The position of its image in the shard; -1 until one is found."""
    size: int = 0
    mask_offset: int = -1
    """The position of its mask in the shard; -1 until one is found."""
    mask_size: int = 0
    label: int | str | None = None
    label_rank: int = len(_LABELS)
    """The index in `_LABELS` of the ending that the label came from."""


def scan(path: Path, name: str, state: tuple[int, str], where: str) -> tuple[Shard, SampleTable]:
    """Scans a shard.

    Args:
        path: The file on this machine.
        name: Its name in the index.
        state: Its size, and a text that changes when it does.
        where: What messages call it.

    Returns:
        The entry of the shard in an index, and the rows of its samples, with 0 as the number of the shard.

    Raises:
        UserError: If it is not a plain tar file, or a label in it cannot be read.
    """
    entries: dict[str, _Entry] = {}
    pickled = 0
    try:
        with tarfile.open(path, "r:") as archive:
            for info in archive:
                pickled += _note(archive, info, entries, where)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise UserError(f"{where} is not a readable plain tar file ({error}); write or fetch it again") from error
    complete = [entry for entry in entries.values() if entry.offset >= 0]
    labels = [entry.label for entry in complete]
    rows = SampleTable(
        np.zeros(len(complete), np.int32),
        [entry.key for entry in complete],
        np.array([entry.offset for entry in complete], dtype=np.int64),
        np.array([entry.size for entry in complete], dtype=np.int64),
        np.array([label if isinstance(label, int) else -1 for label in labels], dtype=np.int64),
        [label if isinstance(label, str) else None for label in labels],
        annotation=_annotations(complete),
    )
    size, version = state
    try:
        shard = Shard(name, size, None, version, pictureless=len(entries) - len(complete), pickled=pickled)
    except ValueError as error:
        raise UserError(f"{where} cannot be indexed: {error}; rename it") from error
    return shard, rows


def _annotations(entries: list[_Entry]) -> AnnotationTable | None:
    """Returns the places of the masks of samples; None if none has one."""
    places = np.array([(entry.mask_offset, entry.mask_size, -1) for entry in entries], dtype=np.int64).reshape(-1, 3)
    return AnnotationTable(*places.T) if (places[:, 0] >= 0).any() else None


def _note(archive: tarfile.TarFile, info: tarfile.TarInfo, entries: dict[str, _Entry], where: str) -> int:
    """Records one member of the archive in `entries`, by the key of its sample.

    Returns 1 if the member is a pickle, which is left out, else 0. Raises UserError if a sample has two images.
    """
    folder, _, base = info.name.rpartition("/")
    if not info.isreg() or info.issparse() or base.startswith("."):
        return 0
    stem, _, ending = base.partition(".")
    ending = "." + ending.lower()
    if ending.endswith(_PICKLES):
        return 1
    is_mask = ending in _MASKS
    is_image, is_label = not is_mask and "." + ending.rpartition(".")[2] in EXTENSIONS, ending in _LABELS
    if not is_image and not is_label and not is_mask:
        return 0
    key = "/".join(part for part in (folder.strip("./"), stem) if part)
    key = key.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")  # names need not be valid UTF-8
    if len(key.encode()) > LONGEST:
        raise UserError(f"{where}: a sample's name is {len(key)} characters long")
    entry = entries.setdefault(key, _Entry(key))
    if is_mask:
        if entry.mask_offset >= 0:
            raise UserError(f"{where}: the sample {stem!r} has two masks; give each sample one")
        entry.mask_offset, entry.mask_size = info.offset_data, info.size
    elif is_image and entry.offset < 0:
        entry.offset, entry.size = info.offset_data, info.size
    elif is_image:
        raise UserError(f"{where}: the sample {stem!r} has two images; give each sample a name of its own")
    elif _LABELS.index(ending) < entry.label_rank:
        label = _label(archive, info, ending, f"{where}: {info.name}")
        if label is not None:
            entry.label, entry.label_rank = label, _LABELS.index(ending)
    return 0


def _label(archive: tarfile.TarFile, info: tarfile.TarInfo, ending: str, where: str) -> int | str | None:
    """Reads a label, a number or a name, from a member; None if it is empty or a .json member without a label.

    Raises UserError if the member is too large or holds something else.
    """
    stream = archive.extractfile(info)
    if stream is None or info.size > _MAX_LABEL_BYTES:
        raise UserError(f"{where} is too large to be a label")
    try:
        text = stream.read().decode("utf-8").strip()
        if ending != ".json":
            document = int(text) if text.isascii() and text.lstrip("-").isdigit() else text or None
        else:
            document = parse_json(text, f"{where} cannot be read as a label")
            if isinstance(document, dict) and WRITTEN in document:
                raise UserError(
                    f"{where} is a target for {document[WRITTEN]}, which is read by way of the shards' index.parquet: "
                    "fetch that again, or write the shards again with vitrail data shard"
                )
            if isinstance(document, dict):
                document = next((document[key] for key in _JSON_KEYS if key in document), None)
        if isinstance(document, str) and len(document.encode()) > LONGEST:  # `encode` raises on unpaired surrogates
            raise ValueError("it is too long for the name of a class")
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where} cannot be read as a label: {error}") from error
    if document is None or (isinstance(document, int | str) and not isinstance(document, bool)):
        if isinstance(document, int) and not -(1 << 63) <= document < 1 << 63:
            raise UserError(f"{where}: the number {str(document)[:40]} is not a class")
        return document
    raise UserError(f"{where} must hold a number or a name under one of {', '.join(_JSON_KEYS)}")
