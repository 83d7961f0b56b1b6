"""`vitrail inspect` as a person runs it: what it writes, what it prints, what it refuses."""

import json
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.conftest import randomised, toy
from vitrail.cli import main
from vitrail.data import open_source
from vitrail.insight.images import of_training
from vitrail.insight.report import OUTPUTS
from vitrail.models.build import build
from vitrail.recipes import recipe


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A model, a BiT, and a few images."""
    path = tmp_path_factory.mktemp("inspect")
    model = toy(num_classes=3, depth=2)
    model.card.label_names = ("cat", "dog", "fish")
    vitrail.save(model, path / "model")
    vitrail.save(vitrail.create("BiT-R50x1", num_classes=2, image_size=32, stem_width=32, stages=(1,)), path / "bit")
    draw = np.random.default_rng(0)
    (path / "photos/deep").mkdir(parents=True)
    for name in ("photos/a.png", "photos/b.jpg", "photos/deep/c.png"):
        Image.fromarray(draw.integers(0, 256, (40, 50, 3), dtype=np.uint8)).save(path / name)
    (path / "photos/notes.txt").write_text("not an image, and not taken for one")
    (path / "empty").mkdir()
    (path / "broken.jpg").write_bytes(b"this is no photo")
    (path / "taken").mkdir()
    (path / "taken/thesis.tex").write_text("precious")
    return path


def test_a_folder_of_photos_as_a_process(folder):
    command = [sys.executable, "-m", "vitrail", "inspect", "model", "photos", "--out", "report", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert result.returncode == 0, result.stderr
    numbers = json.loads(result.stdout)
    assert numbers["images"]["n"] == 3
    assert numbers["report"] == "report/report.html"
    assert {path.name for path in (folder / "report").iterdir()} == OUTPUTS
    assert [each["image"] for each in numbers["maps"]] == ["photos/a.png", "photos/b.jpg", "photos/deep/c.png"]
    assert result.stderr == "", "no bar where nobody looks"


def test_our_own_recipe_of_plain_convolutions(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    vitrail.save(randomised(build(recipe("cifar10-small").model)), folder / "small")
    main(["inspect", "small", "photos", "--limit", "1", "--occlusion-images", "1", "--out", "small-report", "--json"])
    assert json.loads(capsys.readouterr().out)["filters"]["of"] == "the stem's first convolution (3 x 3 pixels)"


def test_what_it_prints_for_a_person(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    arguments = ["photos/*.*g", "--class", "fish", "--limit", "1", "--occlusion-images", "1", "--image-size", "16"]
    main(["inspect", "model", *arguments, "--out", "printed"])
    printed = capsys.readouterr().out
    assert "report: printed/report.html" in printed
    assert "Over 1 image, " in printed
    numbers = json.loads((folder / "printed/numbers.json").read_text())
    assert numbers["maps"][0]["class"] == "fish"
    assert numbers["model"]["grid"] == [2, 2]


def test_without_an_image_it_says_so_and_shows_drawings(folder, capsys, monkeypatch):
    monkeypatch.chdir(folder)
    main(["inspect", "model", "--out", "drawn"])
    assert "note: No image was given" in capsys.readouterr().out
    text = (folder / "drawn/report.html").read_text()
    assert "No image was given" in text
    assert "drawings looked at" in text
    numbers = json.loads((folder / "drawn/numbers.json").read_text())
    assert numbers["images"] == {"n": 4, "drawn_by_the_program": True, "with_maps": 4}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["bit", "photos", "--out", "out"], ["ResNet", "no attention"]),
        (["model", "broken.jpg", "--out", "out"], ["broken.jpg", "not an image"]),
        (["model", "photos/a.png", "broken.jpg", "--out", "out"], ["broken.jpg"]),
        (["model", "empty", "--out", "out"], ["there is no picture in empty"]),
        (["model", "nowhere.jpg", "--out", "out"], ["nowhere.jpg: there is no such file"]),
        (["model", "photos", "nowhere.jpg", "--out", "out", "--limit", "1"], ["nowhere.jpg: there is no such file"]),
        (["model", "-", "--out", "out"], ["-: there is no such file"]),
        (["model", "*.webp", "--out", "out"], ["*.webp"]),
        (["model", "photos", "--out", "broken.jpg"], ["broken.jpg", "not a folder"]),
        (["model", "photos", "--out", "broken.jpg/out"], ["broken.jpg/out", "cannot be written"]),
        (["model", "photos", "--out", "taken"], ["taken", "thesis.tex"]),
        (["model", "photos", "--out", "out", "--class", "bird"], ["--class bird", "no such class"]),
        (["model", "photos", "--out", "out", "--limit", "0"], ["--limit"]),
        (["model", "photos", "--out", "out", "--occlusion-images", "-1"], ["--occlusion-images"]),
        (["model", "photos", "--out", "out", "--merge-tokens", "-2"], ["-2"]),
        (["model", "photos", "--out", "out", "--image-size", "30"], ["30 x 30"]),
        (["model", "photos", "--out", "out", "--device", "abacus"], ["--device abacus"]),
        (["nothing", "--out", "out"], ["nothing", "no such file"]),
        (["model", "photos"], ["--out"]),
    ],
    ids=lambda value: " ".join(value),
)  # fmt: skip
def test_what_the_user_can_fix_exits_2_with_a_sentence_and_leaves_nothing(
    folder, capsys, monkeypatch, arguments, words
):
    monkeypatch.chdir(folder)
    before = sorted(path.name for path in folder.iterdir())
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", *arguments])
    assert stopped.value.code == 2
    said = capsys.readouterr()
    assert not said.out
    assert "Traceback" not in said.err
    for word in words:
        assert word in said.err
    assert sorted(path.name for path in folder.iterdir()) == before
    assert (folder / "taken/thesis.tex").read_text() == "precious"


def test_a_folder_that_may_not_be_written_to(folder, capsys, monkeypatch):
    """The system's own refusal; root may write anywhere but here."""
    monkeypatch.chdir(folder)
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", "model", "photos", "--out", "/proc/inspect"])
    assert stopped.value.code == 2
    assert "--out /proc/inspect: cannot be written" in capsys.readouterr().err


