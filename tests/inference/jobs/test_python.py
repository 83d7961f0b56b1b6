"""`vitrail.predict` and `vitrail.embed` with `out`: files as the commands write them, resumed after any kill."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
from PIL import Image

import vitrail
from tests.inference.conftest import encoded
from vitrail.cli import main
from vitrail.errors import UserError
from vitrail.inference.jobs.npy import collected_in
from vitrail.inference.jobs.writers import parts_folder

ALIKE = {"engine": "onnxruntime", "batch_size": 1}
"""Other pictures in the same batch may change the last bit of a score."""


def same(ours: Path, theirs: Path) -> bool:
    """Parquet is written in the row groups that time makes, so its rows count."""
    if ours.suffix == ".parquet":
        return pyarrow.parquet.read_table(ours).equals(pyarrow.parquet.read_table(theirs))
    return ours.read_bytes() == theirs.read_bytes()


@pytest.mark.parametrize(
    ("name", "ending"),
    [("predict", "csv"), ("predict", "jsonl"), ("predict", "parquet"), ("embed", "csv"), ("embed", "npy")],
)
def test_python_writes_what_the_command_writes(exported, photos, tmp_path, name, ending):
    ours, theirs = tmp_path / f"ours.{ending}", tmp_path / f"theirs.{ending}"
    result = getattr(vitrail, name)(exported, photos, out=ours, **ALIKE)
    main([name, str(exported), str(photos), "--out", str(theirs), "--batch-size", "1"])
    assert same(ours, theirs)
    assert (result.path, result.n, result.errors, result.resumed) == (ours, 12, 2, 0)
    assert result.seconds > 0
    assert result.engine == "onnxruntime"
    again = getattr(vitrail, name)(exported, photos, out=str(ours), overwrite=True, **ALIKE)
    assert (again.n, again.resumed) == (12, 0)
    assert same(ours, theirs)


def test_a_model_in_memory_and_a_list_of_paths(model, photos, tmp_path):
    files = sorted(photos.rglob("*.png"))
    opened = Image.open(files[0])  # it remembers where it came from
    result = vitrail.predict(model, [opened, *files[1:], "gone.png"], out=tmp_path / "out.jsonl", top=2)
    assert (result.n, result.errors, result.engine) == (len(files) + 1, 2, "torch")
    expected = vitrail.predict(model, files, top=2)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["path"] for row in rows] == [*map(str, files), "gone.png"]
    for row, prediction in zip(rows, expected, strict=False):
        assert [guess["label"] for guess in row["top"]] == [guess.label for guess in prediction.top]
    assert "cannot be read" in rows[-1]["error"]
    more = vitrail.predict(model, photos, out=tmp_path / "out.jsonl", top=2, resume=True)
    assert (more.n, more.resumed) == (12 - len(files), len(files) + 1)


def test_what_has_no_path_or_no_file_is_refused_before_anything_is_written(model, photos, tmp_path):
    file = str(next(photos.rglob("*.png")))
    for images in (encoded(1), [file, encoded(1)], np.zeros((2, 8, 8, 3), np.uint8)):
        with pytest.raises(UserError, match=r"picture [01] comes from memory and has no path"):
            vitrail.predict(model, images, out=tmp_path / "out.csv")
    for images, said in (([], "there is no picture in the list given"), (tmp_path / "gone", "no such file or folder")):
        with pytest.raises(UserError, match=said):
            vitrail.embed(model, images, out=tmp_path / "out.csv")
    with pytest.raises(UserError, match=r"must end in \.parquet or \.npy or \.csv"):
        vitrail.embed(model, photos, out=tmp_path / "out.jsonl")
    with pytest.raises(UserError, match="--top must be at least 1"):
        vitrail.predict(model, photos, out=tmp_path / "out.csv", top=0)
    for flags in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(UserError, match="give out=FILE with them"):
            vitrail.predict(model, file, **flags)
        with pytest.raises(UserError, match="give out=FILE with them"):
            vitrail.embed(model, file, **flags)
    assert [each.name for each in tmp_path.iterdir()] == ["photos"]
    (tmp_path / "out.csv").write_text("somebody's\n")
    with pytest.raises(UserError, match="exists already"):
        vitrail.predict(model, photos, out=tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "somebody's\n"


SLOWLY = """
import sys, time, vitrail, vitrail.inference.engines.onnxruntime as engines, vitrail.inference.jobs.parquet as parquet
parquet._PART_ROWS = 2
run = engines.OnnxEngine.run
engines.OnnxEngine.run = lambda self, *values: (time.sleep(0.05), run(self, *values))[1]
name, model, photos, out = sys.argv[1:]
getattr(vitrail, name)(model, photos, out=out, resume=True, engine="onnxruntime", batch_size=1)
"""


def rows_so_far(out: Path) -> int:
    """Whole rows of a file, or those in the parts of one that cannot grow."""
    if out.suffix == ".csv":
        return max(0, out.read_bytes().count(b"\n") - 1) if out.exists() else 0
    parts = parts_folder(collected_in(out) if out.suffix == ".npy" else out)
    return 2 * len(list(parts.glob("[0-9]*"))) if parts.exists() else 0


@pytest.mark.parametrize(("name", "ending"), [("predict", "csv"), ("predict", "parquet"), ("embed", "npy")])
def test_killed_and_resumed_it_is_what_an_uninterrupted_job_writes(exported, tmp_path, name, ending):
    photos = tmp_path / "photos"
    photos.mkdir()
    for place in range(60):
        (photos / f"{place:02d}.png").write_bytes(b"broken" if place % 9 == 8 else encoded(place))
    out, whole = tmp_path / f"out.{ending}", tmp_path / f"whole.{ending}"
    getattr(vitrail, name)(exported, photos, out=whole, **ALIKE)
    for stop in (6, 24):
        command = [sys.executable, "-c", SLOWLY, name, str(exported), str(photos), str(out)]
        process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        until = time.monotonic() + 120
        while rows_so_far(out) < stop and process.poll() is None and time.monotonic() < until:
            time.sleep(0.002)
        process.kill()
        _, said = process.communicate(timeout=300)
        assert process.returncode == -signal.SIGKILL, said
        assert stop <= rows_so_far(out) < 60
    kept = rows_so_far(out)
    result = getattr(vitrail, name)(exported, photos, out=out, resume=True, **ALIKE)
    assert (result.n, result.resumed) == (60 - kept, kept)
    assert result.errors == 6 - kept // 9
    assert same(out, whole)
    left = [sorted(each.suffixes for each in tmp_path.glob(f"{name}*")) for name in ("out", "whole")]
    assert left[0] == left[1], "nothing else is left"


TOGETHER = """
import sys, vitrail
from pathlib import Path
model, photos, out = sys.argv[1:]
for name, ending in (("predict", "csv"), ("embed", "npy"), ("predict", "jsonl"), ("embed", "csv")):
    path = Path(out) / f"{name}.{ending}"
    result = getattr(vitrail, name)(model, photos, out=path, engine="onnxruntime", batch_size=1)
    assert path.stat().st_size, "the file is there when the call returns, in every process"
    assert (result.path, result.n, result.errors, result.resumed) == (path, 12, 2, 0), result
"""


def test_processes_started_by_torchrun_share_the_pictures(exported, photos, tmp_path):
    (tmp_path / "program.py").write_text(TOGETHER)
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(tmp_path / "program.py")]
    command = [sys.executable, *launcher, str(exported), str(photos), str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        _, said = process.communicate(timeout=300)
    finally:
        process.terminate()  # and with it those that it has started
        process.wait(60)
    assert process.returncode == 0, said
    for name, ending in (("predict", "csv"), ("embed", "npy"), ("predict", "jsonl"), ("embed", "csv")):
        getattr(vitrail, name)(exported, photos, out=tmp_path / f"{name}-alone.{ending}", **ALIKE)
        assert same(tmp_path / f"{name}.{ending}", tmp_path / f"{name}-alone.{ending}")
