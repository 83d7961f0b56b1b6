"""Weights by name: what the table says is what timm's registry says, and what a name fetches is what the hub states."""

import json
import os
import pty
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

import vitrail
from tests.checkpoints import timm_registry
from tests.conftest import toy
from tests.hub_server import COMMIT
from tests.warm import run
from vitrail.checkpoints.published import by_name, published_models
from vitrail.errors import UserError
from vitrail.io.checksums import digest
from vitrail.serving.models import open_engines

REPOSITORY = "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k"
KINDS = ["Ti/16", "S/16@deit3", "B/16@mae", "B/16@deit-distilled", "S/14@dinov2-reg4", "R+Ti/16", "BiT-R50x1"]


@pytest.fixture(scope="module")
def rows(peers):
    return json.loads(timm_registry.TABLE.read_text("utf-8"))


def test_the_table_is_what_timms_registry_says(rows):
    assert {row["id"]: {key: row[key] for key in row if key != "name"} for row in rows} == {
        row["id"]: timm_registry.facts(row["id"]) for row in rows
    }
    assert {row["id"] for row in rows} <= set(timm_registry.listed())


def test_a_name_alone_means_the_first_by_a_rule(rows):
    for name in {row["name"] for row in rows}:
        own = [row for row in rows if row["name"] == name]
        assert own == sorted(own, key=timm_registry.order)
        assert by_name(name).id == own[0]["id"]
        assert len({row["variant"] for row in own}) == len(own)


@pytest.mark.parametrize("name", KINDS)
def test_the_loader_reads_timms_own_model_as_the_one_that_is_named(peers, name):
    weights = by_name(name)
    assert timm_registry.name_of(weights.id) == weights.name


@pytest.mark.slow
def test_the_loader_reads_every_one_of_timms_models_as_the_one_that_is_named(rows):
    assert {row["id"]: timm_registry.name_of(row["id"]) for row in rows} == {row["id"]: row["name"] for row in rows}


@pytest.mark.parametrize(
    "text", ["Ti/16", "ti/16", "ViT-Ti/16", "Ti/16@augreg", REPOSITORY, REPOSITORY.removeprefix("timm/")]
)
def test_ways_to_say_a_name(text):
    assert by_name(text).hub == REPOSITORY


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Ti/16@diet", "did you mean Ti/16@deit"),
        ("Ti/16@", "there are augreg"),
        ("b16", "are called B/16"),
        ("Ti/8", "no published weights of Ti/8"),
        ("nowhere", "no such file or folder"),
    ],
)
def test_names_that_are_none_say_what_would_be(text, said):
    with pytest.raises(UserError, match=said):
        vitrail.load(text)


def test_fetched_by_name(ti16, like_ti16):
    model = vitrail.load("Ti/16")
    given = load_file(like_ti16 / "model.safetensors")
    assert all(torch.equal(tensor, given[name]) for name, tensor in model.state_dict().items())
    assert model.config.name == "Ti/16"
    assert model.card.preprocessing == by_name("Ti/16").preprocessing
    assert model.card.preprocessing.mean == (0.5, 0.5, 0.5)
    assert model.card.notes[0] == (
        f"Ti/16: Ti/16@augreg ({REPOSITORY}), trained on ImageNet-21k, then ImageNet-1k at 224 px, licence apache-2.0"
    )
    assert model.card.provenance["hub"] == {
        "repository": REPOSITORY,
        "commit": COMMIT,
        "sha256": {"model.safetensors": digest(like_ti16 / "model.safetensors")},
        "name": "Ti/16@augreg",
        "trained_on": "ImageNet-21k, then ImageNet-1k",
        "licence": "apache-2.0",
    }


def test_preprocessing_of_the_table_where_the_repository_has_none(ti16):
    file = ti16.repository(REPOSITORY) / "config.json"
    document = json.loads(file.read_text())
    del document["pretrained_cfg"]
    file.unlink()
    file.write_text(json.dumps(document))
    model = vitrail.load("Ti/16")
    assert model.card.preprocessing == by_name("Ti/16").preprocessing
    assert not any("no preprocessing" in note for note in model.card.notes)


@pytest.fixture
def photo(tmp_path):
    Image.effect_noise((64, 48), 80).convert("RGB").save(tmp_path / "photo.png")
    return tmp_path / "photo.png"


@pytest.fixture
def photos(tmp_path):
    """A folder of two of ImageNet's classes."""
    for number, name in enumerate(["n01440764", "n01443537"] * 6):
        (tmp_path / "photos" / name).mkdir(parents=True, exist_ok=True)
        Image.effect_noise((40, 40), 20 * number).convert("RGB").save(tmp_path / "photos" / name / f"{number}.png")
    return tmp_path / "photos"


