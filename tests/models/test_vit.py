"""What a model does besides matching its peers: patches, dropout, recording, axial attention, clear errors."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

import vitrail
from tests.conftest import pictures, toy
from tests.models.test_parity import transformers_twin
from vitrail.config import ModelConfig
from vitrail.errors import UserError
from vitrail.models.attention import Recorder
from vitrail.models.build import build, create
from vitrail.models.cost import cost
from vitrail.models.sizes import MODEL_NAMES, config_for
from vitrail.models.vit import DropPath, patchify


def test_patches_by_convolution_and_by_reshape_are_the_same_map():
    """From the same weights; this is how the study notes explain patchify, both ways."""
    model = toy(image_size=(32, 48), channels=5)
    images = pictures(model)
    linear = build(model.config.with_(patch_embedding="linear"))
    linear.load_state_dict(model.state_dict())
    with torch.no_grad():
        assert (model.patch_embed(images) - linear.patch_embed(images)).abs().max() <= 1e-5
        assert (model(images) - linear.eval()(images)).abs().max() <= 1e-5


def test_patchify_equals_a_loop():
    images = torch.randn(2, 3, 8, 12)
    patches = patchify(images, 4)
    assert patches.shape == (2, 6, 48)
    for row in range(2):
        for column in range(3):
            piece = images[:, :, row * 4 : row * 4 + 4, column * 4 : column * 4 + 4]
            assert torch.equal(patches[:, row * 3 + column], piece.flatten(1))


def test_recording_changes_nothing_and_rows_sum_to_one():
    model = toy(registers=2)
    images, recorder = pictures(model), Recorder()
    with torch.no_grad():
        recorded = model.head(model.pool(model.encode(model.embed(images), record=recorder)))
        assert (recorded - model(images)).abs().max() <= 1e-5
    assert sorted(recorder.attention) == sorted(recorder.hidden) == [0, 1, 2]
    assert recorder.attention[0].shape == (2, 4, model.config.tokens, model.config.tokens)
    assert (recorder.attention[1].sum(-1) - 1).abs().max() <= 1e-6


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"registers": 4, "layer_scale": 0.5},
        {"distillation_token": True},
        {"positions_at": "every_layer"},
        {"representation_size": 24},
        {"depth": 1},
    ],
    ids=str,
)
def test_without_gradients_the_last_layer_is_for_the_class_token_alone(fields):
    model = toy(**fields).eval()
    images = pictures(model, batch=3)
    whole, features = model(images), model.features(images)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        assert (model(images) - whole).abs().max() < 1e-6
    with torch.no_grad():
        assert (model.features(images) - features).abs().max() < 1e-6
        assert torch.equal(model.encode(model.embed(images)), model.encode(model.embed(images), first=None))
    assert counter.get_total_flops() < 2 * 3 * cost(model.config).macs * (1 - 0.3 / model.config.depth)


@pytest.mark.parametrize("fields", [{"pooling": "average"}, {"positions": "relative"}], ids=str)
def test_where_the_head_or_the_positions_need_all_tokens_all_are_computed(fields):
    model = toy(**fields).eval()
    images = pictures(model, batch=1)
    whole = model(images)
    with torch.no_grad(), FlopCounterMode(display=False) as counter:
        assert (model(images) - whole).abs().max() < 1e-6
    assert counter.get_total_flops() > 0.9 * 2 * cost(model.config).macs  # the fused kernel is not counted


def test_recording_some_layers_only():
    model, recorder = toy(), Recorder("attention", layers=[1])
    with torch.no_grad():
        model.encode(model.embed(pictures(model)), record=recorder)
    assert list(recorder.attention) == [1]
    assert not recorder.hidden


def test_attention_equals_transformers_eager(peers):
    """What a recorder sees is what transformers' own output_attentions gives."""
    model = toy()
    twin = transformers_twin(peers, model, attn_implementation="eager")
    recorder, images = Recorder("attention"), pictures(model)
    with torch.no_grad():
        theirs = twin(images, output_attentions=True).attentions
        model.encode(model.embed(images), record=recorder)
    assert len(theirs) == model.config.depth
    for layer, attention in enumerate(theirs):
        assert (recorder.attention[layer] - attention).abs().max() <= 1e-5


def test_axial_attention_stays_in_its_row_then_its_column():
    """A change in one patch reaches, through one axial block's row part, its row alone."""
    model = toy(attention="axial", class_token=False, pooling="average", depth=1, image_size=(24, 32))
    tokens = torch.randn(1, 12, 32)
    changed = tokens.clone()
    changed[0, 5] += torch.randn(32)  # row 1, column 1 of 3 x 4
    block = model.blocks[0]
    with torch.no_grad():
        rows = [block.row(x.unflatten(1, (3, 4)).flatten(0, 1), (3, 4)).view(1, 3, 4, 32) for x in (tokens, changed)]
        touched = (rows[0] - rows[1]).abs().amax(-1)[0] > 1e-7
        assert touched.tolist() == [[False] * 4, [True] * 4, [False] * 4]
        whole = (block(tokens, (3, 4)) - block(changed, (3, 4))).abs().amax(-1) > 1e-9
    assert whole.all()


