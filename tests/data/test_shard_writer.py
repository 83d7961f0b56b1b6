"""What is written as shards reads back as the same data set."""

import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from tests.data.conftest import encoded, picture, smooth, write_class_folders
from vitrail.cli.data import shard
from vitrail.data import Split, decode, open_source
from vitrail.data.shard_writer import write_shards
from vitrail.data.sources.base import Source
from vitrail.errors import UserError


def check_same(source: Source, again: Source) -> None:
    assert again.classes == source.classes
    assert list(again.splits) == list(source.splits)
    for name, split in source.splits.items():
        other = again.split(name)
        assert other.labels.tolist() == split.labels.tolist()
        for index in range(len(split)):
            assert np.array_equal(decode(split.read(index)), decode(other.read(index)))


def test_a_folder_becomes_shards_of_about_the_size_asked_for(folder, tmp_path):
    (folder / "ant" / "more.jpg").write_bytes(encoded(picture(seed=9), "JPEG"))
    source = open_source(folder)
    write_shards(source, tmp_path / "out", shard_bytes=20_000)
    check_same(source, open_source(tmp_path / "out"))
    shards = sorted((tmp_path / "out").glob("train-*.tar"))
    assert len(shards) > 2
    assert all(file.stat().st_size < 50_000 for file in shards)
    write_shards(source, tmp_path / "again", shard_bytes=20_000)
    for file in shards:
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


def test_arrays_of_any_channels_become_shards(tmp_path):
    for channels in (1, 3, 5):
        images = np.stack([smooth(9, 11, seed=index, channels=channels) for index in range(8)])
        split = Split.of_array("train", images, [0, 1] * 4)
        write_shards(Source("x", ("a", "b"), {"train": split}), tmp_path / str(channels))
        again = open_source(tmp_path / str(channels), val_fraction=0, test_fraction=0).split("train")
        for index in range(8):
            assert np.array_equal(decode(again.read(index), channels), images[index])


def test_the_command_leaves_out_what_cannot_be_read_and_says_so(tmp_path, capsys):
    write_class_folders(tmp_path / "x", {"a": 3, "b": 3})
    (tmp_path / "x" / "a" / "000.png").write_bytes(b"junk")
    shard(str(tmp_path / "x"), tmp_path / "out", val_fraction=0, test_fraction=0)
    out = capsys.readouterr().out
    assert "5 samples (5 train)" in out
    assert "left out: a/000.png is not an image" in out
    with pytest.raises(UserError, match="not empty"):
        shard(str(tmp_path / "x"), tmp_path / "out")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot be written"):
        shard("digits", Path(tmp_path / "file" / "below"))


# Labels and numbers


