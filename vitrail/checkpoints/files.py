"""Reading weights files, which may be damaged or hostile, and writing weights files and model folders.

Reading never executes what a file contains: safetensors holds no code, `.npz` is read member by member without pickle,
and `.pth` / `.bin` files go through PyTorch's restricted unpickler. Whatever is wrong with a file, the result is a
UserError.
"""

import argparse
import io
import math
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file as save_safetensors
from torch import Tensor

from vitrail.checkpoints.memory_budget import (
    LARGEST_HEADER,
    MOST_AXES,
    check_amount,
    check_names,
    check_size,
    check_tensors,
)
from vitrail.checkpoints.name_maps import Tensors
from vitrail.checkpoints.pickles import check_pickle
from vitrail.errors import UserError, first_line, unreadable
from vitrail.io.checksums import SUMS
from vitrail.io.documents import parse_object
from vitrail.io.files import Fill, refuse_existing
from vitrail.io.folders import write_folder

TORCH_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt")
"""The endings of files of `torch.save`."""
SUFFIXES = (".safetensors", ".npz", *TORCH_SUFFIXES)
"""The endings of weights files that are read."""
RAW = ("state_dict", "model", "student", "model_state", "module")
AVERAGES = (
    "state_dict_ema",
    "model_ema",
    "ema_state_dict",
    "ema_model",
    "model_state_ema",
    "module_ema",
    "ema",
    "teacher",
)
"""Keys under which training checkpoints keep the weights (RAW) and the average of the weights over steps (AVERAGES)."""
_EXPORTED = (".onnx", ".xml", ".pt2")
"""The endings of exported models, which are no weights files."""
LEGACY_PICKLES = 5
"""The pickles with which a file of PyTorch before 1.6 begins: two numbers, the system, the document, its storages."""
DIRECTORY = 0x10
"""The attribute by which a member of a zip archive says that it is a folder."""
MODEL_FILES = {"model.safetensors", "config.json", SUMS, "preprocessor_config.json"}
"""The files that a folder may hold and still be replaced by a new model."""

WeightsFrom = Literal["average", "raw"]
"""Which weights to take from a training checkpoint that has both: the average over steps, or those of the last step."""


class Contents(NamedTuple):
    """The content of a weights file."""

    tensors: Tensors
    """The tensors by name."""
    metadata: dict[str, str]
    """The header of a safetensors file; empty for other files."""
    notes: list[str]
    """A note for the user if one of two sets of weights was chosen."""


