"""Segmentation by queries (EoMT): logits, loss and gradients of transformers' own code, and weights both ways."""

import json

import numpy as np
import pytest
import torch

import vitrail
from vitrail.checkpoints.convert import convert
from vitrail.checkpoints.eomt import completed, written_rules
from vitrail.checkpoints.name_maps import write_by_rules
from vitrail.checkpoints.peers.libraries import import_peer
from vitrail.config import ModelConfig
from vitrail.errors import UserError
from vitrail.models.attention import Recorder
from vitrail.models.build import create
from vitrail.tasks.queries import dense_scores

transformers = import_peer("transformers")

TINY = ModelConfig(
    image_size=48, patch_size=8, width=16, depth=4, num_heads=2, mlp_dim=32, num_classes=3, task="segmentation",
    head="queries", queries=6, query_layers=2, upscale_blocks=1, class_position=False, layer_scale=1.0,
)  # fmt: skip
SHAPES = [
    {},
    {"registers": 4, "upscale_blocks": 2, "query_layers": 3},
    {"registers": 1, "upscale_blocks": 0, "query_layers": 4, "queries": 2},
    {"activation": "swiglu", "mlp_dim": 48, "norm_eps": 1e-5},
]


def trained(config=TINY, seed=0):
    """A model whose weights are all random, so that none has no effect."""
    torch.manual_seed(seed)
    model = create(config)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def oracle(model, **settings):
    """The same model in transformers' code."""
    config, state, _ = completed(model.config, model.state_dict())
    values = {
        "hidden_size": config.width, "num_hidden_layers": config.depth, "num_attention_heads": config.num_heads,
        "image_size": config.rows_columns[0], "patch_size": config.patch_size, "mlp_ratio": settings.pop("ratio", 2),
        "num_register_tokens": config.registers, "num_queries": config.queries, "num_blocks": config.query_layers,
        "num_upscale_blocks": config.upscale_blocks, "num_labels": config.num_classes,
        "layer_norm_eps": config.norm_eps, "use_swiglu_ffn": config.activation == "swiglu", **settings,
    }  # fmt: skip
    theirs = transformers.EomtForUniversalSegmentation(transformers.EomtConfig(**values))
    tensors = write_by_rules(written_rules(config), state)
    if not config.registers:
        tensors["embeddings.register_tokens"] = torch.zeros(1, 0, config.width)
    theirs.load_state_dict(tensors)
    return theirs.eval()


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_logits_equal_transformers(changes):
    model = trained(TINY.with_(**changes))
    images = torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        wanted = oracle(model)(images)
        ((classes, masks),) = model.query_predictions(images)
    assert torch.allclose(classes, wanted.class_queries_logits, atol=1e-4)
    assert torch.allclose(masks, wanted.masks_queries_logits, atol=1e-4)
    assert masks.shape[2:] == (6 * 2**model.config.upscale_blocks,) * 2


@pytest.mark.parametrize("probability", [1.0, 0.6])
@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_logits_with_masked_attention_equal_transformers(changes, probability):
    """The masks change the logits; which queries are masked is drawn alike from the same seed."""
    model = trained(TINY.with_(**changes), seed=1)
    images, theirs = torch.randn(2, 3, 48, 48), oracle(model)
    theirs.attn_mask_probs.fill_(probability)
    with torch.no_grad():
        torch.manual_seed(3)
        wanted = theirs(images)
        torch.manual_seed(3)
        found = model.query_predictions(images, [probability] * model.config.query_layers)
        free = model.query_predictions(images)[0]
    assert len(found) == model.config.query_layers + 1
    assert torch.allclose(found[-1][0], wanted.class_queries_logits, atol=1e-4)
    assert torch.allclose(found[-1][1], wanted.masks_queries_logits, atol=1e-4)
    assert not torch.allclose(found[-1][1], free[1], atol=1e-3)


