"""Recipes are the paper's tables: every row is compared with numbers typed by hand from the paper."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vitrail.config import IMAGENET_MEAN, IMAGENET_STD, TrainConfig
from vitrail.data.sources.base import PRETRAINING
from vitrail.errors import UserError
from vitrail.models.cost import plan
from vitrail.recipes import (
    DEV_FRACTIONS,
    IMAGES,
    LEARNING_RATES,
    RECIPES,
    describe_recipe,
    find_recipe,
    near_miss,
    recipe,
    starts_from_a_model,
)

# Table 3: recipe, model, epochs, base learning rate, decay, weight decay, dropout.
TABLE_3 = [
    ("vit-b16-jft", "B/16", 7, 8e-4, "linear", 0.1, 0.0),
    ("vit-b32-jft", "B/32", 7, 8e-4, "linear", 0.1, 0.0),
    ("vit-l32-jft", "L/32", 7, 6e-4, "linear", 0.1, 0.0),
    ("vit-l16-jft", "L/16", 7, 4e-4, "linear", 0.1, 0.0),
    ("vit-l16-jft-14", "L/16", 14, 4e-4, "linear", 0.1, 0.0),
    ("vit-h14-jft", "H/14", 14, 3e-4, "linear", 0.1, 0.0),
    ("bit-r50x1-jft", "BiT-R50x1", 7, 1e-3, "linear", 0.1, 0.0),
    ("bit-r50x2-jft", "BiT-R50x2", 7, 1e-3, "linear", 0.1, 0.0),
    ("bit-r101x1-jft", "BiT-R101x1", 7, 8e-4, "linear", 0.1, 0.0),
    ("bit-r152x1-jft", "BiT-R152x1", 7, 6e-4, "linear", 0.1, 0.0),
    ("bit-r152x2-jft", "BiT-R152x2", 7, 6e-4, "linear", 0.1, 0.0),
    ("r50+b16-jft", "R50+B/16", 7, 8e-4, "linear", 0.1, 0.0),
    ("r50+b32-jft", "R50+B/32", 7, 8e-4, "linear", 0.1, 0.0),
    ("r50+l32-jft", "R50+L/32", 7, 2e-4, "linear", 0.1, 0.0),
    ("r50+l16-jft", "R50+L/16", 7, 4e-4, "linear", 0.1, 0.0),
    ("r50+l16-jft-14", "R50+L/16", 14, 4e-4, "linear", 0.1, 0.0),
    ("vit-b16-in21k", "B/16", 90, 1e-3, "linear", 0.03, 0.1),
    ("vit-b32-in21k", "B/32", 90, 1e-3, "linear", 0.03, 0.1),
    ("vit-l16-in21k", "L/16", 90, 1e-3, "linear", 0.03, 0.1),
    ("vit-l16-in21k-30", "L/16", 30, 1e-3, "linear", 0.03, 0.1),
    ("vit-l32-in21k", "L/32", 90, 1e-3, "linear", 0.03, 0.1),
    ("vit-l32-in21k-30", "L/32", 30, 1e-3, "linear", 0.03, 0.1),
    ("vit-b16-in1k", "B/16", 300, 3e-3, "cosine", 0.3, 0.1),
    ("vit-b32-in1k", "B/32", 300, 3e-3, "cosine", 0.3, 0.1),
    ("vit-l16-in1k", "L/16", 300, 3e-3, "cosine", 0.3, 0.1),
    ("vit-l32-in1k", "L/32", 300, 3e-3, "cosine", 0.3, 0.1),
]

# Table 4: recipe, steps, base learning rates tried, share of the dev split, side of the image, average, warm-up.
TABLE_4 = [
    ("finetune-imagenet", 20_000, (0.003, 0.01, 0.03, 0.06), 0.01, 384, 0.0, 500),
    ("finetune-imagenet-512", 20_000, (0.003, 0.01, 0.03, 0.06), 0.01, 512, 0.9999, 500),
    ("finetune-imagenet-518", 20_000, (0.003, 0.01, 0.03, 0.06), 0.01, 518, 0.9999, 500),
    ("finetune-cifar10", 10_000, (0.001, 0.003, 0.01, 0.03), 0.02, 384, 0.0, 500),
    ("finetune-cifar100", 10_000, (0.001, 0.003, 0.01, 0.03), 0.02, 384, 0.0, 500),
    ("finetune-pets", 500, (0.001, 0.003, 0.01, 0.03), 0.1, 384, 0.0, 100),
    ("finetune-flowers", 500, (0.001, 0.003, 0.01, 0.03), 0.1, 384, 0.0, 100),
    ("finetune-vtab", 2_500, (0.01,), None, 384, 0.0, 500),
]

# Table 6: recipe, exaFLOPs, ImageNet top-1 after fine-tuning, how near the exaFLOPs must come.
TABLE_6 = [
    ("vit-b32-jft", 55, 80.73, 0.03),
    ("vit-b16-jft", 224, 84.15, 0.03),
    ("vit-l32-jft", 196, 84.37, 0.03),
    ("vit-l16-jft", 783, 86.30, 0.03),
    ("vit-l16-jft-14", 1567, 87.12, 0.03),
    ("vit-h14-jft", 4262, 88.08, 0.03),
    ("bit-r50x1-jft", 50, 77.54, 0.06),
    ("bit-r50x2-jft", 199, 82.12, 0.06),
    ("bit-r101x1-jft", 96, 80.67, 0.06),
    ("bit-r152x1-jft", 141, 81.88, 0.06),
    ("bit-r152x2-jft", 563, 84.97, 0.06),
    ("r50+b32-jft", 106, 84.90, 0.06),
    ("r50+b16-jft", 274, 85.58, 0.06),
    ("r50+l32-jft", 246, 85.68, 0.06),
    ("r50+l16-jft", 859, 86.60, 0.06),
    ("r50+l16-jft-14", 1668, 87.12, 0.06),
]

# Table 5: ImageNet after fine-tuning; and before it, as the maintainers reported.
TABLE_5 = {
    "vit-b16-in21k": (83.97, None),
    "vit-b32-in21k": (81.28, None),
    "vit-l16-in21k": (85.15, None),
    "vit-l32-in21k": (80.99, None),
    "vit-b16-in1k": (77.91, 74.79),
    "vit-b32-in1k": (73.38, 69.19),
    "vit-l16-in1k": (76.53, 72.59),
    "vit-l32-in1k": (71.16, 66.90),
}

# The paper's best model on each data set; finetune-imagenet-518 is the one at that model's resolution.
BEST = {
    "finetune-imagenet-518": 88.55,
    "finetune-cifar10": 99.50,
    "finetune-cifar100": 94.55,
    "finetune-pets": 97.56,
    "finetune-flowers": 99.68,
    "finetune-vtab": 77.63,
}


def exaflops(config: TrainConfig) -> float:
    images = IMAGES[config.data.source]
    epochs = config.epochs or config.total_steps(images) * config.batch_size / images
    return plan(config.model, images, epochs, config.batch_size).exaflops


@pytest.mark.parametrize(("name", "model", "epochs", "lr", "decay", "weight_decay", "dropout"), TABLE_3)
def test_table_3(name, model, epochs, lr, decay, weight_decay, dropout):
    config = recipe(name)
    assert (config.model.name, config.epochs, config.steps) == (model, epochs, None)
    assert (config.optimizer.lr, config.optimizer.weight_decay) == (lr, weight_decay)
    assert (config.schedule.kind, config.model.dropout) == (decay, dropout)
    assert config.schedule.final_lr == (1e-5 if decay == "linear" else 0)
    assert (config.optimizer.name, config.optimizer.betas) == ("adamw", (0.9, 0.999))
    assert (config.batch_size, config.schedule.warmup_steps) == (4096, 10_000)
    assert config.model.rows_columns == (224, 224)
    assert config.ema == config.transform.mixup == config.transform.randaugment_layers == 0


@pytest.mark.parametrize("row", TABLE_3, ids=lambda row: row[0])
def test_pre_training_is_set_up_for_its_data(row):
    config = recipe(row[0])
    jft = "-jft" in row[0]
    assert config.objective == ("sigmoid" if jft else "softmax")
    assert config.model.head_bias == (-10 if jft else 0)
    assert config.optimizer.clip == (0 if jft else 1), "clipping is for ImageNet"
    assert config.model.representation_size == (config.model.width if config.model.family == "vit" else 0)
    source, classes = {"jft": ("jft", 18_291), "in21k": ("imagenet21k", 21_841), "in1k": ("imagenet", 1000)}[
        next(part for part in row[0].split("-") if part in ("jft", "in21k", "in1k"))
    ]
    assert (config.data.source, config.model.num_classes) == (source, classes)


@pytest.mark.parametrize(("name", "steps", "rates", "dev", "size", "average", "warmup"), TABLE_4)
def test_table_4(name, steps, rates, dev, size, average, warmup):
    config = recipe(name)
    assert (config.steps, config.epochs, config.batch_size) == (steps, None, 512)
    assert LEARNING_RATES[name] == rates
    assert DEV_FRACTIONS.get(name) == dev
    assert config.data.val_fraction == (dev or 0)
    assert config.optimizer.lr == (0.03 if "imagenet" in name else 0.01), "the third of four, or the only one"
    assert (config.optimizer.name, config.optimizer.momentum) == ("sgd", 0.9)
    assert (config.optimizer.weight_decay, config.optimizer.clip) == (0, 1)
    assert (config.schedule.kind, config.schedule.final_lr, config.schedule.warmup_steps) == ("cosine", 0, warmup)
    assert warmup < steps
    assert (config.model.rows_columns, config.ema) == ((size, size), average)
    assert config.model.representation_size == 0, "one Linear"
    assert (config.model.dropout, config.model.head_bias, config.objective) == (0, 0, "softmax")


@pytest.mark.parametrize("name", [row[0] for row in (*TABLE_3, *TABLE_4)])
def test_pictures_are_prepared_as_in_the_paper(name):
    config = recipe(name)
    assert config.transform.crop == "inception"
    assert (config.transform.area, config.transform.flip) == ((0.05, 1.0), 0.5)
    assert config.preprocessing.mean == config.preprocessing.std == (0.5, 0.5, 0.5)
    assert config.preprocessing.crop == "squash"
    assert config.transform.resample == config.preprocessing.resample == "bilinear", "as the official code resizes"
    assert config.preprocessing.rows_columns == config.model.rows_columns


def test_every_recipe_of_the_paper_is_in_a_table_here():
    ours = {"digits", "mnist5k", "fashion-mnist", "cifar10-small", "finetune", "finetune-mnist5k"}
    deit = {"deit-ti16-in1k", "deit-s16-in1k", "deit-b16-in1k"}
    unlabelled = {"mnist5k-masked-patch", "mnist5k-mae", "mnist5k-dino", "vit-b16-jft-masked-patch", "mae-b16-in1k"}
    masks = {"segment-linear", "segment-queries"}
    assert set(RECIPES) == {row[0] for row in (*TABLE_3, *TABLE_4)} | ours | deit | unlabelled | {"mae-small"} | masks
    assert set(LEARNING_RATES) == {row[0] for row in TABLE_4} | {"finetune"}


@pytest.mark.parametrize(("name", "cost", "result", "tolerance"), TABLE_6)
def test_table_6(name, cost, result, tolerance):
    assert exaflops(recipe(name)) == pytest.approx(cost, rel=tolerance)
    text = RECIPES[name].__doc__ or ""
    assert f"{cost} exaFLOPs, the paper's Table 6" in text
    assert f"{result:.2f} % on ImageNet" in text


@pytest.mark.parametrize("name", TABLE_5)
def test_docstrings_state_the_results_of_table_5(name):
    after, before = TABLE_5[name]
    text = RECIPES[name].__doc__ or ""
    assert f"{after:.2f} % on ImageNet after fine-tuning" in text
    assert before is None or f"Before fine-tuning {before:.2f} %" in text


@pytest.mark.parametrize("name", BEST)
def test_docstrings_state_the_papers_best(name):
    assert f"{BEST[name]:.2f} %" in (RECIPES[name].__doc__ or "")


@pytest.mark.parametrize("name", RECIPES)
def test_a_docstring_states_the_command_and_its_cost_is_what_plan_counts(name):
    text = RECIPES[name].__doc__ or ""
    tuned = name.startswith(("finetune-", "segment-"))
    assert starts_from_a_model(name) == (tuned or name == "finetune")
    command = f"vitrail finetune MODEL --recipe {name} " if tuned else f"vitrail train {name} "
    assert ("vitrail finetune MODEL --data" if name == "finetune" else command) in text
    for stated in re.findall(r"Cost: ([\d.]+) exaFLOPs", text):
        assert exaflops(recipe(name)) == pytest.approx(float(stated), rel=0.06)
    assert 0 < len(describe_recipe(name)) <= 56, "a line of `vitrail plan` on a terminal of 80 columns"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_a_valid_configuration_that_survives_json(name):
    config = recipe(name)
    assert config.recipe == name
    assert TrainConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
    assert config.data.source in IMAGES or name == "finetune"
    assert config == RECIPES[name]()


def test_deit():
    config = recipe("deit-s16-in1k")
    assert (config.model.name, config.model.drop_path) == ("S/16", 0.1)
    assert (config.epochs, config.batch_size, config.optimizer.clip) == (300, 1024, 0)
    assert (config.optimizer.name, config.optimizer.lr, config.optimizer.weight_decay) == ("adamw", 1e-3, 0.05)
    assert (config.schedule.kind, config.schedule.final_lr) == ("cosine", 1e-5)
    assert config.schedule.warmup_steps == 6256, "five epochs of 1,281,167 images, 1024 a step"
    transform = config.transform
    assert (transform.randaugment_layers, transform.randaugment_magnitude, transform.randaugment_std) == (2, 9, 0.5)
    assert (transform.mixup, transform.cutmix, transform.label_smoothing) == (0.8, 1.0, 0.1)
    assert (transform.erase, transform.repeats) == (0.25, 3)
    assert (config.preprocessing.mean, config.preprocessing.std) == (IMAGENET_MEAN, IMAGENET_STD)
    assert (config.preprocessing.crop, config.preprocessing.crop_fraction) == ("center", 0.875)
    assert [recipe(f"deit-{size}16-in1k").model.name for size in ("ti", "b")] == ["Ti/16", "B/16"]


def test_masked_patch_prediction_is_appendix_b_1_2():
    config = recipe("vit-b16-jft-masked-patch")
    assert (config.objective, config.model.name, config.model.num_classes) == ("masked_patch", "B/16", 0)
    assert (config.steps, config.batch_size) == (1_000_000, 4096)
    assert (config.optimizer.name, config.optimizer.lr) == ("adamw", 2e-4)
    assert (config.schedule.kind, config.schedule.warmup_steps, config.schedule.final_lr) == ("cosine", 10_000, 0)
    masked = config.masked_patch
    assert (masked.target, masked.fraction, masked.masked, masked.replaced) == ("mean", 0.5, 0.8, 0.1)
    assert "79.9 % on ImageNet" in (RECIPES["vit-b16-jft-masked-patch"].__doc__ or "")


def test_mae():
    """Table 8 of He and others, and their decoder."""
    config = recipe("mae-b16-in1k")
    assert (config.objective, config.model.name, config.model.positions) == ("mae", "B/16", "sincos")
    assert (config.epochs, config.batch_size, config.optimizer.clip) == (1600, 4096, 0)
    assert config.optimizer.lr == pytest.approx(1.5e-4 * 4096 / 256)
    assert (config.optimizer.weight_decay, config.optimizer.betas) == (0.05, (0.9, 0.95))
    assert (config.schedule.kind, config.schedule.warmup_steps) == ("cosine", 12_511), "40 epochs of 1,281,167 images"
    assert (config.transform.area, config.transform.flip, config.transform.colour_jitter) == ((0.2, 1.0), 0.5, 0)
    mae = config.mae
    assert (mae.fraction, mae.decoder_width, mae.decoder_depth, mae.decoder_heads) == (0.75, 512, 8, 16)
    assert mae.normalise
    assert "83.6 % on ImageNet" in (RECIPES["mae-b16-in1k"].__doc__ or "")


def test_mae_on_few_photos_is_small_enough_for_them():
    config = recipe(PRETRAINING)
    assert (config.recipe, config.objective, config.model.name) == ("mae-small", "mae", "Ti/16")
    assert config.batch_size <= 64, "hundreds of photos are a few batches"
    assert config.schedule.warmup_steps < config.steps / 5
    assert config.model.rows_columns == config.preprocessing.rows_columns == (128, 128)
    assert config.mae.fraction == recipe("mae-b16-in1k").mae.fraction


def test_the_recipes_for_masks_differ_in_the_head_and_the_length():
    linear, queries = recipe("segment-linear"), recipe("segment-queries")
    assert (linear.model.head, linear.head, linear.epochs) == ("linear", "closed_form", 30)
    assert (queries.model.head, queries.head, queries.epochs) == ("queries", "zero", 60)
    same = {"recipe": "", "epochs": 30, "head": "zero"}
    assert linear.with_(**same) == queries.with_(model=queries.model.with_(head="linear"), **same)


def test_the_small_recipes_without_labels_share_the_model_of_mnist5k():
    names = ("mnist5k-masked-patch", "mnist5k-mae", "mnist5k-dino", "finetune-mnist5k", "mnist5k")
    assert len({recipe(name).model.with_(num_classes=0) for name in names}) == 1
    assert [recipe(name).self_supervised for name in names] == [True, True, True, False, False]


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("ViT-B/16-JFT", "vit-b16-jft"),
        ("vit-b/16-jft", "vit-b16-jft"),
        ("b16_jft", "vit-b16-jft"),
        (" vit_l16 in21k ", "vit-l16-in21k"),
        ("R50x1-jft", "bit-r50x1-jft"),
        ("ViT-R50+L/16-jft-14", "r50+l16-jft-14"),
        ("R50+ViT-L/16-jft", "r50+l16-jft"),
        ("Finetune_CIFAR10", "finetune-cifar10"),
        ("Fashion-MNIST", "fashion-mnist"),
    ],
)
def test_spellings(spelling, name):
    assert find_recipe(spelling) == name
    assert recipe(spelling).recipe == name


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("vit-b16-jtf", "vit-b16-jft"),
        ("finetune-flower", "finetune-flowers"),
        ("minst5k", "mnist5k"),
        ("cifar10", "cifar10-small"),
    ],
)
def test_an_unknown_name_gets_its_near_miss_suggested(given, meant):
    assert near_miss(given) == meant
    with pytest.raises(UserError, match=re.escape(f"did you mean {meant}?")) as error:
        recipe(given)
    assert given in str(error.value)
    assert "`vitrail plan` lists them" in str(error.value)


def test_a_name_near_nothing_gets_examples():
    with pytest.raises(UserError, match="for example mnist5k"):
        recipe("qqqqqqqq")
    assert near_miss("qqqqqqqq") is None


def test_recipes_need_no_torch():
    code = "import sys; from vitrail.recipes import RECIPES; [make() for make in RECIPES.values()]; "
    code += "assert 'torch' not in sys.modules and 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_page_lists_every_recipe_with_its_own_numbers():
    page = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")
    rows = {}
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| `") and len(cells) == 8:
            rows[cells[0].strip("`")] = cells[1:]
    assert list(rows) == list(RECIPES)
    for name, (model, data, length, batch, lr, cost, _) in rows.items():
        config = recipe(name)
        assert model == (config.model.name or f"width {config.model.width}, depth {config.model.depth}"), name
        assert data == config.data.source, name
        assert length == (f"{config.epochs:g} epochs" if config.epochs else f"{config.steps:,} steps"), name
        assert (int(batch), float(lr)) == (config.batch_size, config.optimizer.lr), name
        if name != "finetune":
            assert float(cost.replace(",", "")) == pytest.approx(exaflops(config), rel=0.006), name


def test_the_small_recipes_are_what_their_figures_were_measured_with():
    for name in ("digits", "mnist5k"):
        found = recipe(name)
        moved = found.transform
        assert (moved.crop, moved.flip, moved.rotate, moved.translate, moved.scale) == ("evaluation", 0.0, 10, 0.1, 0.1)
        assert (found.optimizer.lr, found.optimizer.weight_decay, found.batch_size) == (2e-3, 0.05, 64)
    assert (recipe("mnist5k").epochs, recipe("mnist5k").ema, recipe("digits").epochs) == (48, 0.998, 40)
    assert (recipe("fashion-mnist").transform.flip, recipe("fashion-mnist").ema) == (0.5, 0.998)
