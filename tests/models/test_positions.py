"""Positions: interpolated as each peer does it, fixed, relative, and added where they should be."""

import math
from typing import get_args

import numpy as np
import pytest
import scipy.ndimage
import torch
import torch.nn.functional as F

import vitrail
from tests.conftest import pictures, toy
from vitrail.config import OptimizerConfig
from vitrail.config.positions import POSITION_KINDS, PositionKind, Positions
from vitrail.models.attention import Recorder
from vitrail.models.cost import cost
from vitrail.models.positions import PositionEmbedding, interpolate, position_embedding, sincos
from vitrail.training.optimizer import build_optimizer as build_optimizer

GRIDS = [((7, 7), (12, 12)), ((14, 14), (24, 24)), ((12, 12), (5, 5)), ((8, 8), (6, 15)), ((8, 8), (1, 9))]
OBLONG = [((6, 15), (8, 8)), ((5, 9), (10, 4))]


def positions(grid: tuple[int, int], width: int = 16) -> torch.Tensor:
    return torch.randn(*grid, width, generator=torch.Generator().manual_seed(3))


def assert_same(ours: torch.Tensor, theirs) -> None:
    assert ours.shape == theirs.shape
    assert (ours - torch.as_tensor(theirs)).abs().max() <= 1e-5


@pytest.mark.parametrize(("old", "new"), GRIDS + OBLONG)
def test_official_is_scipys_zoom(old, new):
    source = positions(old)
    factors = (new[0] / old[0], new[1] / old[1], 1)
    theirs = scipy.ndimage.zoom(source.numpy(), factors, order=1)
    assert_same(interpolate(source, new, "official"), theirs)


@pytest.mark.parametrize(("old", "new"), GRIDS + OBLONG)
def test_timm(peers, old, new):
    source = positions(old)
    flat = source.flatten(0, 1)[None]
    theirs = peers.timm.layers.resample_abs_pos_embed(flat, list(new), list(old), num_prefix_tokens=0)
    assert_same(interpolate(source, new, "timm"), theirs[0].unflatten(0, new))


@pytest.mark.parametrize(("old", "new"), [pair for pair in GRIDS if pair[1][0] == pair[1][1]])
def test_torchvision(peers, old, new):
    source = positions(old)
    flat = torch.cat([torch.zeros(1, 1, 16), source.flatten(0, 1)[None]], dim=1)
    function = peers.torchvision.models.vision_transformer.interpolate_embeddings
    theirs = function(new[0] * 8, 8, {"encoder.pos_embedding": flat})["encoder.pos_embedding"]
    assert_same(interpolate(source, new, "torchvision"), theirs[0, 1:].unflatten(0, new))


@pytest.mark.parametrize(("old", "new"), [pair for pair in GRIDS + OBLONG if pair[1][0] != pair[1][1]])
def test_torchvision_convention_on_oblong_grids(old, new):
    """torchvision's function takes squares only; its formula does not."""
    source = positions(old)
    theirs = F.interpolate(source.permute(2, 0, 1)[None], new, mode="bicubic", align_corners=True)[0].permute(1, 2, 0)
    assert_same(interpolate(source, new, "torchvision"), theirs)


@pytest.mark.parametrize(("old", "new"), GRIDS)
def test_huggingface(peers, old, new):
    source = positions(old, 32)
    settings = peers.transformers.ViTConfig(hidden_size=32, image_size=old[0] * 8, patch_size=8, num_hidden_layers=0)
    embeddings = peers.transformers.ViTModel(settings).embeddings
    with torch.no_grad():
        embeddings.position_embeddings[:, 1:] = source.flatten(0, 1)
    tokens = torch.zeros(1, 1 + new[0] * new[1], 32)
    theirs = embeddings.interpolate_pos_encoding(tokens, new[0] * 8, new[1] * 8)
    assert_same(interpolate(source, new, "huggingface"), theirs[0, 1:].detach().unflatten(0, new))


@pytest.mark.parametrize(("old", "new"), GRIDS + OBLONG)
def test_dinov2(old, new):
    """DINOv2's formula, sample by sample: output i reads the input at (i + 0.5) * old / (new + 0.1) - 0.5."""
    source = positions(old, 4)
    expected = cubic(cubic(source.numpy().astype(np.float64), new[0], 0), new[1], 1)
    ours = interpolate(source, new, "dinov2")
    assert ours.shape == expected.shape
    assert np.abs(ours.numpy() - expected).max() <= 1e-5


