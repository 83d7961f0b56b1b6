"""Rows are written as they come, and after a kill at any byte the rest is added: every row exactly once."""

import csv
import json

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.data.inputs import writable
from vitrail.errors import UserError
from vitrail.inference.jobs import parquet
from vitrail.inference.jobs.embeddings import EmbeddingColumns, EmbeddingRows
from vitrail.inference.jobs.outputs import OutputFile, open_writer
from vitrail.inference.jobs.predictions import PredictionRows
from vitrail.inference.jobs.writers import Seen, parts_folder
from vitrail.tasks.classification.answer import ClassColumns

TWO = ClassColumns(top=2)
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
    writer = open_writer(path, TWO, resume=resume)
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
        writer = open_writer(path, EmbeddingColumns(3, dtype), resume=True)
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
        open_writer(path, EmbeddingColumns(4, dtype), resume=True)


def test_what_is_there_is_not_overwritten_unasked(tmp_path):
    for ending in ("csv", "jsonl", "parquet"):
        path = tmp_path / f"out.{ending}"
        write(path, rows(3), finished=ending != "parquet")
        with pytest.raises(UserError, match=r"exists already; give --resume .* or --overwrite"):
            open_writer(path, TWO)
        open_writer(path, TWO, overwrite=True).close(True)


def test_a_file_that_cannot_hold_the_rows_is_refused(tmp_path):
    with pytest.raises(UserError, match=r"--out .*out.txt: the name must end in \.csv or \.jsonl or \.parquet"):
        OutputFile(tmp_path / "out.txt", PredictionRows.formats)
    with pytest.raises(UserError, match=r"must end in \.parquet or \.npy or \.csv"):
        OutputFile(tmp_path / "out.jsonl", EmbeddingRows.formats)
    assert OutputFile(tmp_path / "OUT.CSV", EmbeddingRows.formats).path.name == "OUT.CSV"


def test_a_file_of_something_else_is_not_resumed(tmp_path):
    (tmp_path / "out.jsonl").write_text('{"path": "a"}\nhello\n')
    with pytest.raises(UserError, match="row 2 is no prediction"):
        open_writer(tmp_path / "out.jsonl", TWO, resume=True)
    (tmp_path / "out.csv").write_text("name,age\n")
    with pytest.raises(UserError, match="other columns than --top 2 without --threshold gives"):
        open_writer(tmp_path / "out.csv", TWO, resume=True)
    (tmp_path / "out.parquet").write_text("hello")
    with pytest.raises(UserError, match="not a parquet file"):
        open_writer(tmp_path / "out.parquet", TWO, resume=True)
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


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_scores_are_written_to_six_digits(tmp_path, ending):
    row = {"path": "a.jpg", "top": [{"label": "n1", "description": "", "score": 0.1234567891}], "error": None}
    write(tmp_path / f"out.{ending}", [row])
    assert "0.123457" in (tmp_path / f"out.{ending}").read_text()


def test_csv_has_a_description_column_where_there_are_descriptions(tmp_path):
    path, top = tmp_path / "out.csv", [{"label": "n1", "description": "tench, a fish", "score": 0.5}]
    for row in ({"path": "a", "top": top, "error": None}, {"path": "b", "top": [], "error": "is empty"}):
        writer = open_writer(path, ClassColumns(1, described=True), resume=True)
        writer.write([row])
        writer.close(True)
    with path.open(encoding="utf-8", newline="") as file:
        found = list(csv.reader(file))
    assert found == [
        ["path", "label1", "description1", "score1", "error"],
        ["a", "n1", "tench, a fish", "0.500000", ""],
        ["b", "", "", "", "is empty"],
    ]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_embeddings_in_csv_are_the_same_numbers(tmp_path, dtype):
    vectors = np.random.default_rng(0).normal(size=(3, 4)).astype(dtype)
    path = tmp_path / "out.csv"
    writer = open_writer(path, EmbeddingColumns(4, dtype))
    writer.write([{"path": "a,b", "embedding": vectors[0], "error": None}])
    writer.close(False)
    writer = open_writer(path, EmbeddingColumns(4, dtype), resume=True)
    assert "a,b" in writer.seen
    writer.write([{"path": "c", "embedding": None, "error": "is empty"}])
    writer.write([{"path": "d", "embedding": vectors[2], "error": None}])
    writer.close(True)
    with path.open(encoding="utf-8", newline="") as file:
        found = list(csv.reader(file))
    assert found[0] == ["path", "error", "feature0", "feature1", "feature2", "feature3"]
    assert [row[:2] for row in found[1:]] == [["a,b", ""], ["c", "is empty"], ["d", ""]]
    assert found[2][2:] == [""] * 4
    for row, vector in ((found[1], vectors[0]), (found[3], vectors[2])):
        np.testing.assert_array_equal(np.array(row[2:], dtype), vector)
