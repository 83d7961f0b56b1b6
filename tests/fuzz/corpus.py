"""Hostile files that were once not refused in time, memory or words, each made by a few lines: no file is kept.

A case is a function that writes what it needs into a folder and returns the arguments of the command that must end in a
sentence and exit status 2.
"""

import json
import os
import pickle
import shutil
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
import torch
from PIL import Image
from safetensors.torch import save_file

from tests.data.costly_pictures import COSTLY
from vitrail.io.checksums import sum_line

RECORDED = Path(__file__).parents[1] / "recorded"
Case = Callable[[Path], list[str]]


def convert(path: Path) -> list[str]:
    return ["convert", str(path), str(path.parent / "out"), "--no-check"]


def seal(folder: Path) -> None:
    """Writes the checksums of a bundle or snapshot anew: what is wrong in it must be noticed without them."""
    names = sorted(each for each in folder.iterdir() if each.name != "SHA256SUMS")
    (folder / "SHA256SUMS").write_text("".join(map(sum_line, names)))


def bundle(folder: Path, change: Callable[[dict[str, Any]], None] | None = None) -> Path:
    """Copies the recorded bundle, with a change to its config.json and checksums that are right."""
    path = Path(shutil.copytree(RECORDED / "bundle", folder / "bundle"))
    if change is not None:
        document = json.loads((path / "config.json").read_text())
        change(document)
        (path / "config.json").write_text(json.dumps(document))
        seal(path)
    return path


def field(section: str, name: str, value: Any) -> Case:
    """A bundle whose configuration says something odd."""

    def case(folder: Path) -> list[str]:
        def change(document: dict[str, Any]) -> None:
            holder = document["vitrail"]
            (holder[section] if section else holder)[name] = value

        return convert(bundle(folder, change))

    return case


def layer_of_a_large_number(folder: Path) -> list[str]:
    tensors = {"patch_embed.proj.weight": torch.zeros(64, 3, 16, 16), "blocks.9999999999.norm1.weight": torch.zeros(1)}
    save_file(tensors, folder / "a.safetensors")
    return convert(folder / "a.safetensors")


def array_of_a_large_number(folder: Path) -> list[str]:
    name = "Transformer/encoderblock_9999999999/LayerNorm_0/scale"
    np.savez(folder / "a.npz", **{"embedding/kernel": np.zeros((16, 16, 3, 64), np.float32), name: np.zeros(1)})
    return convert(folder / "a.npz")


def tensor_of_stride_0(folder: Path) -> list[str]:
    large = torch.zeros(1, dtype=torch.float16).as_strided((2**17, 2**15), (0, 0))
    torch.save({"patch_embed.proj.weight": large}, folder / "a.pth")
    return convert(folder / "a.pth")


def many_names(folder: Path) -> list[str]:
    header = {
        f"blocks.{number}.norm1.weight": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
        for number in range(60_000)
    }
    text = json.dumps(header).encode()
    (folder / "a.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    return convert(folder / "a.safetensors")


def dictionaries_in_each_other(folder: Path) -> list[str]:
    document: Any = 0
    for _ in range(4):
        document = dict.fromkeys(range(3000), document)
    torch.save(document, folder / "a.pth")
    return convert(folder / "a.pth")


def zipped(folder: Path, document: bytes) -> list[str]:
    """Writes a .pth file, of a pickle that PyTorch's unpickler is given."""
    with zipfile.ZipFile(folder / "a.pth", "w") as archive:
        archive.writestr("archive/data.pkl", document)
        archive.writestr("archive/version", "3\n")
        archive.writestr("archive/byteorder", "little")
    return convert(folder / "a.pth")


def pickled_pairs(levels: int) -> bytes:
    """Pickles a dictionary whose key is a tuple of a tuple of a tuple, each twice: to hash it takes twice as long for
    each level."""
    return b"\x80\x02})" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(levels)) + b"K\x01s."


def pairs_of_pairs(folder: Path) -> list[str]:
    return zipped(folder, pickled_pairs(60))


def pairs_in_an_old_file(folder: Path) -> list[str]:
    torch.save({}, folder / "a.pth", _use_new_zipfile_serialization=False)
    empty, content = pickle.dumps({}, 2), (folder / "a.pth").read_bytes()
    assert content.count(empty) == 1, "only the document is an empty dictionary"
    (folder / "a.pth").write_bytes(content.replace(empty, pickled_pairs(60)))
    return convert(folder / "a.pth")


def tuples_without_end(folder: Path) -> list[str]:
    """To hash the key needs a stack as deep as the tuples are."""
    return zipped(folder, b"\x80\x02})" + b"\x85" * 1_000_000 + b"K\x01s.")