def cubic(values: np.ndarray, length: int, axis: int) -> np.ndarray:
    """One axis by Keys' kernel with a = -0.75 and edges repeated, written out."""
    values = np.moveaxis(values, axis, 0)
    old = len(values)

    def kernel(t: float) -> float:
        t, a = abs(t), -0.75
        if t <= 1:
            return (a + 2) * t**3 - (a + 3) * t**2 + 1
        return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0

    rows = []
    for i in range(length):
        place = (i + 0.5) * old / (length + 0.1) - 0.5
        first = math.floor(place) - 1
        taps = [(min(max(j, 0), old - 1), kernel(place - j)) for j in range(first, first + 4)]
        rows.append(sum(values[j] * weight for j, weight in taps))
    return np.moveaxis(np.array(rows), 0, axis)


@pytest.mark.parametrize("convention", ["official", "timm", "torchvision", "huggingface", "dinov2"])
def test_the_same_grid_is_left_alone(convention):
    source = positions((5, 7))
    assert interpolate(source, (5, 7), convention) is source


def test_sincos_number_by_number():
    """MAE's layout: sines then cosines of the column, then of the row; frequency i of n is 10,000 ** (-i / n)."""
    width, (rows, columns) = 16, (3, 5)
    table = sincos((rows, columns), width)
    assert table.shape == (15, 16)
    for row in range(rows):
        for column in range(columns):
            for place in range(width):
                along = column if place < width // 2 else row
                angle = along * 10_000 ** (-(place % 4) / 4)
                wave = math.sin if place % 8 < 4 else math.cos
                assert table[row * columns + column, place].item() == pytest.approx(wave(angle), abs=1e-6)


