"""Memory, bytes and time on many accelerators, against numbers worked out by hand and against what PyTorch holds."""

import subprocess
import sys

import pytest

from vitrail.errors import UserError
from vitrail.models.build import build
from vitrail.models.cost import block_parameters, cost, memory
from vitrail.models.cost_at_scale import Traffic, pace, scale, shards
from vitrail.models.sizes import config_for

# Ti/16 by hand. A block: two norms 2 x 384, qkv 192 x 576 + 576, proj 192 x 192 + 192, mlp 192 x 768 + 768 and
# 768 x 192 + 192. Outside: patches 768 x 192 + 192, the class token 192, positions 197 x 192, the norm 384, the head
# 192 x 1000 + 1000.
BLOCK, OUTSIDE = 444_864, 379_048
PARAMETERS = 12 * BLOCK + OUTSIDE


def test_the_parameters_by_hand():
    assert cost(config_for("Ti/16")).parameters == PARAMETERS
    assert block_parameters(config_for("Ti/16")) == [BLOCK] * 12


@pytest.mark.parametrize(
    ("name", "overrides"),
    [
        ("Ti/16", {}),
        ("Ti/16", {"positions": "relative"}),
        ("Ti/16", {"activation": "swiglu", "layer_scale": 1e-5, "qkv_bias": False}),
        ("Axial-B/32", {}),
        ("R26+S/32", {}),
        ("BiT-R50x1", {}),
    ],
)
def test_blocks_are_those_that_are_sharded(name, overrides):
    config = config_for(name, **overrides)
    model = build(config, "meta")
    blocks = getattr(model, "blocks", None) or model.stages
    assert block_parameters(config) == [sum(each.numel() for each in block.parameters()) for block in blocks]


def test_ddp_by_hand():
    found = scale(config_for("Ti/16"), batch=64, accelerators=4)
    assert found.batch == 16
    assert found.memory["ddp"] == memory(config_for("Ti/16"), 16, "adamw", 4)
    assert found.memory["ddp"]["weights"] == found.memory["ddp"]["gradients"] == 4 * PARAMETERS
    assert found.memory["ddp"]["optimizer"] == 8 * PARAMETERS
    # 2 (n - 1) / n of 4 bytes each.
    assert found.traffic["ddp"] == Traffic(0, 6 * PARAMETERS)


def test_fsdp_by_hand():
    found = scale(config_for("Ti/16"), batch=64, accelerators=4)
    assert found.memory["fsdp"] == {
        "weights": PARAMETERS,
        "gradients": PARAMETERS,
        "optimizer": 2 * PARAMETERS,
        "gathered": 4 * (OUTSIDE + 3 * BLOCK),
        "activations": found.memory["ddp"]["activations"],
    }
    assert found.traffic["fsdp"] == Traffic(3 * PARAMETERS, 3 * (12 * BLOCK + PARAMETERS))


def test_half_precision_halves_what_travels_and_not_what_is_added_up():
    full, half = (scale(config_for("Ti/16"), 64, 4, half=half) for half in (False, True))
    assert half.traffic["ddp"] == full.traffic["ddp"]
    assert half.traffic["fsdp"].forward == full.traffic["fsdp"].forward // 2
    # 3/4 of: two bytes of every block's weights, four of every gradient.
    assert half.traffic["fsdp"].backward == 3 * (2 * 12 * BLOCK + 4 * PARAMETERS) // 4
    stays = (2 * 12 + 1) * 197 * 192 * half.batch  # what the LayerNorms keep, in four bytes
    assert half.memory["ddp"]["activations"] == full.memory["ddp"]["activations"] // 2 + 2 * stays
    assert half.memory["fsdp"]["gathered"] == full.memory["fsdp"]["gathered"] // 2


def test_alone_nothing_travels():
    found = scale(config_for("Ti/16"), batch=8, accelerators=1, optimizer="sgd")
    assert {kind: each.total for kind, each in found.traffic.items()} == {"ddp": 0, "fsdp": 0}
    assert sum(found.memory["ddp"].values()) == sum(found.memory["fsdp"].values())


def test_the_pace_by_hand():
    """Two images each on four: a forward pass of 2 x 2 x MACs FLOPs, a backward pass of twice that."""
    config, traffic = config_for("Ti/16"), Traffic(100, 600)
    flops = 4.0 * cost(config).macs  # so a forward pass takes one second, and a backward pass two
    free = pace(config, 8, 4, traffic, flops, None)
    assert (free.step_seconds, free.compute_seconds) == (3.0, 3.0)
    assert free.images_per_second == pytest.approx(8 / 3)
    assert free.tokens_per_second == pytest.approx(8 * 197 / 3)
    assert pace(config, 8, 4, traffic, flops, 300).step_seconds == 3.0, "hidden behind the passes"
    assert pace(config, 8, 4, traffic, flops, 200).step_seconds == 4.0, "three seconds behind two"
    assert pace(config, 8, 4, traffic, flops, 50).step_seconds == 14.0, "two and twelve"
    again = pace(config.with_(gradient_checkpointing=True), 8, 4, traffic, flops, None)
    assert again.step_seconds == 4.0, "the forward pass is done twice"


def test_shards_are_rounded_up():
    assert shards(1000, 100, 1000) == 100
    assert shards(1001, 100, 1000) == 101
    assert shards(303_000_000, 115_000, 256_000_000) == 136_114


def test_a_batch_that_cannot_be_shared_is_refused():
    with pytest.raises(
        UserError, match="--batch 10 cannot be shared equally by --accelerators 4; choose a multiple of 4"
    ):
        scale(config_for("Ti/16"), 10, 4)


def test_it_needs_no_torch():
    code = "import sys; from vitrail.models.cost_at_scale import scale; from vitrail.models.sizes import config_for; "
    code += "scale(config_for('B/16'), 4, 2); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
