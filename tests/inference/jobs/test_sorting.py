"""Folders of classes: names that are safe everywhere and different, files that are never written over, and refusals."""

from pathlib import Path

import pytest

from vitrail.data.inputs import Input, find_pictures
from vitrail.errors import UserError
from vitrail.inference.jobs.sorting import Sorter, _moved, check_sorting_folder, folder_names, safe_name


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("tulip", "tulip"),
        ("../up", "_up"),
        ("..", "_"),
        ("", "_"),
        ("a/b\\c:d", "a_b_c_d"),
        (".hidden", "_hidden"),
        ("CON", "_CON"),
        ("nul.txt", "_nul.txt"),
        ("dots. . ", "dots"),
        ("line\nbreak\x00", "line_break_"),
        ("/etc/passwd", "_etc_passwd"),
        ("Grün", "Grün"),
    ],
)
def test_names_that_are_no_folders_are_made_safe(label, name):
    assert safe_name(label) == name


def test_long_names_are_cut_and_stay_different(tmp_path):
    one, other = safe_name("é" * 300 + "a.jpeg"), safe_name("é" * 300 + "b.jpeg")
    assert one != other
    for name in (one, other):
        assert name.endswith(".jpeg")
        (tmp_path / f"{name[:-5]}-12345.jpeg").write_bytes(b"")


def test_every_class_has_a_folder_of_its_own():
    names = folder_names(["a/b", "a_b", "Tulip", "tulip", "Unknown", "unknown", "a/b"])
    assert names == {
        "a/b": "a_b",
        "a_b": "a_b-2",
        "Tulip": "Tulip",
        "tulip": "tulip-2",
        "Unknown": "Unknown-2",
        "unknown": "unknown",
    }


def test_a_folder_inside_what_is_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "photos/in").mkdir(parents=True)
    for folder, paths in (
        ("photos/sorted", ["photos"]),
        ("photos", ["photos"]),
        ("photos/in/deep", ["photos/*"]),
        ("photos/sorted", ["photos/**/*.jpg"]),
        ("sorted", ["."]),
    ):
        with pytest.raises(UserError, match=r"lies inside .*, which is read"):
            check_sorting_folder(Path(folder), paths)
    for folder, paths in (
        ("sorted", ["photos", "*.jpg", "photos/**/*.jpg", "-"]),
        ("photos/sorted", ["photos/*.jpg"]),
        ("photos2", ["photos"]),
    ):
        check_sorting_folder(Path(folder), paths)


def test_where_there_are_no_hard_links_it_still_never_writes_over(tmp_path, monkeypatch):
    def refuse(*_: object) -> None:
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    (tmp_path / "new").write_bytes(b"new")
    (tmp_path / "there").write_bytes(b"there")
    assert not _moved(tmp_path / "new", tmp_path / "there")
    assert (tmp_path / "there").read_bytes() == b"there"
    assert _moved(tmp_path / "new", tmp_path / "free")
    assert (tmp_path / "free").read_bytes() == b"new"


def test_what_cannot_be_written_names_the_picture(tmp_path):
    photo = tmp_path / "1.png"
    photo.write_bytes(b"a picture")
    (tmp_path / "sorted").mkdir()
    (tmp_path / "sorted/dark").write_text("a file in the way")
    with pytest.raises(UserError, match=r"1\.png: cannot be put into .*sorted/dark"):
        Sorter(tmp_path / "sorted", ["dark"]).put(next(find_pictures([photo])), "dark")
    gone = Input(str(tmp_path / "gone.png"), lambda: b"")
    with pytest.raises(UserError, match=r"gone\.png: cannot be put into"):
        Sorter(tmp_path / "other", ["dark"]).put(gone, "dark")
