"""torchvision's ViTs (vit_b_16 and the others), read and written: a class token, learned positions and exact GELU."""

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from torch import Tensor

from vitrail.checkpoints.declared_config import NOTHING, Declared, note_of
from vitrail.checkpoints.files import TORCH_SUFFIXES
from vitrail.checkpoints.formats import Beside, WeightsFormat
from vitrail.checkpoints.name_maps import Reading, Rule, Tensors, read_by_rules, require, same, write_by_rules
from vitrail.checkpoints.preprocessing import NAMED
from vitrail.checkpoints.shapes import count, grid_of, heads_of
from vitrail.config import ModelConfig
from vitrail.errors import UserError

LAYER = "encoder.layers.encoder_layer_"
"""The beginning of the names in a layer; its number follows."""
PUBLISHED = ((768, 12), (1024, 24), (1280, 32))
"""(width, depth) of torchvision's own models, whose number of heads is therefore certain."""


class Torchvision(WeightsFormat):
    """The format "torchvision"."""

    endings = (".safetensors", *TORCH_SUFFIXES)
    # torchvision's own presets resize the shorter side to 256 and crop 224: a fraction of 0.875.
    preprocessing = MappingProxyType({**NAMED["imagenet"], "resample": "bilinear", "crop_fraction": 0.875})
    activation = "gelu"
    tensors_only = fills_in = True

    def recognises(self, tensors: Mapping[str, Tensor]) -> bool:
        return recognises(tensors)

    def read(self, tensors: Mapping[str, Tensor], told: Declared, beside: Beside = "nothing") -> Reading:
        return from_torchvision(tensors, told)

    def rules(self, state: Mapping[str, Tensor], config: ModelConfig) -> list[Rule]:
        return target_rules(state, config)


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    """Tells whether the tensors have torchvision's names, by its patch projection and class token."""
    return "conv_proj.weight" in tensors and "class_token" in tensors


def from_torchvision(tensors: Mapping[str, Tensor], told: Declared = NOTHING) -> Reading:
    """Translates the tensors of a torchvision ViT. Raises UserError if they make no whole model."""
    notes: list[str] = []
    config = _config(tensors, told, notes)
    # Files older than torchvision 0.14 call the two Linears of the MLP linear_1 and linear_2.
    old = f"{LAYER}0.mlp.linear_1.weight" in tensors
    state, origin = read_by_rules(rules(config, old), tensors, "the torchvision file")
    used = {name for names in origin.values() for name in names}
    dropped = {name: "not a part of the model" for name in tensors if name not in used}
    return Reading("torchvision", config, state, origin, dropped, notes)


def to_torchvision(state: Mapping[str, Tensor], config: ModelConfig) -> Tensors:
    """Translates a model's tensors to torchvision's names. Raises UserError if torchvision cannot express the model."""
    return write_by_rules(target_rules(state, config), state)


def target_rules(state: Mapping[str, Tensor], config: ModelConfig) -> list[Rule]:
    """Returns the rules by which this model is written. Raises UserError if torchvision cannot express it."""
    require(
        config,
        "torchvision",
        family="vit",
        stages=None,
        attention="full",
        positions="learned",
        positions_at="stem",
        class_token=True,
        class_position=True,
        pooling="class",
        registers=0,
        distillation_token=False,
        layer_scale=None,
        qkv_bias=True,
        activation=("gelu", "gelu_tanh"),
        channels=3,
    )
    if config.image_size != (config.rows_columns[0],) * 2:
        raise UserError(f"torchvision cannot express this model: its images are square, not {config.rows_columns}")
    if not config.num_classes:
        raise UserError("torchvision cannot express this model: it always has a head; this one has none")
    return list(rules(config))


def rules(config: ModelConfig, old: bool = False) -> Iterator[Rule]:
    """Yields a rule for every tensor of the model. old: with the names of torchvision before 0.14."""
    yield from _both("patch_embed.proj", "conv_proj")
    yield same("cls_token", "class_token")
    yield same("pos_embed", "encoder.pos_embedding")
    fc1, fc2 = ("linear_1", "linear_2") if old else ("0", "3")
    for layer in range(config.depth):
        ours, theirs = f"blocks.{layer}", f"{LAYER}{layer}"
        yield from _both(f"{ours}.norm1", f"{theirs}.ln_1")
        yield same(f"{ours}.attn.qkv.weight", f"{theirs}.self_attention.in_proj_weight")
        yield same(f"{ours}.attn.qkv.bias", f"{theirs}.self_attention.in_proj_bias")
        yield from _both(f"{ours}.attn.proj", f"{theirs}.self_attention.out_proj")
        yield from _both(f"{ours}.norm2", f"{theirs}.ln_2")
        yield from _both(f"{ours}.mlp.fc1", f"{theirs}.mlp.{fc1}")
        yield from _both(f"{ours}.mlp.fc2", f"{theirs}.mlp.{fc2}")
    yield from _both("norm", "encoder.ln")
    if config.representation_size:
        yield from _both("pre_logits.fc", "heads.pre_logits")
    if config.num_classes:
        yield from _both("head", "heads.head")


def _both(native: str, foreign: str) -> Iterator[Rule]:
    yield same(f"{native}.weight", f"{foreign}.weight")
    yield same(f"{native}.bias", f"{foreign}.bias")


def _config(tensors: Mapping[str, Tensor], told: Declared, notes: list[str]) -> ModelConfig:
    """Finds the configuration from what is known, names and shapes; adds a note on what had to be assumed.

    Raises UserError if there is no whole layer.
    """
    projection = tensors["conv_proj.weight"]
    depth = count(tensors, r"encoder\.layers\.encoder_layer_(\d+)\.")
    hidden = next((t for name, t in tensors.items() if name.endswith(("mlp.0.weight", "mlp.linear_1.weight"))), None)
    if not depth or hidden is None or projection.ndim != 4:
        raise UserError("the file has torchvision's patch projection but no whole encoder layer")
    width, channels, patch_size = projection.shape[:3]
    size, _ = grid_of(tensors.get("encoder.pos_embedding"), 1, patch_size, told)
    heads, assumed = heads_of(width, depth, told)
    notes += note_of([f"{heads} heads"] if assumed and (width, depth) not in PUBLISHED else [])
    return ModelConfig(
        name=told.name,
        image_size=size,
        channels=channels,
        patch_size=patch_size,
        width=width,
        depth=depth,
        num_heads=heads,
        mlp_dim=hidden.shape[0],
        num_classes=tensors["heads.head.bias"].shape[0] if "heads.head.bias" in tensors else 0,
        representation_size=tensors["heads.pre_logits.bias"].shape[0] if "heads.pre_logits.bias" in tensors else 0,
        interpolation="torchvision",
        activation="gelu",
        norm_eps=1e-6,
    )
