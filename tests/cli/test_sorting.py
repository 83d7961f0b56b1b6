"""`predict --threshold` and `--sort-into`: what is not likely is unknown, pictures go into folders of their classes,
and nothing is written over or done twice."""

import csv
import json
import os
import zipfile
from pathlib import Path

import numpy as np
import pyarrow.parquet
import pytest
import torch
from PIL import Image

import vitrail
from tests.conftest import toy
from vitrail.cli import main
from vitrail.config import Preprocessing

BRIGHT, DARK = "../bright", "dark"


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """Says `../bright` of light pictures, `dark` of dark ones, and is not sure of grey ones."""
    made = toy(depth=1, width=16, mlp_dim=16, image_size=16, num_classes=2, pooling="average")
    made.card.preprocessing = Preprocessing(16)
    made.card.label_names = (BRIGHT, DARK)
    with torch.no_grad():
        light, dark = (made.eval().features(torch.full((1, 3, 16, 16), value))[0] for value in (1.0, -1.0))
        across = light - dark
        weight = 8 * across / across.square().sum()
        made.head.weight.copy_(torch.stack([weight, -weight]))
        middle = weight @ (light + dark) / 2
        made.head.bias.copy_(torch.stack([-middle, middle]))
    folder = tmp_path_factory.mktemp("models") / "model"
    vitrail.save(made, folder)
    return folder


@pytest.fixture(scope="module")
def scores(model, tmp_path_factory) -> dict[int, float]:
    """The best score of a picture of each grey."""
    folder = tmp_path_factory.mktemp("greys")
    for value in range(0, 256, 3):
        paint(folder / f"{value:03d}.png", value)
    found = vitrail.load(model).predict([str(path) for path in sorted(folder.iterdir())])
    return {int(Path(each.path or "").stem): each.top[0].score for each in found}


def paint(path: Path, value: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((16, 16, 3), value, np.uint8)).save(path)
    return path


@pytest.fixture
def photos(tmp_path, scores) -> Path:
    """Two of each class under the same names, one in between, one that cannot be read, and three in an archive."""
    unsure = min(scores, key=lambda value: scores[value])
    folder = tmp_path / "photos"
    for inner, shift in (("a", 0), ("b", 1)):
        paint(folder / inner / "1.png", 255 - shift)
        paint(folder / inner / "2.png", shift)
    paint(folder / "a" / "3.png", unsure)
    (folder / "broken.png").write_bytes(b"broken")
    with zipfile.ZipFile(folder.parent / "more.zip", "w") as archive:
        archive.writestr("deep/1.png", paint(tmp_path / "x.png", 250).read_bytes())
        archive.writestr("../../2.png", paint(tmp_path / "y.png", 5).read_bytes())
        archive.writestr("deep/3.png", paint(tmp_path / "z.png", unsure).read_bytes())
    return folder


def predict(*arguments: object) -> None:
    main(["predict", *map(str, arguments), "--engine", "torch", "--workers", "1"])


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def test_below_the_threshold_the_label_is_unknown_in_every_format(model, photos, tmp_path, capsys):
    predict(model, photos, "--threshold", "0.9", "--json")
    rows = json.loads(capsys.readouterr().out)
    assert [list(row) for row in rows] == [["path", "label", "top", "error"]] * 6
    labels = {Path(row["path"]).relative_to(photos).as_posix(): row["label"] for row in rows}
    assert labels == {
        "a/1.png": BRIGHT,
        "a/2.png": DARK,
        "a/3.png": "unknown",
        "b/1.png": BRIGHT,
        "b/2.png": DARK,
        "broken.png": None,
    }
    assert all(len(row["top"]) == 2 for row in rows if row["error"] is None), "the classes are kept"
    for suffix in ("jsonl", "csv", "parquet"):
        predict(model, photos, "--threshold", "0.9", "--out", tmp_path / f"rows.{suffix}")
    written = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert written == rows
    with (tmp_path / "rows.csv").open() as file:
        table = list(csv.DictReader(file))
    assert list(table[0])[:3] == ["path", "label", "label1"]
    assert [row["label"] for row in table] == [row["label"] or "" for row in rows]
    parquet = pyarrow.parquet.read_table(tmp_path / "rows.parquet").to_pylist()
    assert [(row["label"], len(row["top"])) for row in parquet] == [(row["label"], len(row["top"])) for row in rows]
    capsys.readouterr()
    predict(model, photos / "a/3.png", "--threshold", "0.9")
    assert "unknown: no class is likely enough" in capsys.readouterr().out
    predict(model, photos, "--threshold", "0.9", "--out", tmp_path / "rows.csv", "--resume")
    with pytest.raises(SystemExit):
        predict(model, photos, "--out", tmp_path / "rows.csv", "--resume")
    assert "other columns than --top 5 without --threshold gives" in capsys.readouterr().err


