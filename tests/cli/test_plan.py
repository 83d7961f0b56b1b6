"""`vitrail plan` for recipes and models: what is not given is the recipe's."""

import json

import pytest

from vitrail.cli import main
from vitrail.models.cost import plan
from vitrail.models.sizes import config_for
from vitrail.recipes import RECIPES, describe, recipe

KEYS = {"parameters", "gmacs", "steps", "flops_per_step", "exaflops", "memory_bytes", "seconds"}


def answer(capsys, *arguments: str):
    main(["plan", *arguments, "--json"])
    return json.loads(capsys.readouterr().out)


def refusal(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as stop:
        main(["plan", *arguments])
    assert stop.value.code == 2
    printed = capsys.readouterr()
    assert not printed.out
    return printed.err


@pytest.mark.parametrize(
    ("name", "exaflops"), [("vit-b16-jft", 224), ("vit-l16-jft-14", 1567), ("vit-h14-jft", 4262), ("r50+b32-jft", 106)]
)
def test_a_recipe_costs_what_the_papers_table_6_says(capsys, name, exaflops):
    result = answer(capsys, name)
    assert set(result) == KEYS
    assert result["exaflops"] == pytest.approx(exaflops, rel=0.03)


def test_a_model_is_planned_as_before(capsys):
    result = answer(capsys, "H/14", "--images", "303000000", "--epochs", "14", "--flops-per-second", "1e18")
    by_hand = plan(config_for("H/14"), 303_000_000, 14, 4096, 1e18)
    assert set(result) == KEYS
    assert (result["exaflops"], result["seconds"]) == (by_hand.exaflops, by_hand.seconds)
    assert result["memory_bytes"] == {**by_hand.memory, "total": sum(by_hand.memory.values())}
    assert result["parameters"] == 632_045_800


def test_steps_count_where_a_recipe_has_steps(capsys):
    result = answer(capsys, "finetune-flowers")
    assert result["steps"] == 500
    assert result["exaflops"] * 1e18 == pytest.approx(500 * result["flops_per_step"])
    smaller = answer(capsys, "finetune-flowers", "--batch", "64")
    assert smaller["steps"] == 500
    assert smaller["exaflops"] == pytest.approx(result["exaflops"] / 8)
    assert answer(capsys, "finetune-flowers", "--images", "5000")["exaflops"] == pytest.approx(result["exaflops"])
    assert answer(capsys, "finetune-flowers", "--epochs", "10")["steps"] == round(1020 * 10 / 512)


def test_flags_override_the_recipe(capsys):
    own = answer(capsys, "digits")
    assert own["steps"] == round(1437 * recipe("digits").epochs / recipe("digits").batch_size)
    assert answer(capsys, "digits", "--epochs", "2", "--batch", "10")["steps"] == round(1437 * 2 / 10)
    assert answer(capsys, "digits", "--images", "64", "--epochs", "1", "--batch", "64")["steps"] == 1
    assert answer(capsys, "digits", "--image-size", "16")["gmacs"] > 3 * own["gmacs"]
    width = recipe("digits").model.width
    assert answer(capsys, "digits", "--num-classes", "20")["parameters"] == own["parameters"] + 10 * (width + 1)


def test_the_recipes_optimizer_decides_its_memory(capsys):
    tuned, trained = answer(capsys, "finetune-cifar10"), answer(capsys, "vit-b16-in1k")
    assert tuned["memory_bytes"]["optimizer"] == 4 * tuned["parameters"]
    assert trained["memory_bytes"]["optimizer"] == 8 * trained["parameters"]
    forced = answer(capsys, "finetune-cifar10", "--optimizer", "adamw")
    assert forced["memory_bytes"]["optimizer"] == 8 * forced["parameters"]


def test_the_table_names_recipe_and_model(capsys):
    main(["plan", "ViT-B/16-JFT"])
    printed = capsys.readouterr().out
    assert printed.startswith("vit-b16-jft, B/16: 303,000,000 images x 7 epochs, batch 4096\n")
    assert "223.7 exaFLOPs" in printed


def test_without_a_name_the_recipes_are_listed(capsys):
    assert answer(capsys) == [{"name": name, "description": describe(name)} for name in RECIPES]
    main(["plan"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in RECIPES)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["B/16"], ["--images", "B/16"]),
        (["finetune"], ["--images", "finetune"]),
        (["vit-b16-jtf"], ["vit-b16-jtf", "did you mean vit-b16-jft?", "`vitrail plan` lists them"]),
        (["nonsense"], ["nonsense", "`vitrail models` lists them"]),
        (["B/17", "--images", "5"], ["17 x 17"]),
        (["digits", "--images", "0"], ["--images"]),
        (["digits", "--batch", "-1"], ["--batch"]),
        (["finetune-cifar10", "--image-size", "385"], ["385 x 385", "384 x 384"]),
    ],
)
def test_what_cannot_be_planned_is_said(capsys, arguments, words):
    message = refusal(capsys, *arguments)
    for word in words:
        assert word in message