def test_axial_equals_masked_full_attention():
    """Row attention is full attention where other rows are masked out; columns likewise."""
    model = toy(attention="axial", class_token=False, pooling="average", depth=1, image_size=(24, 32))
    x = torch.randn(2, 12, 32)
    with torch.no_grad():
        ours = model.blocks[0](x, (3, 4))
        for block, same in ((model.blocks[0].row, lambda i: i // 4), (model.blocks[0].column, lambda i: i % 4)):
            allowed = torch.tensor([[same(i) == same(j) for j in range(12)] for i in range(12)])
            q, k, v = block.attn.qkv(block.norm1(x)).view(2, 12, 3, 4, 8).permute(2, 0, 3, 1, 4)
            weights = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(~allowed, -torch.inf).softmax(-1)
            x = x + block.attn.proj((weights @ v).transpose(1, 2).reshape(2, 12, 32))
            x = x + block.mlp(block.norm2(x))
    assert (ours - x).abs().max() <= 1e-5


def test_drop_path_rises_linearly_and_keeps_the_expectation():
    model = toy(drop_path=0.3, depth=4)
    rates = [block.drop_path.probability for block in model.blocks]
    assert rates == pytest.approx([0.0, 0.1, 0.2, 0.3])
    torch.manual_seed(0)
    drop = DropPath(0.3).train()
    out = drop(torch.ones(20_000, 2, 3))
    values = out[:, 0, 0]
    assert sorted(values.unique().tolist()) == pytest.approx([0.0, 1 / 0.7])
    assert (out == values[:, None, None]).all(), "a sample's branch is dropped whole"
    assert values.mean().item() == pytest.approx(1.0, abs=0.02)
    assert (values == 0).float().mean().item() == pytest.approx(0.3, abs=0.01)
    assert torch.equal(drop.eval()(torch.ones(4, 2, 3)), torch.ones(4, 2, 3))


def test_dropout_is_everywhere_the_paper_has_it():
    """After every dense layer but qkv, and after adding positions."""
    model = toy(dropout=0.5)
    images = pictures(model)
    assert torch.equal(model(images), model(images)), "off in evaluation"
    model.train()
    torch.manual_seed(0)
    assert (model.embed(images) == 0).float().mean().item() == pytest.approx(0.5, abs=0.1)
    branch = model.blocks[0].attn(torch.randn(4, 17, 32), model.config.grid)
    assert (branch == 0).float().mean().item() == pytest.approx(0.5, abs=0.05)
    branch = model.blocks[0].mlp(torch.randn(4, 17, 32))
    assert (branch == 0).float().mean().item() == pytest.approx(0.5, abs=0.05)


def test_attention_dropout_is_on_in_training_only():
    plain, model = toy(), toy(attention_dropout=0.5)
    images = pictures(model)
    with torch.no_grad():
        assert torch.equal(model.eval()(images), plain(images)), "off in evaluation"
        for record in (None, Recorder()):

            def attended(record=record):
                return model.encode(model.embed(images), record=record)

            assert torch.equal(model.eval() and attended(), attended()), "recorded or not"
            model.train()
            assert not torch.equal(attended(), attended())
        # Values that are all one show the weights that were kept: half of them, twice as heavy.
        attention = model.blocks[0].attn
        attention.proj, ones = torch.nn.Identity(), torch.ones(4, 4, 17, 8)
        for record in (None, Recorder()):
            out = attention.attend(torch.zeros_like(ones), ones, ones, None, record)
            assert out.mean().item() == pytest.approx(1.0, abs=0.1)
            assert 0.1 < out.std().item() < 0.5


def test_patch_dropout_keeps_a_subset_in_training_only():
    model = toy(patch_dropout=0.5, registers=1)
    images = pictures(model, batch=3)
    whole = model.embed(images)
    assert whole.shape[1] == 2 + 16
    model.train()
    kept = model.embed(images)
    assert kept.shape[1] == 2 + 8
    assert torch.equal(kept[:, :2], whole[:, :2]), "class and register tokens stay"
    for sample in range(3):
        found = (kept[sample, 2:, None] == whole[sample, None, 2:]).all(-1)
        assert found.any(1).all()
        assert found.sum() == 8, "no patch twice"
    places = (kept[:, 2:, None] == whole[:, None, 2:]).all(-1).any(1)  # (image, patch): whether it was kept
    assert not torch.equal(places[0], places[1]), "each image loses patches of its own"
    assert model(images).shape == (3, 7)


def test_gradient_checkpointing_gives_the_same_gradients():
    plain, saving = toy().train(), toy(gradient_checkpointing=True).train()
    images = pictures(plain)
    for model in (plain, saving):
        model(images).square().sum().backward()
    for (name, ours), (_, theirs) in zip(plain.named_parameters(), saving.named_parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad), name


def test_pooling_by_average_leaves_prefix_tokens_out():
    model = toy(pooling="average", registers=2)
    tokens = torch.randn(2, model.config.tokens, 32)
    assert torch.allclose(model.pool(tokens), tokens[:, 3:].mean(1))


def test_pre_training_head_is_linear_tanh_linear():
    model = toy(representation_size=48)
    images = pictures(model)
    with torch.no_grad():
        first = model.encode(model.embed(images))[:, 0]
        expected = model.head(torch.tanh(model.pre_logits.fc(first)))
        assert (model(images) - expected).abs().max() < 1e-6
        assert model.features(images).shape == (2, 48)


def test_initial_weights_are_the_official_codes():
    torch.manual_seed(0)
    model = create("Ti/16", head_bias=-10.0, registers=4)
    state = model.state_dict()
    assert not state["cls_token"].any()
    assert state["pos_embed"].std().item() == pytest.approx(0.02, rel=0.05)
    assert not state["head.weight"].any()
    assert (state["head.bias"] == -10).all()
    assert state["blocks.3.mlp.fc1.bias"].std().item() == pytest.approx(1e-6, rel=0.2)
    limit = (6 / (192 + 192)) ** 0.5
    for kernel in state["blocks.0.attn.qkv.weight"].chunk(3):
        assert kernel.abs().max() <= limit
        assert kernel.std().item() == pytest.approx(limit / 3**0.5, rel=0.05)
    with torch.no_grad():
        assert (model(pictures(model, batch=1)) == -10).all(), "a zero head scores every class alike"


def test_distillation_token_averages_two_heads():
    model = toy(distillation_token=True)
    images = pictures(model)
    with torch.no_grad():
        tokens = model.encode(model.embed(images))
        expected = (model.head(tokens[:, 0]) + model.head_dist(tokens[:, 1])) / 2
        assert (model(images) - expected).abs().max() < 1e-6


@pytest.mark.parametrize(("given_name", "name"), [
    ("vit-b16", "B/16"), ("ViT-B/16", "B/16"), ("b16", "B/16"), ("vit_l_32", "L/32"), ("ti/8", "Ti/8"),
    ("r50+b16", "R50+B/16"), ("R50+ViT-B/16", "R50+B/16"), ("r50x1", "BiT-R50x1"), ("bit-r152x2", "BiT-R152x2"),
    ("g14", "g/14"), ("vit-h14", "H/14"), ("axial-b16", "Axial-B/16"),
])  # fmt: skip
def test_names(given_name, name):
    assert config_for(given_name, image_size=224).name == name


@pytest.mark.parametrize("name", MODEL_NAMES)
def test_names_are_found_again_from_the_configuration(name):
    from vitrail.models.sizes import name_for

    assert name_for(config_for(name, image_size=448, num_classes=3)) == name


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=12))
def test_any_text_is_a_model_or_a_user_error(text):
    try:
        assert isinstance(config_for(text), ModelConfig)
    except UserError as error:
        assert str(error)


