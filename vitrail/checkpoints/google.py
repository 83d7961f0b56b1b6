"""Google's .npz files: ViTs and hybrids of the official JAX code, read and written.

The files that Google released number the parts of a block in one sequence (LayerNorm_0, MultiHeadDotProductAttention_1,
LayerNorm_2, MlpBlock_3); files written by the official code of today number each kind of part by itself. Both are
read; the released form is written. Kernels have the shape (rows, columns, in, out) in convolutions and (in, heads,
head width) in attention. The official code computes the tanh form of GELU.
"""

from collections.abc import Iterator, Mapping

import torch
from torch import Tensor

from vitrail.checkpoints.declared_config import NOTHING, Declared
from vitrail.checkpoints.formats import Beside, WeightsFormat
from vitrail.checkpoints.name_maps import Reading, Rule, read_by_rules, require, same, through
from vitrail.checkpoints.preprocessing import SQUASHED
from vitrail.checkpoints.shapes import count, grid_of
from vitrail.config import ModelConfig
from vitrail.errors import UserError

RELEASED = ("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
"""The names of a block's parts in released files."""
PRESENT = ("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
"""The names of a block's parts in files written by the official code of today."""
ENCODER_BLOCK = "Transformer/encoderblock_"
"""The beginning of the names in a block; its number follows."""
PREFIXES = ("opt/target/", "params/")
"""Prefixes that all names of a training checkpoint may have."""


class Google(WeightsFormat):
    """The format "google"."""

    endings = (".npz",)
    preprocessing = SQUASHED
    activation = "gelu_tanh"
    tensors_only = fills_in = True

    def recognises(self, tensors: Mapping[str, Tensor]) -> bool:
        return recognises(tensors)

    def read(self, tensors: Mapping[str, Tensor], told: Declared, beside: Beside = "nothing") -> Reading:
        return from_google(tensors, told)

    def rules(self, state: Mapping[str, Tensor], config: ModelConfig) -> list[Rule]:
        return target_rules(state, config)


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    """Tells whether the tensors have the official code's names, by its patch projection."""
    return any(name.removeprefix(prefix) == "embedding/kernel" for name in tensors for prefix in ("", *PREFIXES))


def from_google(tensors: Mapping[str, Tensor], told: Declared = NOTHING) -> Reading:
    """Translates the arrays of an .npz file. Raises UserError if they make no whole model."""
    full_names = {name: name for name in tensors}
    for prefix in PREFIXES:
        full_names = {short.removeprefix(prefix): name for short, name in full_names.items()}
    tensors = {short: tensors[name] for short, name in full_names.items()}
    config = _config(tensors, told)
    form = RELEASED if f"{ENCODER_BLOCK}0/{RELEASED[1]}/query/kernel" in tensors else PRESENT
    state, origin = read_by_rules(rules(config, form), tensors, "the .npz file")
    used = {name for names in origin.values() for name in names}
    return Reading(
        "google",
        config,
        state,
        {native: tuple(full_names[name] for name in names) for native, names in origin.items()},
        {full_names[name]: "not a part of the model" for name in tensors if name not in used},
    )


def target_rules(state: Mapping[str, Tensor], config: ModelConfig) -> list[Rule]:
    """Returns the rules by which this model is written. Raises UserError if the format cannot express it."""
    require(
        config,
        "the Google format",
        family="vit",
        stem="bottleneck",
        attention="full",
        positions=("learned", "none"),
        positions_at="stem",
        registers=0,
        distillation_token=False,
        norm_after_pooling=False,
        layer_scale=None,
        qkv_bias=True,
        activation=("gelu", "gelu_tanh"),
    )
    if config.class_token != (config.pooling == "class"):
        raise UserError(
            "the Google format cannot express this model: it has a class token if and only if it pools by it, "
            f"this model {'has one and' if config.class_token else 'has none and'} pools by {config.pooling!r}"
        )
    if config.class_token and not config.class_position and config.positions == "learned":
        raise UserError(
            "the Google format cannot express this model: its class token has a position, this model's has none"
        )
    return list(rules(config, RELEASED))


def rules(config: ModelConfig, form: tuple[str, ...] = RELEASED) -> Iterator[Rule]:
    """Yields a rule for every tensor of the model. form: the names of a block's parts, `RELEASED` or `PRESENT`."""
    if config.stages is not None:
        yield from _stem_rules(config.stages)
    yield _kernel("patch_embed.proj.weight", "embedding/kernel")
    yield same("patch_embed.proj.bias", "embedding/bias")
    if config.class_token:
        yield same("cls_token", "cls")
    if config.positions == "learned":
        yield same("pos_embed", "Transformer/posembed_input/pos_embedding")
    for layer in range(config.depth):
        yield from _block_rules(config, layer, form)
    yield from _norm("norm", "Transformer/encoder_norm")
    if config.representation_size:
        yield from _dense("pre_logits.fc", "pre_logits")
    if config.num_classes:
        yield from _dense("head", "head")


def _block_rules(config: ModelConfig, layer: int, form: tuple[str, ...]) -> Iterator[Rule]:
    """Yields the rules of a Transformer block; query, key and value are separate in the file and one tensor here."""
    norm1, attention, norm2, mlp = (f"{ENCODER_BLOCK}{layer}/{part}" for part in form)
    ours, width, heads = f"blocks.{layer}", config.width, config.num_heads
    parts = [f"{attention}/{part}" for part in ("query", "key", "value")]
    yield from _norm(f"{ours}.norm1", norm1)
    yield Rule(
        f"{ours}.attn.qkv.weight",
        tuple(f"{part}/kernel" for part in parts),
        lambda kernels: torch.cat([kernel.reshape(width, width).t() for kernel in kernels]),
        lambda weight: [kernel.t().reshape(width, heads, -1) for kernel in weight.chunk(3)],
    )
    yield Rule(
        f"{ours}.attn.qkv.bias",
        tuple(f"{part}/bias" for part in parts),
        lambda biases: torch.cat([bias.reshape(width) for bias in biases]),
        lambda bias: [part.reshape(heads, -1) for part in bias.chunk(3)],
    )
    yield through(
        f"{ours}.attn.proj.weight",
        f"{attention}/out/kernel",
        lambda kernel: kernel.reshape(width, width).t(),
        lambda weight: weight.t().reshape(heads, -1, width),
    )
    yield same(f"{ours}.attn.proj.bias", f"{attention}/out/bias")
    yield from _norm(f"{ours}.norm2", norm2)
    yield from _dense(f"{ours}.mlp.fc1", f"{mlp}/Dense_0")
    yield from _dense(f"{ours}.mlp.fc2", f"{mlp}/Dense_1")


def _stem_rules(stages: tuple[int, ...]) -> Iterator[Rule]:
    """Yields the rules of a hybrid's convolutional stem. stages: the residual units of each stage."""
    backbone = "patch_embed.backbone."
    root = f"{backbone}stem." if stages else backbone
    yield _kernel(f"{root}conv.weight", "conv_root/kernel")
    yield from _group_norm(f"{root}norm", "gn_root")
    for stage, units in enumerate(stages):
        for unit in range(units):
            ours, theirs = f"{backbone}stages.{stage}.blocks.{unit}", f"block{stage + 1}/unit{unit + 1}"
            for part in (1, 2, 3):
                yield _kernel(f"{ours}.conv{part}.weight", f"{theirs}/conv{part}/kernel")
                yield from _group_norm(f"{ours}.norm{part}", f"{theirs}/gn{part}")
            if unit == 0:
                yield _kernel(f"{ours}.downsample.conv.weight", f"{theirs}/conv_proj/kernel")
                yield from _group_norm(f"{ours}.downsample.norm", f"{theirs}/gn_proj")


def _kernel(native: str, foreign: str) -> Rule:
    """Returns the rule of a convolution's kernel: (rows, columns, in, out) there, (out, in, rows, columns) here."""
    return through(native, foreign, lambda k: k.permute(3, 2, 0, 1), lambda w: w.permute(2, 3, 1, 0))


def _dense(native: str, foreign: str) -> Iterator[Rule]:
    """Yields the rules of a linear layer, whose weight is transposed in the file."""
    yield through(f"{native}.weight", f"{foreign}/kernel", lambda kernel: kernel.t(), lambda weight: weight.t())
    yield same(f"{native}.bias", f"{foreign}/bias")


def _norm(native: str, foreign: str) -> Iterator[Rule]:
    """Yields the rules of a LayerNorm."""
    yield same(f"{native}.weight", f"{foreign}/scale")
    yield same(f"{native}.bias", f"{foreign}/bias")


def _group_norm(native: str, foreign: str) -> Iterator[Rule]:
    """Yields the rules of a GroupNorm: (1, 1, 1, channels) in released files, (channels) in those of today's code."""
    for ours, theirs in (("weight", "scale"), ("bias", "bias")):
        yield through(f"{native}.{ours}", f"{foreign}/{theirs}", lambda t: t.flatten(), lambda t: t.view(1, 1, 1, -1))


def _config(tensors: Mapping[str, Tensor], told: Declared) -> ModelConfig:
    """Finds the configuration from names and shapes. Raises UserError if there is no whole block."""
    kernel = tensors["embedding/kernel"]
    depth = count(tensors, rf"{ENCODER_BLOCK}(\d+)/")
    query = next((t for name, t in tensors.items() if name.endswith("/query/kernel")), None)
    hidden = next((t for name, t in tensors.items() if name.endswith("/Dense_0/kernel")), None)
    if not depth or query is None or hidden is None or query.ndim != 3 or kernel.ndim != 4 or hidden.ndim != 2:
        raise UserError("the .npz file has an embedding but no whole Transformer block of the official code's shapes")
    if kernel.shape[0] != kernel.shape[1]:
        raise UserError(f"patches of {kernel.shape[0]} x {kernel.shape[1]} are not square")
    stages = None
    if "conv_root/kernel" in tensors:
        units = [_units(tensors, stage) for stage in range(1, 5)]
        stages = tuple(unit for unit in units if unit)
    class_token = "cls" in tensors
    patch_size = kernel.shape[0]
    probe = ModelConfig(patch_size=1, stages=stages, image_size=1024)
    positions = tensors.get("Transformer/posembed_input/pos_embedding")
    size, class_position = grid_of(positions, int(class_token), patch_size * probe.stem_stride, told)
    return ModelConfig(
        name=told.name,
        image_size=size,
        channels=(tensors["conv_root/kernel"] if stages is not None else kernel).shape[2],
        patch_size=patch_size,
        width=kernel.shape[3],
        depth=depth,
        num_heads=query.shape[1],
        mlp_dim=hidden.shape[1],
        num_classes=tensors["head/bias"].shape[0] if "head/bias" in tensors else 0,
        stages=stages,
        stem_width=tensors["conv_root/kernel"].shape[3] if stages is not None else 64,
        stem_arithmetic="official",
        positions="learned" if positions is not None else "none",
        interpolation="official",
        class_token=class_token,
        class_position=class_position,
        pooling="class" if class_token else "average",
        representation_size=tensors["pre_logits/bias"].shape[0] if "pre_logits/bias" in tensors else 0,
        activation="gelu_tanh",
        norm_eps=1e-6,
    )


def _units(tensors: Mapping[str, Tensor], stage: int) -> int:
    """Counts the residual units of a ResNet stage, numbered from 1."""
    start = f"block{stage}/unit"
    return len({name.removeprefix(start).split("/")[0] for name in tensors if name.startswith(start)})
