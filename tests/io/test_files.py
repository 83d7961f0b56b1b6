"""A file is written whole or not at all, and a JSON document is what it should be or a UserError."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from vitrail.errors import UserError
from vitrail.io import files
from vitrail.io.documents import read_json
from vitrail.io.files import (
    bytes_file,
    json_text,
    replacing,
    text_file,
    write_bytes,
    write_file,
)


def test_the_old_content_stays_until_the_new_is_whole(tmp_path):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with replacing(path) as temporary:
        temporary.write_text("new")
        assert path.read_text() == "old"
        assert temporary.name.startswith(".file.txt."), "hidden, and recognised by what it will be"
    assert path.read_text() == "new"
    assert [each.name for each in tmp_path.iterdir()] == ["file.txt"]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_what_fails_halfway_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(error), replacing(path) as temporary:
        temporary.write_text("half")
        raise error
    assert path.read_text() == "old"
    assert [each.name for each in tmp_path.iterdir()] == ["file.txt"]


def test_content_is_on_the_disk_before_it_has_its_name_and_the_name_after(tmp_path, monkeypatch):
    path, calls = tmp_path / "file.txt", []
    sync, replace = files.sync, Path.replace

    def synced(what):
        calls.append(("sync", what))
        sync(what)

    def replaced(self, target):
        calls.append(("replace", target))
        return replace(self, target)

    monkeypatch.setattr(files, "sync", synced)
    monkeypatch.setattr(Path, "replace", replaced)
    with replacing(path) as temporary:
        temporary.write_text("new")
    assert calls == [("sync", temporary), ("replace", path), ("sync", tmp_path)]


PERMISSIONS = """
import os, sys
from pathlib import Path
from vitrail.io.files import text_file, write_bytes, write_file
folder = Path(sys.argv[1])
os.umask(0o027)
write_file(folder / "named", text_file("x"))
write_bytes(folder / "any", b"x")
"""


def test_permissions(tmp_path):
    """A file that the user named is for all to read; any other has those of a new file."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    subprocess.run([sys.executable, "-c", PERMISSIONS, str(tmp_path)], check=True, env=environment)
    assert {each.name: oct(each.stat().st_mode & 0o777) for each in tmp_path.iterdir()} == {
        "named": "0o644",
        "any": "0o640",
    }


def test_an_existing_file_is_kept_unless_told_otherwise(tmp_path):
    path = tmp_path / "deep/file.bin"
    write_file(path, bytes_file(b"first"))
    with pytest.raises(UserError, match=r"file\.bin: exists already; choose another name or give --overwrite"):
        write_file(path, bytes_file(b"second"))
    assert path.read_bytes() == b"first"
    write_file(path, bytes_file(b"second"), overwrite=True)
    assert path.read_bytes() == b"second"
    with pytest.raises(UserError, match="is a folder"):
        write_file(path.parent, bytes_file(b""), overwrite=True)


def test_a_place_that_cannot_be_written_is_said_by_name(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file/x: cannot be written: "):
        write_file(tmp_path / "file/x", bytes_file(b""))
    with pytest.raises(OSError, match="Not a directory"):
        write_bytes(tmp_path / "file/x", b"")


def test_none_removes_what_an_earlier_time_left(tmp_path):
    path = tmp_path / "plot.png"
    write_bytes(path, None)
    write_bytes(path, b"picture")
    assert path.read_bytes() == b"picture"
    write_bytes(path, None)
    assert not list(tmp_path.iterdir())


def test_names_that_no_encoding_can_write_are_escaped(tmp_path):
    write_file(tmp_path / "list.txt", text_file("é \udcff\n"))
    assert (tmp_path / "list.txt").read_text(encoding="utf-8") == "é \\udcff\n"


def test_json_there_and_back(tmp_path):
    document = {"name": "é", "values": [1, 2.5, None]}
    (tmp_path / "a.json").write_text(json_text(document), encoding="utf-8")
    assert read_json(tmp_path / "a.json") == document
    assert "é" in json_text(document), "as people read it"
