"""Parameters, multiply-adds and memory from the configuration alone equal what PyTorch counts."""

import subprocess
import sys

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from tests.conftest import pictures
from vitrail.models.build import build, create
from vitrail.models.cost import cost, memory, plan
from vitrail.models.sizes import MODEL_NAMES, RESNETS, SIZES, STEMS, config_for

PAPER_PARAMETERS = {
    "Ti/16": 5_717_416,
    "S/16": 22_050_664,
    "B/32": 88_224_232,
    "B/16": 86_567_656,
    "L/32": 306_535_400,
    "L/16": 304_326_632,
    "H/14": 632_045_800,
}

# Table 6 of the paper: model, epochs on 303 M images, exaFLOPs, how near we must come.
TABLE_6 = [
    *(("B/32", 7, 55, 0.03), ("B/16", 7, 224, 0.03), ("L/32", 7, 196, 0.03)),
    *(("L/16", 7, 783, 0.03), ("L/16", 14, 1567, 0.03), ("H/14", 14, 4262, 0.03)),
    *(("BiT-R50x1", 7, 50, 0.06), ("BiT-R50x2", 7, 199, 0.06), ("BiT-R101x1", 7, 96, 0.06)),
    *(("BiT-R152x1", 7, 141, 0.06), ("BiT-R152x2", 7, 563, 0.06), ("BiT-R152x2", 14, 1126, 0.06)),
    ("BiT-R200x3", 14, 3306, 0.06),
    *(("R50+B/32", 7, 106, 0.06), ("R50+B/16", 7, 274, 0.06), ("R50+L/32", 7, 246, 0.06)),
    *(("R50+L/16", 7, 859, 0.06), ("R50+L/16", 14, 1668, 0.06)),
]

VARIANTS = [
    {"positions": "none"},
    {"positions": "learned_2d"},
    {"positions": "learned_2d", "positions_at": "every_layer"},
    {"positions": "learned", "positions_at": "every_layer"},
    {"positions": "relative"},
    {"positions": "sincos"},
    {"registers": 4, "class_position": False, "layer_scale": 1e-5},
    {"distillation_token": True},
    {"representation_size": 48},
    {"activation": "swiglu", "mlp_dim": 96, "qkv_bias": False},
    {"class_token": False, "pooling": "average", "norm_after_pooling": True, "channels": 5},
    {"image_size": (32, 64), "num_classes": 0},
    {"pooling": "patches"},
    {"head": "queries", "queries": 7, "query_layers": 2},
    {"head": "queries", "queries": 5, "query_layers": 1, "upscale_blocks": 0, "registers": 3, "image_size": (32, 48)},
    {"head": "queries", "num_classes": 0, "query_layers": 1},
]


@pytest.mark.parametrize(("name", "parameters"), PAPER_PARAMETERS.items())
def test_parameter_counts_equal_the_papers(name, parameters):
    assert sum(p.numel() for p in build(config_for(name), "meta").parameters()) == parameters
    assert cost(config_for(name)).parameters == parameters