def test_a_probability_of_0_masks_nothing():
    model, images = trained(), torch.randn(1, 3, 48, 48)
    with torch.no_grad():
        masked = model.query_predictions(images, [0.0, 0.0])
        (free,) = model.query_predictions(images)
    assert torch.equal(masked[-1][1], free[1])
    assert torch.equal(masked[-1][0], free[0])


def test_scores_are_the_semantic_answer_of_transformers():
    """The answer is the class of the largest sum over the queries of the class's share times the mask's."""
    model, images = trained(), torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        scores, ((classes, masks),) = model(images), model.query_predictions(images)
    by_hand = torch.einsum("bqc,bqhw->bchw", classes.softmax(-1)[..., :-1], masks.sigmoid())
    assert scores.shape == (2, 3, 12, 12)
    assert torch.allclose(scores.exp(), by_hand, atol=1e-5)
    assert torch.equal(scores, dense_scores((classes, masks)))
    assert torch.isfinite(dense_scores((classes, torch.full_like(masks, -1e4)))).all()


@pytest.mark.parametrize("changes", [{"class_token": False, "norm_after_pooling": True}, {"distillation_token": True}])
def test_any_plain_encoder_can_have_queries(changes):
    model = trained(TINY.with_(**changes))
    images = torch.randn(2, 3, 48, 64)  # positions are interpolated
    with torch.no_grad():
        assert model(images).shape == (2, 3, 12, 16)
        assert model.features(images).shape == (2, 16)


def test_gradients_are_the_same_with_checkpointing():
    images = torch.randn(2, 3, 48, 48)
    found = []
    for saves in (False, True):
        model = trained(TINY.with_(gradient_checkpointing=saves)).train()
        sum(masks.square().mean() for _, masks in model.query_predictions(images, [1.0, 1.0])).backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    assert all(each is None or torch.allclose(each, found[1][name], atol=1e-5) for name, each in found[0].items())


def test_a_recorder_sees_the_queries_in_the_last_layers():
    model, record = trained(), Recorder("attention")
    with torch.no_grad():
        model.encode(model.embed(torch.randn(1, 3, 48, 48)), record=record)
    assert [record.attention[layer].shape[-1] for layer in range(4)] == [37, 37, 43, 43]


def test_a_new_head_is_random_and_the_encoder_as_ever():
    torch.manual_seed(0)
    model = create(TINY)
    head = [tensor for name, tensor in model.state_dict().items() if name.startswith("head") and "bias" not in name]
    assert all(bool(tensor.any()) for tensor in head)
    assert float(model.head.queries.detach().std()) == pytest.approx(1.0, abs=0.2)
    assert not model.cls_token.any()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query_layers": 5}, "set query_layers to 4 or less"),
        ({"upscale_blocks": 4}, "set fewer"),
        ({"positions": "relative"}, "added once, at the stem"),
        ({"positions_at": "every_layer"}, "added once, at the stem"),
        ({"queries": 2**20}, "at most"),
        ({"representation_size": 8}, "representation_size must be 0"),
        ({"family": "resnet", "stages": (1, 1)}, "goes with a Vision Transformer"),
        ({"attention": "axial", "class_token": False, "pooling": "average"}, "no place for queries"),
    ],
)
def test_what_does_not_go_with_queries_is_refused(changes, message):
    with pytest.raises(UserError, match=message):
        TINY.with_(**changes)


def test_models_without_queries_say_nothing_of_them():
    config = ModelConfig(width=16, num_heads=2, mlp_dim=32, depth=1, image_size=32)
    assert not {"head", "queries", "query_layers", "upscale_blocks"} & config.to_json().keys()
    assert ModelConfig.from_json(TINY.to_json()) == TINY


# Weights from and to transformers


@pytest.mark.parametrize("changes", SHAPES, ids=str)
def test_a_folder_of_transformers_loads_with_its_labels(tmp_path, changes):
    model = trained(TINY.with_(**changes))
    theirs = oracle(model, id2label={0: "pet", 1: "grass", 2: "sky"})
    theirs.save_pretrained(tmp_path)
    loaded, images = vitrail.load(tmp_path), torch.randn(2, 3, 48, 48)
    assert loaded.card.label_names == ("pet", "grass", "sky")
    assert loaded.config.task == "segmentation"
    assert loaded.config.with_(name="", interpolation="official") == model.config
    with torch.no_grad():
        wanted, ((classes, masks),) = theirs(images), loaded.query_predictions(images)
    assert torch.allclose(classes, wanted.class_queries_logits, atol=1e-4)
    assert torch.allclose(masks, wanted.masks_queries_logits, atol=1e-4)


