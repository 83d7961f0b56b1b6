"""Labels from the command line: a table is trained on, evaluated, predicted, exported and fine-tuned on."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.warm import run
from vitrail.data import open_source
from vitrail.io.documents import read_json

QUADRANTS = ("north-west", "north-east", "south-west", "south-east")
SHORT = ["--model.depth", "1", "--batch-size", "32", "--transform.crop", "evaluation", "--transform.rotate", "0"]


def write_table(folder: Path, count: int) -> Path:
    """Grey pictures of 8 x 8 pixels; each of their quadrants that is bright is a label, the last one rarely."""
    generator = np.random.Generator(np.random.PCG64(0))
    lines = ["file,labels"]
    (folder / "pictures").mkdir(parents=True)
    for number in range(count):
        bright = generator.random(4) < (0.5, 0.4, 0.5, 0.15)
        pixels = generator.integers(0, 60, (8, 8))
        for place in np.flatnonzero(bright):
            row, column = divmod(int(place), 2)
            pixels[4 * row : 4 * row + 4, 4 * column : 4 * column + 4] += 150
        Image.fromarray(pixels.astype(np.uint8)).save(folder / "pictures" / f"{number:03d}.png")
        lines.append(f"pictures/{number:03d}.png,{'|'.join(np.array(QUADRANTS)[bright])}")
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return folder / "table.csv"


def done(*arguments: str, cwd: Path) -> str:
    result = run(*arguments, cwd=cwd)
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("labels")
    write_table(folder, 300)
    result = run("train", "digits", "--data", "table.csv", "--epochs", "12", "--out", "run", *SHORT, cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "table.csv: 4 labels (multilabel) by column labels" in result.stderr
    assert "test mAP " in result.stdout
    return folder


def test_a_run_learns_labels_and_keeps_their_thresholds(trained: Path) -> None:
    found = json.loads(done("evaluate", "run", "--data", "table.csv", "--json", cwd=trained))
    assert found["n"] == 30
    frequency = np.mean([facts["n"] / 30 for facts in found["per_class"].values() if facts["n"]])
    assert found["map"] > frequency + 0.3
    assert found["f1"] > 0.8
    for kept in ("best", "bundle"):
        model = vitrail.load(trained / "run" / kept)
        assert model.config.task == "multilabel"
        assert sorted(model.card.label_names) == sorted(QUADRANTS)
        assert len(model.card.constants["thresholds"]) == 4
    best = vitrail.load(trained / "run").card.constants["thresholds"]
    assert [facts["threshold"] for facts in found["per_class"].values()] == best
    records = [json.loads(line) for line in (trained / "run" / "metrics.jsonl").read_text().splitlines()]
    last = [record for record in records if record["kind"] == "val"][-1]
    assert vitrail.load(trained / "run" / "bundle").card.constants == last["constants"]
    assert (trained / "run" / "precision-recall.png").is_file()
    assert "By label" in (trained / "run" / "report.html").read_text()


def test_the_thresholds_are_those_of_the_validation_samples(trained: Path) -> None:
    """Found again from what evaluation says of every validation sample."""
    from vitrail.tasks.multilabel.scores import best_thresholds

    done("evaluate", "run", "--data", "table.csv", "--split", "val", "--out", "validation", cwd=trained)
    lines = [line.split(",") for line in (trained / "validation" / "predictions.csv").read_text().splitlines()]
    names = [cell.removeprefix("score ") for cell in lines[0][4:]]
    scores = np.array([line[4:] for line in lines[1:]], dtype=np.float64)
    truths = np.array([[name in line[1].split("|") for name in names] for line in lines[1:]], dtype=np.int8)
    kept = vitrail.load(trained / "run").card
    assert list(kept.label_names) == names
    assert best_thresholds(scores, truths) == pytest.approx(kept.constants["thresholds"], abs=1e-5)


def test_predictions_are_the_labels_and_an_export_says_the_same(trained: Path) -> None:
    source = open_source(trained / "table.csv")
    pictures = source.split("test").ids
    said = json.loads(done("predict", "run", *pictures, "--json", cwd=trained))
    assert [row["path"] for row in said] == list(pictures)
    true = {name: set() for name in pictures}
    for row, name in enumerate(pictures):
        true[name] = {source.classes[place] for place in np.flatnonzero(source.split("test").targets[row])}
    right = [{each["label"] for each in row["labels"]} == true[row["path"]] for row in said]
    assert np.mean(right) > 0.5
    done("export", "run", "--out", "model.onnx", cwd=trained)
    exported = json.loads(done("predict", "model.onnx", *pictures, "--json", cwd=trained))
    for one, other in zip(said, exported, strict=True):
        assert [each["label"] for each in one["labels"]] == [each["label"] for each in other["labels"]]
        assert [each["score"] for each in one["labels"]] == pytest.approx(
            [each["score"] for each in other["labels"]], abs=1e-4
        )
    measured = [
        json.loads(done("evaluate", each, "--data", "table.csv", "--json", cwd=trained))
        for each in ("run", "model.onnx")
    ]
    assert measured[0]["map"] == pytest.approx(measured[1]["map"], abs=1e-9)
    (every,) = json.loads(done("predict", "run", pictures[0], "--threshold", "0", "--json", cwd=trained))
    assert len(every["labels"]) == 4


def test_a_resumed_run_keeps_the_thresholds_of_its_last_validation(trained: Path) -> None:
    shutil.copytree(trained / "run", trained / "again")
    shutil.rmtree(trained / "again" / "bundle")
    done("train", "--out", "again", "--resume", cwd=trained)
    before, after = (vitrail.load(trained / run / "bundle").card.constants for run in ("run", "again"))
    assert after["thresholds"] == before["thresholds"]


def test_finetuning_solves_a_head_for_labels(trained: Path) -> None:
    flags = ["--quick", "--class-weights", "balanced", "--out", "probed"]
    result = run("finetune", "run", "--data", "table.csv", *flags, cwd=trained)
    assert result.returncode == 0, result.stderr
    assert "probe: mAP " in result.stderr
    assert "times as much as one without it" in result.stderr
    cards = [vitrail.load(trained / "probed" / name).card for name in ("probe", "best", "bundle")]
    assert cards[0].constants == cards[1].constants == cards[2].constants
    assert len(cards[0].constants["thresholds"]) == 4


def test_mixing_smoothing_and_weights_train(trained: Path) -> None:
    mixing = ["--transform.mixup", "0.2", "--transform.cutmix", "1", "--transform.label-smoothing", "0.1"]
    flags = ["--steps", "3", "--class-weights", "balanced", "--out", "mixed", *mixing, *SHORT]
    done("train", "digits", "--data", "table.csv", *flags, cwd=trained)
    assert read_json(trained / "mixed" / "config.json")["train"]["objective"] == "sigmoid"


def test_what_does_not_fit_is_said(trained: Path) -> None:
    flags = ["--data", "table.csv", "--objective", "softmaxx", "--out", "wrong"]
    result = run("train", "digits", *flags, cwd=trained)
    assert result.returncode == 2
    assert "choose one of sigmoid" in result.stderr
    result = run("evaluate", "run", "--data", "digits", cwd=trained)
    assert result.returncode == 2
    assert "digits is data for classification, and cannot be taken for multilabel" in result.stderr
    result = run("train", "digits", "--data", "table.csv", "--task", "classification", "--out", "wrong", cwd=trained)
    assert result.returncode == 2
    assert "the cell of 'labels' is empty" in result.stderr


@pytest.mark.assets
def test_coco_labels_are_learned_on_the_features_of_real_weights(assets: Path, tmp_path: Path) -> None:
    flags = ["--quick", "--data.test-fraction", "0.3", "--out", "run", "--json"]
    weights, data = str(assets / "deit-ti16.safetensors"), str(assets / "coco128")
    found = json.loads(done("finetune", weights, "--data", data, *flags, cwd=tmp_path))["metrics"]
    assert found["n"] == 38
    frequency = np.mean([facts["n"] / 38 for facts in found["per_class"].values() if facts["n"]])
    assert frequency < 0.06
    assert found["map"] > 0.45  # 51 % when this was written; scores that are all alike give the frequency


def losses(run: Path) -> list[float]:
    records = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


@pytest.mark.parametrize("numbers", [False, True], ids=["labels", "numbers"])
def test_training_from_shards_gives_the_same_losses(tmp_path: Path, numbers: bool) -> None:
    table = write_table(tmp_path, 60)
    if numbers:
        lines = [line.partition(",")[0] for line in table.read_text().splitlines()[1:]]
        table.write_text("file,age\n" + "".join(f"{name},{place / 7}\n" for place, name in enumerate(lines)))
    done("data", "shard", "table.csv", "shards", "--size", "20kB", cwd=tmp_path)
    flags = ["--steps", "6", "--batch-size", "16", "--model.depth", "1", "--evaluate-every", "3"]
    for data, out in (("table.csv", "one"), ("shards", "other")):
        done("train", "digits", "--data", data, "--out", out, *flags, cwd=tmp_path)
    assert losses(tmp_path / "one") == losses(tmp_path / "other")
    assert len(losses(tmp_path / "one")) >= 3
    # A random crop is drawn by the sample's id, which the shards keep.
    assert read_json(tmp_path / "other" / "config.json")["train"]["transform"]["rotate"] > 0


def test_class_folders_that_share_pictures_are_learned_as_labels(tmp_path: Path) -> None:
    """One content in several folders is one sample: from fine-tuning to prediction."""
    table = write_table(tmp_path, 120)
    for line in table.read_text().splitlines()[1:]:
        file, _, said = line.partition(",")
        for name in said.split("|") if said else ():
            (tmp_path / "folders" / name).mkdir(parents=True, exist_ok=True)
            shutil.copyfile(tmp_path / file, tmp_path / "folders" / name / f"{name}-{Path(file).name}")
    contents = {file.read_bytes() for file in (tmp_path / "folders").rglob("*.png")}
    asked = ["--data", "folders", "--task", "multilabel"]
    result = run("train", "digits", *asked, "--epochs", "4", "--out", "run", *SHORT, cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    assert f"files are {len(contents)} pictures by their content" in result.stderr
    tuned = run("finetune", "run", *asked, "--quick", "--out", "tuned", cwd=tmp_path)
    assert tuned.returncode == 0, tuned.stderr
    found = json.loads(done("evaluate", "tuned", "--data", "folders", "--split", "all", "--json", cwd=tmp_path))
    assert found["n"] == len(contents)
    assert sum(facts["n"] for facts in found["per_class"].values()) == sum(
        1 for _ in (tmp_path / "folders").rglob("*.png")
    )
    (row,) = json.loads(done("predict", "tuned", "pictures/000.png", "--threshold", "0", "--json", cwd=tmp_path))
    assert {each["label"] for each in row["labels"]} == set(QUADRANTS)