def test_fetched_once_and_kept_in_the_hubs_cache(ti16, photo):
    first, second = (run("predict", "Ti/16", str(photo), "--json", "--image-size", "32") for _ in range(2))
    assert first.returncode == second.returncode == 0
    assert ti16.downloads() == ["config.json", "model.safetensors"]
    assert first.stdout == second.stdout
    best = json.loads(first.stdout)[0]["top"][0]
    assert best["label"].startswith("n0")
    assert best["description"]
    assert f"Ti/16@augreg ({REPOSITORY})" in first.stderr
    assert "\r" not in first.stderr


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_wrong_digest_is_refused(ti16, photo, file):
    ti16.stated[file] = "0" * (64 if file == "model.safetensors" else 40)
    result = run("predict", "Ti/16", str(photo))
    assert result.returncode == 2
    assert f"{file} of {REPOSITORY} is not what the hub states" in result.stderr
    assert result.stderr.count("\n") == 2
    place = result.stderr.split("delete ")[1].split(" to fetch")[0]
    ti16.stated.clear()
    Path(place).unlink()
    assert run("predict", "Ti/16", str(photo), "--image-size", "32").returncode == 0, "the remedy helps"


def test_a_file_damaged_in_the_cache_is_refused_without_a_network_too(ti16, photo):
    vitrail.load("Ti/16")
    kept = next((ti16.root.parent / "cache").glob("**/model.safetensors")).resolve()
    content = bytearray(kept.read_bytes())
    content[-1] ^= 1
    kept.chmod(0o644)
    kept.write_bytes(content)
    ti16.environment(HF_HUB_OFFLINE="1")
    result = run("predict", "Ti/16", str(photo))
    assert result.returncode == 2
    assert "is not what the hub states" in result.stderr


def test_without_a_network_what_the_cache_has_is_used(ti16, photo):
    vitrail.load("Ti/16")
    ti16.environment(HF_HUB_OFFLINE="1")
    result = run("predict", "Ti/16", str(photo), "--image-size", "32")
    assert result.returncode == 0
    assert "taken from its cache" in result.stderr


@pytest.mark.parametrize(
    ("environment", "why"),
    [({"HF_HUB_OFFLINE": "1"}, "HF_HUB_OFFLINE is set"), ({"HF_ENDPOINT": "http://127.0.0.1:9"}, "refused")],
    ids=["told so", "no route"],
)
def test_offline_is_a_sentence_that_says_what_to_put_where(hub, photo, environment, why):
    hub.environment(**environment)
    result = run("predict", "Ti/16", str(photo))
    assert result.returncode == 2
    first, second = result.stderr.splitlines()
    assert first.startswith("vitrail: Ti/16: the hub cannot be reached (")
    assert why in first
    assert f"{REPOSITORY} is not in its cache ({hub.root.parent / 'cache'})" in first
    assert f"/{REPOSITORY}/resolve/main/model.safetensors and config.json" in second
    assert "in place of Ti/16" in second


def test_a_hub_that_fails_is_one_that_cannot_be_reached(ti16):
    ti16.status = 503
    with pytest.raises(UserError, match=r"cannot be reached \(it answers 503\)"):
        vitrail.load("Ti/16")


@pytest.mark.parametrize(("pause", "chunk"), [(60.0, 1 << 20), (0.2, 1000)], ids=["stalls", "drips"])
def test_a_download_has_a_time_limit(ti16, photo, pause, chunk):
    ti16.pause, ti16.chunk = pause, chunk
    ti16.environment(HF_HUB_DOWNLOAD_TIMEOUT="1", HF_HUB_ETAG_TIMEOUT="1")
    began = time.monotonic()
    result = run("predict", "Ti/16", str(photo))
    assert result.returncode == 2
    assert "the hub cannot be reached (not a megabyte came in 3 s)" in result.stderr
    assert time.monotonic() - began < 20


def test_a_terminal_shows_a_bar(ti16, photo):
    ti16.pause, ti16.chunk = 0.1, 2_000_000
    ours, theirs = pty.openpty()
    code = "from vitrail.checkpoints.hub import fetch_repository; fetch_repository('Ti/16')"
    with subprocess.Popen([sys.executable, "-c", code], stderr=theirs, env={**os.environ, "COLUMNS": "140"}) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 1 << 16):
                shown += part
        except OSError:  # how a pseudo-terminal ends
            pass
    os.close(ours)
    assert process.returncode == 0
    assert f"{REPOSITORY} (MB)".encode() in shown
    assert b"/22" in shown


