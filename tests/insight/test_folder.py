"""The output folder: whole or not at all, and never at the cost of what others put there."""

import pytest

from vitrail.errors import UserError
from vitrail.insight.folder import new_folder

OURS = frozenset(("report.html", "numbers.json"))


def fill(path, text: str) -> None:
    with new_folder(path, OURS) as folder:
        (folder / "report.html").write_text(text)
        (folder / "numbers.json").write_text("{}")


def test_it_appears_when_it_is_complete(tmp_path):
    out = tmp_path / "deep/out"
    with new_folder(out, OURS) as folder:
        (folder / "report.html").write_text("half")
        assert not out.exists()
    assert (out / "report.html").read_text() == "half"
    assert [path.name for path in out.parent.iterdir()] == ["out"], "nothing is left beside it"


def test_an_empty_folder_or_an_earlier_report_is_replaced(tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    fill(out, "first")
    fill(out, "second")
    assert (out / "report.html").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_anything_else_is_refused_and_kept(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/mine.txt").write_text("precious")
    (tmp_path / "file").write_text("precious")
    (tmp_path / "link").symlink_to(tmp_path / "out")
    for name, word in (
        ("out", r"mine\.txt"),
        ("file", "no folder"),
        ("link", "no folder"),
        ("file/x", "cannot be written"),
    ):
        with pytest.raises(UserError, match=word):
            fill(tmp_path / name, "new")
    assert (tmp_path / "out/mine.txt").read_text() == (tmp_path / "file").read_text() == "precious"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "link", "out"]


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_what_fails_halfway_leaves_the_old_one_and_nothing_else(tmp_path, error):
    out = tmp_path / "out"
    fill(out, "old")
    with pytest.raises(error), new_folder(out, OURS) as folder:
        (folder / "report.html").write_text("new")
        raise error
    assert (out / "report.html").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_someone_puts_there_meanwhile_is_not_thrown_away(tmp_path):
    out = tmp_path / "out"
    fill(out, "old")
    with pytest.raises(UserError, match="meanwhile"), new_folder(out, OURS) as folder:
        (folder / "report.html").write_text("new")
        (out / "meanwhile.txt").write_text("precious")
    assert (out / "meanwhile.txt").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_rename_that_fails_brings_the_old_one_back(tmp_path, monkeypatch):
    from pathlib import Path

    out = tmp_path / "out"
    fill(out, "old")
    rename = Path.rename

    def failing(self, target):
        if Path(target) == out and (self / "report.html").read_text() == "new":
            raise OSError(28, "No space left on device")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", failing)
    with pytest.raises(UserError, match="No space left"):
        fill(out, "new")
    assert (out / "report.html").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