def write_table(folder: Path, header: str, cells: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(len(cells)):
        (folder / f"{number}.png").write_bytes(encoded(picture(16, 16, seed=number)))
    rows = [header, *(f"{number}.png,{cell}" for number, cell in enumerate(cells))]
    (folder / "table.csv").write_text("\n".join(rows) + "\n")
    return folder / "table.csv"


TABLES = {
    "multilabel": ("file,labels", ["sun|rain", "", "sun", "snow|sun|rain", "rain"] * 8),
    "unknown labels": ("file,sun,rain", ["1,0", ",", "0,0", "0,1"] * 10),
    "regression": ("file,age,height", [f"{number / 7},{1e9 + number / 3}" for number in range(40)]),
    "unknown numbers": ("file,age,height", ["1,2.5", ",3", ",", "1e-300,-7"] * 10),
}


@pytest.mark.parametrize("kind", TABLES)
def test_labels_and_numbers_come_back_with_their_names_splits_and_ids(kind: str, tmp_path: Path) -> None:
    source = open_source(write_table(tmp_path / "x", *TABLES[kind]))
    write_shards(source, tmp_path / "out", shard_bytes=10_000)
    assert len(list((tmp_path / "out").glob("train-*.tar"))) > 1
    again = open_source(tmp_path / "out")
    assert (again.task, again.classes) == (source.task, source.classes)
    assert list(again.splits) == list(source.splits)
    for name, split in source.splits.items():
        other = again.split(name)
        assert list(other.ids) == list(split.ids)
        assert other.targets.dtype == split.targets.dtype
        assert np.array_equal(other.targets, split.targets, equal_nan=split.targets.dtype.kind == "f")
        assert [other.read(index) for index in range(len(split))] == [split.read(index) for index in range(len(split))]
    assert again.fingerprint() == source.fingerprint()
    assert again.split("all").ids == source.split("all").ids


def test_other_programs_find_the_targets_by_name_in_json(tmp_path: Path) -> None:
    for kind in ("multilabel", "unknown numbers"):
        source = open_source(write_table(tmp_path / kind / "x", *TABLES[kind]), val_fraction=0, test_fraction=0)
        write_shards(source, tmp_path / kind / "out")
        with tarfile.open(tmp_path / kind / "out" / "train-000000.tar") as archive:
            members = {member.name: archive.extractfile(member) for member in archive}
            found = {name: json.load(file) for name, file in members.items() if file and name.endswith(".json")}
        assert len(found) == 40
        by_id = {each["id"]: each for each in found.values()}
        if kind == "multilabel":
            assert by_id["3.png"] == {"vitrail": "multilabel", "id": "3.png", "labels": ["rain", "snow", "sun"]}
        else:
            assert by_id["1.png"] == {"vitrail": "regression", "id": "1.png", "numbers": {"age": None, "height": 3}}


def test_targets_without_their_index_are_refused_rather_than_lost(tmp_path: Path) -> None:
    write_shards(open_source(write_table(tmp_path / "x", *TABLES["multilabel"])), tmp_path / "out")
    (tmp_path / "out" / "index.parquet").unlink()
    with pytest.raises(UserError, match=r"\.json is a target for multilabel, .*index\.parquet"):
        open_source(tmp_path / "out")


def test_classes_are_written_as_they_were(tmp_path: Path) -> None:
    """An index of format 1, which older programs open too, and ids of SHARD/KEY."""
    source = open_source(write_class_folders(tmp_path / "x", {"a": 5, "b": 5}))
    write_shards(source, tmp_path / "out")
    schema = pyarrow.parquet.read_schema(tmp_path / "out" / "index.parquet")
    assert schema.names == ["shard", "key", "offset", "size", "label", "name", "sha256"]
    assert json.loads(schema.metadata[b"vitrail.shards"])["format"] == 1
    assert open_source(tmp_path / "out").split("train").ids[0] == "train-000000/00000000"


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        ("multilabel", {"target": "[3]"}, "a label that is none of the 3"),
        ("multilabel", {"target": "[-1]"}, "a label that is none of the 3"),
        ("multilabel", {"target": '["sun"]'}, "not a list of places"),
        ("multilabel", {"target": "7"}, "not a list of places"),
        ("multilabel", {"target": "["}, "not a sound index"),
        ("multilabel", {"target": "[" * 100_000}, "not a sound index"),
        ("regression", {"target": "[1]"}, "does not have 2 numbers"),
        ("regression", {"target": '[1, "x"]'}, "no number"),
        ("regression", {"target": None}, "column target has gaps"),
        ("regression", {"id": "0.png"}, "two samples have one name"),
        ("regression", {"id": None}, "column id has gaps"),
        ("regression", {"task": "dance"}, "there is no task 'dance'"),
        ("regression", {"names": "age"}, "names of its classes are missing"),
        ("regression", {"names": ["x"] * 70_000}, "70000 names"),
    ],
)
def test_nothing_in_an_index_of_targets_is_believed(kind: str, change: dict, words: str, tmp_path: Path) -> None:
    source = open_source(write_table(tmp_path / "x", *TABLES[kind]), val_fraction=0, test_fraction=0)
    write_shards(source, tmp_path / "out")
    path = tmp_path / "out" / "index.parquet"
    table = pyarrow.parquet.read_table(path)
    ((key, value),) = change.items()
    if key in ("task", "names"):
        document = json.loads(table.schema.metadata[b"vitrail.shards"])
        table = table.replace_schema_metadata({b"vitrail.shards": json.dumps({**document, key: value})})
    else:
        cells = [value if row < 2 else cell for row, cell in enumerate(table[key].to_pylist())]
        table = table.set_column(table.schema.get_field_index(key), key, pyarrow.array(cells, pyarrow.string()))
    pyarrow.parquet.write_table(table, path)
    with pytest.raises(UserError, match=words):
        open_source(tmp_path / "out")
