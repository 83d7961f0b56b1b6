"""One output of any number of processes, stopped anywhere: every input has one row, in the inputs' order."""

import numpy as np
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.inference.jobs.test_outputs import TWO, rows
from vitrail.data.inputs import Input
from vitrail.errors import UserError
from vitrail.inference.jobs import parquet, process_files
from vitrail.inference.jobs.embeddings import EmbeddingColumns
from vitrail.inference.jobs.outputs import open_writer
from vitrail.inference.jobs.writers import prepare_output, processes_folder

WANTED = {each["path"]: each for each in rows(23)}
INPUTS = [Input(path, lambda: b"") for path in WANTED]


def predictions(path):
    return open_writer(path, TWO, resume=True)


def embeddings(path):
    return open_writer(path, EmbeddingColumns(3, "float16"), resume=True)


def vectors():
    """A row for each input; one in five has no features."""
    generator = np.random.default_rng(0)
    return {
        path: {"path": path, "embedding": None if row["error"] else generator.normal(size=3), "error": row["error"]}
        for path, row in WANTED.items()
    }


def work(out, count, stops, opened=predictions, wanted=None, inputs=None):
    """Every process of `count` in turn, each stopped after so many rows (None: not at all); joined if none was."""
    wanted = wanted or WANTED
    seen = process_files.recover(out, opened)
    done = []
    for rank in range(count):
        own = process_files.ProcessFile(process_files.path_of(out, rank, count), opened)
        stop = stops[rank % len(stops)]
        todo = list(own.take(inputs or INPUTS, rank, count, seen))[:stop]
        for start in range(0, len(todo), 2):
            own.write([wanted[each.path] for each in todo[start : start + 2]])
        own.close(stop is None)
        done.append(own.rows)
    process_files.check_visible(out, count)
    if all(stop is None for stop in stops):
        process_files.join_process_files(out, done)


def alone(out, opened=predictions, wanted=None):
    writer = opened(out)
    writer.write(list((wanted or WANTED).values()))
    writer.close(True)
    return out


def same(ours, theirs):
    if ours.suffix == ".parquet":
        return pyarrow.parquet.read_table(ours).equals(pyarrow.parquet.read_table(theirs))
    return ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("count", [1, 2, 3, 8, 30])
def test_many_write_what_one_writes(tmp_path, ending, count):
    out = tmp_path / f"out.{ending}"
    work(out, count, [None])
    assert same(out, alone(tmp_path / f"alone.{ending}"))
    assert sorted(each.name for each in tmp_path.iterdir()) == [f"alone.{ending}", out.name], "nothing else is left"


@settings(deadline=None, max_examples=25)
@given(
    stopped=st.lists(st.tuples(st.integers(1, 5), st.lists(st.integers(0, 9), min_size=1, max_size=5)), max_size=4),
    ending=st.sampled_from(["csv", "jsonl", "parquet"]),
    share=st.floats(0, 1),
)
def test_stopped_anywhere_and_gone_on_with_by_another_number(tmp_path_factory, stopped, ending, share):
    folder = tmp_path_factory.mktemp("stopped")
    out = folder / f"out.{ending}"
    kept = b""
    for count, stops in stopped:
        cut = process_files.path_of(out, 0, count)
        kept = cut.read_bytes() if cut.exists() else b""
        work(out, count, stops)
    if stopped and ending != "parquet":  # a kill in the middle of a line, which can lose what the last job wrote
        content = cut.read_bytes()
        cut.write_bytes(content[: len(kept) + round(share * (len(content) - len(kept)))])
    work(out, 2, [None])
    assert same(out, alone(folder / f"alone.{ending}"))
    assert not processes_folder(out).exists()


def test_what_a_finished_file_has_is_not_done_again(tmp_path):
    out = alone(tmp_path / "out.csv", wanted=dict(list(WANTED.items())[:9]))
    head = out.read_bytes()
    work(out, 3, [1])
    assert out.read_bytes() == head, "it stays as it is until all is done"
    work(out, 2, [None])
    assert same(out, alone(tmp_path / "alone.csv"))
    work(out, 4, [None])
    assert same(out, tmp_path / "alone.csv")
    assert not processes_folder(out).exists()