def test_importing_vitrail_is_still_instant_and_inspect_is_there_either_way():
    code = (
        "import sys, vitrail; assert 'torch' not in sys.modules; assert 'inspect' in dir(vitrail); "
        "vitrail.inspect.attention; import vitrail.inspect as other; assert other is vitrail.inspect"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def trained_on(folder, source: str, names: tuple[str, ...]):
    model = toy(num_classes=len(names), depth=2, image_size=16, channels=1)
    model.card.label_names, model.card.provenance = names, {"data": {"source": source, "fingerprint": "?"}}
    vitrail.save(model, folder)
    return folder


DIGITS = tuple("0123456789")


def test_without_images_a_few_of_the_data_it_was_trained_on_are_shown(tmp_path, capsys):
    model = trained_on(tmp_path / "model", "digits", DIGITS)
    main(["inspect", str(model), "--out", str(tmp_path / "report")])
    said = capsys.readouterr().out
    assert "note: No image was given: the model is shown on 24 pictures of digits (test), the data it was" in said
    numbers = json.loads((tmp_path / "report/numbers.json").read_text())
    assert numbers["images"] == {"n": 24, "drawn_by_the_program": False, "with_maps": 6}
    assert {each["image"] for each in numbers["maps"]} <= set(open_source("digits").split("test").ids)


def test_data_that_is_not_there_is_replaced_by_drawings(tmp_path):
    others = [("digits", ("cat", "dog")), ("hf:nobody/nothing", DIGITS), ("s3://nowhere/shards", DIGITS)]
    for place, (source, names) in enumerate(others):
        other = vitrail.load(trained_on(tmp_path / f"{place}", source, names))
        assert of_training(other, 4) is None, source
    model = vitrail.load(trained_on(tmp_path / "model", "photos-that-were-moved-away", DIGITS))
    numbers = vitrail.inspect.report(model, None, tmp_path / "report")
    assert numbers["images"]["drawn_by_the_program"]
    assert "four drawings" in numbers["notes"][0]
