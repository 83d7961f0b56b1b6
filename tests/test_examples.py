"""The examples run as a reader would run them, and the notebook shows what its cells print."""

import ast
import base64
import io
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

EXAMPLES = Path(__file__).parent.parent / "examples"
TOUR = json.loads((EXAMPLES / "tour.ipynb").read_text("utf-8"))
CELLS: list[dict[str, Any]] = [cell for cell in TOUR["cells"] if cell["cell_type"] == "code"]
END = "-- end of cell --"


def run(folder: Path, *arguments: str) -> str:
    """Runs Python in a folder, without any proxy to a network, and returns what it prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-W", "error", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def text(lines: str | list[str]) -> str:
    return "".join(lines)


def shown(cell: dict[str, Any]) -> str:
    """Returns the text that the committed notebook shows below a cell."""
    outputs = [each.get("text") or each["data"]["text/plain"] for each in cell["outputs"]]
    return "".join(map(text, outputs))


def without_numbers(output: str) -> str:
    """Numbers differ a little between processors, and with them how arrays are aligned."""
    return re.sub(r"\d[\d,.]*|\s+", lambda found: "#" if found[0][0].isdigit() else " ", output).strip()


def program(cells: list[dict[str, Any]]) -> str:
    """The cells as one program that prints the value of each cell's last expression, as a notebook does."""
    parts = []
    for cell in cells:
        body = ast.parse(text(cell["source"])).body
        last = body[-1]
        if isinstance(last, ast.Expr) and not ast.unparse(last).startswith("print("):
            body[-1] = ast.parse(f"print(repr({ast.unparse(last.value)}))").body[0]
        parts += [ast.unparse(ast.Module(body, [])), f"print({END!r})"]
    return "\n".join(parts)


@pytest.mark.slow
def test_the_demo_runs_to_its_end_and_shows_the_quick_way(tmp_path):
    """As `make demo` runs it, but for the length of the training."""
    script = (EXAMPLES / "demo.sh").read_text("utf-8")
    training = 'vitrail train --out "$out/run"'
    assert script.count(training) == 1
    (tmp_path / "demo.sh").write_text(script.replace(training, f"{training} --steps 60"), "utf-8")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = ["sh", "demo.sh", "made"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    quick = done.stdout.partition("The quick way")[2].partition("Looked into")[0]
    found = re.search(r"test accuracy ([\d.]+)% over 180 images, 0 skipped \(the probe\)", quick)
    assert found, quick
    assert float(found[1]) > 50, "ten classes"
    for file in ("run/report.html", "quick/best", "inside/report.html", "again/model.safetensors", "data-check"):
        assert (tmp_path / "made" / file).exists(), file


def test_the_tour_prints_what_it_shows(tmp_path):
    script = tmp_path / "tour.py"
    script.write_text(program(CELLS), "utf-8")
    printed = run(tmp_path, str(script)).split(END)
    for cell, output in zip(CELLS, printed, strict=False):
        if not any("image/png" in each.get("data", {}) for each in cell["outputs"]):
            assert without_numbers(output) == without_numbers(shown(cell)), text(cell["source"])
    accuracy = re.search(r"test accuracy ([\d.]+)%", printed[0])
    assert accuracy
    assert float(accuracy[1]) > 50  # of ten classes


def test_the_tour_has_a_picture_and_is_small():
    pictures = [
        each["data"]["image/png"] for cell in CELLS for each in cell["outputs"] if "image/png" in each.get("data", {})
    ]
    assert len(pictures) == 1
    with Image.open(io.BytesIO(base64.b64decode(pictures[0]))) as picture:
        assert len(picture.convert("RGB").getcolors(1 << 16) or ()) > 50
    assert (EXAMPLES / "tour.ipynb").stat().st_size < 100_000


def test_a_loop_of_ones_own_trains_a_model_of_ours(tmp_path):
    found = re.search(r"(\d+) of 100 new pictures right", run(tmp_path, str(EXAMPLES / "own_training_loop.py"), "made"))
    assert found
    assert int(found[1]) >= 90


def test_our_loop_trains_a_model_of_ones_own_and_goes_on_where_it_was(tmp_path):
    script = str(EXAMPLES / "own_model.py")
    first, second = (run(tmp_path, script, "made") for _ in range(2))
    accuracy = re.search(r"test accuracy ([\d.]+)%", first)
    assert accuracy
    assert float(accuracy[1]) > 75
    assert "no snapshot yet" in first
    assert "resuming after step 200 of 200" in second
    assert first.splitlines()[-1] == second.splitlines()[-1]