@pytest.mark.parametrize("convention", ["official", "timm", "torchvision", "huggingface", "dinov2"])
@pytest.mark.parametrize("kind", ["learned", "learned_2d", "relative", "sincos", "none"])
def test_another_resolution_on_the_fly_equals_resizing_once(kind, convention):
    """A model fed larger, oblong images computes what it computes after `resize`."""
    model = toy(positions=kind, interpolation=convention, registers=2)
    images = torch.randn(2, 3, 48, 64, generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        before = model(images)
        model.resize((48, 64))
        after = model(images)
    assert model.config.grid == (6, 8)
    assert (before - after).abs().max() <= 1e-6


@pytest.mark.parametrize("prefix", [{}, {"registers": 3}, {"class_token": False, "pooling": "average"}], ids=str)
def test_relative_positions_equal_a_double_loop(prefix):
    """Attention logits are q . (k + r[offset]) / sqrt(d) between patches, q . k / sqrt(d) elsewhere."""
    model = toy(positions="relative", image_size=(16, 24), depth=1, **prefix)
    config, attention = model.config, model.blocks[0].attn
    recorder = Recorder("attention")
    with torch.no_grad():
        tokens = model.embed(pictures(model))
        model.encode(tokens, record=recorder)
        qkv = attention.qkv(model.blocks[0].norm1(tokens)).view(*tokens.shape[:2], 3, config.num_heads, -1)
    q, k, _ = qkv.permute(2, 0, 3, 1, 4)
    logits = q @ k.transpose(-1, -2)
    rows, columns = config.grid
    first, table = config.prefix_tokens, attention.relative.table.detach()
    for i in range(rows * columns):
        for j in range(rows * columns):
            offset = table[i // columns - j // columns + rows - 1, i % columns - j % columns + columns - 1]
            logits[:, :, first + i, first + j] += q[:, :, first + i] @ offset
    expected = (logits / math.sqrt(q.shape[-1])).softmax(-1)
    assert (recorder.attention[0] - expected).abs().max() <= 1e-6


def test_two_dimensional_positions_join_column_and_row():
    model = toy(positions="learned_2d", image_size=(16, 24))
    rows, columns = model.pos_embed_rows[0], model.pos_embed_columns[0]
    whole = model.positions(0, model.config.grid)[0].detach()
    for row in range(2):
        for column in range(3):
            expected = torch.cat([columns[column], rows[row]])
            assert torch.equal(whole[row * 3 + column], expected)


@pytest.mark.parametrize("kind", ["learned", "learned_2d", "sincos"])
@pytest.mark.parametrize("where", ["every_layer", "every_layer_shared"])
def test_positions_at_every_layer(kind, where):
    """Equals adding them by hand before each block; shared means the same ones everywhere."""
    model = toy(positions=kind, positions_at=where)
    images = pictures(model)
    with torch.no_grad():
        expected = model.embed(images)
        for layer, block in enumerate(model.blocks):
            if layer:
                added = model.positions(layer, model.config.grid)
                bare = expected.shape[1] - added.shape[1]
                expected = torch.cat([expected[:, :bare], expected[:, bare:] + added], dim=1)
            expected = block(expected, model.config.grid)
        ours = model.encode(model.embed(images))
    assert torch.equal(ours, model.norm(expected))
    if kind != "sincos":
        different = not torch.equal(model.positions(1, model.config.grid), model.positions(0, model.config.grid))
        assert different == (where == "every_layer")


def test_positions_none_makes_the_model_blind_to_order():
    model = toy(positions="none", pooling="average", class_token=False)
    images = pictures(model)
    patches = images.unfold(2, 8, 8).unfold(3, 8, 8)  # (batch, 3, 4, 4, 8, 8)
    shuffled = patches.flip(2).permute(0, 1, 2, 4, 3, 5).reshape(images.shape)
    with torch.no_grad():
        assert (model(images) - model(shuffled)).abs().max() <= 1e-5
    learned = toy(pooling="average", class_token=False)
    with torch.no_grad():
        assert (learned(images) - learned(shuffled)).abs().max() > 1e-3


def test_every_kind_has_a_name_facts_and_a_class():
    assert get_args(Positions) == tuple(POSITION_KINDS)
    kinds = [position_embedding(toy(positions=name).config) for name in POSITION_KINDS]
    assert all(isinstance(kind, PositionEmbedding) for kind in kinds)
    assert len({type(kind) for kind in kinds}) == len(kinds)


@pytest.mark.parametrize("where", ["stem", "every_layer"])
@pytest.mark.parametrize("kind", get_args(Positions))
def test_the_tensors_of_a_kind_are_those_it_adds_to_a_model(kind, where):
    """By name and shape, and learned or not, before a change of grid and after it."""
    where = "stem" if POSITION_KINDS[kind].in_attention else where
    bare, model = toy(positions="none"), toy(positions=kind, positions_at=where, interpolation="timm")
    for size in ((32, 32), (48, 24)):
        model.resize(size)
        state = model.state_dict()
        own = state.keys() - bare.state_dict().keys()
        facts = model.config.position_kind
        assert {name: tuple(state[name].shape) for name in own} == facts.tensors(model.config)
        assert own & dict(model.named_parameters()).keys() == (own if facts.learned else set())
        assert (model.positions(0, model.config.grid) is not None) == facts.added


class Product(PositionEmbedding):
    """An embedding of the row times a number of the column: of no use, and unlike any other kind."""

    def at(self, config, own, layer, grid):
        resized = self.resize(config, own, grid)
        return (resized["row_embed"][:, :, None] * resized["column_factor"][:, None]).flatten(1, 2)

    def resize(self, config, own, grid):
        rows = F.interpolate(own["row_embed"].mT, grid[0]).mT
        return {"row_embed": rows, "column_factor": F.interpolate(own["column_factor"].mT, grid[1]).mT}


def test_a_new_kind_is_one_class_and_one_entry(monkeypatch, tmp_path):
    """It is built, counted, initialised, left out of weight decay, resized, saved and loaded without another line."""

    def tensors(config):
        rows, columns = config.grid
        return {"row_embed": (1, rows, config.width), "column_factor": (1, columns, 1)}

    entry = PositionKind("positions.Product", tensors, divisor=2, divisor_reason="it is a test")
    monkeypatch.setitem(POSITION_KINDS, "product", entry)
    monkeypatch.setattr("vitrail.models.positions.Product", Product, raising=False)
    with pytest.raises(vitrail.UserError, match="product positions need a width divisible by 2, not 33: it is a test"):
        toy(positions="product", width=33, num_heads=3)
    model = toy(positions="product", image_size=(16, 24))
    images = pictures(model)
    assert cost(model.config).parameters == sum(parameter.numel() for parameter in model.parameters())
    model.initialise()
    assert model.row_embed.std().item() == pytest.approx(0.02, rel=0.3)
    groups = build_optimizer(model, model.config, OptimizerConfig(weight_decay=0.5, layer_decay=0.5)).param_groups
    (group,) = (group for group in groups if any(each is model.row_embed for each in group["params"]))
    assert (group["weight_decay"], group["lr_scale"]) == (0, 0.5 ** (1 + model.config.depth))
    torch.nn.init.normal_(model.row_embed)
    torch.nn.init.normal_(model.column_factor)
    with torch.no_grad():
        added = model.embed(images)[:, 1:] - model.patch_embed(images)
        expected = torch.stack([model.row_embed[0, i] * model.column_factor[0, j] for i in range(2) for j in range(3)])
        assert (added - expected).abs().max() <= 1e-5
        larger = F.interpolate(images, (32, 48))
        before = model(larger)
        vitrail.save(model, tmp_path / "bundle")
        again = vitrail.load(tmp_path / "bundle", image_size=(32, 48))
        assert again.row_embed.shape == (1, 4, model.config.width)
        assert (again(larger) - before).abs().max() <= 1e-5
