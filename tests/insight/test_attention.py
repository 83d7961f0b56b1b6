"""Attention as it is recorded: equal to transformers', without changing what the model says, for every kind."""

import numpy as np
import pytest
import torch

import vitrail
from tests.conftest import pictures, toy
from vitrail.checkpoints.convert import convert
from vitrail.data.inputs import Prepared
from vitrail.insight.attention import attention, batch_size, class_attention, full_attention, record
from vitrail.insight.images import Images
from vitrail.models.attention import Recorder

KINDS = {
    "class token": {},
    "no class token": {"class_token": False, "pooling": "average"},
    "registers": {"registers": 3},
    "distillation": {"distillation_token": True},
    "non-square": {"image_size": (24, 48)},
    "relative": {"positions": "relative", "image_size": (24, 16)},
    "every layer": {"positions": "learned_2d", "positions_at": "every_layer"},
    "hybrid": {"stages": (1,), "stem_width": 32, "patch_size": 2, "image_size": (32, 48)},
    "root alone": {"stages": (), "stem_width": 32, "patch_size": 2},
    "axial": {"attention": "axial", "class_token": False, "pooling": "average", "image_size": (24, 40)},
    "grey": {"channels": 1, "norm_after_pooling": True, "pooling": "average"},
}
kinds = pytest.mark.parametrize("fields", KINDS.values(), ids=KINDS)


@pytest.mark.parametrize("fields", [{}, {"image_size": (24, 48)}, {"qkv_bias": False}], ids=str)
def test_attention_equals_transformers_eager_attention_on_the_same_weights(peers, tmp_path, fields):
    model = toy(**fields)
    vitrail.save(model, tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "hf", "huggingface", check=False)
    folder = tmp_path / "hf"
    twin = peers.transformers.ViTForImageClassification.from_pretrained(folder, attn_implementation="eager").eval()
    images = pictures(model, batch=3)
    with torch.inference_mode():
        theirs = twin(images, output_attentions=True).attentions
    ours = vitrail.inspect.attention(model, Prepared(images))
    assert ours.shape == (3, 3, 4, *(2 * [model.config.tokens]))
    assert np.abs(ours - torch.stack(theirs, dim=1).numpy()).max() <= 1e-5


@kinds
def test_recording_changes_the_logits_by_rounding_only(fields):
    model = toy(**fields)
    images = pictures(model, batch=3)
    seen = []
    encoded = record(model, images, lambda step, weights: seen.append(weights.shape))
    with torch.inference_mode():
        assert (model.classify(model.pool(encoded), encoded) - model(images)).abs().max() <= 1e-5
    steps = 6 if model.config.attention == "axial" else 3
    assert seen == [(3, 4, model.config.tokens, model.config.tokens)] * steps


@kinds
def test_rows_of_attention_sum_to_1_and_batches_do_not_mix(fields):
    model = toy(**fields)
    images = pictures(model, batch=3)
    together = vitrail.inspect.attention(model, Prepared(images))
    assert np.allclose(together.sum(-1), 1, atol=1e-5)
    alone = np.concatenate([vitrail.inspect.attention(model, Prepared(images[each : each + 1])) for each in range(3)])
    assert np.abs(together - alone).max() <= 1e-6


def test_axial_attention_is_given_as_the_matrix_it_stands_for():
    """Applied to the values as one matrix it must do what the rows, or columns, do one by one."""
    grid = (3, 5)
    config = toy(**KINDS["axial"]).config
    values = torch.randn(2, *grid, 7)
    for step, (lines, length) in enumerate(((3, 5), (5, 3))):
        weights = torch.randn(2 * lines, 4, length, length).softmax(-1)
        full = full_attention(weights, config, grid, step)
        assert full.shape == (2, 4, 15, 15)
        spread = torch.einsum("bhqk,bkw->bhqw", full, values.flatten(1, 2)).unflatten(2, grid)
        for line in range(lines):
            inside = weights.unflatten(0, (2, lines))[:, line]
            part = values[:, line] if step == 0 else values[:, :, line]
            expected = torch.einsum("bhqk,bkw->bhqw", inside, part)
            assert torch.allclose(spread[:, :, line] if step == 0 else spread[:, :, :, line], expected, atol=1e-6)


