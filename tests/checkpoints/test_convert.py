"""The parity report: what was mapped, dropped, made up; whose logits were compared; and the loud cases."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

import vitrail
from tests.checkpoints.test_round_trips import google_shapes, noise
from tests.conftest import pictures, randomised, toy
from vitrail.checkpoints import timm
from vitrail.checkpoints.convert import convert
from vitrail.checkpoints.declared_config import read_model
from vitrail.checkpoints.labels import attach_labels
from vitrail.errors import UserError
from vitrail.models.build import create
from vitrail.models.card import Card


@pytest.fixture
def bundle(tmp_path):
    return vitrail.save(toy(), tmp_path / "bundle")


def loud(report) -> str:
    return "\n".join(note for note in report.notes if note.startswith("WARNING"))


@pytest.mark.parametrize(("to", "name"), [
    ("timm", "t.safetensors"), ("timm", "t"), ("timm", "t.pth"), ("huggingface", "h"), ("torchvision", "v.pth"),
])  # fmt: skip
def test_logits_are_compared_by_both_libraries(peers, tmp_path, bundle, to, name):
    first = convert(bundle, tmp_path / name, to)
    assert first.max_logit_difference <= 1e-5
    assert f"of the result by {to}" in first.compared
    back = convert(tmp_path / name, tmp_path / "back", "bundle", model=toy().config)
    assert back.max_logit_difference <= 1e-5
    assert f"of the source by {to}" in back.compared
    assert not loud(back)
    assert not back.dropped
    assert not back.created
    mapped = {source for row in back.mapped for source in row["source"]}
    assert len(mapped) == sum(len(row["source"]) for row in back.mapped), "each source tensor once"
    assert {name for row in back.mapped for name in row["result"]} == set(toy().state_dict())


def test_a_wrong_map_would_be_seen(peers, tmp_path, bundle, monkeypatch):
    """The comparison can fail: with two norms swapped on the way the difference is large."""
    from vitrail.checkpoints import torchvision

    def swapped(state, config):
        wrong = {"blocks.0.norm1.weight": "blocks.0.norm2.weight", "blocks.0.norm2.weight": "blocks.0.norm1.weight"}
        rules = list(torchvision.rules(config))
        return [type(r)(wrong.get(r.native, r.native), r.foreign, r.read, r.write) for r in rules]

    monkeypatch.setattr(torchvision, "target_rules", swapped)
    assert convert(bundle, tmp_path / "wrong.pth", "torchvision").max_logit_difference > 1e-3


def test_google_has_no_library_and_says_so(tmp_path, bundle):
    report = convert(bundle, tmp_path / "g.npz", "google")
    assert report.max_logit_difference is not None
    assert "the official JAX code is not a package" in report.compared
    assert "GELU" in loud(report), "this model computes the exact form, Google's code the other"


def test_a_zero_head_is_loud(tmp_path):
    vitrail.save(create("Ti/16", depth=1, image_size=32, num_classes=4), tmp_path / "fresh")
    report = convert(tmp_path / "fresh", tmp_path / "copy")
    assert "head is all zeros" in loud(report)


def test_a_dropped_pre_logits_layer_is_loud(peers, tmp_path):
    shapes = {**google_shapes(), "pre_logits/kernel": (24, 24), "pre_logits/bias": (24,)}
    np.savez(tmp_path / "in21k.npz", **{k: v.numpy() for k, v in noise(shapes).items()})
    to_timm = convert(tmp_path / "in21k.npz", tmp_path / "t", "timm")
    assert "pre-logits layer" in loud(to_timm)
    assert set(to_timm.dropped) == {"pre_logits.fc.weight", "pre_logits.fc.bias", "head.weight", "head.bias"}
    to_hf = convert(tmp_path / "in21k.npz", tmp_path / "h", "huggingface")
    assert "the head was dropped" in loud(to_hf)
    assert set(to_hf.dropped) == {"head.weight", "head.bias"}, "the pooler keeps the pre-logits layer"
    assert to_hf.max_logit_difference <= 1e-5, "features by transformers' pooler"


def test_unused_tensors_are_loud(tmp_path):
    model = randomised(create("Ti/16", depth=1, image_size=32, num_classes=4))
    extra = {"projector.0.weight": torch.zeros(3, 3), "head_of_another_kind": torch.zeros(1)}
    save_file({**model.state_dict(), **extra}, tmp_path / "more.safetensors")
    report = convert(tmp_path / "more.safetensors", tmp_path / "out")
    assert set(report.dropped) == set(extra)
    assert "2 tensors are not used" in loud(report)


@pytest.mark.parametrize("name", ["blocks.0.attn.q_norm.weight", "cls_tokem", "head.bais", "blocks.0.mlp.fc1.biass"])
def test_tensors_that_change_the_model_are_refused(tmp_path, name):
    """A part inside a layer that we do not compute, or a misspelt name: not a note, an error."""
    model = randomised(create("Ti/16", depth=1, image_size=32, num_classes=4))
    save_file({**model.state_dict(), name: torch.zeros(64)}, tmp_path / "other.safetensors")
    with pytest.raises(UserError, match=name):
        vitrail.load(tmp_path / "other.safetensors")


def test_zeros_are_made_up_where_a_format_wants_what_the_model_lacks(peers, tmp_path):
    model = toy(qkv_bias=False, class_position=False)
    vitrail.save(model, tmp_path / "bundle")
    report = convert(tmp_path / "bundle", tmp_path / "t.pth", "torchvision")
    assert report.max_logit_difference <= 1e-5
    assert set(report.created) == {"pos_embed", *(f"blocks.{i}.attn.qkv.bias" for i in range(3))}
    report = convert(tmp_path / "bundle", tmp_path / "h", "huggingface")
    assert report.max_logit_difference <= 1e-5
    assert set(report.created) == {"pos_embed"}


@pytest.mark.parametrize(("overrides", "to", "word"), [
    ({"registers": 2}, "google", "registers"),
    ({"layer_scale": 0.1}, "huggingface", "layer_scale"),
    ({"positions": "relative"}, "torchvision", "positions"),
    ({"positions": "learned_2d"}, "google", "positions"),
    ({"pooling": "average"}, "torchvision", "pooling"),
    ({"distillation_token": True}, "huggingface", "distillation_token"),
    ({"activation": "swiglu"}, "google", "activation"),
    ({"channels": 1}, "torchvision", "channels"),
    ({"image_size": (32, 64)}, "torchvision", "square"),
    ({"positions": "learned_2d"}, "timm", "positions"),
], ids=str)  # fmt: skip
def test_what_a_format_cannot_express_is_named(tmp_path, overrides, to, word):
    vitrail.save(toy(**overrides), tmp_path / "bundle")
    name = {"google": "o.npz", "torchvision": "o.pth"}.get(to, "o")
    with pytest.raises(UserError, match=word):
        convert(tmp_path / "bundle", tmp_path / name, to)
    assert not (tmp_path / name).exists()


@pytest.mark.parametrize(("to", "name"), [
    ("google", "x.safetensors"), ("bundle", "x.npz"), ("huggingface", "x.pth"), ("torchvision", "x"), ("timm", "x.npz"),
])  # fmt: skip
def test_a_destination_of_the_wrong_kind_is_named(tmp_path, bundle, to, name):
    with pytest.raises(UserError, match=f"--to {to}"):
        convert(bundle, tmp_path / name, to)


def test_another_resolution_on_the_way(tmp_path, bundle):
    report = convert(bundle, tmp_path / "large", image_size=(48, 64))
    large = vitrail.load(tmp_path / "large")
    assert large.config.grid == (6, 8)
    assert large.card.preprocessing.image_size == (48, 64)
    assert any("interpolated" in note for note in report.notes)
    small = vitrail.load(bundle, image_size=(48, 64))
    with torch.no_grad():
        assert torch.equal(small(pictures(small)), large(pictures(small)))


LABELS = {
    "labels.json": json.dumps({"label_names": list("abcdefg"), "label_descriptions": {"a": "the first"}}),
    "list.json": json.dumps(list("abcdefg")),
    "numbered.json": json.dumps({str(i): c for i, c in enumerate("abcdefg")}),
    "described.json": json.dumps({c: f"the letter {c}" for c in "abcdefg"}),
    "lines.txt": "\n".join("abcdefg") + "\n",
}


@pytest.mark.parametrize("name", LABELS)
def test_labels(peers, tmp_path, bundle, name):
    (tmp_path / name).write_text(LABELS[name])
    convert(bundle, tmp_path / "named", labels=tmp_path / name)
    card = vitrail.load(tmp_path / "named").card
    assert card.label_names == tuple("abcdefg")
    expected = {"labels.json": {"a": "the first"}, "described.json": {c: f"the letter {c}" for c in "abcdefg"}}
    assert card.label_descriptions == expected.get(name, {})
    twin = peers.timm.create_model(f"local-dir:{tmp_path / 'named'}", pretrained=True)
    assert twin.pretrained_cfg["label_names"] == list("abcdefg")


@pytest.mark.parametrize(("text", "words"), [
    ('["a"]', "1 labels, the model 7"), ("[1,2,3,4,5,6,7]", "list of strings"), ("{", "not valid JSON"),
    (json.dumps(list("abcdefa")), "twice"),
])  # fmt: skip
def test_wrong_labels_are_named(tmp_path, bundle, text, words):
    (tmp_path / "labels.json").write_text(text)
    with pytest.raises(UserError, match=words):
        convert(bundle, tmp_path / "named", labels=tmp_path / "labels.json")
    assert not (tmp_path / "named").exists()


def test_a_name_that_is_not_the_models_is_refused_also_where_the_weights_know_better(tmp_path):
    vitrail.save(toy(), tmp_path / "bundle")
    vitrail.convert(tmp_path / "bundle", tmp_path / "bare.safetensors", "timm")
    for source in ("bundle", "bare.safetensors"):
        with pytest.raises(UserError, match="the tensors say width 32, the model B/16 has 768"):
            vitrail.load(tmp_path / source, model="B/16")


def test_preprocessing_is_assumed_aloud_or_given(tmp_path):
    model = randomised(create("Ti/16", depth=1, image_size=32, num_classes=4))
    save_file(model.state_dict(), tmp_path / "bare.safetensors")
    silent = vitrail.load(tmp_path / "bare.safetensors")
    assert any("no preprocessing" in note for note in silent.card.notes)
    given = vitrail.load(tmp_path / "bare.safetensors", preprocessing="half")
    assert given.card.preprocessing.mean == (0.5, 0.5, 0.5)
    assert not any("preprocessing" in note for note in given.card.notes)


def test_the_model_can_be_told_and_is_checked(tmp_path):
    model = toy()  # 32 columns in 4 heads: no rule guesses that
    save_file(model.state_dict(), tmp_path / "odd.safetensors")
    with pytest.raises(UserError, match="how many heads"):
        vitrail.load(tmp_path / "odd.safetensors")
    again = vitrail.load(tmp_path / "odd.safetensors", model=model.config)
    assert again.config.num_heads == 4
    with pytest.raises(UserError, match="the tensors say width 32, the model B/16 has 768"):
        vitrail.load(tmp_path / "odd.safetensors", model="B/16")


def test_published_sizes_are_recognised_from_tensors(tmp_path):
    """Size, patch, grid and heads of a bare file, for every published size (one block kept would not say its depth,
    so the tensors are made without memory)."""
    from vitrail.models.build import build
    from vitrail.models.sizes import config_for

    for name, size in (("Ti/16", 224), ("S/32", 384), ("B/16", 384), ("L/16", 512), ("H/14", 518), ("g/14", 224)):
        config = config_for(name, image_size=size, interpolation="timm", stem_arithmetic="timm")
        reading = timm.from_timm(build(config, "meta").state_dict())
        assert reading.config.with_(name=name) == config


def test_other_number_of_classes_gives_a_fresh_head(bundle):
    model = vitrail.load(bundle, num_classes=3)
    assert model.config.num_classes == 3
    assert not model.head.weight.any()
    with torch.no_grad():
        assert torch.equal(model.features(pictures(model)), vitrail.load(bundle).features(pictures(model)))


def test_a_run_folder_means_its_best_bundle(tmp_path):
    vitrail.save(toy(num_classes=3), tmp_path / "run/bundle")
    (tmp_path / "run/config.json").write_text("{}")
    assert vitrail.load(tmp_path / "run").config.num_classes == 3
    vitrail.save(toy(num_classes=4), tmp_path / "run/best")
    assert vitrail.load(tmp_path / "run").config.num_classes == 4


def test_half_precision_files_become_float32(tmp_path):
    model = randomised(create("Ti/16", depth=1, image_size=32, num_classes=4))
    save_file({k: v.to(torch.bfloat16) for k, v in model.state_dict().items()}, tmp_path / "half.safetensors")
    again = vitrail.load(tmp_path / "half.safetensors")
    assert all(parameter.dtype == torch.float32 for parameter in again.parameters())


def test_nan_in_the_weights_is_loud(tmp_path):
    state = randomised(create("Ti/16", depth=1, image_size=32, num_classes=4)).state_dict()
    state["norm.weight"][3] = float("nan")
    save_file(state, tmp_path / "nan.safetensors")
    assert any("NaN" in note for note in vitrail.load(tmp_path / "nan.safetensors").card.notes)


@pytest.mark.parametrize("overrides", [
    {"positions": "learned_2d"}, {"positions": "relative"}, {"positions_at": "every_layer"},
    {"attention": "axial", "class_token": False, "pooling": "average"}, {"image_size": (32, 64)},
], ids=str)  # fmt: skip
def test_flat_files_of_ours_hold_any_model(tmp_path, overrides):
    """timm cannot build these; the header of our file says what the tensors cannot."""
    model = toy(**overrides)
    vitrail.save(model, tmp_path / "bundle")
    convert(tmp_path / "bundle", tmp_path / "flat.safetensors", "timm")
    again = vitrail.load(tmp_path / "flat.safetensors")
    with torch.no_grad():
        assert torch.equal(again(pictures(model)), model(pictures(model)))


def test_a_given_configuration_says_what_tensors_cannot(tmp_path):
    model = toy(activation="gelu_tanh", norm_eps=1e-5)
    save_file(model.state_dict(), tmp_path / "bare.safetensors")
    again = vitrail.load(tmp_path / "bare.safetensors", model=model.config)
    assert (again.config.activation, again.config.norm_eps) == ("gelu_tanh", 1e-5)


def test_files_keep_their_own_convention_of_interpolation():
    state = toy(num_classes=0).state_dict()
    files = {
        "dinov2": {**state, "mask_token": torch.zeros(1, 32)},
        "huggingface": {**state, "mask_token": torch.zeros(1, 1, 32), "decoder_embed.bias": torch.zeros(8)},
        "timm": state,
    }
    for convention, tensors in files.items():
        assert timm.from_timm(tensors, read_model(toy().config)).config.interpolation == convention


def test_overwriting_never_takes_a_run_or_a_project(tmp_path, bundle):
    run = tmp_path / "run"
    run.mkdir()
    (run / "config.json").write_text("{}")
    (run / "metrics.jsonl").write_text("precious")
    with pytest.raises(UserError, match="holds more than a model"):
        convert(bundle, run, overwrite=True)
    assert (run / "metrics.jsonl").read_text() == "precious"


def test_a_run_that_has_only_its_best_bundle_yet(tmp_path):
    vitrail.save(toy(num_classes=4), tmp_path / "run/best")
    (tmp_path / "run/config.json").write_text("{}")
    assert vitrail.load(tmp_path / "run").config.num_classes == 4


def test_two_classes_of_one_name_are_told_apart():
    from vitrail.checkpoints.huggingface import labels_from

    assert labels_from({"id2label": {"0": "crane", "1": "dog", "2": "crane"}}) == ("crane", "dog", "crane (2)")


@pytest.mark.parametrize("facts", [
    {"pretrained_cfg": {"mean": 5, "std": 5}}, {"pretrained_cfg": {"mean": [0.5] * 3}},
    {"pretrained_cfg": {"mean": [0.5] * 3, "std": [0.5] * 3, "crop_pct": None}}, {"model_args": {"act_layer": "relu"}},
], ids=str)  # fmt: skip
def test_hostile_timm_configurations(tmp_path, bundle, facts):
    convert(bundle, tmp_path / "timm", "timm", check=False)
    document = json.loads((tmp_path / "timm/config.json").read_text())
    (tmp_path / "timm/config.json").write_text(json.dumps({**document, **facts}))
    with pytest.raises(UserError):
        vitrail.load(tmp_path / "timm")


def test_a_masked_autoencoder_becomes_a_folder_timm_loads(peers, tmp_path):
    model = randomised(create("Ti/16", depth=1, image_size=32, num_classes=0))
    decoder = {"mask_token": torch.zeros(1, 1, 8), "decoder_embed.weight": torch.zeros(8, 192)}
    save_file({**model.state_dict(), **decoder}, tmp_path / "mae.safetensors")
    report = convert(tmp_path / "mae.safetensors", tmp_path / "folder", "timm")
    assert set(report.dropped) == set(decoder)
    twin = peers.timm.create_model(f"local-dir:{tmp_path / 'folder'}", pretrained=True).eval()
    with torch.no_grad():
        assert (twin(pictures(model)) - model(pictures(model))).abs().max() <= 1e-5


def test_numbered_labels_are_in_the_order_of_their_numbers(tmp_path, bundle):
    names = [f"class {number}" for number in range(12)]
    table = {str(number): names[number] for number in reversed(range(12))}
    (tmp_path / "labels.json").write_text(json.dumps(table))
    card, config = Card(), vitrail.load(bundle).config.with_(num_classes=12)
    attach_labels(card, tmp_path / "labels.json", config)
    assert card.label_names == tuple(names), "10 comes after 9"