def test_a_folder_of_that_name_comes_first(ti16, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    vitrail.save(toy(), "Ti/16")
    model = vitrail.load("Ti/16")
    assert model.config.width == 32
    assert any("not the published weights" in note for note in model.card.notes)
    assert not ti16.asked


def test_what_was_fetched_stays_in_the_provenance(ti16, tmp_path, photos, like_ti16):
    arguments = ["--data", str(photos), "--model.image-size", "32", "--steps", "2", "--batch-size", "4", "--json"]
    result = run("finetune", "Ti/16", *arguments, "--out", str(tmp_path / "run"))
    assert result.returncode == 0, result.stderr
    assert f"Ti/16@augreg ({REPOSITORY})" in result.stderr
    assert "ImageNet's classes" not in result.stderr, "the head is new"
    for folder in ("best", "bundle"):
        card = vitrail.load(tmp_path / "run" / folder).card
        assert card.provenance["init_from"] == "Ti/16"
        told = card.provenance["init_provenance"]["hub"]
        assert told["repository"] == REPOSITORY
        assert told["commit"] == COMMIT
        assert told["licence"] == "apache-2.0"
        assert told["sha256"] == {"model.safetensors": digest(like_ti16 / "model.safetensors")}
        assert "recipe" not in card.provenance["init_provenance"], "what was saved before is not where it began"
    converted = run("convert", "Ti/16@augreg", str(tmp_path / "bundle"), "--no-check")
    assert converted.returncode == 0
    assert vitrail.load(tmp_path / "bundle").card.provenance["hub"]["commit"] == COMMIT


@pytest.mark.parametrize(
    "command",
    [
        ["evaluate", "Ti/16", "--data", "photos", "--split", "all", "--image-size", "32"],
        ["embed", "Ti/16", "photos", "--out", "features.parquet", "--image-size", "32"],
        ["fewshot", "Ti/16", "--data", "photos", "--shots", "1", "--seeds", "1", "--image-size", "32"],
        pytest.param(["inspect", "Ti/16", "--out", "inside", "--image-size", "32"], marks=pytest.mark.slow),
        pytest.param(["export", "Ti/16", "--out", "model.onnx", "--image-size", "32"], marks=pytest.mark.slow),
    ],
    ids=lambda command: command[0],
)
def test_every_command_takes_a_name(ti16, photos, command):
    result = run(*command, cwd=photos.parent)
    assert result.returncode == 0, result.stderr
    assert f"Ti/16@augreg ({REPOSITORY})" in result.stderr


def test_a_served_model_is_called_as_it_was_asked_for(ti16):
    engines = open_engines(["Ti/16", "small=Ti/16@augreg"])
    assert list(engines) == ["Ti-16", "small"]


def test_the_list(peers):
    rows = json.loads(run("models", "--weights", "--json").stdout)
    assert len(rows) == len(published_models())
    assert rows[0]["name"] == "Ti/16"
    assert rows[0]["full_name"] == "Ti/16@augreg"
    assert all(by_name(row["name"]).id == by_name(row["full_name"]).id == row["id"] for row in rows)
    shown = run("models", "--weights", "H/14").stdout
    assert "H/14 (@deit3)" in shown
    assert "H/14@mae" in shown
    assert "cc-by-nc-4.0" in shown
    assert "Ti/16" not in shown


def test_the_classes_of_imagenet_are_timms(peers, tmp_path):
    save_file(toy(num_classes=1000).state_dict(), tmp_path / "weights.safetensors")
    card = vitrail.load(tmp_path / "weights.safetensors", model=toy(num_classes=1000).config).card
    info = peers.timm.data.ImageNetInfo()
    assert list(card.label_names) == info.label_names()
    assert [card.label_descriptions[name] for name in card.label_names] == [
        info.label_name_to_description(name).split(", ")[0] for name in info.label_names()
    ]


@pytest.mark.assets
def test_the_classes_of_imagenet_are_the_known_ones(assets):
    card = vitrail.load(assets / "deit-ti16.safetensors").card
    known = json.loads((assets / "imagenet-labels.json").read_text())
    assert list(card.label_names) == known["label_names"]
    assert card.label_descriptions == known["label_descriptions"]
    assert sum("ImageNet's classes" in note for note in card.notes) == 1


def test_classes_are_named_only_where_nothing_better_is_known(tmp_path):
    model = toy(num_classes=1000)
    vitrail.save(model, tmp_path / "bundle")
    assert vitrail.load(tmp_path / "bundle").card.label_names == (), "a bundle says what is known"
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    (tmp_path / "labels.txt").write_text("".join(f"class {number}\n" for number in range(1000)))
    given = vitrail.load(tmp_path / "weights.safetensors", model=model.config, labels=tmp_path / "labels.txt").card
    assert given.label_names[1] == "class 1"
    assert not any("ImageNet's classes" in note for note in given.notes)
    other = vitrail.load(tmp_path / "weights.safetensors", model=model.config, num_classes=5).card
    assert other.label_names == ()
    assert not any("ImageNet's classes" in note for note in other.notes)
    save_file(toy(num_classes=999).state_dict(), tmp_path / "fewer.safetensors")
    assert vitrail.load(tmp_path / "fewer.safetensors", model=toy(num_classes=999).config).card.label_names == ()