def archive_bomb(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive, archive.open("a.npy", "w") as member:
        for _ in range(400):
            member.write(b"\0" * 2**20)
    return convert(folder / "a.npz")


def array_of_99_dimensions(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "a.npz", "w") as archive, archive.open("embedding/kernel.npy", "w") as member:
        header = {"descr": "<f4", "fortran_order": False, "shape": (1,) * 99}
        np.lib.format.write_array_header_1_0(member, header)  # pyright: ignore[reportArgumentType]
        member.write(b"\0" * 4)
    return convert(folder / "a.npz")


def header_without_an_end(folder: Path) -> list[str]:
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,\n"
        archive.writestr(
            "embedding/kernel.npy", b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + b"\0" * 4
        )
    return convert(folder / "a.npz")


def snapshot_of_no_tensors(folder: Path) -> list[str]:
    path = Path(shutil.copytree(RECORDED / "run", folder / "run"))
    for each in path.glob("snapshots/*"):
        (each / "state.safetensors").write_bytes(struct.pack("<Q", 2) + b"[]")
        seal(each)
    return ["train", "--out", str(path), "--resume"]


def model_of_99_dimensions(folder: Path) -> list[str]:
    import onnx

    model = onnx.load(str(RECORDED / "model.onnx"))
    dimensions = model.graph.input[0].type.tensor_type.shape.dim
    for _ in range(99 - len(dimensions)):
        dimensions.add().dim_value = 1
    onnx.save(model, str(folder / "a.onnx"))
    return predict(folder / "a.onnx")


def predict(path: Path) -> list[str]:
    Image.new("L", (8, 8)).save(path.parent / "photo.png")
    return ["predict", str(path), str(path.parent / "photo.png"), "--engine", "onnxruntime"]


def deep_metadata(folder: Path) -> list[str]:
    nothing = pyarrow.table({"image": pyarrow.array([], pyarrow.binary())})
    pyarrow.parquet.write_table(
        nothing.replace_schema_metadata({"huggingface": "[" * 100_000}), folder / "train-0.parquet"
    )
    return ["data", "check", str(folder)]


def deep_schema(folder: Path) -> list[str]:
    kind: pyarrow.DataType = pyarrow.binary()
    for _ in range(90):
        kind = pyarrow.struct([("bytes", kind)])
    pyarrow.parquet.write_table(pyarrow.table({"image": pyarrow.array([], kind)}), folder / "train-0.parquet")
    return ["data", "check", str(folder)]


def list_of_words_for_a_name(folder: Path) -> list[str]:
    image = {"id": 1, "file_name": ["x"] * 1000}
    document = {"images": [image], "categories": [{"id": 7, "name": "sun"}], "annotations": []}
    (folder / "instances_a.json").write_text(json.dumps(document))
    return ["data", "check", str(folder / "instances_a.json")]


def endless_checksums(folder: Path) -> list[str]:
    path = bundle(folder)
    os.truncate(path / "SHA256SUMS", 2 * 2**30)
    return convert(path)


def endless_weights(folder: Path) -> list[str]:
    path = bundle(folder)
    os.truncate(path / "model.safetensors", 2**40)
    return convert(path)


def lengthen(path: Path, size: int) -> None:
    """Makes a .safetensors file of one tensor of so many bytes, which take no room on the disk."""
    header = json.dumps({"patch_embed.proj.weight": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}})
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode())
    os.truncate(path, 8 + len(header) + size)


def tensor_of_300_gb(folder: Path) -> list[str]:
    lengthen(folder / "a.safetensors", 300 * 2**30)
    return convert(folder / "a.safetensors")


def bundle_of_300_gb(folder: Path) -> list[str]:
    """Its checksums are not compared: that would take hours."""
    path = bundle(folder)
    lengthen(path / "model.safetensors", 300 * 2**30)
    return convert(path)


def snapshots_of_300_gb(folder: Path) -> list[str]:
    path = Path(shutil.copytree(RECORDED / "run", folder / "run"))
    for each in path.glob("snapshots/*/state.safetensors"):
        lengthen(each, 300 * 2**30)
    return ["train", "--out", str(path), "--resume"]


def archive_of_300_gb(folder: Path) -> list[str]:
    """An archive of one array that is stored as it is: as large as it says."""
    with zipfile.ZipFile(folder / "a.npz", "w") as archive:
        archive.writestr("embedding/kernel.npy", b"")
    content = (folder / "a.npz").read_bytes()
    with (folder / "a.npz").open("r+b") as file:
        file.seek(300 * 2**30)
        file.write(content)
    return convert(folder / "a.npz")


