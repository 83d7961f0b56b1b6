"""Photos without classes, from the command line: pre-train on them, killed and resumed, then fine-tune and predict."""

import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

import vitrail
from tests.cli.test_mistakes import refused, save_model, told  # noqa: F401  # fixtures
from tests.data.conftest import encoded, picture
from tests.training.test_resume import assert_same_tensors_and_records
from vitrail.training import snapshots
from vitrail.training.progress import read_metrics

TINY = (
    *("--model.image-size", "24", "--model.patch-size", "8", "--model.width", "32", "--model.depth", "1"),
    *("--model.num-heads", "2", "--model.mlp-dim", "64", "--batch-size", "32", "--data.workers", "1"),
)
MAE = (
    *("train", "mae-b16-in1k", *TINY, "--optimizer.lr", "0.002", "--schedule.warmup-steps", "5"),
    *("--mae.decoder-width", "16", "--mae.decoder-depth", "1", "--mae.decoder-heads", "2"),
)
OTHERS = {
    "masked_patch": ("--masked-patch.target", "mean"),
    "dino": (
        *("--dino.out-dim", "32", "--dino.hidden-dim", "32", "--dino.bottleneck-dim", "16"),
        *("--dino.local-crops", "2", "--dino.local-size", "8"),
    ),
}


def write_photos(folder: Path, count: int, *, seed: int = 0) -> Path:
    """JPEG files of large shapes in colour, directly in a folder."""
    folder.mkdir(parents=True)
    for index in range(count):
        (folder / f"{index:04d}.jpg").write_bytes(encoded(picture(24, 32, seed=seed + index), "JPEG"))
    return folder


def write_classes(folder: Path, count: int = 20) -> Path:
    """Photos of two classes, which their brightness tells apart."""
    generator = np.random.default_rng(0)
    for name, least in (("dark", 0), ("light", 128)):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            small = Image.fromarray(generator.integers(least, least + 128, (4, 4, 3), dtype=np.uint8))
            small.resize((32, 24)).save(folder / name / f"{index}.png")
    return folder


def write_table(file: Path, count: int, labelled: int) -> Path:
    """Photos in a parquet file; so many of them have a label, one of two."""
    contents = [encoded(picture(24, 32, seed=index)) for index in range(count)]
    labels = [index % 2 if index < labelled else None for index in range(count)]
    pq.write_table(pa.table({"image": contents, "label": pa.array(labels, pa.int64())}), file)
    return file


def started(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "vitrail", *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def finished(folder: Path, *arguments: str) -> str:
    process = started(folder, *arguments)
    said, _ = process.communicate(timeout=300)
    assert process.returncode == 0, said
    return said


def kill_after_a_snapshot(process: subprocess.Popen[str], run: Path) -> int:
    """SIGKILL once there is something to go on with; the step that it will go on from."""
    until = time.monotonic() + 60
    while not list((run / "snapshots").glob("[!.]*")):
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=300)
    assert process.returncode == -signal.SIGKILL, "it had ended before it was killed"
    found = snapshots.read_snapshot(run / "snapshots")
    assert found is not None
    return found[0].step


def test_from_photos_without_classes_to_a_model_that_tells_classes_apart(tmp_path):
    write_photos(tmp_path / "photos", 500)
    flags = ("--data", "photos", "--steps", "120", "--evaluate-every", "40", "--snapshot-every", "10")
    step = kill_after_a_snapshot(started(tmp_path, *MAE, *flags, "--out", "killed"), tmp_path / "killed")
    assert 0 < step < 120
    assert not (tmp_path / "killed/bundle").exists()
    again = finished(tmp_path, "train", "--out", "killed", "--resume")
    said = finished(tmp_path, *MAE, *flags, "--out", "whole")

    assert "500 images without labels" in said
    assert "photos: no labels, 400 train, 50 val, 50 test" in said
    assert "warm-up" not in said
    assert "vitrail finetune whole --data FOLDER_OF_CLASS_FOLDERS" in said
    tested = re.search(r"test loss \d\.\d{4} over 50 images, 0 skipped\n", said)
    assert tested, "and no word of neighbours"
    assert tested[0] in again
    assert_same_tensors_and_records(tmp_path / "whole", tmp_path / "killed")
    losses = [each["loss"] for each in read_metrics(tmp_path / "whole") if each["kind"] == "val"]
    assert losses[-1] < losses[0], "it has learned something"

    model = vitrail.load(tmp_path / "whole")
    assert (model.config.num_classes, model.card.label_names) == (0, ())
    assert (tmp_path / "whole/reconstruction.png").exists()
    page = (tmp_path / "whole/report.html").read_text()
    assert "500 images without labels" in page
    assert "--data photos" not in page, "there is nothing to fine-tune on in it"

    write_classes(tmp_path / "labelled")
    finished(tmp_path, "finetune", "whole", "--data", "labelled", "--quick", "--out", "tuned")
    tuned = vitrail.load(tmp_path / "tuned")
    assert tuned.card.label_names == ("dark", "light")
    assert all(torch.equal(value, tuned.state_dict()[key]) for key, value in model.state_dict().items())
    rows = json.loads(finished(tmp_path, "predict", "tuned", "labelled/dark/0.png", "labelled/light/0.png", "--json"))
    assert [row["top"][0]["label"] for row in rows] == ["dark", "light"]


