"""to(from(x)) == x bit for bit for every format, and all the way round: nothing is lost or rounded on the way."""

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrail
from tests.conftest import pictures, randomised, toy
from vitrail.checkpoints import google, huggingface, timm, torchvision
from vitrail.checkpoints.convert import convert
from vitrail.checkpoints.declared_config import Declared, read_model
from vitrail.checkpoints.name_maps import write_by_rules
from vitrail.models.build import build, create

HYBRID = {"stages": (2, 1, 1), "patch_size": 1, "image_size": 32, "stem_width": 64}


def assert_same_tensors(ours, theirs) -> None:
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.equal(torch.as_tensor(tensor), torch.as_tensor(theirs[name])), name


def noise(shapes: dict[str, tuple[int, ...]]) -> dict[str, torch.Tensor]:
    """A foreign checkpoint made of nothing but names and shapes: random numbers in each."""
    generator = torch.Generator().manual_seed(11)
    return {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def google_shapes(depth=2, width=24, heads=3, hidden=48, classes=5, patch=4, grid=3, token=True, form=google.RELEASED):
    """The array names and shapes of a released .npz file, spelled out by hand."""
    shapes = {
        "embedding/kernel": (patch, patch, 3, width),
        "embedding/bias": (width,),
        "Transformer/posembed_input/pos_embedding": (1, grid * grid + token, width),
        "Transformer/encoder_norm/scale": (width,),
        "Transformer/encoder_norm/bias": (width,),
        "head/kernel": (width, classes),
        "head/bias": (classes,),
    }
    if token:
        shapes["cls"] = (1, 1, width)
    norm1, attention, norm2, mlp = form
    for layer in range(depth):
        block = f"Transformer/encoderblock_{layer}"
        for norm in (norm1, norm2):
            shapes |= {f"{block}/{norm}/scale": (width,), f"{block}/{norm}/bias": (width,)}
        for part in ("query", "key", "value"):
            shapes[f"{block}/{attention}/{part}/kernel"] = (width, heads, width // heads)
            shapes[f"{block}/{attention}/{part}/bias"] = (heads, width // heads)
        shapes[f"{block}/{attention}/out/kernel"] = (heads, width // heads, width)
        shapes[f"{block}/{attention}/out/bias"] = (width,)
        shapes |= {f"{block}/{mlp}/Dense_0/kernel": (width, hidden), f"{block}/{mlp}/Dense_0/bias": (hidden,)}
        shapes |= {f"{block}/{mlp}/Dense_1/kernel": (hidden, width), f"{block}/{mlp}/Dense_1/bias": (width,)}
    return shapes


def hybrid_shapes(stages=(2, 1)):
    shapes = google_shapes(patch=1)
    shapes |= {"conv_root/kernel": (7, 7, 3, 32), "gn_root/scale": (1, 1, 1, 32), "gn_root/bias": (1, 1, 1, 32)}
    inputs = 32
    for stage, units in enumerate(stages):
        middle, outputs = 32 * 2**stage, 128 * 2**stage
        for unit in range(units):
            place = f"block{stage + 1}/unit{unit + 1}"
            sizes = {"1": (1, 1, inputs, middle), "2": (3, 3, middle, middle), "3": (1, 1, middle, outputs)}
            if unit == 0:
                sizes["_proj"] = (1, 1, inputs, outputs)
            for part, shape in sizes.items():
                shapes[f"{place}/conv{part}/kernel"] = shape
                shapes |= {f"{place}/gn{part}/{kind}": (1, 1, 1, shape[3]) for kind in ("scale", "bias")}
            inputs = outputs
    shapes["embedding/kernel"] = (1, 1, inputs, 24)
    return shapes


@pytest.mark.parametrize("shapes", [
    google_shapes(),
    google_shapes(token=False),
    {**google_shapes(), "pre_logits/kernel": (24, 16), "pre_logits/bias": (16,), "head/kernel": (16, 5)},
    {k: v for k, v in google_shapes().items() if not k.startswith("head/")},
    hybrid_shapes(),
    hybrid_shapes(()) | {"embedding/kernel": (8, 8, 32, 24)},
], ids=["token", "average", "pre_logits", "headless", "hybrid", "root"])  # fmt: skip
def test_google(shapes, tmp_path):
    arrays = noise(shapes)
    reading = google.from_google(arrays)
    assert not reading.dropped
    assert_same_tensors(write_by_rules(google.target_rules(reading.state, reading.config), reading.state), arrays)
    # And through files: what numpy wrote, what we write.
    np.savez(tmp_path / "in.npz", **{name: tensor.numpy() for name, tensor in arrays.items()})
    convert(tmp_path / "in.npz", tmp_path / "out.npz", "google", check=False)
    with np.load(tmp_path / "out.npz", allow_pickle=False) as written:
        assert_same_tensors(dict(written), arrays)


def test_google_present_names_are_read_and_released_ones_written():
    arrays = noise(google_shapes(form=google.PRESENT))
    reading = google.from_google(arrays)
    assert not reading.dropped
    written = write_by_rules(google.target_rules(reading.state, reading.config), reading.state)
    assert written.keys() == google_shapes().keys()
    renamed = {
        "LayerNorm_1": "LayerNorm_2", "MultiHeadDotProductAttention_0": "MultiHeadDotProductAttention_1",
        "MlpBlock_0": "MlpBlock_3",
    }  # fmt: skip
    for name, tensor in arrays.items():
        parts = [renamed.get(part, part) for part in name.split("/")]
        assert torch.equal(written["/".join(parts)], tensor)


@pytest.mark.parametrize("overrides", [
    {}, {"layer_scale": 0.1, "registers": 4, "class_position": False}, {"distillation_token": True},
    {"pooling": "average", "norm_after_pooling": True}, {"qkv_bias": False, "num_classes": 0}, HYBRID,
    {"representation_size": 12},
], ids=str)  # fmt: skip
def test_timm(overrides):
    tensors = toy(**overrides).state_dict()
    reading = timm.from_timm(tensors, read_model(toy(**overrides).config))
    assert not reading.dropped
    assert_same_tensors(timm.to_timm(reading.state, reading.config), tensors)


def test_timm_bit_resnet(peers):
    twin = peers.timm.create_model("resnetv2_50x1_bit", num_classes=3).state_dict()
    reading = timm.from_timm(twin)
    assert reading.config.stages == (3, 4, 6, 3)
    assert_same_tensors(timm.to_timm(reading.state, reading.config), twin)


SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "image_size": 32, "patch_size": 8,
}  # fmt: skip


@pytest.mark.parametrize("kind", ["ViTForImageClassification", "ViTModel", "ViTMAEForPreTraining", "ViTMAEModel"])
def test_huggingface(peers, tmp_path, kind):
    """Folders that transformers itself wrote: read, written again, the same tensors bit for bit."""
    model = getattr(peers.transformers, kind)
    settings = SMALL
    if "MAE" in kind:
        decoder = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 16, "intermediate_size": 32}
        settings = {**SMALL, **{f"decoder_{name}": value for name, value in decoder.items()}}
    theirs = randomised(model(model.config_class(**settings)))
    theirs.save_pretrained(tmp_path / "theirs")
    convert(tmp_path / "theirs", tmp_path / "ours", "huggingface", check=False)
    assert_same_tensors(
        load_file(tmp_path / "ours/model.safetensors"), load_file(tmp_path / "theirs/model.safetensors")
    )
    again = model.from_pretrained(tmp_path / "ours")
    assert_same_tensors(again.state_dict(), theirs.state_dict())


def test_huggingface_in_memory_names_are_read_too(peers):
    theirs = randomised(peers.transformers.ViTForImageClassification(peers.transformers.ViTConfig(**SMALL)))
    reading = huggingface.from_huggingface(theirs.state_dict(), Declared(fields={"num_heads": 4}))
    assert not reading.dropped
    assert reading.config.num_heads == 4


@pytest.mark.parametrize("representation", [None, 12])
def test_torchvision(peers, representation):
    kind = peers.torchvision.models.VisionTransformer
    theirs = randomised(kind(32, 8, 2, 4, 32, 64, num_classes=5, representation_size=representation)).state_dict()
    reading = torchvision.from_torchvision(theirs, read_model(toy(depth=2).config))
    assert not reading.dropped
    assert_same_tensors(torchvision.to_torchvision(reading.state, reading.config), theirs)


def test_bundle(tmp_path):
    model = toy(registers=2, positions="learned_2d", image_size=(32, 64))
    vitrail.save(model, tmp_path / "one")
    again = vitrail.load(tmp_path / "one")
    assert again.config == model.config
    assert_same_tensors(again.state_dict(), model.state_dict())
    vitrail.save(again, tmp_path / "two")
    for name in ("model.safetensors", "config.json", "SHA256SUMS"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


@pytest.mark.parametrize("shapes", [google_shapes(), {k: v for k, v in google_shapes().items() if "head/" not in k}],
                         ids=["head", "headless"])  # fmt: skip
def test_all_the_way_round(tmp_path, shapes):
    """google -> bundle -> huggingface -> timm -> google: the same arrays, bit for bit, and the same logits."""
    arrays = noise(shapes)
    start = tmp_path / "start.npz"
    np.savez(start, **{name: tensor.numpy() for name, tensor in arrays.items()})
    convert(start, tmp_path / "bundle", "bundle")
    convert(tmp_path / "bundle", tmp_path / "hf", "huggingface")
    convert(tmp_path / "hf", tmp_path / "timm", "timm")
    convert(tmp_path / "timm", tmp_path / "end.npz", "google")
    with np.load(tmp_path / "end.npz", allow_pickle=False) as end:
        assert_same_tensors(dict(end), arrays)
    first, last = vitrail.load(start), vitrail.load(tmp_path / "timm")
    images = pictures(first)
    assert first.config.activation == last.config.activation == "gelu_tanh"
    with torch.no_grad():
        assert (first(images) - last(images)).abs().max() <= 1e-6


def test_timm_loads_our_npz(peers, tmp_path):
    """timm's own reader of Google's files takes ours; it computes the exact GELU, so the model here does too."""
    model = randomised(create("Ti/16", depth=2, num_classes=5, image_size=64))
    vitrail.save(model, tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "model.npz", "google")
    twin = peers.timm.create_model("vit_tiny_patch16_224", depth=2, num_classes=5, img_size=64)
    twin.load_pretrained(str(tmp_path / "model.npz"))
    images = pictures(model)
    with torch.no_grad():
        assert (twin.eval()(images) - model(images)).abs().max() <= 1e-5


def test_timm_loads_our_hybrid_npz(peers, tmp_path):
    model = randomised(create("R26+S/32", depth=2, num_classes=5, image_size=64, stem_arithmetic="timm"))
    vitrail.save(model, tmp_path / "model")
    convert(tmp_path / "model", tmp_path / "model.npz", "google")
    twin = peers.timm.create_model("vit_small_r26_s32_224", depth=2, num_classes=5, img_size=64)
    twin.load_pretrained(str(tmp_path / "model.npz"))
    images = pictures(model)
    with torch.no_grad():
        assert (twin.eval()(images) - model(images)).abs().max() <= 1e-5


@pytest.mark.parametrize("overrides", [
    {}, {"activation": "gelu_tanh"}, {"registers": 4, "class_position": False, "layer_scale": 0.1},
    {"distillation_token": True}, {"pooling": "average", "norm_after_pooling": True}, {"image_size": (32, 64)},
    {"channels": 1}, {"positions": "sincos"}, {"activation": "swiglu", "mlp_dim": 128, "layer_scale": 1.0},
], ids=str)  # fmt: skip
def test_timm_loads_our_bundle(peers, tmp_path, overrides):
    model = toy(**overrides)
    vitrail.save(model, tmp_path / "bundle")
    twin = peers.timm.create_model(f"local-dir:{tmp_path / 'bundle'}", pretrained=True).eval()
    images = pictures(model)
    with torch.no_grad():
        assert (twin(images) - model(images)).abs().max() <= 1e-5


@pytest.mark.parametrize("name", ["R50+B/16", "R+Ti/16", "BiT-R50x1"])
def test_timm_loads_our_bundle_of_a_resnet(peers, tmp_path, name):
    small = {} if name.startswith("BiT") else {"depth": 1, "width": 48, "mlp_dim": 96, "num_heads": 3}
    model = randomised(create(name, num_classes=3, image_size=64, stem_arithmetic="timm", **small))
    vitrail.save(model, tmp_path / "bundle")
    twin = peers.timm.create_model(f"local-dir:{tmp_path / 'bundle'}", pretrained=True).eval()
    images = pictures(model)
    with torch.no_grad():
        scale = model(images).abs().max()
        assert ((twin(images) - model(images)) / scale).abs().max() <= 1e-5


def test_timm_reads_labels_and_preprocessing_of_our_bundle(peers, tmp_path):
    model = toy()
    model.card.label_names = tuple("abcdefg")
    model.card.preprocessing = vitrail.Preprocessing(image_size=32, mean=(0.1, 0.2, 0.3), crop_fraction=0.8)
    vitrail.save(model, tmp_path / "bundle")
    twin = peers.timm.create_model(f"local-dir:{tmp_path / 'bundle'}", pretrained=True)
    data = peers.timm.data.resolve_model_data_config(twin)
    assert tuple(data["mean"]) == (0.1, 0.2, 0.3)
    assert data["crop_pct"] == 0.8
    assert tuple(data["input_size"]) == (3, 32, 32)
    assert twin.pretrained_cfg["label_names"] == list("abcdefg")


@pytest.mark.parametrize("crop", ["center", "squash"])
def test_transformers_loads_our_export(peers, tmp_path, crop):
    """The model and its preprocessing: the same logits, the same pixels-to-numbers facts."""
    model = toy()
    model.card.label_names = tuple("abcdefg")
    model.card.preprocessing = vitrail.Preprocessing(image_size=32, crop=crop, crop_fraction=0.8, std=(0.1, 0.2, 0.3))
    vitrail.save(model, tmp_path / "bundle")
    convert(tmp_path / "bundle", tmp_path / "hf", "huggingface")
    twin = peers.transformers.ViTForImageClassification.from_pretrained(tmp_path / "hf").eval()
    images = pictures(model)
    with torch.no_grad():
        assert (twin(images).logits - model(images)).abs().max() <= 1e-5
    assert twin.config.id2label == dict(enumerate("abcdefg"))
    again = vitrail.load(tmp_path / "hf")
    assert again.card.label_names == model.card.label_names
    assert again.card.preprocessing.crop == crop
    assert again.card.preprocessing.std == (0.1, 0.2, 0.3)
    assert again.card.preprocessing.crop_fraction == (0.8 if crop == "center" else 1.0)


def test_torchvision_loads_our_export(peers, tmp_path):
    model = toy()
    vitrail.save(model, tmp_path / "bundle")
    convert(tmp_path / "bundle", tmp_path / "weights.pth", "torchvision")
    twin = peers.torchvision.models.VisionTransformer(32, 8, 3, 4, 32, 64, num_classes=7)
    twin.load_state_dict(torch.load(tmp_path / "weights.pth", weights_only=True))
    images = pictures(model)
    with torch.no_grad():
        assert (twin.eval()(images) - model(images)).abs().max() <= 1e-5


def test_flat_files_remember_what_tensors_cannot_say(tmp_path: Path):
    model = toy(activation="gelu_tanh", norm_eps=1e-5)
    vitrail.save(model, tmp_path / "bundle")
    convert(tmp_path / "bundle", tmp_path / "flat.safetensors", "timm")
    again = vitrail.load(tmp_path / "flat.safetensors")
    assert (again.config.activation, again.config.norm_eps, again.config.num_heads) == ("gelu_tanh", 1e-5, 4)


@pytest.mark.parametrize("wrap", [
    lambda t: {"model": t}, lambda t: {"state_dict": {f"module.{k}": v for k, v in t.items()}, "epoch": 3},
    lambda t: {"teacher": {f"backbone.{k}": v for k, v in t.items()}, "student": {}},
    lambda t: {f"encoder.{k}": v for k, v in t.items()},
], ids=["model", "state_dict+module", "dino teacher", "encoder"])  # fmt: skip
def test_training_checkpoints_are_unwrapped(tmp_path, wrap):
    model = randomised(create("Ti/16", depth=2, num_classes=3, image_size=32))
    torch.save(wrap(model.state_dict()), tmp_path / "checkpoint.pth")
    again = vitrail.load(tmp_path / "checkpoint.pth", model=model.config)
    assert_same_tensors(again.state_dict(), model.state_dict())


def test_dinov2_files_are_read(tmp_path):
    """Registers without positions, a class token with one, SwiGLU names, blocks in chunks, a mask token."""
    model = toy(registers=4, class_position=False, layer_scale=1.0, activation="swiglu", mlp_dim=128, num_classes=0)
    state = model.state_dict()
    foreign = {}
    for name, tensor in state.items():
        new = name.replace("blocks.", "blocks.0.").replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3")
        foreign["register_tokens" if name == "reg_token" else new] = tensor
    position = torch.randn(1, 1, 32)
    foreign["cls_token"] = state["cls_token"] - position
    foreign["pos_embed"] = torch.cat([position, state["pos_embed"]], dim=1)
    foreign["mask_token"] = torch.zeros(1, 32)
    save_file(foreign, tmp_path / "dinov2.safetensors")
    again = vitrail.load(tmp_path / "dinov2.safetensors", model=model.config)
    images = pictures(model)
    with torch.no_grad():
        assert (again(images) - model(images)).abs().max() <= 1e-5


def test_google_kernels_are_read_by_the_official_formula():
    """Patches and attention by einsum over the official code's axes: (rows, columns, in, out), (in, heads, width)."""
    arrays = {name: tensor.double() / 10 for name, tensor in noise(google_shapes()).items()}
    reading = google.from_google({name: tensor.float() for name, tensor in arrays.items()})
    model = build(reading.config)
    model.load_state_dict(reading.state)
    model.double().eval()
    images = pictures(model).double()
    patches = images.unfold(2, 4, 4).unfold(3, 4, 4)  # (batch, channels, rows, columns, 4, 4)
    embedded = torch.einsum("bcijyx,yxcw->bijw", patches, arrays["embedding/kernel"]) + arrays["embedding/bias"]
    with torch.no_grad():
        assert (model.patch_embed(images) - embedded.flatten(1, 2)).abs().max() <= 1e-6
    x = torch.randn(2, 10, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    parts = f"{google.ENCODER_BLOCK}1/{google.RELEASED[1]}"

    def part(name: str) -> torch.Tensor:
        return (
            torch.einsum("btw,whk->bhtk", x, arrays[f"{parts}/{name}/kernel"]) + arrays[f"{parts}/{name}/bias"][:, None]
        )

    weights = (part("query") @ part("key").transpose(-1, -2) / 8**0.5).softmax(dim=-1)
    joined = torch.einsum("bhtk,hkw->btw", weights @ part("value"), arrays[f"{parts}/out/kernel"])
    with torch.no_grad():
        found = model.blocks[1].attn(x, model.config.grid)
    assert (found - joined - arrays[f"{parts}/out/bias"]).abs().max() <= 1e-6


def test_each_format_means_its_own_conventions(peers):
    official = google.from_google(noise(google_shapes())).config
    assert (official.interpolation, official.activation, official.norm_eps) == ("official", "gelu_tanh", 1e-6)
    kind = peers.torchvision.models.VisionTransformer
    theirs = torchvision.from_torchvision(
        kind(32, 8, 2, 4, 32, 64).state_dict(), read_model(toy(depth=2).config)
    ).config
    assert (theirs.interpolation, theirs.activation, theirs.norm_eps) == ("torchvision", "gelu", 1e-6)
