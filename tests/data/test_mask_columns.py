"""Masks in a column beside the pictures: parquet files, and data sets of Hugging Face."""

import json
import pickle
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.data.conftest import encoded, picture
from tests.data.test_mask_check import named
from vitrail.data import open_source
from vitrail.data.bad_image import BadImage
from vitrail.data.check import check_source
from vitrail.data.shard_writer import write_shards
from vitrail.data.sources.base import Source
from vitrail.errors import UserError

SIZE = (24, 32)
IDS = (0, 1, 4)


def drawn(seed: int) -> np.ndarray:
    mask = np.zeros(SIZE, np.uint8)
    mask[2 + seed % 7 : 14, 3 + seed % 11 : 18] = 1
    mask[16:, 20 - seed % 13 :] = 4
    return mask


def masks(count: int) -> list[bytes]:
    return [encoded(Image.fromarray(drawn(seed))) for seed in range(count)]


def images(count: int) -> list[bytes]:
    return [encoded(picture(*SIZE, seed=seed)) for seed in range(count)]


def structs(contents: Sequence[bytes | None]) -> list[dict[str, Any] | None]:
    return [None if content is None else {"bytes": content, "path": "x.png"} for content in contents]


def write(file: Path, columns: dict[str, Any], features: dict[str, Any] | None = None) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table(columns)
    if features is not None:
        about = {"info": {"features": features}}
        table = table.replace_schema_metadata({b"huggingface": json.dumps(about).encode()})
    pq.write_table(table, file, row_group_size=4)
    return file


def opened(given: Path | str, **options) -> Source:
    return open_source(given, **{"val_fraction": 0, "test_fraction": 0, **options})


def check_masks(source: Source, places: dict[int, int], split: str = "train", missing: int = -1) -> None:
    part = source.split(split)
    for row in range(len(part)):
        if row == missing:
            assert part.annotation(row) is None
            continue
        expected = np.select([drawn(row) == identity for identity in IDS], [places[each] for each in IDS])
        assert np.array_equal(part.annotation(row), expected), row


@pytest.mark.parametrize("column", ["mask", "annotation", "label", "segmentation_mask"])
def test_a_column_of_pictures_beside_the_pictures_is_masks(tmp_path, column):
    file = write(tmp_path / "x.parquet", {column: masks(10), "image": images(10), "name": ["a"] * 10})
    source = opened(file)
    assert (source.task, source.classes) == ("segmentation", ("0", "1", "4"))
    check_masks(source, {0: 0, 1: 1, 4: 2})
    assert [source.split("train").read(row) for row in range(10)] == images(10)
    assert source.split("train").known.all()
    copy = pickle.loads(pickle.dumps(source))
    check_masks(copy, {0: 0, 1: 1, 4: 2})
    assert copy.fingerprint() == source.fingerprint()
    assert "the ids found in them" in source.notes[0]


def test_hugging_face_files_with_names_in_their_description(tmp_path):
    names = ["sky", "tree", "x", "y", "house"]
    listed = {"_type": "Sequence", "feature": {"_type": "ClassLabel", "names": names}}
    features = {"image": {"_type": "Image"}, "annotation": {"_type": "Image"}, "classes": listed}
    columns = {"annotation": structs([*masks(9)]), "image": structs([*images(9)]), "classes": [[0, 1]] * 9}
    for split in ("train", "test"):
        write(tmp_path / f"data/{split}-00000-of-00001.parquet", columns, features)
    source = opened(tmp_path)
    assert source.classes == tuple(names)
    assert {name: len(split) for name, split in source.splits.items()} == {"train": 9, "test": 9}
    for split in source.splits:
        check_masks(source, {0: 0, 1: 1, 4: 4}, split)
    (tmp_path / "classes.csv").write_text("id,name\n0,ground\n1,disc\n4,square\n")
    source = opened(tmp_path)
    assert source.classes == ("ground", "disc", "square")
    check_masks(source, {0: 0, 1: 1, 4: 2})
    assert opened(tmp_path, ignore=(4,)).classes == ("ground", "disc")


def test_rows_without_a_mask_have_no_target_and_masks_that_are_none_are_named(tmp_path):
    contents: list[bytes | None] = [*masks(10)]
    contents[3], contents[6] = None, b"junk"
    for kind, column in (("plain", pa.array(contents, pa.binary())), ("struct", structs(contents))):
        file = write(tmp_path / f"{kind}.parquet", {"image": images(10), "mask": column})
        split = opened(file).split("train")
        assert split.known.tolist() == [row != 3 for row in range(10)]
        assert split.annotation(3) is None
        with pytest.raises(BadImage, match="mask that cannot be used: the mask in row 6"):
            split.annotation(6)
        found = named(check_source(opened(file)))
        assert found == {"mask_missing": [f"{kind}/000003"], "unreadable": [f"{kind}/000006"]}


def test_labels_are_learned_where_there_are_some_unless_masks_are_asked_for(tmp_path):
    columns = {"image": images(10), "mask": masks(10), "label": [0, 1] * 5}
    features = {"label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
    file = write(tmp_path / "x.parquet", columns, features)
    assert opened(file).classes == ("cat", "dog")
    source = opened(file, task="segmentation")
    assert source.classes == ("0", "1", "4")
    check_masks(source, {0: 0, 1: 1, 4: 2})


def test_files_that_disagree_are_refused(tmp_path):
    write(tmp_path / "a.parquet", {"image": images(4), "mask": masks(4)})
    write(tmp_path / "b.parquet", {"image": images(4), "seg": masks(4)})
    with pytest.raises(UserError, match="masks in columns of other names"):
        opened(tmp_path)


def test_columns_of_masks_can_be_written_as_shards(tmp_path):
    source = opened(write(tmp_path / "x.parquet", {"image": images(10), "mask": masks(10)}))
    write_shards(source, tmp_path / "out")
    again = opened(tmp_path / "out")
    check_masks(again, {0: 0, 1: 1, 4: 2})
    assert again.fingerprint() == source.fingerprint()


@pytest.fixture
def offline(tmp_path, monkeypatch) -> Iterator[Path]:
    """A working directory where `owner/name` is a local folder to `datasets`, with its caches away from the home."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "datasets")
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    datasets.disable_progress_bars()
    yield tmp_path
    datasets.enable_progress_bars()


def test_data_sets_of_hugging_face_with_masks(offline):
    features = {"image": {"_type": "Image"}, "annotation": {"_type": "Image"}}
    contents: list[bytes | None] = [*masks(8)]
    contents[2] = None
    for split in ("train", "validation"):
        columns = {"annotation": structs(contents), "image": structs([*images(8)])}
        write(offline / f"owner/name/{split}.parquet", columns, features)
    source = opened("hf:owner/name")
    assert (source.task, source.classes) == ("segmentation", ("0", "1", "4"))
    for split in ("train", "val"):
        assert source.split(split).known.tolist() == [row != 2 for row in range(8)]
        check_masks(source, {0: 0, 1: 1, 4: 2}, split, missing=2)
    assert source.split("train").read(1) == images(8)[1]
    assert opened("hf:owner/name").fingerprint() == source.fingerprint()
