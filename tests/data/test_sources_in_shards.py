"""Parquet, tar shards and Hugging Face data sets."""

import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.conftest import check_whole, counts, encoded, picture, smooth
from vitrail.data import BadImage, decode, open_source
from vitrail.data.sources import parquet
from vitrail.errors import UserError

# Parquet

HUGGINGFACE = {
    "info": {
        "features": {
            "picture": {"_type": "Image"},
            "kind": {"names": ["zebra", "ant", "bee"], "_type": "ClassLabel"},
        }
    }
}


def write_parquet(file: Path, columns: dict, metadata: dict | None = None, group: int = 4) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if metadata:
        table = table.replace_schema_metadata({b"huggingface": json.dumps(metadata).encode()})
    pq.write_table(table, file, row_group_size=group)


def images(count: int, seed: int = 0) -> list[bytes]:
    return [encoded(picture(seed=seed + index)) for index in range(count)]


def test_parquet_as_hugging_face_writes_it(tmp_path):
    for name, count, seed in (("train-00000-of-00002", 9, 0), ("train-00001-of-00002", 9, 9), ("test-0", 6, 50)):
        structs = [{"bytes": content, "path": "x.png"} for content in images(count, seed)]
        labels = [index % 3 for index in range(count)]
        write_parquet(tmp_path / "data" / f"{name}.parquet", {"kind": labels, "picture": structs}, HUGGINGFACE)
    source = open_source(tmp_path, val_fraction=0)
    assert source.classes == ("zebra", "ant", "bee")
    assert counts(source) == {"train": 18, "test": 6}
    train = source.split("train")
    for index in range(18):
        assert np.array_equal(decode(train.read(index)), smooth(seed=index))
    assert train.ids[9] == "data/train-00001-of-00002/000000"
    check_whole(source)


@pytest.mark.parametrize("labels", [["b", "a", "b", "c"] * 5, [1, 0, 1, 2] * 5])
def test_plain_parquet_with_names_or_numbers(tmp_path, labels):
    write_parquet(tmp_path / "x.parquet", {"image": images(20), "label": labels})
    source = open_source(tmp_path / "x.parquet", test_fraction=0, val_fraction=0)
    assert source.classes == (("a", "b", "c") if isinstance(labels[0], str) else ("0", "1", "2"))
    assert source.split("train").labels.tolist() == [1, 0, 1, 2] * 5
    check_whole(source)


def test_parquet_without_a_label_or_bytes(tmp_path):
    contents = [*images(6), None, b"junk"]
    labels = ["a", "b"] * 3 + [None, "a"]
    write_parquet(tmp_path / "x.parquet", {"image": pa.array(contents, pa.binary()), "label": labels})
    source = open_source(tmp_path / "*.parquet", val_fraction=0, test_fraction=0)
    split = source.split("train")
    assert split[6].target is None
    with pytest.raises(BadImage, match="no bytes"):
        split.read(6)
    with pytest.raises(BadImage, match="not an image"):
        decode(split.read(7))


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"a": [1], "label": [0]}, "no column of images"),
        ({"image": [b"x"], "label": [0.5]}, "0.5"),
        ({"image": [b"x"], "label": [-7]}, "-7 is negative"),
    ],
)
def test_parquet_that_does_not_serve(tmp_path, columns, message):
    write_parquet(tmp_path / "x.parquet", columns)
    with pytest.raises(UserError, match=message):
        open_source(tmp_path)


def test_a_file_that_is_not_parquet(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match="not a readable parquet"):
        open_source(tmp_path)


def blank_images(file: Path) -> None:
    """Zeros over every image, nothing else changed."""
    about, content = pq.ParquetFile(file).metadata, bytearray(file.read_bytes())
    for group in range(about.num_row_groups):
        for number in range(about.num_columns):
            column = about.row_group(group).column(number)
            if "label" not in column.path_in_schema:
                start = column.dictionary_page_offset or column.data_page_offset
                content[start : start + column.total_compressed_size] = bytes(column.total_compressed_size)
    file.write_bytes(content)


def test_opening_parquet_reads_labels_and_no_image(tmp_path):
    write_parquet(tmp_path / "x.parquet", {"image": images(12), "label": [0, 1] * 6})
    whole = open_source(tmp_path, val_fraction=0, test_fraction=0)
    blank_images(tmp_path / "x.parquet")
    blank = open_source(tmp_path, val_fraction=0, test_fraction=0)
    assert blank.fingerprint() == whole.fingerprint()
    assert blank.split("train").labels.tolist() == [0, 1] * 6
    with pytest.raises(BadImage, match="cannot be read from its parquet file"):
        blank.split("train").read(3)