def read_tensors(path: Path, weights_from: WeightsFrom | None = None) -> Contents:
    """Reads a weights file.

    Args:
        path: The file.
        weights_from: Which weights to take from a training checkpoint that has an average besides the raw weights;
            None takes the average.

    Returns:
        The tensors by name; those of floating-point numbers are converted to float32.

    Raises:
        UserError: If the file is not a weights file, is damaged or hostile, or holds no tensors.
    """
    readers = {".safetensors": _read_safetensors, ".npz": _read_npz}
    suffix = path.suffix.lower()
    if suffix in _EXPORTED:
        takers = "predict, embed and serve take .onnx and .xml"
        raise UserError(f"{path}: is an exported model ({takers}); give the model it was made from")
    if suffix not in SUFFIXES:
        raise UserError(f"{path}: not a weights file; those end in {', '.join(SUFFIXES)}")
    try:
        if not path.stat().st_size:
            raise UserError(f"{path}: the file is empty")
        check_size(path)
        document, metadata = readers.get(suffix, _read_torch)(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    tensors, notes = _unwrap(path, document, weights_from)
    if not tensors:
        raise UserError(f"{path}: holds no tensors")
    if weights_from and not notes:
        raise UserError(f"{path}: holds one set of weights, so --weights-from has nothing to choose between")
    check_tensors(path, tensors)
    return Contents({name: _as_float(tensor) for name, tensor in tensors.items()}, metadata, notes)


def _read_safetensors(path: Path) -> tuple[Tensors, dict[str, str]]:
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
    if length > LARGEST_HEADER:
        raise UserError(f"{path}: damaged or not a safetensors file (its header is said to be {length:,} bytes long)")
    try:
        with safe_open(path, "pt") as file:  # pyright: ignore[reportGeneralTypeIssues]
            names = list(file.keys())
            check_names(path, names)
            return {name: file.get_tensor(name) for name in names}, dict(file.metadata() or {})
    except (SafetensorError, ValueError, TypeError, RuntimeError, AttributeError, MemoryError) as error:
        raise unreadable(path, "a safetensors file", error) from error


def check_length(path: Path) -> None:
    """Refuses a .safetensors file that is longer than its header says, or than the memory is; what else is wrong is
    noticed when it is read.

    Only the header is read: a sparse file of any length takes no room on the disk, and its digest takes hours.
    """
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        header = file.read(length) if length <= LARGEST_HEADER else b""
    try:
        tensors = parse_object(header, path)
        ends = [each["data_offsets"][1] for name, each in tensors.items() if name != "__metadata__"]
        longest = 8 + length + max(ends, default=0)
    except (UserError, KeyError, TypeError, IndexError):
        longest = LARGEST_HEADER
    if (size := path.stat().st_size) > longest:
        raise UserError(f"{path}: is damaged: it has {size:,} bytes, and its tensors take {longest:,}")
    check_size(path)


def _read_npz(path: Path) -> tuple[Tensors, dict[str, str]]:
    tensors: Tensors = {}
    with _zip(path) as archive:
        check_names(path, archive.namelist())
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                raise UserError(f"{path}: holds {member.filename!r}, which is not an array")
            tensors[member.filename.removesuffix(".npy")] = torch.from_numpy(_read_npy(path, archive, member))
    return tensors, {}


def _read_npy(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """Reads one array of an archive, after checking that the shape in its header fits its size, before memory of that
    size is allocated."""
    try:
        content = io.BytesIO(archive.read(member))
        version = np.lib.format.read_magic(content)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = header(content)
    except (ValueError, KeyError, EOFError, SyntaxError, TypeError, RecursionError, TokenError) as error:
        raise UserError(f"{path}: {member.filename} is not an array numpy wrote ({first_line(error)})") from error
    if dtype.hasobject or dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise UserError(f"{path}: {member.filename} is of type {dtype}, not numbers; refused unread")
    if len(shape) > MOST_AXES:
        raise UserError(f"{path}: {member.filename} has {len(shape)} dimensions; no part of a model has so many")
    count = math.prod(shape)
    if any(side < 0 for side in shape) or count * dtype.itemsize != len(content.getbuffer()) - content.tell():
        raise UserError(f"{path}: {member.filename} says it has the shape {shape}, but its size does not fit")
    flat = np.frombuffer(content.getbuffer(), dtype, count, content.tell()).astype(dtype.newbyteorder("="))
    return np.ascontiguousarray(flat.reshape(shape, order="F" if fortran else "C"))


def _read_torch(path: Path) -> tuple[Any, dict[str, str]]:
    """Reads a file of `torch.save` with the restricted unpickler."""
    with path.open("rb") as file:
        archived = file.read(2) == b"PK"
        if not archived:
            file.seek(0)
            for _ in range(LEGACY_PICKLES):
                check_pickle(path, file)
    if archived:
        with _zip(path) as archive:  # PyTorch does not compare checksums: a flipped bit would pass as a weight
            for name in archive.namelist():
                if name.lower().endswith(".pkl"):
                    check_pickle(path, io.BytesIO(archive.read(name)))
    try:
        # DeiT, MAE and DINO store their command line in the file as a Namespace, which only holds values: harmless.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            document = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # a hostile file can provoke any exception in the unpickler; all become one message
        if "Unsupported" in str(error) or "weights_only" in str(error).lower():
            raise UserError(
                f"{path}: holds more than tensors, and running it could harm; refused unread. Ask its author for a "
                ".safetensors file"
            ) from error
        raise unreadable(path, "a PyTorch file", error) from error
    return document, {}


def _unwrap(path: Path, document: Any, weights_from: WeightsFrom | None) -> tuple[Tensors, list[str]]:
    """Finds the state dict inside a training checkpoint, which may be wrapped several times.

    Returns the tensors by name, and a note if the raw or the averaged weights had to be chosen.
    """
    notes: list[str] = []
    for _ in range(5):
        if not isinstance(document, Mapping):
            raise UserError(f"{path}: holds a {type(document).__name__}, not a state dict")
        document = _by_owner(document)
        # Look for wrapped weights before tensors: a checkpoint may hold other tensors beside them (a random state).
        average = next((key for key in AVERAGES if _has_weights(document.get(key))), None)
        raw = next((key for key in RAW if _has_weights(document.get(key))), None)
        if average is None and raw is None:
            break
        chosen = raw if average is None or (raw is not None and weights_from == "raw") else average
        if average is not None and raw is not None:
            how = "" if weights_from else f"; --weights-from raw takes {raw}"
            kind = "averaged" if chosen == average else "raw"
            notes = [f"of the file's {raw} and {average} the {kind} weights were taken, {chosen}{how}"]
        document = document[chosen]
    if tensors := {str(name): value for name, value in document.items() if isinstance(value, Tensor)}:
        return tensors, notes
    if not document:
        return {}, notes
    raise UserError(f"{path}: no state dict in it; its keys are {', '.join(map(str, list(document)[:8]))}")


def _by_owner(document: Mapping[Any, Any]) -> Mapping[Any, Any]:
    """Splits a state dict that holds a model and its average under two prefixes (`teacher.*` and `student.*`) into one
    dictionary for each; any other is returned as it is."""
    for average in AVERAGES:
        first = {name for name in document if str(name).startswith(f"{average}.")}
        ends = {name.removeprefix(f"{average}.") for name in first}
        for raw in RAW if first else ():
            second = {f"{raw}.{end}" for end in ends} & document.keys()
            if len(second) > len(first) // 2:
                return {
                    average: {name.removeprefix(f"{average}."): document[name] for name in first},
                    raw: {name.removeprefix(f"{raw}."): document[name] for name in second},
                }
    return document


def _has_weights(value: Any) -> bool:
    """Tells whether a value in a checkpoint is a state dict or a dictionary that wraps one."""
    level = [value]
    for _ in range(3):
        # Each mapping once: a small file can refer to one from a million places.
        mappings = {id(each): each for each in level if isinstance(each, Mapping)}
        level = [each for mapping in mappings.values() for each in mapping.values()]
        if any(isinstance(each, Tensor) for each in level):
            return True
    return False


@contextmanager
def _zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """Opens a zip archive after checking that its members are complete and match their checksums.

    Raises UserError if the archive is damaged or would unpack to over 1000 times its size.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [member.filename for member in archive.infolist()]
            if len(set(names)) != len(names):
                raise UserError(f"{path}: damaged: two members have one name")
            if archive.comment or any(member.comment for member in archive.infolist()):
                # Neither numpy nor PyTorch writes comments: a wrong length hides the members after it.
                raise UserError(f"{path}: damaged: a member's length is wrong")
            if any(member.external_attr & DIRECTORY or member.is_dir() for member in archive.infolist()):
                # PyTorch reads nothing from such a member and leaves its weights unset.
                raise UserError(f"{path}: damaged: a member says it is a folder")
            check_amount(path, sum(member.file_size for member in archive.infolist()))
            if bad := archive.testzip():
                raise UserError(f"{path}: damaged: {bad} does not match its checksum")
            yield archive
    except (
        zipfile.BadZipFile,
        zipfile.LargeZipFile,
        NotImplementedError,
        RuntimeError,
        EOFError,
        ValueError,
    ) as error:
        raise UserError(f"{path}: damaged or not an archive ({first_line(error)})") from error
    except (OverflowError, UnicodeDecodeError, zipfile.error, zlib.error) as error:
        raise UserError(f"{path}: damaged ({first_line(error)})") from error


def _as_float(tensor: Tensor) -> Tensor:
    """Converts floating-point tensors to float32; integers (counters, indices) stay as they are."""
    return tensor.to(torch.float32) if tensor.is_floating_point() else tensor


def safetensors(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> Fill:
    """Returns a function that writes the tensors, and `metadata` in the header, to a .safetensors file."""
    return lambda path: save_safetensors(dict(tensors), path, {"format": "pt", **(metadata or {})})


def npz(tensors: Mapping[str, Tensor]) -> Fill:
    """Returns a function that writes the tensors to a numpy .npz file."""

    def fill(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, **{name: tensor.numpy() for name, tensor in tensors.items()})

    return fill


def torch_file(tensors: Mapping[str, Tensor]) -> Fill:
    """Returns a function that writes the tensors to a file of `torch.save`."""
    return lambda path: torch.save({name: tensor.clone() for name, tensor in tensors.items()}, path)


def write_model_folder(path: Path, fill: Fill, overwrite: bool = False) -> None:
    """Writes the folder of a model atomically.

    Args:
        path: The folder.
        fill: Writes the model's files into the folder it is given.
        overwrite: Replace the folder if it exists; one that holds anything besides `MODEL_FILES` is never replaced.

    Raises:
        UserError: If the folder exists and must not be replaced, or cannot be written.
    """

    def refuse(there: Path) -> None:
        refuse_existing(there, overwrite)
        if there.exists() and not (there.is_dir() and {each.name for each in there.iterdir()} <= MODEL_FILES):
            raise UserError(f"{there}: holds more than a model; it will not be overwritten")

    write_folder(path, fill, refuse)
