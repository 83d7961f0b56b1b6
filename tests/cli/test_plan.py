"""`vitrail plan` for recipes and models: what is not given is the recipe's."""

import json
import re
from pathlib import Path

import pytest

from vitrail.cli import main
from vitrail.models.cost import plan
from vitrail.models.sizes import config_for
from vitrail.recipes import RECIPES, describe_recipe, recipe

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
    assert answer(capsys) == [{"name": name, "description": describe_recipe(name)} for name in RECIPES]
    main(["plan"])
    printed = capsys.readouterr().out
    assert all(name in printed for name in RECIPES)


H14 = ("vit-h14-jft", "--accelerators", "256", "--half-precision")


def test_many_accelerators_add_to_the_plan(capsys):
    result = answer(capsys, *H14, "--accelerator-flops", "1e14", "--bandwidth", "25GB")
    assert set(result) == KEYS | {"scale"}
    scale = result["scale"]
    shared = {"accelerators", "batch", "parallel", "data_bytes", "shards", "ddp", "fsdp"}
    assert set(scale) == shared
    assert (scale["batch"], scale["parallel"], scale["shards"]) == (16, "ddp", 136_114)
    assert scale["data_bytes"] == 303_000_000 * 115_000
    assert result["seconds"] == scale["ddp"]["seconds"]
    parameters = result["parameters"]
    assert scale["ddp"]["sent_bytes"]["total"] == 8 * parameters * 255 // 256
    memory = scale["fsdp"]["memory_bytes"]
    assert memory["weights"] == -(-4 * parameters // 256)
    assert memory["total"] == sum(amount for part, amount in memory.items() if part != "total")
    assert memory["total"] < scale["ddp"]["memory_bytes"]["total"]
    # The forward pass of 16 images at 1e14 FLOPs a second, then 8 bytes a parameter at 25 GB a second.
    forward = 16 * 2 * result["gmacs"] * 1e9 / 1e14
    by_hand = forward + scale["ddp"]["sent_bytes"]["total"] / 25e9
    assert scale["ddp"]["step_seconds"] == pytest.approx(by_hand)
    assert scale["ddp"]["images_per_second"] == pytest.approx(4096 / by_hand)
    assert scale["ddp"]["tokens_per_second"] == pytest.approx(257 * 4096 / by_hand)
    assert scale["ddp"]["seconds"] == pytest.approx(14 * 303_000_000 * by_hand / 4096)
    chosen = answer(capsys, *H14, "--parallel", "fsdp", "--flops-per-second", "256e14", "--bandwidth", "25GB")
    assert chosen["seconds"] == pytest.approx(scale["fsdp"]["seconds"]), "all together, or each"


def test_many_accelerators_are_shown_side_by_side(capsys):
    main(["plan", *H14])
    printed = capsys.readouterr().out
    for words in (
        "256 accelerators, 16 images a step each",
        "memory: gathered",
        "sent by each in a step",
        "136,114 shards",
    ):
        assert words in printed
    assert "give --accelerator-flops" in printed
    main(["plan", *H14, "--accelerator-flops", "1e14"])
    printed = capsys.readouterr().out
    assert "images a second" in printed
    assert "tokens a second" in printed


def test_the_page_shows_what_the_command_prints(capsys):
    page = (Path(__file__).parents[2] / "docs" / "scale.md").read_text("utf-8")
    shown = re.search(r"```bash\nvitrail (plan .*)\n```\n\n```text\n(.*?)```", page, re.DOTALL)
    assert shown is not None
    main(shown[1].split())
    printed = capsys.readouterr().out
    assert [line.rstrip() for line in printed.splitlines()] == shown[2].splitlines()


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
        (["vit-b16-jft", "--accelerators", "0"], ["--accelerators"]),
        (["vit-b16-jft", "--accelerators", "3"], ["4096", "3", "multiple of 3"]),
        (["vit-b16-jft", "--bandwidth", "25GB"], ["--bandwidth goes with --accelerators"]),
        (["vit-b16-jft", "--accelerators", "2", "--bandwidth", "fast"], ["--bandwidth", "'fast'", "256MB"]),
        (["vit-b16-jft", "--accelerators", "2", "--shard-size", "0B"], ["--shard-size"]),
        (
            ["vit-b16-jft", "--accelerators", "2", "--accelerator-flops", "1", "--flops-per-second", "1"],
            ["one of them"],
        ),
        (["finetune-cifar10", "--image-size", "385"], ["385 x 385", "384 x 384"]),
    ],
)
def test_what_cannot_be_planned_is_said(capsys, arguments, words):
    message = refusal(capsys, *arguments)
    for word in words:
        assert word in message