def run_of(name: str, content: bytes) -> Case:
    """A run folder, of which one file is something else."""

    def case(folder: Path) -> list[str]:
        path = Path(shutil.copytree(RECORDED / "run", folder / "run"))
        (path / name).write_bytes(content)
        return ["train", "--out", str(path), "--resume"]

    return case


def snapshots_all_damaged(folder: Path) -> list[str]:
    path = Path(shutil.copytree(RECORDED / "run", folder / "run"))
    for each in path.glob("snapshots/*/state.json"):
        each.write_text("{}")
    return ["train", "--out", str(path), "--resume"]


def names_that_move_the_cursor(folder: Path) -> list[str]:
    save_file({"\x1b[2J\nvitrail: all is well": torch.zeros(1)}, folder / "a.safetensors")
    return convert(folder / "a.safetensors")


def weights_by_pickle(folder: Path) -> list[str]:
    (folder / "a.pth").write_bytes(pickle.dumps([[]] * 10**6))
    return convert(folder / "a.pth")


def costly_pictures(folder: Path) -> list[str]:
    """Pictures that would each take many seconds, or much memory, where nothing ends them."""
    (folder / "pictures").mkdir()
    for name, make in COSTLY.items():
        (folder / "pictures" / f"{name}.png").write_bytes(make())
    limits = ["--decode-seconds", "0.5", "--decode-mb", "512"]
    return ["predict", str(RECORDED / "bundle"), str(folder / "pictures"), "--engine", "torch", *limits]


CHECKPOINTS: dict[str, Case] = {
    "a layer of a large number": layer_of_a_large_number,
    "an array of a large number": array_of_a_large_number,
    "a tensor of stride 0": tensor_of_stride_0,
    "60,000 names": many_names,
    "dictionaries in each other": dictionaries_in_each_other,
    "pairs of pairs": pairs_of_pairs,
    "pairs in an old file": pairs_in_an_old_file,
    "tuples without end": tuples_without_end,
    "an archive bomb": archive_bomb,
    "an array of 99 dimensions": array_of_99_dimensions,
    "a header without an end": header_without_an_end,
    "a model of 99 dimensions": model_of_99_dimensions,
    "names that move the cursor": names_that_move_the_cursor,
    "a long pickle": weights_by_pickle,
    "checksums of 2 GB": endless_checksums,
    "weights of 1 TB": endless_weights,
    "a tensor of 300 GB": tensor_of_300_gb,
    "a bundle of 300 GB": bundle_of_300_gb,
    "an archive of 300 GB": archive_of_300_gb,
    **{
        f"{name} {str(value)[:20]}": field("model", name, value)
        for name in ("image_size", "norm_eps", "drop_path", "width", "depth", "stages")
        for value in (2**31, float("inf"), float("nan"), -1, "x", [], {}, [2**31, float("inf")])
    },
    "image_size -0.0": field("model", "image_size", -0.0),
    "a preprocessing of -0.0": field("preprocessing", "crop_fraction", -0.0),
    "a preprocessing of 2^31": field("preprocessing", "image_size", 2**31),
    "a mean of Infinity": field("preprocessing", "mean", [float("inf")]),
    "label_names x": field("", "label_names", "x"),
    "label_names 5": field("", "label_names", 5),
    "constants x": field("", "constants", "x"),
    "provenance x": field("", "provenance", ["x"]),
    "a task that is none": field("model", "task", "x"),
}
"""Files of weights, bundles and exported models."""

FOLDERS: dict[str, Case] = {
    "a run of {}": run_of("config.json", b"{}"),
    "a run of []": run_of("config.json", b"[]"),
    "a run of a word": run_of("config.json", b'{"train": "x"}'),
    "metrics that are no text": run_of("metrics.jsonl", b"\xff\xfe\n"),
    "metrics of a list": run_of("metrics.jsonl", b"[1]\n{}\n"),
    "a step that is a word": run_of("metrics.jsonl", b'{"step": "two", "kind": "train"}\n{}\n'),
    "snapshots that are all damaged": snapshots_all_damaged,
    "a snapshot of no tensors": snapshot_of_no_tensors,
    "snapshots of 300 GB": snapshots_of_300_gb,
}
"""Run folders."""

DATA: dict[str, Case] = {
    "deep metadata": deep_metadata,
    "a deep schema": deep_schema,
    "a list of words for a name": list_of_words_for_a_name,
}
"""Data sets."""

PICTURES: dict[str, Case] = {"costly pictures": costly_pictures}
"""Folders of pictures."""
