"""Class folders in which one picture lies in several: read by content as one sample with several labels."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.conftest import encoded, picture, write_class_folders
from vitrail.data import open_source
from vitrail.data.check import check_source
from vitrail.data.sources import identical_files
from vitrail.data.sources.identical_files import same_content
from vitrail.errors import UserError


@pytest.fixture
def holidays(tmp_path: Path) -> Path:
    """Two class folders of ten pictures each; four of `beach` lie in `sunset` too, under names of their own."""
    root = write_class_folders(tmp_path / "holidays", {"beach": 10, "sunset": 10})
    for number in range(4):
        (root / "sunset" / f"copy{number}.png").write_bytes((root / "beach" / f"{number:03d}.png").read_bytes())
    return root


def labels(source, split: str) -> dict[str, list[str]]:
    chosen, names = source.split(split), np.asarray(source.classes)
    return {name: names[chosen.targets[row] > 0].tolist() for row, name in enumerate(chosen.ids)}


def test_files_of_one_content_are_one_sample_with_the_labels_of_all_their_folders(holidays: Path) -> None:
    source = open_source(holidays, val_fraction=0, test_fraction=0, task="multilabel")
    assert source.task == "multilabel"
    assert source.classes == ("beach", "sunset")
    found = labels(source, "train")
    assert len(found) == 20
    assert {name for name, each in found.items() if len(each) > 1} == {f"beach/{number:03d}.png" for number in range(4)}
    assert found["beach/009.png"] == ["beach"]
    assert found["sunset/009.png"] == ["sunset"]
    assert source.split("train").read(0) == (holidays / "beach" / "000.png").read_bytes()
    assert "24 files are 20 pictures by their content, labelled by their folders (multilabel)" in source.notes[0]


@pytest.mark.parametrize("seed", range(5))
def test_a_content_is_on_one_side_of_a_cut(holidays: Path, seed: int) -> None:
    source = open_source(holidays, task="multilabel", split_seed=seed, val_fraction=0.3, test_fraction=0.3)
    contents = [{split.read(index) for index in range(len(split))} for split in source.splits.values()]
    assert sum(map(len, contents)) == len(set().union(*contents)) == 20


def test_splits_of_the_folder_are_kept_and_joined_one_by_one(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "train", {"a": 3, "b": 3})
    write_class_folders(tmp_path / "test", {"a": 2, "b": 2}, seed=500)
    same = (tmp_path / "train" / "a" / "000.png").read_bytes()
    for place in ("train/b/again.png", "test/b/again.png"):
        (tmp_path / place).write_bytes(same)
    source = open_source(tmp_path, task="multilabel", val_fraction=0)
    assert labels(source, "train")["train/a/000.png"] == ["a", "b"]
    assert labels(source, "test")["test/b/again.png"] == ["b"], "what another split says is another split's"
    assert {name: len(split) for name, split in source.splits.items()} == {"train": 6, "test": 5}


def test_copies_within_a_folder_are_one_sample_and_broken_files_are_not_alike(holidays: Path) -> None:
    (holidays / "beach" / "twice.png").write_bytes((holidays / "beach" / "009.png").read_bytes())
    for name in ("beach", "sunset"):
        (holidays / name / "empty.png").write_bytes(b"")
    found = labels(open_source(holidays, val_fraction=0, test_fraction=0, task="multilabel"), "train")
    assert "beach/twice.png" not in found
    assert found["beach/empty.png"] == ["beach"]
    assert found["sunset/empty.png"] == ["sunset"]


def test_only_files_of_equal_size_are_read(tmp_path: Path, monkeypatch) -> None:
    contents = {"a": b"12", "b": b"123", "c": b"21", "d": b"12", "e": b"1234"}
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    read: list[str] = []
    plain = identical_files.hashlib.file_digest

    def noting(stream, kind):
        read.append(Path(stream.name).name)
        return plain(stream, kind)

    monkeypatch.setattr(identical_files.hashlib, "file_digest", noting)
    assert same_content(tmp_path, [*contents, "missing", "gone"]) == [[0, 3], [1], [2], [4], [5], [6]]
    assert read == ["a", "c", "d"]


def test_a_folder_stays_classes_where_nothing_is_asked_and_the_check_says_so(holidays: Path) -> None:
    source = open_source(holidays)
    assert source.task == "classification"
    assert sum(map(len, source.splits.values())) == 24
    said = "8 files lie in several class folders, by their content; --task multilabel reads them as pictures with"
    assert [said in note for note in check_source(source).to_json()["notes"]].count(True) == 1
    for asked in ({"task": "multilabel"}, {"val_fraction": 0}):
        again = open_source(holidays, **asked)
        notes = check_source(again).to_json()["notes"]
        assert any(said in note for note in notes) == ("task" not in asked)


def test_nothing_is_said_of_a_picture_that_is_in_one_class_twice_or_in_two_splits(tmp_path: Path) -> None:
    write_class_folders(tmp_path / "train", {"a": 3, "b": 3})
    write_class_folders(tmp_path / "test", {"a": 2, "b": 2}, seed=500)
    same = encoded(picture(seed=9))
    for place in ("train/a/x.png", "train/a/y.png", "test/b/x.png"):
        (tmp_path / place).write_bytes(same)
    assert not any("several class folders" in note for note in check_source(open_source(tmp_path)).to_json()["notes"])


def test_numbers_are_not_told_by_folders(holidays: Path) -> None:
    with pytest.raises(UserError, match="is data for classification, and cannot be taken for regression"):
        open_source(holidays, task="regression")
