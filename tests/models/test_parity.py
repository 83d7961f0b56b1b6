"""Same weights, same input: logits, the hidden state after every block and every gradient equal the peers'.

Toy sizes to 1e-5, real sizes (B/16, R50+B/16 with random weights) to 1e-4, all in float32.
"""

import pytest
import torch
from torch import Tensor, nn

from tests.conftest import pictures, randomised, toy
from vitrail.checkpoints import huggingface, timm, torchvision
from vitrail.checkpoints.name_maps import write_by_rules
from vitrail.models.attention import Recorder
from vitrail.models.build import create

TOY = 1e-5
REAL = 1e-4

# Every switch that published weights need, one at a time and together.
TIMM_VARIANTS = [
    {},
    {"activation": "gelu_tanh"},
    {"qkv_bias": False},
    {"layer_scale": 0.1},
    {"registers": 4, "class_position": False, "layer_scale": 1.0},
    {"registers": 2},
    {"class_token": False, "pooling": "average", "norm_after_pooling": True},
    {"class_token": False, "pooling": "average"},
    {"pooling": "average", "norm_after_pooling": True},
    {"positions": "none"},
    {"positions": "sincos"},
    {"distillation_token": True},
    {"activation": "swiglu", "mlp_dim": 128, "layer_scale": 1.0},
    {"image_size": (32, 64)},
    {"channels": 1},
    {"num_classes": 0},
]


def timm_twin(peers, model) -> nn.Module:
    architecture, arguments = timm.describe_model(model.config)
    twin = peers.timm.create_model(architecture, num_classes=model.config.num_classes, **arguments)
    twin.load_state_dict(timm.to_timm(model.state_dict(), model.config))
    return twin.eval()


def transformers_twin(peers, model, **settings) -> nn.Module:
    document = huggingface.config_json(model.config, model.card, {})
    twin = peers.transformers.ViTForImageClassification(peers.transformers.ViTConfig(**document, **settings))
    rules = huggingface.rules(model.config, "vit.", huggingface.MEMORY)
    twin.load_state_dict(write_by_rules(rules, model.state_dict()))
    return twin.eval()


def hidden_states(twin: nn.Module, blocks, images: Tensor) -> list[Tensor]:
    """What comes out of every block of a peer, by forward hooks."""
    seen: list[Tensor] = []
    hooks = [
        block.register_forward_hook(lambda _, __, out: seen.append(out[0] if isinstance(out, tuple) else out))
        for block in blocks
    ]
    twin(images)
    for hook in hooks:
        hook.remove()
    return seen


def assert_close(ours: Tensor, theirs: Tensor, limit: float, what: str) -> None:
    assert ours.shape == theirs.shape, what
    difference = (ours - theirs).abs().max().item()
    assert difference <= limit, f"{what}: {difference:.2e}"


def assert_hidden(model, theirs: list[Tensor], images: Tensor, limit: float) -> None:
    recorder = Recorder("hidden")
    with torch.no_grad():
        model.encode(model.embed(images), record=recorder)
    assert len(theirs) == model.config.depth
    for layer, hidden in enumerate(theirs):
        assert_close(recorder.hidden[layer], hidden, limit, f"hidden state after block {layer}")


def gradients(module: nn.Module, output: Tensor) -> dict[str, Tensor]:
    """Of a loss that weighs every logit differently, so that no two errors cancel."""
    weights = torch.linspace(-1, 1, output.numel()).view_as(output)
    (output * weights).sum().backward()
    return {name: p.grad for name, p in module.named_parameters() if p.grad is not None}


def assert_gradients(ours: dict[str, Tensor], theirs: dict[str, Tensor], limit: float) -> None:
    assert ours.keys() == theirs.keys()
    for name, gradient in ours.items():
        scale = max(1.0, gradient.abs().max().item())
        assert_close(gradient / scale, theirs[name] / scale, limit, f"gradient of {name}")


@pytest.mark.parametrize("overrides", TIMM_VARIANTS, ids=str)
def test_timm(peers, overrides):
    model = toy(**overrides)
    twin, images = timm_twin(peers, model), pictures(model)
    ours, theirs = model(images), twin(images)
    assert_close(ours, theirs, TOY, "logits")
    assert_hidden(model, hidden_states(twin, twin.blocks, images), images, TOY)
    frozen = {"pos_embed"} if model.config.positions == "sincos" else set()
    theirs_gradients = gradients(twin, theirs)
    assert_gradients(gradients(model, ours), {n: g for n, g in theirs_gradients.items() if n not in frozen}, TOY)


@pytest.mark.parametrize("stages", [(), (2, 2, 2, 2), (3, 4, 9), (3, 4, 6, 3)], ids=str)
def test_timm_hybrids(peers, stages):
    patch = 8 if not stages else 1
    size = 64 if len(stages) < 4 else 96  # 96 / 32 = 3: SAME padding is uneven on the way
    model = toy(stages=stages, patch_size=patch, image_size=size, stem_arithmetic="timm")
    twin, images = timm_twin(peers, model), pictures(model)
    ours, theirs = model(images), twin(images)
    assert_close(ours, theirs, TOY, "logits")
    assert_hidden(model, hidden_states(twin, twin.blocks, images), images, TOY)
    assert_gradients(gradients(model, ours), gradients(twin, theirs), TOY)


def test_timm_bit_resnet(peers):
    """Odd sizes: the padding matters."""
    model = randomised(create("BiT-R50x1", num_classes=5, image_size=75))
    twin = peers.timm.create_model("resnetv2_50x1_bit", num_classes=5)
    twin.load_state_dict(timm.to_timm(model.state_dict(), model.config))
    images = pictures(model)
    ours, theirs = model(images), twin.eval()(images)
    scale = theirs.abs().max().item()
    assert_close(ours / scale, theirs / scale, TOY, "logits")
    ours_gradients = {timm_name(n): g.reshape(-1) for n, g in gradients(model, ours).items()}
    assert_gradients(ours_gradients, {n: g.reshape(-1) for n, g in gradients(twin, theirs).items()}, TOY)


