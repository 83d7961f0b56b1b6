"""The commands as a person runs them: real processes, exit statuses, messages, JSON."""

import json
import resource
import subprocess
import sys

import pytest

import vitrail
from tests.conftest import toy
from tests.warm import run
from vitrail.cli import COMMANDS, main

QUIET = 0.15
"""Seconds that those imports take on the machine the half second is promised for, where nothing else runs."""


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["models"], ["models", "--json"], ["models", "--weights"], ["plan", "B/16", "--images", "10"]],
)
def test_quick_commands_answer_in_under_half_a_second_and_import_no_torch(arguments):
    code = f"import sys; from vitrail.cli import main; main({arguments!r}); assert 'torch' not in sys.modules"
    # On a machine that is slow, or busy with the tests beside this one, Python's own imports are slow alike.
    known = "import asyncio, email.message, http.client, unittest.mock, xml.dom.minidom"
    fastest, usual = (min(processor_seconds(each) for _ in range(5)) for each in (code, known))
    assert fastest < 0.5 * max(1, usual / QUIET)


def processor_seconds(code: str) -> float:
    """Of a new Python that runs this: nothing here waits."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def test_help_names_every_command():
    result = run("--help")
    assert result.returncode == 0
    for name in COMMANDS:
        assert f"\n  {name} " in result.stdout
        assert run(name, "--help").returncode == 0


def test_version():
    assert run("--version").stdout == f"vitrail {vitrail.__version__}\n"


def test_models_json():
    rows = json.loads(run("models", "--json").stdout)
    assert {"name", "parameters", "gmacs", "tokens"} == set(rows[0])
    found = {row["name"]: row for row in rows}["B/16"]
    assert (found["parameters"], found["gmacs"], found["tokens"]) == (86_567_656, 17.564, 197)


def test_plan_json():
    arguments = ["plan", "H/14", "--images", "303000000", "--epochs", "14", "--flops-per-second", "1e18", "--json"]
    plan = json.loads(run(*arguments).stdout)
    assert {"parameters", "gmacs", "exaflops", "memory_bytes", "seconds"} <= set(plan)
    assert plan["exaflops"] == pytest.approx(4262, rel=0.03)
    assert plan["seconds"] == pytest.approx(plan["exaflops"])


def test_convert_json_and_table(tmp_path):
    vitrail.save(toy(), tmp_path / "model")
    result = run("convert", "model", "hf", "--to", "huggingface", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    report = json.loads(result.stdout)
    assert {"mapped", "dropped", "created", "max_logit_difference"} <= set(report)
    assert report["max_logit_difference"] <= 1e-5
    result = run("convert", "hf", "back", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert "mapped 56 tensors" in result.stdout
    assert "x 3" in result.stdout, "the three blocks make one line"
    assert "largest difference" in result.stdout


@pytest.mark.parametrize(("arguments", "words"), [
    (["modles"], ["modles", "models"]),
    (["models", "B16x"], ["B16x"]),
    (["models", "Q/16"], ["Q/16"]),
    (["plan", "B/16", "--images", "0"], ["--images"]),
    (["plan", "B/17", "--images", "5"], ["17 x 17", "224"]),
    (["convert", "nowhere", "out"], ["nowhere", "no such file"]),
    (["convert", "bad.npz", "out"], ["bad.npz"]),
    (["convert", "model", "out.txt", "--to", "google"], ["out.txt", ".npz"]),
    (["convert", "model", "model"], ["exists already", "--overwrite"]),
    (["convert", "model", "out", "--labels", "none.json"], ["none.json"]),
    (["convert", "model", "out", "--to", "tim"], ["tim"]),
    (["convert", "model"], ["DESTINATION"]),
    (["data", "chekc"], ["chekc", "check"]),
])  # fmt: skip
def test_what_the_user_can_fix_exits_2_with_one_message(tmp_path, arguments, words):
    vitrail.save(toy(), tmp_path / "model")
    (tmp_path / "bad.npz").write_bytes(b"PK nothing")
    before = sorted(path.name for path in tmp_path.iterdir())
    result = run(*arguments, cwd=tmp_path)
    assert result.returncode == 2, result.stderr
    assert "Traceback" not in result.stderr
    assert not result.stdout
    for word in words:
        assert word in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == before, "nothing left behind"


def test_a_bug_of_ours_exits_1_with_its_traceback(monkeypatch):
    def broken(_):
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("vitrail.cli._run", broken)
    with pytest.raises(ZeroDivisionError):
        main(["models"])


def test_a_closed_pipe_is_no_error():
    command = f"{sys.executable} -m vitrail models --json | head -c 10"
    result = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True)
    assert "Traceback" not in result.stderr


def test_import_is_instant():
    code = "import sys, vitrail; assert 'torch' not in sys.modules and 'numpy' not in sys.modules; vitrail.UserError"
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="nothing_such"):
        vitrail.nothing_such  # noqa: B018
