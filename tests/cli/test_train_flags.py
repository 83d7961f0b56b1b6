"""The fields of a configuration as flags: in any order, in every spelling, and a model's name beside them."""

import json
import re

import pytest

import vitrail
from tests.conftest import toy
from tests.warm import run
from vitrail.cli.train_flags import OwnFlags, read_fields
from vitrail.config import ModelConfig, Preprocessing
from vitrail.errors import UserError
from vitrail.models.sizes import config_for
from vitrail.recipes import recipe
from vitrail.training.run_folder import read_config


def model_of(name: str, *arguments: str) -> ModelConfig:
    return read_fields(recipe(name), OwnFlags(list(arguments), positional=False), "vitrail train", "").model


@pytest.mark.parametrize("first", [True, False], ids=["size first", "image size first"])
def test_a_size_goes_with_the_image_size_given_and_not_with_the_recipes(first):
    size, image = ["--model.size", "Ti/16"], ["--model.image-size", "32"]
    model = model_of("mnist5k", *(size + image if first else image + size))
    wanted = config_for("Ti/16", image_size=32)
    for field in ("name", "rows_columns", "patch_size", "width", "depth", "num_heads", "mlp_dim"):
        assert getattr(model, field) == getattr(wanted, field), field
    assert (model.channels, model.num_classes, model.pooling) == (1, 10, "average"), "the rest is the recipe's"


def test_a_size_that_does_not_fit_is_refused_with_what_would():
    with pytest.raises(UserError, match=r"28 x 28 pixels cannot be cut into patches of 16 x 16; .* 32 x 32"):
        model_of("mnist5k", "--model.size", "Ti/16")


@pytest.mark.parametrize("order", [1, -1])
def test_single_fields_count_more_than_the_size_wherever_they_stand(order):
    parts = [["--model.size=B/8"], ["--model.depth", "3"], ["--model.image-size=64"]][::order]
    model = model_of("mnist5k", *(word for part in parts for word in part))
    assert (model.depth, model.width, model.rows_columns) == (3, 768, (64, 64))


@pytest.mark.parametrize("name", ["R50+B/32", "Axial-B/32", "BiT-R50x1", "Ti/16"])
@pytest.mark.parametrize("base", ["cifar10-small", "mnist5k"])
def test_a_size_brings_all_that_its_name_stands_for(base, name):
    """The recipe's own stem of plain convolutions is none of theirs, nor is their attention or family the recipe's."""
    model, wanted = model_of(base, "--model.size", name, "--model.image-size", "64"), config_for(name, image_size=64)
    for field in ("family", "attention", "stages", "stem", "stem_width", "stem_arithmetic", "patch_size", "width"):
        if field == "stem" and wanted.stages is None:
            continue
        assert getattr(model, field) == getattr(wanted, field), field


@pytest.mark.parametrize("source", [["--data.source=digits"], ["--data.source", "digits"], ["--data=digits"]], ids=str)
def test_finetune_takes_its_source_in_every_spelling(tmp_path, source):
    model = toy(image_size=8, patch_size=4, channels=1, num_classes=3)
    model.card.preprocessing = Preprocessing(image_size=8, mean=(0.5,), std=(0.5,))
    vitrail.save(model, tmp_path / "model")
    done = run("finetune", "model", *source, "--steps", "1", "--out", "run", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["steps"] == 1
    assert read_config(tmp_path / "run").data.source == "digits"


@pytest.mark.parametrize("command", ["train", "finetune"])
def test_help_is_one_screen_of_what_people_use(command):
    said = run(command, "--help").stdout.splitlines()
    assert len(said) <= 40
    assert max(map(len, said)) <= 100
    listed = [line.split()[0] for line in said[said.index("options:") :] if line.startswith("  --")]
    assert {"--data", "--out", "--resume", "--epochs", "--steps", "--batch-size", "--json", "--help-all"} <= set(listed)


@pytest.mark.parametrize("command", ["train", "finetune"])
def test_help_all_has_every_field(command):
    said = run(command, "--help-all").stdout
    for flag in ("--data SRC", "--out RUN", "--model.registers", "--schedule.warmup-steps", "--dino.", "--tensorboard"):
        assert flag in said, flag


def default(said: str, flag: str) -> str | None:
    entry = said.partition(f"  {flag} ")[2].partition("\n  --")[0]
    found = re.search(r"\(default:\s+(.*?)\)", entry, re.DOTALL)
    return found and " ".join(found[1].split())


def test_help_has_the_defaults_of_this_run(tmp_path):
    for name in ("digits", "vit-b16-in21k"):
        said, config = run("train", name, "--help").stdout, recipe(name)
        assert default(said, "--optimizer.lr") == f"{config.optimizer.lr:g}"
        assert default(said, "--batch-size") == str(config.batch_size)
        assert default(said, "--data") == config.data.source
    model = toy(image_size=8, patch_size=4, channels=1, num_classes=3)
    model.card.preprocessing = Preprocessing(image_size=8, mean=(0.5,), std=(0.5,))
    vitrail.save(model, tmp_path / "model")
    said = run("finetune", "model", "--data", "digits", "--help", cwd=tmp_path).stdout
    assert (default(said, "--model.image-size"), default(said, "--steps")) == ("8 8", "449")
    assert default(run("finetune", "--help").stdout, "--steps") == "chosen for the data"


def warmup_of(name: str, *arguments: str) -> int:
    return read_fields(recipe(name), OwnFlags(list(arguments), positional=False), "vitrail train").schedule.warmup_steps


def test_a_shorter_run_has_a_shorter_warm_up_unless_that_is_given(capsys):
    planned = recipe("digits")
    assert (planned.epochs, planned.schedule.warmup_steps) == (40, 50)
    assert warmup_of("digits", "--epochs", "4") == 5
    assert "warm-up: 5 steps in place of 50" in capsys.readouterr().err
    total = planned.total_steps(1437)
    assert warmup_of("digits", "--steps", "90") == round(50 * 90 / total) == 5, "epochs of so many images"
    assert warmup_of("finetune-cifar10", "--steps", "100") == 5
    capsys.readouterr()
    assert warmup_of("digits", "--epochs", "80") == 50, "a longer one has that of the recipe"
    assert warmup_of("digits", "--epochs", "4", "--schedule.warmup-steps", "50") == 50
    assert warmup_of("digits") == 50
    assert not capsys.readouterr().err