@pytest.mark.parametrize("objective", OTHERS)
def test_the_other_objectives_take_them_too(told, tmp_path, objective):  # noqa: F811
    write_photos(tmp_path / "photos", 60)
    flags = ("--objective", objective, *OTHERS[objective], "--steps", "3", "--evaluate-every", "3")
    status, said = told("train", "mae-b16-in1k", "--data", "photos/*.jpg", *TINY, *flags, "--out", "run")
    assert status == 0, said
    assert "photos/*.jpg: no labels, 48 train, 6 val, 6 test" in said
    assert re.search(r"warm-up takes [\d,]+ steps and the run has 3: .* --schedule.warmup-steps 0", said)
    assert "nearest" not in said
    assert vitrail.load(tmp_path / "run").config.num_classes == 0
    assert "knn_top1" not in (tmp_path / "run/metrics.jsonl").read_text()


def test_where_some_have_labels_all_are_learned_from_and_neighbours_are_asked_of_those(told, tmp_path):  # noqa: F811
    write_table(tmp_path / "some.parquet", count=60, labelled=40)
    status, said = told(*MAE, "--data", "some.parquet", "--steps", "3", "--evaluate-every", "3", "--out", "run")
    assert status == 0, said
    assert "some.parquet: 2 classes, 48 train, 6 val, 6 test" in said
    assert "20 of 60 images have no label" in said
    assert "right by their nearest neighbours" in said
    (validation,) = (each for each in read_metrics(tmp_path / "run") if each["kind"] == "val")
    assert validation["n"] == 6, "the loss is measured on all of them"
    assert (validation["knn_top1"] * 4) % 1 == pytest.approx(0), "neighbours of the four that have a label"


def test_where_some_have_labels_classes_are_learned_from_those(told, tmp_path):  # noqa: F811
    """The others are left out of training, validation and test."""
    write_table(tmp_path / "some.parquet", count=60, labelled=40)
    flags = ("--steps", "3", "--evaluate-every", "3", "--schedule.warmup-steps", "1")
    status, said = told("train", "deit-ti16-in1k", *TINY, "--data", "some.parquet", *flags, "--out", "run")
    assert status == 0, said
    assert "20 of 60 images have no label" in said
    assert "over 4 images, 0 skipped" in said, "of six in the test split"
    (validation,) = (each for each in read_metrics(tmp_path / "run") if each["kind"] == "val")
    assert validation["n"] == 4


@pytest.mark.parametrize("arguments", [
    ("train", "--data", "photos"),
    ("train", "deit-ti16-in1k", *TINY, "--data", "photos", "--out", "run"),
    ("finetune", "model", "--data", "photos"),
    ("finetune", "model", "--data", "photos", "--quick"),
    ("evaluate", "model", "--data", "photos"),
    ("evaluate", "model", "--data", "photos", "--split", "test"),
    ("evaluate", "model", "--data", "photos", "--folds", "2"),
    ("fewshot", "model", "--data", "photos"),
    ("study", "pooling", "--data", "photos"),
    ("study", "vtab", "--model", "model", "--tasks", "photos"),
    ("export", "model", "--out", "model.onnx", "--check", "photos"),
], ids=" ".join)  # fmt: skip
def test_what_needs_labels_says_so_and_what_to_do(refused, tmp_path, arguments):  # noqa: F811
    write_photos(tmp_path / "photos", 20)
    save_model()
    said = refused(*arguments)
    assert "photos: none of its 20 images has a label" in said
    assert "Give class folders: the images of each class in a folder of its own" in said
    assert "vitrail train mae-small --data photos" in said


def test_data_check_finds_what_is_wrong_with_them_and_speaks_of_no_classes(told, tmp_path):  # noqa: F811
    write_photos(tmp_path / "photos", 20)
    (tmp_path / "photos/again.jpg").write_bytes((tmp_path / "photos/0000.jpg").read_bytes())
    (tmp_path / "photos/broken.jpg").write_bytes(b"junk")
    status, said = told("data", "check", "photos", "--out", "report")
    assert status == 0, said
    assert "note: 22 images without labels" in said
    assert re.search(r"^classes +none$", said, re.MULTILINE)
    found = json.loads((tmp_path / "report/check.json").read_text())
    assert (found["n"], found["skipped"], found["classes"], found["class_balance"]) == (22, 1, [], {})
    assert [each["id"] for each in found["corrupt"]] == ["broken.jpg"]
    assert {each["id"] for each in found["exact_duplicates"][0]} == {"0000.jpg", "again.jpg"}
    assert found["conflicts"] == []
    page = (tmp_path / "report/check.html").read_text()
    for words in ("broken.jpg", "Exact duplicates", "<h2>Sizes</h2>"):
        assert words in page, words
    for words in ("<h2>Classes</h2>", "contradicting labels", ">classes<", "None"):
        assert words not in page, words


def test_a_copy_without_a_label_contradicts_none(told, tmp_path):  # noqa: F811
    same = [encoded(picture(24, 32, seed=0))] * 3
    others = [encoded(picture(24, 32, seed=seed)) for seed in range(1, 18)]
    for name, labels in (("apart", [0, None, 1]), ("alike", [0, None, 0])):
        columns = {"image": same + others, "label": pa.array([*labels, *([0, 1] * 8), 1], pa.int64())}
        pq.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
        assert told("data", "check", f"{name}.parquet", "--out", name)[0] == 0
    apart, alike = (json.loads((tmp_path / name / "check.json").read_text()) for name in ("apart", "alike"))
    assert (len(apart["conflicts"]), len(alike["conflicts"])) == (1, 0)


def test_predict_and_embed_take_the_folder(told, tmp_path):  # noqa: F811
    write_photos(tmp_path / "photos", 7)
    save_model()
    status, said = told("predict", "model", "photos", "--json")
    assert status == 0, said
    assert said.count('"label"') >= 7
    status, said = told("embed", "model", "photos", "--out", "features.parquet")
    assert status == 0, said
    assert pq.read_table(tmp_path / "features.parquet").num_rows == 7
