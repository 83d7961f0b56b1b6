"""`predict`, `embed` and `export` as a person runs them, killed and resumed included."""

import csv
import io
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
from tests.conftest import toy
from tests.data.conftest import encoded, picture
from tests.data.costly_pictures import tiff_of_one_tile_many_times
from vitrail.cli import main
from vitrail.config import Preprocessing
from vitrail.inference.export import export

CLASSES = tuple("abcdefg")


def command(*arguments: object, setup: str = "") -> list[str]:
    """`vitrail ...`; `setup` is run before it, in the same process."""
    code = f"{setup}\nfrom vitrail.cli import main; main({[str(each) for each in arguments]!r})"
    return [sys.executable, "-c", code]


def run(*arguments: object, stdin: str = "", setup: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments, setup=setup), capture_output=True, text=True, timeout=300, input=stdin, errors="replace"
    )


@pytest.fixture(scope="module")
def onnx(tmp_path_factory) -> Path:
    model = toy(depth=1, width=16, mlp_dim=16, image_size=16)
    model.card.preprocessing = Preprocessing(16)
    model.card.label_names = CLASSES
    model.card.label_descriptions = {"a": "the first letter", "b": "\x1b[31mred"}
    folder = tmp_path_factory.mktemp("models")
    vitrail.save(model, folder / "bundle")
    return export(model, folder / "model.onnx").files[0]


