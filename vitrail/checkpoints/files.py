"""Tensor files, read with suspicion, and the folders that models are written to.

Nothing here executes what a file contains: safetensors has no code, `.npz` is read member by member without pickle,
and `.pth` / `.bin` files go through PyTorch's restricted unpickler. Every way a file can be wrong ends in a UserError.
"""

import argparse
import io
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file as save_safetensors
from torch import Tensor

from vitrail.checkpoints.rules import Tensors
from vitrail.errors import UserError
from vitrail.io.checksums import SUMS
from vitrail.io.files import Fill, refuse_existing
from vitrail.io.folders import write_folder

TORCH_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt")
SUFFIXES = (".safetensors", ".npz", *TORCH_SUFFIXES)
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
"""Under which keys training checkpoints keep the weights, and their average over the steps."""
EXPORTED = (".onnx", ".xml", ".pt2")
DIRECTORY = 0x10
MODEL_FILES = {"model.safetensors", "config.json", SUMS, "preprocessor_config.json"}

WeightsFrom = Literal["average", "raw"]


class Contents(NamedTuple):
    """What a weights file holds."""

    tensors: Tensors
    metadata: dict[str, str]
    notes: list[str]


def read_tensors(path: Path, weights_from: WeightsFrom | None = None) -> Contents:
    """The tensors of one weights file by name, all float32. Of a training checkpoint that has both, the average of the
    weights is taken, or what `weights_from` says."""
    readers = {".safetensors": _read_safetensors, ".npz": _read_npz}
    suffix = path.suffix.lower()
    if suffix in EXPORTED:
        takers = "predict, embed and serve take .onnx and .xml"
        raise UserError(f"{path}: is an exported model ({takers}); give the model it was made from")
    if suffix not in SUFFIXES:
        raise UserError(f"{path}: not a weights file; the endings known are {', '.join(SUFFIXES)}")
    try:
        if not path.stat().st_size:
            raise UserError(f"{path}: the file is empty")
        document, metadata = readers.get(suffix, _read_torch)(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    tensors, notes = _unwrap(path, document, weights_from)
    if not tensors:
        raise UserError(f"{path}: there is no tensor in it")
    if weights_from and not notes:
        raise UserError(f"{path}: holds one set of weights, so --weights-from has nothing to choose between")
    if odd := [name for name, each in tensors.items() if each.layout != torch.strided or each.is_meta]:
        raise UserError(f"{path}: {odd[0]} is not a plain tensor with numbers in it")
    return Contents({name: _as_float(tensor) for name, tensor in tensors.items()}, metadata, notes)


def _read_safetensors(path: Path) -> tuple[Tensors, dict[str, str]]:
    try:
        with safe_open(path, "pt") as file:  # pyright: ignore[reportGeneralTypeIssues]
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise UserError(f"{path}: damaged or not a safetensors file ({_first_line(error)})") from error


def _read_npz(path: Path) -> tuple[Tensors, dict[str, str]]:
    tensors: Tensors = {}
    with _zip(path) as archive:
        for member in archive.infolist():
            if not member.filename.endswith(".npy"):
                raise UserError(f"{path}: holds {member.filename!r}, which is not an array")
            tensors[member.filename.removesuffix(".npy")] = torch.from_numpy(_read_npy(path, archive, member))
    return tensors, {}


def _read_npy(path: Path, archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> np.ndarray:
    """One array; its header is checked against the member's size before memory is taken for it."""
    if member.file_size > 1000 * max(member.compress_size, 1):
        raise UserError(f"{path}: {member.filename} unpacks to over 1000 times its size")
    try:
        content = io.BytesIO(archive.read(member))
        version = np.lib.format.read_magic(content)
        header = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}[version]
        shape, fortran, dtype = header(content)
    except (ValueError, KeyError, EOFError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        raise UserError(f"{path}: {member.filename} is not an array numpy wrote ({_first_line(error)})") from error
    if dtype.hasobject or dtype.kind not in "fiub" or dtype.itemsize > 8:
        raise UserError(f"{path}: {member.filename} is of type {dtype}, not numbers; refused unread")
    count = int(np.prod(shape, dtype=object)) if shape else 1
    if any(side < 0 for side in shape) or count * dtype.itemsize != len(content.getbuffer()) - content.tell():
        raise UserError(f"{path}: {member.filename} says it has the shape {shape}, but its size does not fit")
    flat = np.frombuffer(content.getbuffer(), dtype, count, content.tell()).astype(dtype.newbyteorder("="))
    return np.ascontiguousarray(flat.reshape(shape, order="F" if fortran else "C"))


def _read_torch(path: Path) -> tuple[Any, dict[str, str]]:
    with path.open("rb") as file:
        archived = file.read(2) == b"PK"
    if archived:
        with _zip(path):  # PyTorch does not compare checksums: a flipped bit would pass as a weight
            pass
    try:
        # DeiT, MAE and DINO keep their command line in the file; a Namespace is a bag of names and harmless.
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            document = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # whatever a hostile file provokes in the unpickler, the user hears one sentence
        if "Unsupported" in str(error) or "weights_only" in str(error).lower():
            raise UserError(
                f"{path}: holds more than tensors, and running it could harm; refused unread. Ask its author for a "
                ".safetensors file"
            ) from error
        raise UserError(f"{path}: damaged or not a PyTorch file ({_first_line(error)})") from error
    return document, {}


def _unwrap(path: Path, document: Any, weights_from: WeightsFrom | None) -> tuple[Tensors, list[str]]:
    """(the state dict inside a training checkpoint, a note where it was chosen among two)."""
    notes: list[str] = []
    for _ in range(5):
        if not isinstance(document, Mapping):
            raise UserError(f"{path}: holds a {type(document).__name__}, not a state dict")
        document = _by_owner(document)
        # The wrappers first: a training checkpoint may keep other tensors beside them (a random state).
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
    """One state dict that holds a model and its average side by side (`teacher.*` and `student.*`), as two."""
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


def _has_weights(value: Any, depth: int = 0) -> bool:
    """Whether a part of a checkpoint is a state dict, or wraps one."""
    if not isinstance(value, Mapping):
        return False
    return any(isinstance(each, Tensor) or (depth < 2 and _has_weights(each, depth + 1)) for each in value.values())


@contextmanager
def _zip(path: Path) -> Iterator[zipfile.ZipFile]:
    """An archive whose members are all there and match their checksums."""
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
            if total_size(archive) > 1000 * path.stat().st_size:
                raise UserError(f"{path}: unpacks to over 1000 times its size; refused unread")
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
        raise UserError(f"{path}: damaged or not an archive ({_first_line(error)})") from error
    except (MemoryError, OverflowError, UnicodeDecodeError, zipfile.error, zlib.error) as error:
        raise UserError(f"{path}: damaged ({_first_line(error)})") from error


def total_size(archive: zipfile.ZipFile) -> int:
    return sum(member.file_size for member in archive.infolist())


def _as_float(tensor: Tensor) -> Tensor:
    """Half precision and doubles become float32; what is no weight at all (counters, indices) stays as it is."""
    return tensor.to(torch.float32) if tensor.is_floating_point() else tensor


def _first_line(error: BaseException) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) < 160 else text[:157] + "..."


def safetensors(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> Fill:
    return lambda path: save_safetensors(dict(tensors), path, {"format": "pt", **(metadata or {})})


def npz(tensors: Mapping[str, Tensor]) -> Fill:
    def fill(path: Path) -> None:
        with path.open("wb") as file:
            np.savez(file, allow_pickle=False, **{name: tensor.numpy() for name, tensor in tensors.items()})

    return fill


def torch_file(tensors: Mapping[str, Tensor]) -> Fill:
    return lambda path: torch.save({name: tensor.clone() for name, tensor in tensors.items()}, path)


def write_model_folder(path: Path, fill: Fill, overwrite: bool = False) -> None:
    """Writes the folder of a model, whole or not at all; only one that holds nothing but a model is overwritten."""

    def refuse(there: Path) -> None:
        refuse_existing(there, overwrite)
        if there.exists() and not (there.is_dir() and {each.name for each in there.iterdir()} <= MODEL_FILES):
            raise UserError(f"{there}: holds more than a model; it will not be overwritten")

    write_folder(path, fill, refuse)
