"""idx and CIFAR files, in every version that is about."""

import gzip
import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import check_whole, counts
from vitrail.data import open_source
from vitrail.data.sources.cifar import CIFAR10_CLASSES
from vitrail.errors import UserError

# idx


def write_idx(file: Path, values: np.ndarray) -> None:
    content = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()
    file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)


def idx_folder(root: Path, end: str = "") -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    images = generator.integers(0, 256, (30, 9, 7), dtype=np.uint8)
    labels = np.arange(30, dtype=np.uint8) % 3
    write_idx(root / f"train-images-idx3-ubyte{end}", images)
    write_idx(root / f"train-labels-idx1-ubyte{end}", labels)
    write_idx(root / f"t10k-images-idx3-ubyte{end}", images[:6])
    write_idx(root / f"t10k-labels-idx1-ubyte{end}", labels[:6])
    return images, labels


@pytest.mark.parametrize("end", ["", ".gz"])
def test_idx_files(tmp_path, end):
    images, labels = idx_folder(tmp_path, end)
    source = open_source(tmp_path, val_fraction=0)
    assert counts(source) == {"train": 30, "test": 6}
    assert source.classes == ("0", "1", "2")
    for index in range(30):
        assert np.array_equal(source.split("train").read(index)[:, :, 0], images[index])
    assert source.split("train").labels.tolist() == labels.tolist()
    check_whole(source)


def test_idx_class_names_can_be_given(tmp_path):
    idx_folder(tmp_path)
    (tmp_path / "classes.txt").write_text("red\ngreen\nblue\n")
    assert open_source(tmp_path).classes == ("red", "green", "blue")
    (tmp_path / "classes.txt").write_text("red\ngreen\n")
    with pytest.raises(UserError, match="label 2, but only 2"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda content: content[:-1], "cut off"),
        (lambda content: b"\1" + content[1:], "not an idx file"),
        (lambda content: content[:4] + b"\xff" * 12 + content[16:], "too large"),
        (lambda content: content[:3], "not an idx file"),
    ],
)
def test_damaged_idx_files(tmp_path, damage, message):
    idx_folder(tmp_path)
    file = tmp_path / "train-images-idx3-ubyte"
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(UserError, match=message):
        open_source(tmp_path)


def test_idx_labels_must_be_there_and_fit(tmp_path):
    idx_folder(tmp_path)
    write_idx(tmp_path / "train-labels-idx1-ubyte", np.zeros(5, np.uint8))
    with pytest.raises(UserError, match="not a pair"):
        open_source(tmp_path)
    (tmp_path / "train-labels-idx1-ubyte").unlink()
    with pytest.raises(UserError, match="no labels beside it"):
        open_source(tmp_path)


# CIFAR

TEN = np.random.default_rng(1).integers(0, 256, (10, 3072), dtype=np.uint8)


def pictures_of(flat: np.ndarray) -> np.ndarray:
    return flat.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)


def check_cifar(root: Path, classes: tuple[str, ...], labels: list[int]) -> None:
    source = open_source(root, val_fraction=0)
    assert source.classes == classes
    assert source.split("test").labels.tolist() == labels
    for index in range(10):
        assert np.array_equal(source.split("test").read(index), pictures_of(TEN)[index])
    check_whole(source)


def test_cifar10_binary(tmp_path):
    rows = np.concatenate([np.arange(10, dtype=np.uint8)[:, None], TEN], axis=1)
    for name in ("data_batch_1", "data_batch_2", "test_batch"):
        (tmp_path / f"{name}.bin").write_bytes(rows.tobytes())
    check_cifar(tmp_path, CIFAR10_CLASSES, list(range(10)))
    assert counts(open_source(tmp_path, val_fraction=0)) == {"train": 20, "test": 10}
    (tmp_path / "test_batch.bin").write_bytes(rows.tobytes()[:-1])
    with pytest.raises(UserError, match="whole number of images"):
        open_source(tmp_path)


def test_cifar100_binary_in_the_folder_its_archive_makes(tmp_path):
    place = tmp_path / "cifar-100-binary"
    place.mkdir()
    labels = np.stack([np.zeros(10, np.uint8), np.arange(10, dtype=np.uint8) * 11], axis=1)
    rows = np.concatenate([labels, TEN], axis=1).tobytes()
    (place / "train.bin").write_bytes(rows)
    (place / "test.bin").write_bytes(rows)
    names = tuple(f"name{number}" for number in range(100))
    (place / "fine_label_names.txt").write_text("\n".join(names))
    check_cifar(tmp_path, names, [11 * number for number in range(10)])


@pytest.mark.parametrize("protocol", [2, 3, 4])
def test_cifar10_python(tmp_path, protocol):
    batch = {b"data": TEN, b"labels": list(range(10)), b"batch_label": b"x", b"filenames": [b"a"] * 10}
    for name in ("data_batch_1", "test_batch"):
        (tmp_path / name).write_bytes(pickle.dumps(batch, protocol))
    names = [f"class {number}".encode() for number in range(10)]
    (tmp_path / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}, protocol))
    check_cifar(tmp_path, tuple(name.decode() for name in names), list(range(10)))


def test_cifar100_python_in_fortran_order(tmp_path):
    batch = {"data": np.asfortranarray(TEN), "fine_labels": list(range(10)), "coarse_labels": [0] * 10}
    for name in ("train", "test"):
        (tmp_path / name).write_bytes(pickle.dumps(batch, 2))
    check_cifar(tmp_path, tuple(str(number) for number in range(10)), list(range(10)))


def test_cifar_as_python_2_pickled_it(tmp_path):
    """Protocol 2 with byte strings as STRING opcodes, as the files that are distributed have it."""

    def text(value: bytes) -> bytes:
        return b"T" + struct.pack("<I", len(value)) + value

    array = b"cnumpy.core.multiarray\n_reconstruct\nq\x01cnumpy\nndarray\nq\x02K\x00\x85U\x01b\x87R"
    none = b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00"
    state = b"(K\x01K\x0aM\x00\x0c\x86cnumpy\ndtype\nq\x03U\x02u1K\x00K\x01\x87R(K\x03U\x01|" + none + b"tb"
    content = b"\x80\x02}q\x00(U\x04data" + array + state + b"\x89" + text(TEN.tobytes()) + b"tb"
    content += b"U\x06labels](" + b"".join(b"K" + bytes([n]) for n in range(10)) + b"eu."
    for name in ("data_batch_1", "test_batch"):
        (tmp_path / name).write_bytes(content)
    check_cifar(tmp_path, CIFAR10_CLASSES, list(range(10)))


def test_the_npm_package_of_cifar10(tmp_path):
    place = tmp_path / "package"
    place.mkdir()
    sheet = pictures_of(TEN).reshape(10, 1024, 3)
    for name, rows in (("data_batch_1", sheet), ("data_batch_2", sheet[::-1].copy()), ("test_batch", sheet)):
        Image.fromarray(rows).save(place / f"{name}.png")
    (place / "train_lables.json").write_text(json.dumps([*range(10), *range(9, -1, -1)]))
    (place / "test_lables.json").write_text(json.dumps(list(range(10))))
    check_cifar(tmp_path, CIFAR10_CLASSES, list(range(10)))
    train = open_source(tmp_path, val_fraction=0).split("train")
    assert np.array_equal(train.read(10), pictures_of(TEN)[9])
    assert train.labels[10] == 9
    (place / "train_lables.json").write_text("[1, 2]")
    with pytest.raises(UserError, match="too few"):
        open_source(tmp_path)
