"""What decays, how fast layers learn, decoupled decay, and the average of the weights."""

import pytest
import torch

from tests.conftest import toy
from vitrail.config import OptimizerConfig
from vitrail.training.optimizer import Average, build_optimizer, decays, layer_of, set_learning_rate


def test_biases_norms_tokens_and_positions_do_not_decay():
    model = toy(registers=2, layer_scale=0.1, positions="learned")
    kept = {name for name, parameter in model.named_parameters() if decays(name, parameter, model.config)}
    assert "blocks.0.attn.qkv.weight" in kept
    assert "patch_embed.proj.weight" in kept
    assert "head.weight" in kept
    assert not any(
        name.endswith(("bias", "gamma")) or "norm" in name or "token" in name or "pos_embed" in name for name in kept
    )
    for kind in ("learned_2d", "relative"):
        other = toy(positions=kind)
        assert not any(
            decays(name, parameter, other.config)
            for name, parameter in other.named_parameters()
            if "pos_" in name or "relative" in name
        )


def test_layers_learn_slower_towards_the_image():
    model = toy()
    optimizer = build_optimizer(model, model.config, OptimizerConfig(lr=1.0, layer_decay=0.5))
    set_learning_rate(optimizer, 1.0)
    rate = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    named = {name: rate[id(parameter)] for name, parameter in model.named_parameters()}
    assert named["head.weight"] == named["norm.bias"] == 1.0
    assert [named[f"blocks.{layer}.mlp.fc1.weight"] for layer in (2, 1, 0)] == [0.5, 0.25, 0.125]
    assert named["patch_embed.proj.weight"] == named["pos_embed"] == named["cls_token"] == 0.0625
    assert layer_of("blocks.2.attn.qkv.weight", model.config) == 3
    assert len(named) == len(list(model.parameters())), "every parameter is in one group"


@pytest.mark.parametrize("name", ["adamw", "sgd"])
def test_weight_decay_is_decoupled(name):
    """With a zero gradient a weight shrinks by lr x decay exactly, whatever the optimizer."""
    model = toy()
    optimizer = build_optimizer(model, model.config, OptimizerConfig(name, lr=0.1, weight_decay=0.5))
    set_learning_rate(optimizer, 0.1)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    for key, value in model.state_dict().items():
        factor = 0.95 if decays(key, value, model.config) else 1.0
        assert torch.allclose(value, before[key] * factor, atol=1e-7), key


def test_sgd_with_momentum_by_hand():
    model = toy()
    optimizer = build_optimizer(model, model.config, OptimizerConfig("sgd", lr=0.1, weight_decay=0.0, momentum=0.9))
    set_learning_rate(optimizer, 0.1)
    weight = model.head.bias
    before = weight.detach().clone()
    for _ in range(2):
        weight.grad = torch.ones_like(weight)
        optimizer.step()
    assert torch.allclose(weight, before - 0.1 * 1 - 0.1 * 1.9)


def test_the_average_follows_the_weights():
    model = toy()
    average = Average(model, decay=0.9)
    start = model.head.bias.detach().clone()
    with torch.no_grad():
        model.head.bias += 1
    average.update(model, step=1)  # early on it forgets faster: decay (1 + 1) / (10 + 1)
    assert torch.allclose(average.weights["head.bias"], start + 1 - 2 / 11)
    average.update(model, step=10_000)
    assert torch.allclose(average.weights["head.bias"], start + 1 - 2 / 11 * 0.9)


def test_adamw_with_the_betas_that_are_configured():
    model = toy()
    optimizer = build_optimizer(model, model.config, OptimizerConfig(lr=0.1, weight_decay=0.0, betas=(0.8, 0.5)))
    set_learning_rate(optimizer, 0.1)
    weight = model.head.bias
    first = second = torch.zeros(7)
    expected = weight.detach().clone()
    for step, gradient in ((1, 1.0), (2, -3.0)):
        weight.grad = torch.full((7,), gradient)
        optimizer.step()
        first, second = 0.8 * first + 0.2 * gradient, 0.5 * second + 0.5 * gradient**2
        expected -= 0.1 * (first / (1 - 0.8**step)) / ((second / (1 - 0.5**step)).sqrt() + 1e-8)
        assert torch.allclose(weight, expected, atol=1e-6)
