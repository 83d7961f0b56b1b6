"""What a person sees on a terminal: bars that move, times that are left, and an answer to Ctrl-C."""

import re
from pathlib import Path

import pytest

import vitrail
from tests.conftest import toy
from tests.warm import Terminal, run
from vitrail.config import Preprocessing
from vitrail.training import snapshots

SLOW_STEPS = ["--model.depth", "4", "--batch-size", "640"]
"""A few tenths of a second each: slower than the bar is drawn."""
TRAIN = ["train", "digits", "--out", "run", "--log-every", "1000", "--evaluate-every", "1000", *SLOW_STEPS]

PROMISE = (
    r"at most ([\d.]+) points lost with 95% confidence \(expected [\d.]+ \+- [\d.]+ over 180 pictures; counted -?[\d.]+"
)


def frames(shown: str, total: int) -> list[tuple[int, str]]:
    """Each state of the bar: how many steps were done, and what stood behind that."""
    return [(int(step), rest) for step, rest in re.findall(rf"(\d+)/{total}\b([^\r\n]*)", plain(shown))]


def plain(shown: str) -> str:
    """Without colours and moves of the cursor."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown)


def test_the_bar_moves_every_step_and_has_a_time_left_from_the_third(tmp_path):
    terminal = Terminal(*TRAIN, "--steps", "7", cwd=tmp_path)
    assert terminal.end() == 0, terminal.shown
    found = frames(terminal.shown, 7)
    assert {step for step, _ in found} == set(range(8))
    for step, rest in found:
        assert bool(re.search(r"\d+ (s|min) left", rest)) == (step >= 3), (step, rest)
    assert re.search(r"loss \d\.\d+  \d+ images/s", terminal.shown), "from the first step, long before a record"


def test_where_nobody_looks_lines_have_the_time_left_too(tmp_path):
    done = run("train", "digits", "--steps", "3", "--model.depth", "1", "--out", "run", cwd=tmp_path)
    assert re.search(r"step 3/3  loss \d\.\d+  .* images/s.*  0 s left", done.stderr)


def test_ctrl_c_answers_within_the_step_and_saves(tmp_path):
    terminal = Terminal(*TRAIN, "--batch-size", "1280", "--steps", "500", cwd=tmp_path)
    terminal.wait_for(r"\b1/500")
    before = frames(terminal.shown, 500)[-1][0]
    terminal.press(b"\x03")
    terminal.wait_for("SIGINT: finishing the step, then saving; Ctrl-C again stops without ...")
    assert frames(terminal.shown.partition("finishing")[0], 500)[-1][0] <= before + 1
    assert terminal.end() == 130, terminal.shown
    assert "go on with" in terminal.shown
    found = snapshots.read_snapshot(tmp_path / "run/snapshots")
    assert found is not None
    assert 1 <= found[0].step <= before + 2


def test_a_terminal_that_is_closed_saves_like_sigterm(tmp_path):
    """Also what is still said then, and has nowhere to go, does not stop it."""
    terminal = Terminal(*TRAIN, "--steps", "500", cwd=tmp_path)
    terminal.wait_for(r"\b2/500")
    terminal.hang_up()
    assert terminal.end() == 129
    assert snapshots.read_snapshot(tmp_path / "run/snapshots") is not None


def test_the_end_of_a_run_says_what_to_do_next(tmp_path):
    done = run("train", "digits", "--steps", "2", "--model.depth", "1", "--out", "a run", cwd=tmp_path)
    assert done.stdout.endswith("next:   vitrail predict 'a run' PHOTO\n        vitrail serve 'a run'\n")


def test_the_first_model_of_a_fine_tuning_has_a_bar_its_accuracy_and_what_to_do_next(model, tmp_path):
    terminal = Terminal("finetune", "model", "--data", "digits", "--quick", "--out", str(tmp_path / "run"), cwd=model)
    assert terminal.end() == 0, terminal.shown
    shown = plain(terminal.shown)
    passes = re.findall(r"features of train [^\r\n]* (\d+)/1437 +(\d+|-) images/s", shown)
    assert int(passes[-1][0]) > 1000, "it moves to the end"
    assert len({done for done, _ in passes}) > 1
    assert re.search(r"features of 1,617 images in [\d.]+ s, \d+ images/s", shown)
    probe = re.search(
        r"probe: ([\d.]+)% of 180 val images right, by [^;]+;\s+(\S+/probe)\s+can be used from now on", shown
    )
    assert probe
    assert 10 < float(probe[1]) <= 100
    assert "next:   vitrail predict" in shown
    assert vitrail.load(tmp_path / "run/probe").card.label_names == tuple("0123456789")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A bundle that knows digits, beside which commands are run."""
    folder = tmp_path_factory.mktemp("model")
    model = toy(num_classes=10, depth=2, channels=1, image_size=16, patch_size=4)
    model.card.preprocessing = Preprocessing(16, (0.5,), (0.5,), crop="squash")
    model.card.label_names, model.card.provenance = tuple("0123456789"), {"data": {"source": "digits"}}
    vitrail.save(model, folder / "model")
    return folder


def test_inspect_shows_how_far_each_part_is(model, tmp_path):
    terminal = Terminal("inspect", "model", "--out", str(tmp_path / "report"), cwd=model)
    assert terminal.end() == 0, terminal.shown
    for part in ("loading the model", "attention distance", "maps", "occlusion", "features and neighbours", "page"):
        assert part in terminal.shown, part
    assert re.search(r"maps.* 6/6", plain(terminal.shown))


def test_export_says_what_it_does_and_how_far_the_check_is(model, tmp_path):
    arguments = ["export", "model", "--check", "digits", "--max-drop", "100", "--out", str(tmp_path / "a.onnx")]
    terminal = Terminal(*arguments, cwd=model)
    assert terminal.end() == 0, terminal.shown
    shown = plain(terminal.shown)
    assert re.search(r"exporting to onnx +0:00:0\d", shown)
    assert re.search(r"checking .* \d+/180 .*\d+ pictures/s", shown)
    assert re.search(PROMISE, shown)


def test_a_check_gives_the_bound_and_refuses_what_it_cannot_promise(model, tmp_path):
    arguments = ["export", "model", "--int8", "--check", "digits", "--out", str(tmp_path / "a.onnx"), "--max-drop"]
    done = run(*arguments, "100", cwd=model)
    bound = re.search(PROMISE, done.stdout)
    assert bound, done.stdout + done.stderr
    (tmp_path / "a.onnx").unlink()
    refused = run(*arguments, f"{float(bound[1]) - 0.05:.2f}", cwd=model)
    assert refused.returncode == 2
    assert f"cannot be promised: at most {bound[1]} points lost" in refused.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_fast_shows_every_pass(model, tmp_path):
    arguments = ["export", "model", "--fast", "--check", "digits", "--max-drop", "100", "--out"]
    terminal = Terminal(*arguments, str(tmp_path / "a.onnx"), cwd=model)
    assert terminal.end(300) == 0, terminal.shown
    shown = plain(terminal.shown)
    assert len(re.findall(r"checking .* 180/180", shown)) > 4
    for part in ("timing", "exporting to onnx"):
        assert re.search(rf"{part} +0:00:\d", shown), part
