"""What `predict` and `embed` write, by the real commands."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.conftest import toy
from tests.warm import run
from vitrail.config import Preprocessing


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model with descriptions, five photos and a file that is none."""
    folder = tmp_path_factory.mktemp("outputs")
    model = toy()
    model.card.preprocessing = Preprocessing(image_size=32)
    model.card.label_names = tuple(f"n{place}" for place in range(7))
    model.card.label_descriptions = {f"n{place}": f"kind {place}, tame" for place in range(7)}
    vitrail.save(model, folder / "model")
    (folder / "photos").mkdir()
    draw = np.random.default_rng(0)
    for place in range(5):
        Image.fromarray(draw.integers(0, 255, (40, 50, 3), np.uint8)).save(folder / "photos" / f"{place}.png")
    (folder / "photos/2b.png").write_bytes(b"nothing")
    return folder


def test_predict_writes_descriptions_into_csv(folder):
    done = run("predict", "model", "photos", "--top", "2", "--out", "labels.csv", "--engine", "torch", cwd=folder)
    assert done.returncode == 0, done.stderr
    with (folder / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert rows[0]["description1"] == f"kind {rows[0]['label1'][1:]}, tame"
    assert rows[0]["description2"] == f"kind {rows[0]['label2'][1:]}, tame"
    named = json.loads(run("predict", "model", "photos/0.png", "--json", cwd=folder).stdout)
    assert rows[0]["label1"] == named[0]["top"][0]["label"]


def features(folder: Path) -> np.ndarray:
    return vitrail.embed(vitrail.load(folder / "model"), [folder / f"photos/{place}.png" for place in range(5)])


@pytest.mark.parametrize("processes", [[], ["--processes", "2"]], ids=["one process", "two"])
def test_embed_writes_an_array_and_whose_rows_they_are(folder, tmp_path, processes):
    out = tmp_path / "features.npy"
    arguments = ["embed", "model", "photos", "--out", str(out), "--engine", "torch", *processes]
    done = run(*arguments, cwd=folder)
    assert done.returncode == 0, done.stderr
    found = np.load(out)
    assert found.shape == (6, 32)
    assert np.isnan(found[3]).all()
    np.testing.assert_allclose(np.delete(found, 3, axis=0), features(folder), atol=1e-5)
    with (tmp_path / "features.paths.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [Path(row["path"]).name for row in rows] == ["0.png", "1.png", "2.png", "2b.png", "3.png", "4.png"]
    assert [bool(row["error"]) for row in rows] == [False, False, False, True, False, False]
    assert sorted(each.name for each in tmp_path.iterdir()) == ["features.npy", "features.paths.csv"]
    again = run(*arguments, cwd=folder)
    assert again.returncode == 2
    assert "exists already" in again.stderr
    assert "--overwrite" in again.stderr


def test_embed_writes_csv(folder, tmp_path):
    done = run("embed", "model", "photos", "--out", str(tmp_path / "f.csv"), "--engine", "torch", cwd=folder)
    assert done.returncode == 0, done.stderr
    with (tmp_path / "f.csv").open(newline="") as file:
        rows = [row for row in list(csv.reader(file))[1:] if not row[1]]
    np.testing.assert_allclose(np.array([row[2:] for row in rows], np.float32), features(folder), atol=1e-5)


def test_an_array_that_was_stopped_is_resumed(folder, tmp_path):
    """What a stopped job leaves: a part of the rows as parquet beside it."""
    from vitrail.inference.jobs.embeddings import EmbeddingColumns
    from vitrail.inference.jobs.npy import collected_in
    from vitrail.inference.jobs.outputs import open_writer

    out = tmp_path / "features.npy"
    writer = open_writer(collected_in(out), EmbeddingColumns(32))
    writer.write([{"path": "photos/0.png", "embedding": np.full(32, 7, np.float32), "error": None}])
    writer.close(False)
    arguments = ["embed", "model", "photos", "--out", str(out), "--engine", "torch"]
    assert run(*arguments, cwd=folder).returncode == 2, "not begun anew unasked"
    done = run(*arguments, "--resume", cwd=folder)
    assert done.returncode == 0, done.stderr
    found = np.load(out)
    assert found.shape == (6, 32)
    assert (found[0] == 7).all(), "what was there is not done again"
    np.testing.assert_allclose(found[5], features(folder)[4], atol=1e-5)


@pytest.mark.parametrize("kind", ["path", "Pillow", "array", "list"])
def test_preprocess_gives_what_predict_gives_the_model(folder, kind):
    model, path = vitrail.load(folder / "model"), folder / "photos/1.png"
    image = Image.open(path)
    given = {"path": path, "Pillow": image, "array": np.asarray(image), "list": [path, image]}[kind]
    prepared = model.preprocess(given)
    assert prepared.shape == (2 if kind == "list" else 1, 3, 32, 32)
    with torch.inference_mode():
        score, label = model.eval()(prepared).softmax(-1)[0].max(-1)
    said = model.predict(path)[0].top[0]
    assert said.label == f"n{label}"
    assert said.score == pytest.approx(float(score), abs=1e-6)
    with pytest.raises(vitrail.UserError, match=r"2b\.png"):
        model.preprocess(folder / "photos/2b.png")


def test_a_process_that_fails_first_leaves_the_word_to_the_one_that_speaks(folder, tmp_path):
    """Ended at once, it would have the launcher end the first process before that has said what is wrong."""
    (tmp_path / "features.npy").write_bytes(b"there already")
    arguments = ["embed", "model", "photos", "--out", str(tmp_path / "features.npy")]
    second = {**os.environ, "WORLD_SIZE": "2", "RANK": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "vitrail", *arguments], cwd=folder, env=second, stderr=subprocess.PIPE, text=True
    ) as process:
        # The process is given far longer than it needs to find the file.
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(5)
        process.terminate()
        assert process.wait(5) == -signal.SIGTERM
        assert process.stderr is not None
        assert "exists already" not in process.stderr.read()
