"""Rows are written as they come, and after a kill at any byte the rest is added: every row exactly once."""

import csv
import json

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.errors import UserError
from vitrail.inference import parquet
from vitrail.inference.outputs import Seen, open_embeddings, open_predictions, parts_folder, writable

NASTY = ['a,b".jpg', "line\nbreak.jpg", "return\r.jpg", '"', "zip::ä/物.png", " lead", "'", "\t", "=1+1", "\u2028"]


def row(path: str, error: str | None = None):
    top = [
        {"label": "n1", "description": 'a "thing", of\nsorts', "score": 0.75},
        {"label": "n,2", "description": "", "score": 0.25},
    ]
    return {"path": path, "top": [] if error else top, "error": error}


def rows(count: int):
    names = [f"{place}-{NASTY[place % len(NASTY)]}" for place in range(count)]
    return [row(name, 'is cut off, "truncated"' if place % 5 == 4 else None) for place, name in enumerate(names)]


def read(path):
    """(path, first label, error) of every row, by readers that are not ours."""
    if path.suffix == ".jsonl":
        lines = path.read_text("utf-8").split("\n")
        assert lines.pop() == ""
        found = [json.loads(line) for line in lines]
    elif path.suffix == ".parquet":
        found = pyarrow.parquet.read_table(path).to_pylist()
    else:
        with path.open(encoding="utf-8", newline="") as file:
            table = list(csv.DictReader(file))
        assert list(table[0]) == ["path", "label1", "score1", "label2", "score2", "error"]
        return [(each["path"], each["label1"] or None, each["error"] or None) for each in table]
    return [(each["path"], each["top"][0]["label"] if each["top"] else None, each["error"]) for each in found]


def expected(written):
    return [(each["path"], None if each["error"] else "n1", each["error"]) for each in written]


def write(path, wanted, resume=False, finished=True):
    writer = open_predictions(path, 2, resume=resume)
    todo = [each for each in wanted if each["path"] not in writer.seen]
    for place in range(0, len(todo), 3):
        writer.write(todo[place : place + 3])
    writer.close(finished)
    return len(todo)


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_what_is_written_is_read_by_others(tmp_path, ending):
    path = tmp_path / f"out.{ending}"
    write(path, rows(20))
    assert read(path) == expected(rows(20))
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


@settings(deadline=None, max_examples=60)
@given(share=st.floats(0, 1), ending=st.sampled_from(["csv", "jsonl"]))
def test_a_file_cut_at_any_byte_is_resumed_to_every_row_once(tmp_path_factory, share, ending):
    path = tmp_path_factory.mktemp("cut") / f"out.{ending}"
    write(path, rows(20))
    content = path.read_bytes()
    path.write_bytes(content[: round(share * len(content))])
    write(path, rows(20), resume=True)
    assert path.read_bytes() == content


def test_scores_are_written(tmp_path):
    write(tmp_path / "out.csv", rows(1))
    assert (tmp_path / "out.csv").read_text().splitlines()[1] == '"0-a,b"".jpg",n1,0.750000,"n,2",0.250000,'
    write(tmp_path / "out.jsonl", rows(1))
    assert json.loads((tmp_path / "out.jsonl").read_text()) == rows(1)[0]


def test_parquet_keeps_parts_and_joins_them_at_the_end(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_PART_ROWS", 6)
    path = tmp_path / "out.parquet"
    write(path, rows(15), finished=False)
    assert not path.exists()
    assert len(list(parts_folder(path).iterdir())) == 3
    (parts_folder(path) / ".half-written").write_bytes(b"PAR1")
    assert write(path, rows(20), resume=True) == 5
    assert read(path) == expected(rows(20))
    assert not parts_folder(path).exists()
    assert write(path, rows(31), resume=True) == 11  # more pictures than before are added to a finished file
    assert read(path) == expected(rows(31))


def test_parquet_killed_between_joining_and_clearing_up(tmp_path, monkeypatch):
    path = tmp_path / "out.parquet"
    write(path, rows(8), finished=False)
    monkeypatch.setattr(parquet.shutil, "rmtree", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
    with pytest.raises(KeyboardInterrupt):
        write(path, rows(20), resume=True)
    monkeypatch.undo()
    assert parts_folder(path).exists()
    assert write(path, rows(20), resume=True) == 0
    assert read(path) == expected(rows(20))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_embeddings_are_numbered_and_missing_ones_null(tmp_path, dtype):
    vectors = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    wanted = [{"path": str(place), "embedding": vector, "error": None} for place, vector in enumerate(vectors)]
    wanted[2] |= {"embedding": None, "error": "is empty"}
    path = tmp_path / "out.parquet"
    for part in (wanted[:2], wanted[2:]):
        writer = open_embeddings(path, 3, dtype, resume=True)
        writer.write(part)
        writer.close(True)
    table = pyarrow.parquet.read_table(path)
    assert str(table.schema.field("embedding").type).startswith("fixed_size_list<")
    assert table["id"].to_pylist() == list(range(5))
    assert table["error"].to_pylist() == [None, None, "is empty", None, None]
    found = table["embedding"].to_pylist()
    assert found[2] is None
    np.testing.assert_array_equal(np.array(found[3], dtype), vectors[3].astype(dtype))
    with pytest.raises(UserError, match="other columns"):
        open_embeddings(path, 4, dtype, resume=True)


def test_what_is_there_is_not_overwritten_unasked(tmp_path):
    for ending in ("csv", "jsonl", "parquet"):
        path = tmp_path / f"out.{ending}"
        write(path, rows(3), finished=ending != "parquet")
        with pytest.raises(UserError, match=r"exists already; give --resume .* or --overwrite"):
            open_predictions(path, 2)
        open_predictions(path, 2, overwrite=True).close(True)
    with pytest.raises(UserError, match=r"must end in \.csv or \.jsonl or \.parquet"):
        open_predictions(tmp_path / "out.txt", 2)


def test_a_file_of_something_else_is_not_resumed(tmp_path):
    (tmp_path / "out.jsonl").write_text('{"path": "a"}\nhello\n')
    with pytest.raises(UserError, match="row 2 is no prediction"):
        open_predictions(tmp_path / "out.jsonl", 2, resume=True)
    (tmp_path / "out.csv").write_text("name,age\n")
    with pytest.raises(UserError, match="other columns than --top 2 gives"):
        open_predictions(tmp_path / "out.csv", 2, resume=True)
    (tmp_path / "out.parquet").write_text("hello")
    with pytest.raises(UserError, match="not a parquet file"):
        open_predictions(tmp_path / "out.parquet", 2, resume=True)
    assert (tmp_path / "out.parquet").read_text() == "hello"


@given(st.sets(st.text(max_size=30)), st.text(max_size=30))
def test_seen_is_a_set(paths, other):
    seen = Seen(paths)
    assert len(seen) == len(paths)
    assert all(path in seen for path in paths)
    assert (other in seen) == (other in paths)


def test_names_that_are_no_text_become_text():
    assert writable("a\udcff.png") == "a\\xff.png"
    assert writable("ä物.png") == "ä物.png"
