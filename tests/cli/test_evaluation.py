"""evaluate and fewshot as a person runs them: their numbers, the folder they leave, and what they refuse."""

import csv
import io
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.conftest import toy
from tests.warm import run
from vitrail.cli import main
from vitrail.config import Preprocessing
from vitrail.data import open_source
from vitrail.data.loader import EvaluationLoader
from vitrail.io.progress import tracked

GREY = Preprocessing(image_size=8, mean=(0.5,), std=(0.5,), crop="squash")


def digits_model(**overrides):
    model = toy(**{"image_size": 8, "patch_size": 4, "channels": 1, "num_classes": 10, **overrides})
    model.card.preprocessing = GREY
    if model.config.num_classes == 10:
        model.card.label_names = tuple("0123456789")
    return model


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """`model` names the digits, `headless` names nothing, `nameless` has ten classes without names."""
    folder = tmp_path_factory.mktemp("models")
    vitrail.save(digits_model(), folder / "model")
    vitrail.save(digits_model(num_classes=0), folder / "headless")
    nameless = digits_model()
    nameless.card.label_names = ()
    vitrail.save(nameless, folder / "nameless")
    return folder


def answer(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command in this process."""
    status = 0
    try:
        main(list(arguments))
    except SystemExit as end:
        status = int(end.code or 0)
    captured = capsys.readouterr()
    return status, captured.out, captured.err


def predictions(folder: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((folder / "predictions.csv").read_text())))


def test_evaluate_prints_what_the_model_reaches(models, capsys):
    words = ["evaluate", str(models / "model"), "--data", "digits", "--split", "test"]
    status, out, _ = answer(capsys, *words, "--json")
    assert status == 0
    result = json.loads(out)
    assert {"n", "skipped", "top1", "top5", "loss", "per_class", "ece", "split", "balanced_accuracy"} == set(result)
    model, split = vitrail.load(models / "model"), open_source("digits").split("test")
    batch = next(iter(EvaluationLoader(split, GREY, batch_size=len(split))))
    with torch.no_grad():
        logits = model(batch.images)
    right = logits.argmax(dim=1) == batch.targets
    assert (result["n"], result["skipped"], result["split"]) == (180, 0, "test")
    assert result["top1"] == float(right.double().mean())
    assert result["loss"] == pytest.approx(float(torch.nn.functional.cross_entropy(logits, batch.targets)), rel=1e-5)
    assert sum(each["n"] for each in result["per_class"].values()) == 180
    status, out, _ = answer(capsys, *words)
    assert f"top-1 {result['top1']:.2%}" in out
    assert f"calibration error {result['ece']:.2%}" in out
    assert "hardest classes:" in out


def test_evaluate_leaves_a_report(models, capsys, tmp_path):
    out = tmp_path / "report"
    arguments = ["evaluate", str(models / "model"), "--data", "digits", "--split", "val", "--out", str(out), "--json"]
    status, printed, _ = answer(capsys, *arguments)
    assert status == 0
    result = json.loads(printed)
    names = {"report.html", "confusion.png", "reliability.png", "predictions.csv", "evaluation.json"}
    assert {path.name for path in out.iterdir()} == names
    document = json.loads((out / "evaluation.json").read_text())
    assert {name: document[name] for name in result} == result
    assert (document["data"], document["model"]) == ("digits", str(models / "model"))
    rows = predictions(out)
    assert sorted(row["id"] for row in rows) == sorted(open_source("digits").split("val").ids)
    assert sum(int(row["right"]) for row in rows) / len(rows) == result["top1"]
    assert all((row["label"] == row["predicted"]) == (row["right"] == "1") for row in rows)
    for name in ("confusion.png", "reliability.png"):
        Image.open(out / name).verify()
    page = (out / "report.html").read_text()
    for heading in ("Confusion", "Accuracy by class", "Calibration", "Most confident mistakes", "Sample predictions"):
        assert f"<h2>{heading}</h2>" in page
    assert not re.search(r'(?:src|href|srcset)="(?!data:)', page), "nothing is fetched from elsewhere"
    assert "<script" not in page
    status, _, _ = answer(capsys, *arguments)
    assert status == 0, "a second evaluation may go where the first one is"


def test_names_from_files_cannot_break_the_report(capsys, tmp_path):
    classes = ["<b>bold</b>", "plain"]
    for index, name in enumerate(classes):
        (tmp_path / "photos" / name.replace("/", "_")).mkdir(parents=True)
        for number in range(3):
            pixels = np.full((8, 8), 40 * (index + 2 * number), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "photos" / name.replace("/", "_") / f"a,\"{number}'<i>.png")
    model = digits_model(num_classes=2)
    model.card.label_names = ("<b>bold<_b>", "plain")
    model.card.label_descriptions = {"plain": "<u>plain</u>, simple"}
    vitrail.save(model, tmp_path / "model")
    out = tmp_path / "report"
    flags = ["--data", str(tmp_path / "photos"), "--split", "all", "--out", str(out)]
    status, printed, errors = answer(capsys, "evaluate", str(tmp_path / "model"), *flags)
    assert status == 0, errors
    assert "<u>plain</u>" in printed, "on a terminal names are what they are"
    page = (out / "report.html").read_text()
    assert "<b>bold" not in page
    assert "<u>" not in page
    assert "<i>.png" not in page
    rows = predictions(out)
    assert len(rows) == 6
    assert {row["label"] for row in rows} == {"<b>bold<_b>", "plain"}


def test_fewshot_rows_table_and_report(models, capsys, tmp_path):
    flags = ["--data", "digits", "--shots", "1", "5", "all", "--methods", "ridge", "knn", "--seeds", "2"]
    out = tmp_path / "few"
    status, printed, _ = answer(
        capsys, "fewshot", str(models / "headless"), *flags, "--out", str(out), "--json"
    )  # fmt: skip
    assert status == 0
    rows = json.loads(printed)
    assert [(row["shots"], row["method"], row["seeds"]) for row in rows] == [
        (1, "ridge", 2), (1, "knn", 2), (5, "ridge", 2), (5, "knn", 2), ("all", "ridge", 1), ("all", "knn", 1),
    ]  # fmt: skip
    assert all({"shots", "method", "mean", "std", "seeds"} <= set(row) and row["n"] == 180 for row in rows)
    assert rows[4]["mean"] > rows[0]["mean"] > 0.1, "even random features tell digits apart, and more labels help"
    assert {path.name for path in out.iterdir()} == {"report.html", "fewshot.png", "fewshot.json"}
    assert json.loads((out / "fewshot.json").read_text()) == rows
    Image.open(out / "fewshot.png").verify()
    # A head changes nothing: the features are taken before it.
    status, table, _ = answer(capsys, "fewshot", str(models / "model"), *flags)
    again = json.loads(answer(capsys, "fewshot", str(models / "model"), *flags, "--json")[1])
    assert [row["mean"] for row in again] == pytest.approx([row["mean"] for row in rows], abs=0.02)
    assert f"{again[0]['mean']:.2%} ± {again[0]['std']:.2%}" in table
    assert re.search(r"all +\d", table)


def photos(folder: Path, classes: dict[str, int], broken: bool = False) -> None:
    for place, (name, count) in enumerate(classes.items()):
        (folder / name).mkdir(parents=True)
        for index in range(count):
            file = folder / name / f"{index}.png"
            Image.fromarray(np.full((8, 8), (40 * place + 9 * index) % 256, np.uint8)).save(file)
            if broken:
                file.write_bytes(b"broken")


def test_fewer_images_than_shots_are_used_and_said(models, capsys, tmp_path):
    photos(tmp_path / "set/train", {"cats": 6, "dogs": 2})
    photos(tmp_path / "set/val", {"cats": 2, "dogs": 2})
    arguments = ["fewshot", str(models / "headless"), "--data", str(tmp_path / "set"), "--shots", "1", "5", "--json"]
    status, out, errors = answer(capsys, *arguments, "--methods", "ridge", "probe")
    assert status == 0
    assert "1 of 2 classes have fewer training images than shots, 'dogs' only 2: of these all are used" in errors
    assert len(json.loads(out)) == 4


@pytest.fixture(scope="module")
def mistaken(models) -> Path:
    """What the messages below are about."""
    photos(models / "pets", {"cats": 3, "dogs": 3})
    photos(models / "broken", dict.fromkeys("0123456789", 2), broken=True)
    photos(models / "only/test", {"cats": 3, "dogs": 3})
    unlabelled = models / "unlabelled"
    unlabelled.mkdir()
    (unlabelled / "photo.png").write_bytes(b"")
    (models / "used").mkdir()
    (models / "used/notes.txt").write_text("mine")
    (models / "list.json").write_text("[[1]]")
    return models


@pytest.mark.parametrize(("arguments", "words"), [
    (["evaluate", "model", "--data", "pets"], ["cats", "unknown to the model"]),
    (["evaluate", "model", "--data", "digits", "--split", "dev"], ["dev", "train, val, test, all"]),
    (["evaluate", "model", "--data", "unlabelled"], ["unlabelled", "class folders"]),
    (["evaluate", "model", "--data", "broken", "--split", "all"], ["broken", "none of its 20 images can be read"]),
    (["evaluate", "headless", "--data", "digits"], ["headless", "no head", "vitrail fewshot"]),
    (["evaluate", "nameless", "--data", "digits"], ["nameless", "--labels"]),
    (["evaluate", "model", "--data", "digits", "--out", "used"], ["used", "new folder"]),
    (["evaluate", "model", "--data", "digits", "--out", "list.json"], ["list.json", "a file"]),
    (["evaluate", "model", "--data", "digits", "--out", "model"], ["model", "new folder"]),
    (["evaluate", "model", "--data", "digits", "--real", "list.json"], ["list.json", "50,000"]),
    (["evaluate", "model", "--data", "digits", "--real", "real.json"], ["real.json", "cannot be read"]),
    (["evaluate", "model", "--data", "digits", "--batch-size", "0"], ["batch size", "0"]),
    (["fewshot", "headless", "--data", "only"], ["only", "train"]),
    (["fewshot", "headless", "--data", "digits", "--split", "train"], ["train", "val or test"]),
    (["fewshot", "headless", "--data", "digits", "--split", "all"], ["all", "val or test"]),
    (["fewshot", "headless", "--data", "broken"], ["broken", "can be read"]),
    (["fewshot", "headless", "--data", "digits", "--shots", "0"], ["--shots 0"]),
    (["fewshot", "headless", "--data", "digits", "--shots", "some"], ["shots"]),
    (["fewshot", "headless", "--data", "digits", "--seeds", "0"], ["--seeds 0"]),
    (["fewshot", "headless", "--data", "digits", "--methods", "svm"], ["svm"]),
    (["fewshot", "headless", "--data", "digits", "--out", "used"], ["used", "new folder"]),
    (["fewshot", "nowhere", "--data", "digits"], ["nowhere"]),
])  # fmt: skip
def test_what_the_user_can_fix_exits_2_with_one_message(mistaken, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(mistaken)
    before = sorted(path.as_posix() for path in Path().rglob("*"))
    status, out, errors = answer(capsys, *arguments)
    assert status == 2, errors
    assert out == ""
    assert "Traceback" not in errors
    for word in words:
        assert word in errors
    assert sorted(path.as_posix() for path in Path().rglob("*")) == before, "nothing left behind"


def test_samples_without_a_label_are_left_out_and_said(models, capsys, tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    images = []
    for index in range(30):
        stream = io.BytesIO()
        Image.fromarray(np.full((8, 8), 8 * index, np.uint8)).save(stream, "PNG")
        images.append({"bytes": stream.getvalue(), "path": f"{index}.png"})
    labels = [None if index % 5 == 0 else str(index % 10) for index in range(30)]
    pq.write_table(pa.table({"image": images, "label": labels}), tmp_path / "test.parquet")
    flags = ["--data", str(tmp_path / "test.parquet"), "--split", "test", "--json"]
    status, out, errors = answer(capsys, "evaluate", str(models / "model"), *flags)
    assert status == 0, errors
    assert "6 samples of test have no label: left out" in errors
    assert json.loads(out)["n"] == 24


def test_fewshot_as_a_process_of_its_own(models):
    result = run("fewshot", "model", "--data", "digits", "--shots", "1", "--methods", "ridge", cwd=models)
    assert result.returncode == 0, result.stderr
    assert "shots" in result.stdout
    assert "Traceback" not in result.stderr


def test_a_bar_appears_only_for_a_person_who_has_waited(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    for stream, patience, shown in ((Terminal(), -1, True), (Terminal(), 60, False), (io.StringIO(), -1, False)):
        monkeypatch.setattr("sys.stderr", stream)
        assert list(tracked(iter(range(3)), 3, "reading", after=patience)) == [0, 1, 2]
        assert ("reading" in stream.getvalue()) == shown


@pytest.mark.assets
def test_real_weights_and_photos_by_imagenet_real_labels(assets, capsys, tmp_path):
    """DeiT-Ti/16 on 12 photos; its answers come from a first evaluation, and what is right by ReaL is worked out."""
    vitrail.convert(
        assets / "deit-ti16.safetensors", tmp_path / "deit", labels=assets / "imagenet-labels.json", check=False
    )
    for folder in sorted((assets / "imagenet-sample").iterdir())[:12]:
        shutil.copytree(folder, tmp_path / "val" / folder.name)
    order = json.loads((assets / "imagenet-labels.json").read_text())["label_names"]
    flags = ["--data", str(tmp_path / "val"), "--split", "all"]
    status, _, errors = answer(capsys, "evaluate", str(tmp_path / "deit"), *flags, "--out", str(tmp_path / "first"))
    assert status == 0, errors
    rows = predictions(tmp_path / "first")
    document: list[list[int]] = [[] for _ in range(50_000)]
    for place, row in enumerate(rows):
        said, number = order.index(row["predicted"]), int(re.findall(r"val_(\d+)", row["id"])[0])
        # Of four: right alone, right among others, wrong, without a label.
        document[number - 1] = [[said], [(said + 1) % 1000, said], [(said + 1) % 1000], []][place % 4]
    (tmp_path / "real.json").write_text(json.dumps(document))
    # Without --split a folder of validation photos is taken whole, though splits could be cut from it.
    real = ["--data", str(tmp_path / "val"), "--real", str(tmp_path / "real.json")]
    status, out, errors = answer(capsys, "evaluate", str(tmp_path / "deit"), *real, "--json")
    assert status == 0, errors
    result = json.loads(out)
    assert result["real"] == {"n": 9, "without_label": 3, "top1": 6 / 9}
    assert (result["n"], result["split"]) == (12, "all")
    assert result["top1"] == sum(int(row["right"]) for row in rows) / 12
    _, out, _ = answer(capsys, "evaluate", str(tmp_path / "deit"), *real)
    assert "ImageNet-ReaL: 66.67% of 9, 3 left out without a label" in out
    page = (tmp_path / "first/report.html").read_text()
    assert "tench" in page, "classes are called by their words"


def test_a_bare_weights_file_is_measured_with_what_the_flags_say_of_it(models, tmp_path, capsys):
    """Class names and preprocessing by flags, the same as in a bundle that has them."""
    vitrail.convert(models / "nameless", tmp_path / "bare.safetensors", "timm")
    (tmp_path / "names.txt").write_text("\n".join("0123456789"))
    flags = ["--labels", str(tmp_path / "names.txt"), "--preprocessing", "half,crop=squash"]
    words = ["--data", "digits", "--json"]
    status, told, _ = answer(capsys, "evaluate", str(tmp_path / "bare.safetensors"), *words, *flags)
    assert status == 0
    assert json.loads(told) == json.loads(answer(capsys, "evaluate", str(models / "model"), *words)[1])
    words += ["--shots", "5", "--methods", "ridge"]
    status, told, _ = answer(capsys, "fewshot", str(tmp_path / "bare.safetensors"), *words, *flags[2:])
    assert status == 0
    assert json.loads(told) == json.loads(answer(capsys, "fewshot", str(models / "model"), *words)[1])
    status, _, said = answer(capsys, "evaluate", str(models / "model"), "--data", "digits", "--preprocessing", "ful")
    assert status == 2
    assert "there is no 'ful'; there are imagenet, half, and fields such as" in said


def test_another_size_is_one_word_so_that_what_follows_is_not_taken_for_columns(models, capsys):
    words = ["--data", "digits", "--json"]
    status, _, _ = answer(capsys, "evaluate", "--image-size", "16", str(models / "model"), *words)
    assert status == 0
    status, _, _ = answer(capsys, "evaluate", "--image-size", "16x8", str(models / "model"), *words)
    assert status == 0
    for wrong, said in (("16x", "--image-size 16x: give a number"), ("9", "cannot be cut into patches of 4 x 4")):
        status, _, error = answer(capsys, "evaluate", "--image-size", wrong, str(models / "model"), *words)
        assert status == 2
        assert said in error