@pytest.mark.parametrize(("fields", "words"), [
    ({"image_size": 225}, ["225", "16", "224"]),
    ({"image_size": 8}, ["8 x 8", "16"]),
    ({"num_heads": 5}, ["192", "5"]),
    ({"width": 190}, ["190", "3"]),
    ({"pooling": "class", "class_token": False}, ["class_token"]),
    ({"attention": "axial"}, ["axial", "class_token"]),
    ({"positions": "relativ"}, ["relativ", "relative"]),
    ({"positions": "relative", "patch_dropout": 0.5}, ["patch_dropout"]),
    ({"positions": "learned_2d", "width": 195, "num_heads": 3}, ["195"]),
    ({"activation": "relu"}, ["relu", "gelu"]),
    ({"drop_path": 1.0}, ["drop_path", "1.0"]),
    ({"depth": 0}, ["depth", "0"]),
    ({"image_sise": 224}, ["image_sise", "image_size"]),
    ({"stem_width": 40, "stages": (2,)}, ["40", "32"]),
    ({"image_size": (224, 224, 3)}, ["image_size"]),
])  # fmt: skip
def test_clashing_numbers_are_named(fields, words):
    with pytest.raises(UserError) as error:
        vitrail.create("Ti/16", **fields)
    for word in words:
        assert word in str(error.value)


def test_wrong_images_are_named():
    model = toy()
    with pytest.raises(UserError, match=r"30 x 32.*8 x 8"):
        model(torch.randn(1, 3, 30, 32))
    with pytest.raises(UserError, match=r"\(batch, 3, rows, columns\).*\(1, 1, 32, 32\)"):
        model(torch.randn(1, 1, 32, 32))


def test_configuration_survives_json():
    import json

    for name in MODEL_NAMES:
        config = config_for(name, image_size=(224, 448))
        assert ModelConfig.from_json(json.loads(json.dumps(config.to_json()))) == config