def fill(folder: Path, count: int) -> Path:
    """Tiny pictures in folders of a hundred, one in fifty of them broken."""
    generator = np.random.default_rng(0)
    for place in range(count):
        inner = folder / f"{place // 100:04d}"
        inner.mkdir(parents=True, exist_ok=True)
        stream = io.BytesIO()
        Image.fromarray(generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(stream, "BMP")
        content = b"broken" if place % 50 == 49 else stream.getvalue()
        (inner / f"{place:06d}.bmp").write_bytes(content)
    return folder


def paths_in(path: Path) -> list[str]:
    if path.suffix == ".parquet":
        return pyarrow.parquet.read_table(path)["path"].to_pylist()
    with path.open(encoding="utf-8", newline="") as file:
        if path.suffix == ".csv":
            return [row["path"] for row in csv.DictReader(file)]
        return [json.loads(line)["path"] for line in file]


def test_one_photo_gives_a_table_and_json(onnx, tmp_path):
    (photo,) = fill(tmp_path, 1).rglob("*.bmp")
    result = run("predict", onnx, photo, "--top", 7)
    assert result.returncode == 0, result.stderr
    lines = result.stdout.splitlines()
    assert lines[0] == str(photo)
    assert len(lines) == 8
    assert any(line.endswith("a  the first letter") for line in lines)
    assert "\x1b" not in result.stdout  # a description cannot write to the terminal
    (row,) = json.loads(run("predict", onnx, photo, "--json").stdout)
    assert set(row) == {"path", "top", "error"}
    assert [set(guess) for guess in row["top"]] == [{"label", "description", "score"}] * 5
    torch_row = json.loads(run("predict", onnx.with_name("bundle"), photo, "--json").stdout)[0]
    assert [guess["label"] for guess in torch_row["top"]] == [guess["label"] for guess in row["top"]]


def test_what_the_user_can_fix_is_exit_2(onnx, tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    (tmp_path / "broken.jpg").write_bytes(b"no")
    cases = [
        (("predict", onnx, tmp_path / "empty"), "there is no picture in"),
        (("predict", onnx, tmp_path / "gone.jpg"), "there is no such file or folder"),
        (("predict", onnx, tmp_path / "broken.jpg"), "not one of the pictures could be read"),
        (("predict", onnx, tmp_path, "--out", tmp_path / "x.txt"), "must end in .csv or .jsonl or .parquet"),
        (("predict", onnx, tmp_path, "--top", "0"), "--top must be at least 1"),
        (("predict", onnx, tmp_path, "--engine", "torch"), "--engine torch cannot run"),
        (("predict", onnx, tmp_path, "--device", "cuda"), "--device cuda: an exported model runs on the CPU"),
        (("predict", tmp_path / "no.onnx", tmp_path / "broken.jpg"), "there is no such file"),
        (("embed", onnx, tmp_path, "--out", tmp_path / "x.jsonl"), "must end in .parquet"),
        (("export", onnx.with_name("bundle"), "--out", tmp_path / "x.xml"), "ends in .onnx"),
    ]
    for arguments, message in cases:
        with pytest.raises(SystemExit) as status:
            main([str(each) for each in arguments])
        assert status.value.code == 2, arguments
        assert message in capsys.readouterr().err
    assert sorted(each.name for each in tmp_path.iterdir()) == ["broken.jpg", "empty"]


def test_a_file_that_takes_too_long_or_another_format_has_a_row_that_says_so(onnx, tmp_path):
    (good,) = fill(tmp_path, 1).rglob("*.bmp")
    (tmp_path / "tiles.tif").write_bytes(tiff_of_one_tile_many_times())
    (tmp_path / "small.gif").write_bytes(encoded(picture(), "GIF"))
    flags = ("--decode-seconds", 1, "--formats", "bmp,tiff")
    result = run("predict", onnx, tmp_path, *flags, "--out", tmp_path / "rows.jsonl")
    assert result.returncode == 0, result.stderr
    lines = (tmp_path / "rows.jsonl").read_text().splitlines()
    errors = {Path(row["path"]).name: row["error"] for row in map(json.loads, lines)}
    assert errors == {
        good.name: None,
        "tiles.tif": "takes longer than 1 seconds to decode (--decode-seconds)",
        "small.gif": "is a file of the format gif, not of the formats that are read here: bmp, tiff (--formats)",
    }
    result = run("embed", onnx, tmp_path, *flags, "--out", tmp_path / "rows.csv")
    assert "takes longer than 1 seconds" in (tmp_path / "rows.csv").read_text()
    failed = run("predict", onnx, tmp_path, "--formats", "bpm")
    assert (failed.returncode, failed.stdout) == (2, "")
    assert "--formats bpm: there is no format 'bpm'" in failed.stderr


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_folder_is_written_to_a_file_with_a_summary(onnx, tmp_path, ending):
    photos, out = fill(tmp_path / "photos", 120), tmp_path / f"out.{ending}"
    result = run("predict", onnx, photos, "--out", out, "--json", "--workers", 2)
    assert result.returncode == 0, result.stderr
    summary = json.loads(result.stdout)
    assert (summary["n"], summary["errors"], summary["resumed"], summary["engine"]) == (120, 2, 0, "onnxruntime")
    assert paths_in(out) == sorted(str(path) for path in photos.rglob("*.bmp"))
    again = json.loads(run("predict", onnx, photos, "--out", out, "--resume", "--json").stdout)
    assert (again["n"], again["resumed"]) == (0, 120)
    assert len(paths_in(out)) == 120


def test_a_list_on_stdin_and_an_archive(onnx, tmp_path):
    photos = fill(tmp_path / "photos", 3)
    listed = "".join(f"{path}\n" for path in sorted(photos.rglob("*.bmp")))
    rows = json.loads(run("predict", onnx, "-", "--json", stdin=listed).stdout)
    assert [row["path"] for row in rows] == listed.split()
    subprocess.run(["tar", "-cf", tmp_path / "photos.tar", "-C", tmp_path, "photos"], check=True)
    archived = json.loads(run("predict", onnx, tmp_path / "photos.tar", "--json").stdout)
    assert sorted(row["path"].rpartition("/")[2] for row in archived) == ["000000.bmp", "000001.bmp", "000002.bmp"]
    assert {row["path"][-8:]: row["top"] for row in archived} == {row["path"][-8:]: row["top"] for row in rows}


def test_what_is_broken_after_what_was_done_before_is_no_failure(onnx, tmp_path, capsys):
    photos, out = fill(tmp_path / "photos", 3), tmp_path / "out.csv"
    main(["predict", str(onnx), str(photos), "--out", str(out)])
    (photos / "0000" / "999999.bmp").write_bytes(b"broken")
    main(["predict", str(onnx), str(photos), "--out", str(out), "--resume"])
    assert len(paths_in(out)) == 4


def test_a_full_disk_is_said_and_what_is_written_stays(onnx, tmp_path):
    photos, out = fill(tmp_path / "photos", 200), tmp_path / "out.jsonl"
    full = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
    full += "resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))"
    result = run("predict", onnx, photos, "--out", out, setup=full)
    assert result.returncode == 2
    assert f"{out}: cannot be written: File too large" in result.stderr
    assert "Traceback" not in result.stderr
    assert run("predict", onnx, photos, "--out", out, "--resume").returncode == 0
    assert len(set(paths_in(out))) == len(paths_in(out)) == 200


def test_features_are_written(onnx, tmp_path):
    photos, out = fill(tmp_path / "photos", 60), tmp_path / "out.parquet"
    result = run("embed", onnx, photos, "--out", out, "--dtype", "float16", "--json")
    assert json.loads(result.stdout)["width"] == 16, result.stderr
    table = pyarrow.parquet.read_table(out)
    assert table.column_names == ["id", "path", "embedding", "error"]
    assert table["id"].to_pylist() == list(range(60))
    assert [error is None for error in table["error"].to_pylist()].count(False) == 1
    expected = vitrail.embed(vitrail.load(onnx.with_name("bundle")), table["path"].to_pylist()[:5])
    np.testing.assert_allclose(np.array(table["embedding"].to_pylist()[:5]), expected, atol=2e-3)


def test_export_is_checked_and_refused(onnx, tmp_path, capsys):
    """The model knows nothing of these pictures: what counts is that both are counted alike."""
    for name in CLASSES:
        fill(tmp_path / "photos" / name, 4)
    bundle, check = str(onnx.with_name("bundle")), str(tmp_path / "photos")
    main(["export", bundle, "--out", str(tmp_path / "out.onnx"), "--check", check, "--json"])
    found = json.loads(capsys.readouterr().out)["check"]
    assert (found["agreement"], found["drop"]) == (1, 0)
    assert found["images_per_second_after"] > 0
    assert found["loss"]["bound"] < 0.01
    # In 8 bits scores move, and 28 pictures cannot promise that nothing is lost by it.
    with pytest.raises(SystemExit) as status:
        main(["export", bundle, "--out", str(tmp_path / "b.onnx"), "--check", check, "--int8", "--max-drop", "0.001"])
    assert status.value.code == 2
    said = capsys.readouterr().err
    assert "--max-drop 0.001 cannot be promised: at most" in said
    assert "nothing was written" in said
    assert sorted(each.name for each in tmp_path.iterdir()) == ["out.onnx", "photos"]


def rows_so_far(out: Path) -> int:
    if out.suffix == ".parquet":
        parts = Path(f"{out}.parts")
        return 16 * len(list(parts.glob("[0-9]*"))) if parts.exists() else 0
    return out.read_bytes().count(b"\n") if out.exists() else 0


SLOWLY = """
import signal, time, vitrail.inference.jobs.parquet as p, vitrail.inference.engines.onnxruntime as o
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is born deaf to it
p._PART_ROWS = 16
run = o.OnnxEngine.run
o.OnnxEngine.run = lambda self, *values: (time.sleep(0.05), run(self, *values))[1]
"""


@pytest.mark.parametrize(
    ("name", "ending", "how"),
    [("predict", "csv", signal.SIGKILL), ("predict", "jsonl", signal.SIGINT), ("embed", "parquet", signal.SIGKILL)],
)
def test_killed_and_resumed_every_file_has_one_row(onnx, tmp_path, name, ending, how):
    photos, out = fill(tmp_path / "photos", 400), tmp_path / f"out.{ending}"
    arguments = (name, onnx, photos, "--out", out, "--batch-size", 4, "--workers", 2)
    for stop in (40, 160):
        process = subprocess.Popen(command(*arguments, "--resume", setup=SLOWLY), stderr=subprocess.PIPE, text=True)
        while rows_so_far(out) < stop and process.poll() is None:
            time.sleep(0.002)
        process.send_signal(how)
        _, said = process.communicate(timeout=300)
        assert process.returncode == (-how if how == signal.SIGKILL else 130), said
        assert stop <= rows_so_far(out) < 400
    result = run(*arguments, "--resume")
    assert result.returncode == 0, result.stderr
    assert paths_in(out) == sorted(str(path) for path in photos.rglob("*.bmp"))
    assert sorted(each.name for each in tmp_path.iterdir()) == [out.name, "photos"]


def resident(process: int) -> int:
    """Megabytes."""
    status = Path(f"/proc/{process}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) // 1024


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads memory from /proc")
def test_fifty_thousand_pictures_in_flat_memory_killed_and_resumed(onnx, tmp_path):
    photos, out = fill(tmp_path / "photos", 50_000), tmp_path / "out.jsonl"
    arguments = ("predict", onnx, photos, "--out", out, "--resume")

    def watch(stop: int) -> list[tuple[int, int]]:
        """(rows, megabytes) as the job goes on, until it has so many rows."""
        process = subprocess.Popen(command(*arguments), stderr=subprocess.DEVNULL)
        seen = []
        while process.poll() is None:
            time.sleep(0.2)
            rows = rows_so_far(out)
            if process.poll() is None:
                seen.append((rows, resident(process.pid)))
            if rows >= stop:
                process.kill()
        process.wait()
        return seen

    first = watch(25_000)
    second = watch(1 << 60)
    for seen, start in ((first, 5_000), (second, 30_000)):
        settled = [memory for rows, memory in seen if rows >= start]
        assert len(settled) >= 3
        assert max(settled) - settled[0] <= 24, f"grew from {settled[0]} to {max(settled)} MB"
    paths = paths_in(out)
    assert len(paths) == len(set(paths)) == 50_000