def test_the_row_groups_kept_in_memory_are_bounded(tmp_path, monkeypatch):
    contents = [bytes([index]) * 10_000 for index in range(40)]
    write_parquet(tmp_path / "x.parquet", {"image": contents, "label": [0, 1] * 20})
    monkeypatch.setattr(parquet, "CACHE_BYTES", 100_000)
    split = open_source(tmp_path, val_fraction=0, test_fraction=0).split("train")
    for index in [*range(0, 40, 7), *range(39, -1, -1)]:
        assert split.read(index) == contents[index]
        assert len(split.reader._cache) <= 2
    assert split.shards().tolist() == [index // 4 for index in range(40)]


# Tar shards


def write_tar(file: Path, members: dict[str, bytes]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(file, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def shard(start: int, count: int, ending: str = "cls") -> dict[str, bytes]:
    members = {}
    for index in range(start, start + count):
        label = {"cls": f"{index % 3}", "txt": ["ant", "bee", "cat"][index % 3]}.get(ending)
        label = label or json.dumps({"label": index % 3, "other": "x"})
        members[f"{index:05d}.png"] = encoded(picture(seed=index))
        members[f"{index:05d}.{ending}"] = label.encode()
    return members


@pytest.mark.parametrize("ending", ["cls", "json", "txt"])
def test_tar_shards(tmp_path, ending):
    write_tar(tmp_path / "train-000.tar", shard(0, 9, ending))
    write_tar(tmp_path / "train-001.tar", shard(9, 9, ending))
    write_tar(tmp_path / "val-000.tar", shard(30, 6, ending))
    source = open_source(tmp_path)
    assert counts(source) == {"train": 18, "val": 6}
    assert source.classes == (("ant", "bee", "cat") if ending == "txt" else ("0", "1", "2"))
    train = source.split("train")
    assert train.ids[9] == "train-001/00009"
    for index in range(18):
        assert np.array_equal(decode(train.read(index)), smooth(seed=index))
    check_whole(source)
    globbed = open_source(str(tmp_path / "train-{000..001}.tar"), val_fraction=0, test_fraction=0)
    assert list(globbed.split("train").ids) == list(train.ids)
    assert counts(open_source(tmp_path / "train-*.tar", val_fraction=0, test_fraction=0)) == {"train": 18}


def test_webdataset_writes_what_we_read(tmp_path):
    webdataset = pytest.importorskip("webdataset")
    with webdataset.TarWriter(str(tmp_path / "x.tar")) as writer:
        for index in range(6):
            sample = {"__key__": f"s{index}", "png": encoded(picture(seed=index)), "cls": index % 2}
            writer.write(sample)
    source = open_source(tmp_path, val_fraction=0, test_fraction=0)
    assert source.split("train").labels.tolist() == [0, 1] * 3
    assert np.array_equal(decode(source.split("train").read(5)), smooth(seed=5))


def test_shards_without_a_label_or_an_image(tmp_path):
    members = shard(0, 6)
    del members["00005.cls"], members["00004.png"]
    write_tar(tmp_path / "x.tar", members)
    (tmp_path / "classes.json").write_text('["x", "y", "z"]')
    source = open_source(tmp_path, val_fraction=0, test_fraction=0)
    assert source.classes == ("x", "y", "z")
    split = source.split("train")
    assert [split[index].target for index in range(5)] == [0, 1, 2, 0, None]
    assert "1 sample(s) without an image" in source.notes[0]


def test_a_shard_that_is_cut_off(tmp_path):
    write_tar(tmp_path / "x.tar", shard(0, 6))
    content = (tmp_path / "x.tar").read_bytes()
    source = open_source(tmp_path, val_fraction=0, test_fraction=0)
    (tmp_path / "x.tar").write_bytes(content[: len(content) // 2])
    with pytest.raises(BadImage, match="cut off"):
        source.split("train").read(5)
    (tmp_path / "x.tar").write_bytes(b"nothing like a tar file" * 100)
    with pytest.raises(UserError, match="not a readable plain tar"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"00000.jpg": b"x"}, "two images"),
        ({"00009.png": b"x", "00009.cls": b"a name"}, "some are names"),
        ({"00009.png": b"x", "00009.json": b"{"}, "cannot be read as a label"),
        ({"00009.png": b"x", "00009.json": b'{"label": [1]}'}, "must hold a number"),
    ],
)
def test_shards_that_contradict_themselves(tmp_path, extra, message):
    write_tar(tmp_path / "x.tar", {**shard(0, 3), **extra})
    with pytest.raises(UserError, match=message):
        open_source(tmp_path)


def test_a_shard_name_that_tells_no_split_among_others_that_do(tmp_path):
    write_tar(tmp_path / "train-0.tar", shard(0, 3))
    write_tar(tmp_path / "more.tar", shard(3, 3))
    with pytest.raises(UserError, match=r"more\.tar does not"):
        open_source(tmp_path)


# Hugging Face


@pytest.fixture
def offline(tmp_path, monkeypatch):
    """A folder that `datasets` takes for owner/name, and a cache of its own."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    yield tmp_path
    datasets.enable_progress_bars()


def test_hugging_face_data_sets(offline):
    for split, count, seed in (("train", 12, 0), ("validation", 6, 40)):
        structs = [{"bytes": content, "path": "x.png"} for content in images(count, seed)]
        labels = [index % 3 for index in range(count)]
        write_parquet(
            offline / "owner" / "name" / f"{split}.parquet", {"kind": labels, "picture": structs}, HUGGINGFACE
        )
    source = open_source("hf:owner/name")
    assert source.classes == ("zebra", "ant", "bee")
    assert counts(source) == {"train": 12, "val": 6}
    for index in range(12):
        assert np.array_equal(decode(source.split("train").read(index)), smooth(seed=index))
    check_whole(source)


def test_a_hugging_face_name_that_leads_nowhere(offline):
    with pytest.raises(UserError, match="hf:owner/missing cannot be loaded"):
        open_source("hf:owner/missing")
