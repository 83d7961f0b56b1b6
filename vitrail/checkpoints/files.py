"""Tensor files, read with suspicion and written whole or not at all.

Nothing here executes what a file contains: safetensors has no code, `.npz` is read member by member without pickle,
and `.pth` / `.bin` files go through PyTorch's restricted unpickler. Every way a file can be wrong ends in a UserError.
"""

import argparse
import io
import json
import os
import shutil
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file as save_safetensors
from torch import Tensor

from vitrail.checkpoints.rules import Tensors
from vitrail.errors import UserError

TORCH_SUFFIXES = (".pth", ".pt", ".bin", ".ckpt")
SUFFIXES = (".safetensors", ".npz", *TORCH_SUFFIXES)
WRAPPERS = ("state_dict", "model", "teacher", "student", "model_state", "model_ema", "module")
EXPORTED = (".onnx", ".xml", ".pt2")
LARGEST_JSON = 64 * 2**20
DIRECTORY = 0x10
MODEL_FILES = {"model.safetensors", "config.json", "SHA256SUMS", "preprocessor_config.json"}

Fill = Callable[[Path], None]
"""Writes what it stands for to the path it is given."""


def read_tensors(path: Path) -> tuple[Tensors, dict[str, str]]:
    """(tensors by name, metadata) of one weights file, all float32."""
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
        tensors, metadata = readers.get(suffix, _read_torch)(path)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    if not tensors:
        raise UserError(f"{path}: there is no tensor in it")
    if odd := [name for name, each in tensors.items() if each.layout != torch.strided or each.is_meta]:
        raise UserError(f"{path}: {odd[0]} is not a plain tensor with numbers in it")
    return {name: _as_float(tensor) for name, tensor in tensors.items()}, metadata


def read_json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LARGEST_JSON:
            raise UserError(f"{path}: too large to be a configuration")
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"{path}: not valid JSON: {error}") from error
    if not isinstance(document, dict):
        raise UserError(f"{path}: must hold a JSON object, not a {type(document).__name__}")
    return document


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


def _read_torch(path: Path) -> tuple[Tensors, dict[str, str]]:
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
    return _unwrap(path, document), {}


def _unwrap(path: Path, document: Any) -> Tensors:
    """The state dict inside a training checkpoint: the weights, or the teacher's, or the student's."""
    for _ in range(4):
        if not isinstance(document, Mapping):
            raise UserError(f"{path}: holds a {type(document).__name__}, not a state dict")
        # The wrappers first: a training checkpoint may keep other tensors beside them (a random state).
        inner = next((document[key] for key in WRAPPERS if isinstance(document.get(key), Mapping)), None)
        if inner is None and any(isinstance(value, Tensor) for value in document.values()):
            return {str(name): value for name, value in document.items() if isinstance(value, Tensor)}
        if inner is None:
            break
        document = inner
    raise UserError(f"{path}: no state dict in it; its keys are {', '.join(map(str, list(document)[:8]))}")


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


def text_file(text: str) -> Fill:
    """Text that may hold file names no encoding can write: those are escaped."""
    content = text.encode("utf-8", "backslashreplace")

    def fill(path: Path) -> None:
        path.write_bytes(content)

    return fill


def json_text(document: Any) -> str:
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def write_file(path: Path, fill: Fill, overwrite: bool = False) -> None:
    """All of it under its name, or nothing: written beside, synced, then renamed."""
    _refuse_existing(path, overwrite)
    if path.is_dir():
        raise UserError(f"{path}: is a folder; a file of that format is wanted")
    with _disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        os.close(descriptor)
        temporary = Path(name)
        try:
            fill(temporary)
            sync(temporary)
            temporary.chmod(0o644)
            temporary.replace(path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(path.parent)


def write_folder(path: Path, fill: Fill, overwrite: bool = False) -> None:
    """A folder that `fill` writes, under its name when it is complete; one it replaces goes only then."""
    _refuse_existing(path, overwrite)
    if path.exists() and not (path.is_dir() and {each.name for each in path.iterdir()} <= MODEL_FILES):
        raise UserError(f"{path}: holds more than a model; it will not be overwritten")
    with _disk(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            fill(temporary)
            for file in (*temporary.iterdir(), temporary):
                sync(file)
            temporary.chmod(0o755)
            _put_in_place(temporary, path)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        sync(path.parent)


def _put_in_place(temporary: Path, path: Path) -> None:
    """Rename, after putting aside what is there; it comes back if the rename fails."""
    if not path.exists():
        temporary.rename(path)
        return
    aside = Path(tempfile.mkdtemp(prefix=f".{path.name}.old.", dir=path.parent))
    try:
        path.rename(aside / path.name)
        try:
            temporary.rename(path)
        except BaseException:
            (aside / path.name).rename(path)
            raise
    finally:
        shutil.rmtree(aside)


@contextmanager
def _disk(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be written: {error.strerror or error}") from error


def _refuse_existing(path: Path, overwrite: bool) -> None:
    if path.exists() and not overwrite:
        raise UserError(f"{path}: exists already; choose another name or give --overwrite")


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