def test_a_model_that_still_masks_attention_is_refused(tmp_path):
    theirs = oracle(trained())
    theirs.attn_mask_probs.fill_(0.5)
    theirs.save_pretrained(tmp_path)
    with pytest.raises(UserError, match="its training was not finished"):
        vitrail.load(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [{}, {"layer_scale": None, "class_position": True, "registers": 2}, {"positions": "none", "qkv_bias": False}],
    ids=str,
)
def test_convert_writes_a_folder_that_transformers_loads(tmp_path, changes):
    model = trained(TINY.with_(**changes))
    model.card.label_names = ("pet", "grass", "sky")
    source, folder = tmp_path / "bundle", tmp_path / "theirs"
    vitrail.save(model, source)
    report = convert(source, folder, "huggingface")
    assert report.max_logit_difference < 1e-4
    assert report.compared.endswith("huggingface")
    theirs = transformers.EomtForUniversalSegmentation.from_pretrained(folder).eval()
    images = torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        wanted, ((classes, masks),) = theirs(images), model.query_predictions(images)
    assert torch.allclose(classes, wanted.class_queries_logits, atol=1e-4)
    assert torch.allclose(masks, wanted.masks_queries_logits, atol=1e-4)
    assert theirs.config.id2label == {0: "pet", 1: "grass", 2: "sky"}
    back = tmp_path / "back"
    assert convert(folder, back).max_logit_difference < 1e-4
    assert vitrail.load(back).card.label_names == ("pet", "grass", "sky")


def test_weights_alone_need_the_number_of_heads(tmp_path):
    model = trained(TINY.with_(registers=2))
    oracle(model).save_pretrained(tmp_path)
    (tmp_path / "config.json").unlink()
    with pytest.raises(UserError, match="how many heads"):
        vitrail.load(tmp_path / "model.safetensors")
    loaded, images = vitrail.load(tmp_path / "model.safetensors", model="num_heads=2"), torch.randn(1, 3, 48, 48)
    with torch.no_grad():
        assert torch.allclose(loaded(images), model(images), atol=1e-5)


def test_preparation_that_is_another_here_is_said(tmp_path):
    oracle(trained()).save_pretrained(tmp_path)
    processor = {"size": {"shortest_edge": 48, "longest_edge": 48}, "do_pad": True, "image_mean": [0.4, 0.5, 0.6]}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    card = vitrail.load(tmp_path).card
    assert (card.preprocessing.rows_columns, card.preprocessing.crop) == ((48, 48), "squash")
    assert card.preprocessing.mean == (0.4, 0.5, 0.6)
    assert any("do_pad" in note and "results will differ" in note for note in card.notes)


def test_a_folder_that_lies_about_its_queries_is_refused(tmp_path):
    oracle(trained()).save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_queries": 7}))
    with pytest.raises(UserError, match="the tensors say queries 6"):
        vitrail.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_blocks": 9}))
    with pytest.raises(UserError, match="query_layers"):
        vitrail.load(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, "hidden_act": "relu"}))
    with pytest.raises(UserError, match="gelu only"):
        vitrail.load(tmp_path)


def test_insight_sees_the_patches_of_such_a_model():
    from vitrail.insight.attention import full_attention

    model, record = trained(), Recorder("attention")
    with torch.no_grad():
        model.encode(model.embed(torch.randn(1, 3, 48, 48)), record=record)
    seen = full_attention(record.attention[3], model.config, (6, 6), 3)
    assert seen.shape[-2:] == (37, 37)
    assert np.allclose(seen.sum(dim=-1).numpy(), 1, atol=1e-5)