@pytest.mark.parametrize("patch", [14, 16, 32])
@pytest.mark.parametrize("size", ["B", "L", "H"])
def test_patch_size_changes_projection_and_positions_only(size, patch):
    """From the paper's count at one patch size the count at another follows by hand."""
    known, base = {"B": (16, 86_567_656), "L": (16, 304_326_632), "H": (14, 632_045_800)}[size]
    config = config_for(f"{size}/{patch}")
    side = 224 // patch
    by_hand = base + config.width * (3 * (patch**2 - known**2) + side**2 - (224 // known) ** 2)
    assert sum(p.numel() for p in build(config, "meta").parameters()) == by_hand


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_every_named_model_runs_and_costs_what_it_says(name):
    """One forward pass on the meta device; parameters to the unit, multiply-adds as PyTorch counts them."""
    config = config_for(name)
    model, price = build(config, "meta"), cost(config)
    with FlopCounterMode(display=False) as counter:
        logits = model(torch.empty(1, 3, 224, 224, device="meta"))
    assert logits.shape == (1, 1000)
    assert sum(p.numel() for p in model.parameters()) == price.parameters
    assert counter.get_total_flops() == 2 * price.macs


@pytest.mark.parametrize("name", ["Ti/16", "S/32", "R+Ti/16", "R26+S/32", "BiT-R50x1", "Axial-B/32"])
def test_every_small_named_model_runs_for_real(name):
    model = create(name, num_classes=10)
    with torch.no_grad():
        logits = model(pictures(model, batch=1))
    assert logits.shape == (1, 10)
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize("overrides", VARIANTS, ids=str)
def test_variants_cost_what_pytorch_counts(overrides):
    fields = {"width": 32, "depth": 2, "num_heads": 4, "mlp_dim": 64, "patch_size": 8, "image_size": 32, **overrides}
    config = config_for("Ti/16", **fields)
    model, price = build(config, "meta"), cost(config)
    with FlopCounterMode(display=False) as counter:
        model(torch.empty(1, config.channels, *config.rows_columns, device="meta"))
    assert sum(p.numel() for p in model.parameters()) == price.parameters
    assert counter.get_total_flops() == 2 * price.macs


@pytest.mark.parametrize(("name", "epochs", "exaflops", "tolerance"), TABLE_6)
def test_table_6(name, epochs, exaflops, tolerance):
    result = plan(config_for(name), images=303_000_000, epochs=epochs)
    assert result.exaflops == pytest.approx(exaflops, rel=tolerance)


@pytest.mark.parametrize("half", [False, True], ids=["float32", "bf16 autocast"])
@pytest.mark.parametrize("name", ["Ti/16", "S/32", "R26+S/32", "BiT-R50x1", "Axial-B/32"])
def test_activation_memory_is_what_autograd_keeps(name, half):
    """Within 12 % of the bytes of the distinct tensors that autograd saves, the weights aside; within 3 % of those of a
    model without convolutions under autocast."""
    model = create(name, num_classes=10).train()
    own = {p.untyped_storage().data_ptr() for p in model.parameters()}
    # Standardised weights, and copies of weights in another precision, are not activations.
    weights = {shape for p in model.parameters() if p.ndim > 1 for shape in (p.shape, p.shape[::-1])}
    saved: dict[int, int] = {}
    copies: dict[int, int] = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept = copies if tensor.shape in weights else saved
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    images = pictures(model, batch=2)
    kept = torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor)
    with kept, torch.autocast("cpu", torch.bfloat16, enabled=half):
        loss = model(images).sum()
    planned = memory(model.config, len(images), "adamw", 2 if half else 4)
    tolerance = 0.03 if half and model.config.family == "vit" and model.config.stages is None else 0.12
    assert planned["activations"] == pytest.approx(sum(saved.values()), rel=tolerance)
    assert ("copies" in planned) == half
    if half and model.config.family == "vit" and model.config.stages is None:
        assert planned["copies"] == pytest.approx(sum(copies.values()), rel=0.12)
    assert loss.requires_grad


def test_plan_adds_up():
    config = config_for("B/16")
    result = plan(config, images=1000, epochs=3, batch=100, flops_per_second=1e12)
    assert result.steps == 30
    assert result.flops_per_step * result.steps == pytest.approx(result.exaflops * 1e18)
    assert result.seconds == pytest.approx(result.exaflops * 1e18 / 1e12)
    assert result.memory["optimizer"] == 2 * result.memory["weights"] == 8 * result.parameters
    checkpointed = plan(config.with_(gradient_checkpointing=True), images=1000, epochs=3, batch=100)
    assert checkpointed.memory["activations"] < result.memory["activations"] / 5


def test_cost_needs_no_torch():
    code = "import sys; from vitrail.models.cost import cost; from vitrail.models.sizes import config_for; "
    code += "cost(config_for('B/16')); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_checkpointed_blocks_keep_their_inputs_and_one_blocks_own():
    config = config_for("Ti/16").with_(gradient_checkpointing=True)
    plain = memory(config.with_(gradient_checkpointing=False), 1, "sgd", 4)
    found = memory(config, 1, "sgd", 4)
    inputs = 4 * 197 * 192 * 12
    assert found["activations"] == pytest.approx(inputs + plain["activations"] / 12, rel=1e-6)
    assert found["optimizer"] == found["weights"] == found["gradients"] == 4 * cost(config).parameters


def test_the_sizes_are_the_papers_table_1():
    """Heads leave no trace in the number of parameters. Ti, S and g are of the papers that came after."""
    heads = {"Ti": 3, "S": 6, "B": 12, "L": 16, "H": 16, "g": 16}
    found = {name: (size["depth"], size["width"], size["mlp_dim"], size["num_heads"]) for name, size in SIZES.items()}
    assert {name: numbers[3] for name, numbers in found.items()} == heads
    assert found["B"] == (12, 768, 3072, 12)
    assert found["L"] == (24, 1024, 4096, 16)
    assert found["H"] == (32, 1280, 5120, 16)


def test_a_stem_of_stride_16_has_the_fourth_stages_units_in_its_third():
    first, second, third, fourth = RESNETS["R50"]
    assert STEMS["R50", 32] == ((first, second, third, fourth), 1)
    assert STEMS["R50", 16] == ((first, second, third + fourth), 1)