def test_the_fused_kernel_is_used_wherever_nothing_is_recorded(monkeypatch):
    calls = []
    fused = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda *a, **k: calls.append(1) or fused(*a, **k)
    )
    model = toy()
    vitrail.inspect.attention(model, Prepared(pictures(model)), layers=[1])
    assert len(calls) == 2, "two of three layers"
    model(pictures(model))
    assert len(calls) == 5


def test_layers_can_be_chosen_and_counted_from_the_end():
    model = toy()
    images = pictures(model)
    every = vitrail.inspect.attention(model, Prepared(images))
    assert np.abs(vitrail.inspect.attention(model, Prepared(images), layers=[2, 0]) - every[:, [2, 0]]).max() <= 1e-6
    assert np.abs(vitrail.inspect.attention(model, Prepared(images), layers=[-1]) - every[:, [2]]).max() <= 1e-6
    with pytest.raises(vitrail.UserError, match="no layer 3: there are 3, counted from 0"):
        vitrail.inspect.attention(model, Prepared(images), layers=[3])


@pytest.mark.parametrize(
    ("fields", "rows"),
    [
        ({}, [0]),
        ({"registers": 2}, [0]),
        ({"distillation_token": True}, [0, 1]),
        ({"pooling": "average"}, range(1, 17)),
        ({"class_token": False, "pooling": "average", "registers": 2}, range(2, 18)),
    ],
    ids=["class", "registers", "distillation", "average", "average and registers"],
)
def test_class_attention_is_the_row_the_classifier_reads(fields, rows):
    model = toy(**fields)
    images = pictures(model)
    whole_attention = vitrail.inspect.attention(model, Prepared(images))
    first = model.config.prefix_tokens
    expected = whole_attention[:, :, :, list(rows), first:].mean(axis=3).reshape(2, 3, 4, 4, 4)
    assert np.abs(vitrail.inspect.class_attention(model, Prepared(images)) - expected).max() <= 1e-6


def test_another_resolution_than_the_models_own():
    model = toy(registers=1)
    found = vitrail.inspect.attention(model, Prepared(torch.randn(1, 3, 16, 40)))
    assert found.shape[-1] == 2 + 2 * 5
    assert vitrail.inspect.class_attention(model, Prepared(torch.randn(1, 3, 16, 40))).shape[-2:] == (2, 5)


def test_a_model_in_training_is_looked_at_without_dropout_and_goes_on_training():
    model = toy(dropout=0.5, attention_dropout=0.5, drop_path=0.5)
    images = pictures(model)
    expected = vitrail.inspect.attention(model, Prepared(images))
    model.train()
    assert np.array_equal(vitrail.inspect.attention(model, Prepared(images)), expected)
    assert model.training


def test_batches_are_as_large_as_memory_allows():
    config = vitrail.create("Ti/16").config
    assert batch_size(config, (14, 14)) == 32
    large = config.with_(num_heads=16, width=1024)
    assert 1 <= batch_size(large, (24, 24)) <= 2
    assert batch_size(large, (200, 200)) == 1


def test_a_result_that_no_memory_holds_is_refused_before_it_is_made(monkeypatch):
    monkeypatch.setattr("vitrail.insight.attention.LARGEST_RESULT", 10_000)
    model = toy()
    with pytest.raises(vitrail.UserError, match="choose layers"):
        attention(model, Images(model, Prepared(pictures(model))))
    assert class_attention(model, Images(model, Prepared(pictures(model)))).shape == (2, 3, 4, 4, 4)


def test_bit_has_no_attention():
    model = vitrail.create("BiT-R50x1", image_size=32, num_classes=3)
    with pytest.raises(vitrail.UserError, match=r"ResNet.*no attention"):
        vitrail.inspect.attention(model, Prepared(torch.zeros(1, 3, 32, 32)))


def test_the_recorder_of_the_model_gives_the_same():
    model = toy()
    images = pictures(model)
    recorder = Recorder("attention")
    with torch.inference_mode():
        model.encode(model.embed(images), record=recorder)
    ours = vitrail.inspect.attention(model, Prepared(images))
    assert np.array_equal(ours[:, 1], recorder.attention[1].numpy())
