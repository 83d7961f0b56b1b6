"""A folder appears whole or not at all, and never at the cost of what others put there."""

from pathlib import Path

import pytest

from vitrail.errors import UserError
from vitrail.io.folders import report_folder, write_folder

OURS = frozenset(("report.html", "numbers.json"))


def fill(path, text: str) -> None:
    with report_folder(path, OURS) as folder:
        (folder / "report.html").write_text(text)
        (folder / "numbers.json").write_text("{}")


def test_it_appears_when_it_is_complete(tmp_path):
    out = tmp_path / "deep/out"
    with report_folder(out, OURS) as folder:
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
        ("file", "not a folder"),
        ("link", "not a folder"),
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
    with pytest.raises(error), report_folder(out, OURS) as folder:
        (folder / "report.html").write_text("new")
        raise error
    assert (out / "report.html").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_someone_puts_there_meanwhile_is_not_thrown_away(tmp_path):
    out = tmp_path / "out"
    fill(out, "old")
    with pytest.raises(UserError, match="meanwhile"), report_folder(out, OURS) as folder:
        (folder / "report.html").write_text("new")
        (out / "meanwhile.txt").write_text("precious")
    assert (out / "meanwhile.txt").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_rename_that_fails_brings_the_old_one_back(tmp_path, monkeypatch):
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


def test_a_folder_has_the_permissions_of_any_other(tmp_path):
    fill(tmp_path / "out", "new")
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o755


def refuse_taken(path: Path) -> None:
    if path.exists():
        raise UserError(f"{path}: taken")


def test_the_rule_of_the_caller_is_asked_before_the_work_and_after_it(tmp_path):
    out, began = tmp_path / "out", []

    def fill_late(folder: Path) -> None:
        began.append(folder)
        (folder / "file").write_text("new")
        out.mkdir()
        (out / "file").write_text("precious")

    for _ in range(2):
        with pytest.raises(UserError, match="taken"):
            write_folder(out, fill_late, refuse_taken)
    assert len(began) == 1, "the second time no work was done"
    assert (out / "file").read_text() == "precious"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_cannot_be_filled_is_said_by_name(tmp_path):
    def full(_folder: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match=r"/out: cannot be written: No space left on device$"):
        write_folder(tmp_path / "out", full, refuse_taken)
    assert not list(tmp_path.iterdir())