def timm_name(name: str) -> str:
    return name.replace("head.", "head.fc.")


HUGGINGFACE_VARIANTS = [{}, {"activation": "gelu_tanh"}, {"qkv_bias": False}, {"norm_eps": 1e-12}]


@pytest.mark.parametrize("overrides", HUGGINGFACE_VARIANTS, ids=str)
def test_transformers(peers, overrides):
    model = toy(**overrides)
    twin, images = transformers_twin(peers, model), pictures(model)
    names = list(huggingface.rules(model.config, "vit.", huggingface.MEMORY))
    ours, theirs = model(images), twin(images).logits
    assert_close(ours, theirs, TOY, "logits")
    assert_hidden(model, hidden_states(twin, twin.vit.layers, images), images, TOY)
    theirs_gradients, ours_gradients = gradients(twin, theirs), gradients(model, ours)
    translated = {rule.native: rule.read([theirs_gradients[name] for name in rule.foreign]) for rule in names}
    assert_gradients(ours_gradients, translated, TOY)


def test_torchvision(peers):
    model = toy()
    c = model.config
    twin = peers.torchvision.models.VisionTransformer(32, 8, c.depth, c.num_heads, c.width, c.mlp_dim, num_classes=7)
    twin.load_state_dict(torchvision.to_torchvision(model.state_dict(), c))
    twin.eval()
    images = pictures(model)
    ours, theirs = model(images), twin(images)
    assert_close(ours, theirs, TOY, "logits")
    assert_hidden(model, hidden_states(twin, twin.encoder.layers, images), images, TOY)
    theirs_gradients = gradients(twin, theirs)
    translated = {rule.native: theirs_gradients[rule.foreign[0]] for rule in torchvision.rules(c)}
    assert_gradients(gradients(model, ours), translated, TOY)


def test_vit_pytorch(peers):
    """Its patch embedding has two more norms than the paper's; its Transformer is the same, without qkv bias."""
    model = toy(qkv_bias=False, norm_eps=1e-5)
    c = model.config
    twin = peers.vit_pytorch.vit.Transformer(c.width, c.depth, c.num_heads, c.width // c.num_heads, c.mlp_dim)
    twin.load_state_dict(vit_pytorch_names(model))
    tokens = model.embed(pictures(model)).detach()
    ours, theirs = model.encode(tokens), twin(tokens)
    assert_close(ours, theirs, TOY, "tokens")
    recorder, x = Recorder("hidden"), tokens
    model.encode(tokens, record=recorder)
    for layer, (attention, mlp) in enumerate(twin.layers):
        x = attention(x) + x
        x = mlp(x) + x
        assert_close(recorder.hidden[layer], x, TOY, f"hidden state after block {layer}")
    theirs_gradients = gradients(twin, theirs)
    ours_gradients = gradients(model, ours)
    names = dict(zip(vit_pytorch_names(model), encoder_names(model), strict=True))
    assert_gradients(ours_gradients, {names[name]: g for name, g in theirs_gradients.items()}, TOY)


def encoder_names(model) -> list[str]:
    return [name for name in model.state_dict() if name.startswith(("blocks.", "norm."))]


def vit_pytorch_names(model) -> dict[str, Tensor]:
    parts = {
        "norm1": "0.norm", "attn.qkv": "0.to_qkv", "attn.proj": "0.to_out.0",
        "norm2": "1.net.0", "mlp.fc1": "1.net.1", "mlp.fc2": "1.net.4",
    }  # fmt: skip
    state = model.state_dict()
    result = {}
    for name in encoder_names(model):
        if name.startswith("norm."):
            result[name] = state[name]
        else:
            _, layer, rest = name.split(".", 2)
            part, kind = rest.rsplit(".", 1)
            result[f"layers.{layer}.{parts[part]}.{kind}"] = state[name]
    return result


@pytest.mark.parametrize("name", ["B/16", pytest.param("R50+B/16", marks=pytest.mark.slow)])
def test_timm_at_real_size(peers, name):
    model = realistic(create(name, num_classes=100, stem_arithmetic="timm"))
    twin, images = timm_twin(peers, model), pictures(model, batch=1)
    with torch.no_grad():
        assert_close(model(images), twin(images), REAL, "logits")
        assert_hidden(model, hidden_states(twin, twin.blocks, images), images, REAL)


@pytest.mark.slow
def test_transformers_at_real_size(peers):
    model = realistic(create("B/16", num_classes=100))
    twin, images = transformers_twin(peers, model), pictures(model, batch=1)
    with torch.no_grad():
        assert_close(model(images), twin(images).logits, REAL, "logits")
        assert_hidden(model, hidden_states(twin, twin.vit.layers, images), images, REAL)


@pytest.mark.slow
def test_torchvision_at_real_size(peers):
    model = realistic(create("B/16", num_classes=100))
    twin = peers.torchvision.models.vit_b_16(num_classes=100)
    twin.load_state_dict(torchvision.to_torchvision(model.state_dict(), model.config))
    twin.eval()
    images = pictures(model, batch=1)
    with torch.no_grad():
        assert_close(model(images), twin(images), REAL, "logits")
        assert_hidden(model, hidden_states(twin, twin.encoder.layers, images), images, REAL)


def realistic(model):
    """The initial weights, and a head that is not zero: activations of the size a trained model has."""
    torch.manual_seed(0)
    nn.init.normal_(model.head.weight, std=0.02)
    return model