def test_without_a_threshold_rows_are_what_they_were(model, photos, capsys):
    predict(model, photos, "--json")
    assert {tuple(row) for row in json.loads(capsys.readouterr().out)} == {("path", "top", "error")}


EXPECTED = {
    *("_bright/1.png", "_bright/1-2.png", "_bright/1-3.png", "dark/2.png", "dark/2-2.png", "dark/2-3.png"),
    *("unknown/3.png", "unknown/3-2.png"),
}


@pytest.mark.parametrize("link", [False, True])
def test_pictures_go_into_the_folders_of_their_classes_and_not_twice(model, photos, tmp_path, capsys, link):
    paint(tmp_path / "sorted/unknown/3.png", 77)  # another's file, in the way
    before = tree(tmp_path / "sorted")
    flags = ["--threshold", "0.9", "--sort-into", tmp_path / "sorted", *(["--link"] if link else [])]
    predict(model, photos, tmp_path / "more.zip", *flags)
    assert "sorted 6 pictures into 2 classes, 2 unknown" in capsys.readouterr().err
    first = tree(tmp_path / "sorted")
    assert first.items() >= before.items()
    if link:
        assert set(first) == {*EXPECTED, "unknown/3-3.png"}
        assert (tmp_path / "sorted/_bright/1.png").readlink() == photos / "a/1.png"
        assert (tmp_path / "sorted/_bright/1-3.png").is_symlink() is False, "a member of an archive is written out"
    else:
        # The picture in the archive is the file of the same name byte for byte.
        assert set(first) == EXPECTED
        assert not any(path.is_symlink() for path in (tmp_path / "sorted").rglob("*"))
    assert first["_bright/1-2.png"] == (photos / "b/1.png").read_bytes()
    assert first["_bright/1-3.png"] == (tmp_path / "x.png").read_bytes()
    assert first["dark/2-3.png"] == (tmp_path / "y.png").read_bytes(), "../../2.png stays inside"
    predict(model, photos, tmp_path / "more.zip", *flags)
    assert tree(tmp_path / "sorted") == first, "again: nothing is new, nothing is twice"
    assert (photos / "broken.png").exists()


def test_an_interrupted_job_is_gone_on_with(model, photos, tmp_path):
    """Two are sorted, one of them has its row; what a kill left of a copy is not written into."""
    out, place = tmp_path / "rows.jsonl", tmp_path / "sorted"
    predict(model, photos / "a/1.png", "--out", out, "--sort-into", place)
    predict(model, photos / "a/2.png", "--sort-into", place)
    kept = (place / "dark/2.png").read_bytes()
    os.link(place / "dark/2.png", place / ".sorting-0")
    predict(model, photos, "--out", out, "--sort-into", place, "--resume")
    assert (place / "dark/2.png").read_bytes() == kept
    assert not (place / ".sorting-0").exists()
    sorted_names = set(tree(place))
    assert {"_bright/1.png", "_bright/1-2.png", "dark/2.png", "dark/2-2.png"} <= sorted_names
    assert len(sorted_names) == 5
    assert len(out.read_text().splitlines()) == 6


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--threshold", "60"], "--threshold 60: scores go from 0 to 1"),
        (["--threshold", "nan"], "--threshold nan: scores go from 0 to 1"),
        (["--link"], "--link goes with --sort-into DIR"),
        (["--sort-into", "photos"], "lies inside"),
    ],
)
def test_flags_that_make_no_sense_are_refused(model, photos, flags, said, capsys, monkeypatch):
    monkeypatch.chdir(photos.parent)
    with pytest.raises(SystemExit) as end:
        predict(model, "photos", *flags)
    assert end.value.code == 2
    assert said in capsys.readouterr().err
