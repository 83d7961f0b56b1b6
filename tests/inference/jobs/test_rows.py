"""Writers, jobs and terminals know no classes: rows of any kind go through all of them by their columns alone."""

import csv
import io
import json
from dataclasses import dataclass

import pyarrow
import pyarrow.parquet
import pytest

from vitrail.data.inputs import Input
from vitrail.errors import UserError
from vitrail.inference.jobs import process_files
from vitrail.inference.jobs.outputs import open_writer
from vitrail.inference.jobs.printed import JsonArray, Lines


@dataclass(frozen=True)
class BoxColumns:
    """A row has any number of boxes: nothing that there is today."""

    names = ("path", "boxes", "error")
    given = "a detector"

    def cells(self, row):
        return [row["path"], " ".join(map(str, row["boxes"])), row["error"] or ""]

    def schema(self):
        boxes = pyarrow.list_(pyarrow.list_(pyarrow.int64(), 4))
        return pyarrow.schema([("path", pyarrow.string()), ("boxes", boxes), ("error", pyarrow.string())])

    def document(self, row):
        return {**row, "count": len(row["boxes"])}

    def lines(self, row):
        return [f"box at {left}, {top}" for left, top, _, _ in row["boxes"]]


ROWS = [
    {"path": "a,1.png", "boxes": [[0, 1, 2, 3], [4, 5, 6, 7]], "error": None},
    {"path": "b.png", "boxes": [], "error": "is empty"},
    {"path": "c.png", "boxes": [[8, 9, 10, 11]], "error": None},
]


def read(path):
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path).to_pylist()
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file)) if path.suffix == ".csv" else [json.loads(line) for line in file]


EXPECTED = {
    ".csv": [
        ["path", "boxes", "error"],
        ["a,1.png", "[0, 1, 2, 3] [4, 5, 6, 7]", ""],
        ["b.png", "", "is empty"],
        ["c.png", "[8, 9, 10, 11]", ""],
    ],
    ".jsonl": [{**row, "count": len(row["boxes"])} for row in ROWS],
    ".parquet": ROWS,
}


@pytest.mark.parametrize("ending", EXPECTED)
def test_rows_of_another_kind_are_written_resumed_and_joined(tmp_path, ending):
    def opened(path):
        return open_writer(path, BoxColumns(), resume=True)

    for part in (ROWS[:1], ROWS[1:]):
        writer = opened(tmp_path / f"one{ending}")
        assert len(writer.seen) == (0 if part[0] is ROWS[0] else 1)
        writer.write(part)
        writer.close(part[-1] is ROWS[-1])
    assert read(tmp_path / f"one{ending}") == EXPECTED[ending]
    out, inputs = tmp_path / f"two{ending}", [Input(row["path"], lambda: b"") for row in ROWS]
    seen, counts = process_files.recover(out, opened), []
    for rank in range(2):
        own = process_files.ProcessFile(process_files.path_of(out, rank, 2), opened)
        taken = [each.path for each in own.take(inputs, rank, 2, seen)]
        own.write([row for row in ROWS if row["path"] in taken])
        own.close(True)
        counts.append(own.rows)
    process_files.join_process_files(out, counts)
    assert read(out) == EXPECTED[ending]


def test_a_file_with_other_columns_is_refused_in_their_words(tmp_path):
    (tmp_path / "out.csv").write_text("path,label1,score1,error\n")
    with pytest.raises(UserError, match="has other columns than a detector gives; not resumed"):
        open_writer(tmp_path / "out.csv", BoxColumns(), resume=True)


def test_rows_of_another_kind_are_printed():
    lines, array = io.StringIO(), io.StringIO()
    for writer in (Lines(lines, BoxColumns()), JsonArray(array, BoxColumns())):
        writer.write(ROWS[:2])
        writer.write(ROWS[2:])
        writer.close(True)
    assert lines.getvalue() == ("a,1.png\n  box at 0, 1\n  box at 4, 5\nb.png\n  is empty\nc.png\n  box at 8, 9\n")
    assert json.loads(array.getvalue()) == EXPECTED[".jsonl"]