def test_what_one_process_has_begun_several_finish(tmp_path):
    for ending in ("jsonl", "parquet"):
        out = tmp_path / f"out.{ending}"
        writer = predictions(out)
        writer.write(list(WANTED.values())[:7])
        writer.close(False)
        work(out, 2, [None])
        assert same(out, alone(tmp_path / f"alone.{ending}"))


def test_killed_between_joining_and_clearing_up(tmp_path, monkeypatch):
    for ending in ("csv", "parquet"):
        out = tmp_path / f"out.{ending}"
        with monkeypatch.context() as patch:
            patch.setattr(process_files, "_clear", lambda _: (_ for _ in ()).throw(KeyboardInterrupt))
            with pytest.raises(KeyboardInterrupt):
                work(out, 2, [None])
        assert processes_folder(out).exists()
        work(out, 3, [None])
        assert same(out, alone(tmp_path / f"alone.{ending}"))
        assert not processes_folder(out).exists()


def test_features_are_numbered_by_their_row_in_the_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "_PART_ROWS", 3)
    monkeypatch.setattr(process_files, "_CHUNK", 4)
    out, wanted = tmp_path / "out.parquet", vectors()
    work(out, 3, [4, 1, 0], embeddings, wanted)
    work(out, 2, [None], embeddings, wanted)
    assert same(out, alone(tmp_path / "alone.parquet", embeddings, wanted))
    table = pyarrow.parquet.read_table(out)
    assert table["id"].to_pylist() == list(range(23))
    assert table["path"].to_pylist() == list(WANTED)
    assert str(table.schema.field("embedding").type).startswith("fixed_size_list<")
    more = {**wanted, "one more": {**next(iter(wanted.values())), "path": "one more"}}
    work(out, 2, [None], embeddings, more, [Input("one more", lambda: b""), *INPUTS])
    table = pyarrow.parquet.read_table(out)
    assert table["id"].to_pylist() == list(range(24))
    assert table["path"].to_pylist() == [*WANTED, "one more"]


def test_the_same_path_twice_has_two_rows_in_their_places(tmp_path):
    twice = [*INPUTS[:5], *INPUTS[:5]]
    work(tmp_path / "out.jsonl", 2, [None], inputs=twice)
    written = (tmp_path / "out.jsonl").read_text().splitlines()
    assert len(written) == 10
    assert written[:5] == written[5:]


def test_a_file_that_cannot_be_seen_is_said(tmp_path):
    out = tmp_path / "out.csv"
    work(out, 2, [1])
    process_files.path_of(out, 1, 2).with_suffix(".places").unlink()
    with pytest.raises(
        UserError, match="what process 1 writes cannot be seen by the first; put --out on a file system"
    ):
        process_files.check_visible(out, 2, patience=0)
    with pytest.raises(UserError, match="what process 1 writes cannot be seen"):
        process_files.join_process_files(out, [1, 2])
    assert not out.exists()


def test_unfinished_files_are_not_written_over_unasked(tmp_path):
    out = tmp_path / "out.csv"
    work(out, 2, [1])
    with pytest.raises(UserError, match=r"out.csv.processes: exists already; give --resume .* or --overwrite"):
        prepare_output(out, resume=False, overwrite=False)
    prepare_output(out, resume=False, overwrite=True)
    assert not list(tmp_path.iterdir())


def test_rows_that_lost_their_places_are_refused(tmp_path):
    out = tmp_path / "out.csv"
    work(out, 2, [3])
    process_files.path_of(out, 1, 2).with_suffix(".places").write_bytes(bytes(8))
    with pytest.raises(UserError, match=r"1-of-2\.csv: is damaged"):
        process_files.recover(out, predictions)
