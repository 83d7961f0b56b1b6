"""An exported file is measured as the model it was made from: that is how an export is checked."""

import json

import pytest

import vitrail
from tests.conftest import toy
from vitrail.cli import main
from vitrail.config import Preprocessing
from vitrail.inference.export import export


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported")
    model = toy(image_size=8, patch_size=4, channels=1, num_classes=10, depth=1)
    model.card.preprocessing = Preprocessing(image_size=8, mean=(0.5,), std=(0.5,), crop="squash")
    model.card.label_names = tuple("0123456789")
    vitrail.save(model, path / "model")
    export(model, path / "model.onnx")
    export(model, path / "model.xml", "openvino")
    return path


def evaluated(capsys, *arguments: str):
    main(["evaluate", *arguments, "--data", "digits", "--json"])
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("name", ["model.onnx", "model.xml"])
def test_it_scores_as_the_model_does(folder, capsys, monkeypatch, name):
    monkeypatch.chdir(folder)
    for split in ("test", "val"):
        ours, its = evaluated(capsys, "model", "--split", split), evaluated(capsys, name, "--split", split)
        assert its.keys() == ours.keys()
        for key in ("split", "n", "skipped", "top1", "top5", "per_class"):
            assert its[key] == ours[key], key
        assert its["loss"] == pytest.approx(ours["loss"], abs=1e-4)
        assert its["ece"] == pytest.approx(ours["ece"], abs=1e-3)


def test_it_has_a_report_of_its_own(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    evaluated(capsys, "model.onnx", "--out", "report")
    assert {"report.html", "evaluation.json", "predictions.csv"} <= {
        each.name for each in (folder / "report").iterdir()
    }


@pytest.mark.parametrize(("arguments", "words"), [
    (["nowhere.onnx"], "there is no such file"),
    (["model.onnx", "--image-size", "16"], "an exported model is fixed"),
    (["model.pt2"], "export it to .onnx"),
], ids=str)  # fmt: skip
def test_what_cannot_be_is_said(folder, capsys, monkeypatch, arguments, words):
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as stopped:
        main(["evaluate", *arguments, "--data", "digits"])
    assert stopped.value.code == 2
    assert words in capsys.readouterr().err
