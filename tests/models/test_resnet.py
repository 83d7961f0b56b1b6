"""The official code's arithmetic of a hybrid's stem, against a float64 reference written out in numpy."""

import math

import numpy as np
import pytest
import torch

from tests.conftest import randomised
from vitrail.checkpoints import google, timm
from vitrail.config import ModelConfig
from vitrail.errors import UserError
from vitrail.models.build import create
from vitrail.models.cost import cost
from vitrail.models.resnet import pad_same


def standardized(kernel: np.ndarray) -> np.ndarray:
    """(out, in, rows, columns): less the mean, over the standard deviation plus 1e-5."""
    flat = kernel.reshape(len(kernel), -1)
    return ((flat - flat.mean(1, keepdims=True)) / (flat.std(1, keepdims=True) + 1e-5)).reshape(kernel.shape)


def convolve(x: np.ndarray, kernel: np.ndarray, stride: int) -> np.ndarray:
    """TensorFlow's SAME: output ceil(n / stride), the odd pixel of padding after."""
    size, rows = kernel.shape[2], x.shape[1]
    out = math.ceil(rows / stride)
    total = max((out - 1) * stride + size - rows, 0)
    padded = np.pad(x, ((0, 0), (total // 2, total - total // 2), (total // 2, total - total // 2)))
    result = np.zeros((len(kernel), out, out))
    for i in range(out):
        for j in range(out):
            piece = padded[:, i * stride : i * stride + size, j * stride : j * stride + size]
            result[:, i, j] = (kernel * piece).sum((1, 2, 3))
    return result


def group_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    groups = x.reshape(32, -1)
    normed = (groups - groups.mean(1, keepdims=True)) / np.sqrt(groups.var(1, keepdims=True) + 1e-6)
    return normed.reshape(x.shape) * weight[:, None, None] + bias[:, None, None]


def test_the_official_unit_number_by_number():
    model = randomised(create("R26+S/32", depth=1, image_size=32)).double()
    unit = model.patch_embed.backbone.stages[1].blocks[0]  # stride 2, with a projection
    state = {name: tensor.numpy() for name, tensor in unit.state_dict().items()}
    x = np.random.default_rng(0).normal(size=(256, 5, 5))

    def part(value: np.ndarray, name: str, stride: int = 1) -> np.ndarray:
        number = name[-1] if name[-1].isdigit() else ""
        norm = name.replace("conv", "norm")
        kernel = standardized(state[f"{name}.weight"])
        assert number or name == "downsample.conv"
        return group_norm(convolve(value, kernel, stride), state[f"{norm}.weight"], state[f"{norm}.bias"])

    y = np.maximum(part(x, "conv1"), 0)
    y = np.maximum(part(y, "conv2", 2), 0)
    expected = np.maximum(part(x, "downsample.conv", 2) + part(y, "conv3"), 0)
    with torch.no_grad():
        ours = unit(torch.from_numpy(x)[None])[0].numpy()
    assert ours.shape == expected.shape
    assert np.abs(ours - expected).max() <= 1e-9


@pytest.mark.parametrize(("size", "kernel", "stride"), [(7, 3, 2), (8, 3, 2), (224, 7, 2), (5, 1, 2), (5, 3, 1)])
def test_same_padding(size, kernel, stride):
    padded = pad_same(torch.zeros(1, 1, size, size), kernel, stride)
    assert (padded.shape[-1] - kernel) // stride + 1 == math.ceil(size / stride)
    inside = pad_same(torch.ones(1, 1, size, size), kernel, stride, value=7.0)[0, 0] == 1
    added = padded.shape[-1] - size
    before = int(inside.any(1).nonzero()[0])
    assert before == int(inside.any(0).nonzero()[0]) == added // 2, "the odd row and column are the last"


@pytest.mark.parametrize(
    ("stages", "grid", "outputs"), [((1, 1), (8, 8), 128), ((2,), (16, 16), 64), ((), (32, 32), 32)]
)
def test_a_plain_stem_halves_the_picture_and_doubles_the_width_in_each_stage(stages, grid, outputs):
    fields = {
        "image_size": 32,
        "patch_size": 1,
        "width": 16,
        "depth": 1,
        "num_heads": 2,
        "mlp_dim": 16,
        "num_classes": 3,
    }
    model = create("Ti/16", **fields, stem="plain", stages=stages, stem_width=32)
    assert model.config.grid == grid
    assert model.config.stem_outputs == outputs
    images = torch.randn(2, 3, 32, 32)
    assert model.patch_embed.backbone(images).shape == (2, outputs, *grid)
    counted = sum(parameter.numel() for parameter in model.parameters())
    assert cost(model.config).parameters == counted
    x = images
    for layer in model.patch_embed.backbone:
        x = torch.relu(layer.norm(torch.nn.functional.conv2d(x, layer.conv.weight, None, layer.conv.stride, padding=1)))
    assert torch.equal(model.patch_embed.backbone(images), x)


def test_a_plain_stem_is_refused_where_it_cannot_be(tmp_path):
    with pytest.raises(UserError, match="made of bottlenecks"):
        ModelConfig(family="resnet", stages=(1,), stem="plain")
    config = create("Ti/16", stem="plain", stages=(1, 1), stem_width=32, patch_size=4, width=12, depth=1).config
    with pytest.raises(UserError, match="stem is 'plain'"):
        timm.describe_model(config)
    with pytest.raises(UserError, match="stem"):
        google.target_rules({}, config)
