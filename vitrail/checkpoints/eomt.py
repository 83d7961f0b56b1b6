"""Hugging Face folders of EoMT (EomtForUniversalSegmentation): a plain ViT with a head of queries, read and written.

`huggingface.py` finds out whether a folder is one of these. Two of its tensors belong to training: the probabilities of
masked attention, which must be 0 here, and the weights of the classes in the loss.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoints.declared_config import Declared, note_of
from vitrail.checkpoints.name_maps import Reading, Rule, Tensors, read_by_rules, require, same, stacked, through
from vitrail.checkpoints.shapes import count, grid_of, heads_of
from vitrail.config import ModelConfig, pair
from vitrail.errors import UserError

_TASK = "segmentation"
"""What such models answer."""
_PATCHES = "embeddings.patch_embeddings.projection.weight"
_PROBABILITIES, _CLASS_WEIGHTS = "attn_mask_probs", "criterion.empty_weight"
_REGISTERS = "embeddings.register_tokens"
_NO_OBJECT = 0.1
"""The weight of "no object" in the loss."""
_SWIGLU_STEP = 8
"""Hidden units of a SwiGLU are a multiple of this."""


def has_queries(tensors: Mapping[str, Tensor]) -> bool:
    """Tells whether the tensors have the names of transformers' Eomt."""
    return {_PATCHES, "query.weight", "class_predictor.weight"} <= tensors.keys()


def eomt_fields(info: dict[str, Any]) -> dict[str, Any]:
    """Translates a folder's config.json to fields of ModelConfig; what it leaves out has the default of EomtConfig."""
    if (activation := info.get("hidden_act", "gelu")) != "gelu":
        raise UserError(f"config.json: hidden_act is {activation!r}; of EoMT gelu only is read")
    theirs = {
        "width": "hidden_size",
        "depth": "num_hidden_layers",
        "patch_size": "patch_size",
        "channels": "num_channels",
        "registers": "num_register_tokens",
        "queries": "num_queries",
        "query_layers": "num_blocks",
        "upscale_blocks": "num_upscale_blocks",
    }
    return {
        **{ours: info[name] for ours, name in theirs.items() if name in info},
        "image_size": pair(info.get("image_size", 640)),
        "num_heads": info.get("num_attention_heads", 16),
        "norm_eps": float(info.get("layer_norm_eps", 1e-6)),
    }


def from_eomt(tensors: Mapping[str, Tensor], told: Declared) -> Reading:
    """Translates the tensors of an EoMT. told: what is known besides the tensors.

    Raises UserError if they make no whole model, or if it still masks attention.
    """
    notes: list[str] = []
    probabilities = tensors.get(_PROBABILITIES)
    if probabilities is not None and bool(probabilities.any()):
        raise UserError(
            "this EoMT still masks the attention of its queries (attn_mask_probs are not 0): its training was not "
            "finished, and without the masks the results would be wrong"
        )
    config = _config(tensors, told, notes)
    state, origin = read_by_rules(list(eomt_rules(config)), tensors, "the Hugging Face folder")
    used = {name for parts in origin.values() for name in parts} | {_PROBABILITIES, _CLASS_WEIGHTS}
    if _REGISTERS in tensors and not tensors[_REGISTERS].numel():
        used.add(_REGISTERS)
    dropped = {name: "not a part of the model" for name in tensors if name not in used}
    return Reading("huggingface", config, state, origin, dropped, notes)


def _config(tensors: Mapping[str, Tensor], told: Declared, notes: list[str]) -> ModelConfig:
    """Finds the configuration from what is known, names and shapes; adds a note on what had to be assumed."""
    projection, depth = tensors[_PATCHES], count(tensors, r"layers\.(\d+)\.")
    gated = "layers.0.mlp.gate_proj.weight" in tensors
    hidden = tensors.get("layers.0.mlp.gate_proj.weight" if gated else "layers.0.mlp.fc1.weight")
    positions, queries = tensors.get("embeddings.position_embeddings.weight"), tensors["query.weight"]
    layers = tensors.get(_PROBABILITIES)
    if not depth or hidden is None or projection.ndim != 4 or positions is None or positions.ndim != 2:
        raise UserError("there are queries of Hugging Face's EoMT but no whole encoder")
    if told.get("query_layers") is None and layers is None:
        raise UserError("the tensors do not say in how many layers queries take part: keep config.json beside them")
    width, channels, patch_size = projection.shape[:3]
    heads, assumed = heads_of(width, depth, told)
    notes += note_of([f"{heads} heads"] if assumed else [])
    registers = tensors.get(_REGISTERS)
    return ModelConfig(
        name=told.name,
        image_size=grid_of(positions[None], 0, patch_size, told)[0],
        channels=channels,
        patch_size=patch_size,
        width=width,
        depth=depth,
        num_heads=heads,
        mlp_dim=hidden.shape[0] * (2 if gated else 1),
        num_classes=tensors["class_predictor.weight"].shape[0] - 1,
        task=_TASK,
        class_position=False,
        registers=0 if registers is None or registers.ndim != 3 else registers.shape[1],
        head="queries",
        queries=queries.shape[0],
        query_layers=told.get("query_layers") or (0 if layers is None else len(layers)),
        upscale_blocks=count(tensors, r"upscale_block\.block\.(\d+)\."),
        interpolation="huggingface",
        activation="swiglu" if gated else "gelu",
        norm_eps=told.get("norm_eps") or 1e-6,
        layer_scale=1.0,
    )


def eomt_rules(config: ModelConfig) -> Iterator[Rule]:
    """Yields a rule for every tensor of the model."""
    yield from _both("patch_embed.proj", "embeddings.patch_embeddings.projection")
    yield same("cls_token", "embeddings.cls_token")
    if config.registers:
        yield same("reg_token", _REGISTERS)
    yield _table("pos_embed", "embeddings.position_embeddings.weight")
    for layer in range(config.depth):
        yield from _layer(f"blocks.{layer}", f"layers.{layer}", config.activation == "swiglu")
    yield from _both("norm", "layernorm")
    yield _table("head.queries", "query.weight")
    yield from _both("head.classes", "class_predictor")
    for number in range(3):
        yield from _both(f"head.mask_mlp.{2 * number}", f"mask_head.fc{number + 1}")
    for number in range(config.upscale_blocks):
        ours, theirs = f"head.upscale.{number}", f"upscale_block.block.{number}"
        yield from _both(f"{ours}.up", f"{theirs}.conv1")
        yield same(f"{ours}.depthwise.weight", f"{theirs}.conv2.weight")
        yield from _both(f"{ours}.norm", f"{theirs}.layernorm2d")


def _layer(ours: str, theirs: str, gated: bool) -> Iterator[Rule]:
    yield from _both(f"{ours}.norm1", f"{theirs}.norm1")
    for kind in ("weight", "bias"):
        parts = [f"{theirs}.attention.{part}_proj.{kind}" for part in "qkv"]
        yield stacked(f"{ours}.attn.qkv.{kind}", parts)
    yield from _both(f"{ours}.attn.proj", f"{theirs}.attention.out_proj")
    yield same(f"{ours}.ls1.gamma", f"{theirs}.layer_scale1.lambda1")
    yield from _both(f"{ours}.norm2", f"{theirs}.norm2")
    if gated:
        for kind in ("weight", "bias"):
            yield stacked(f"{ours}.mlp.fc1.{kind}", [f"{theirs}.mlp.gate_proj.{kind}", f"{theirs}.mlp.up_proj.{kind}"])
        yield from _both(f"{ours}.mlp.fc2", f"{theirs}.mlp.down_proj")
    else:
        yield from _both(f"{ours}.mlp.fc1", f"{theirs}.mlp.fc1")
        yield from _both(f"{ours}.mlp.fc2", f"{theirs}.mlp.fc2")
    yield same(f"{ours}.ls2.gamma", f"{theirs}.layer_scale2.lambda1")


def _both(native: str, foreign: str) -> Iterator[Rule]:
    yield same(f"{native}.weight", f"{foreign}.weight")
    yield same(f"{native}.bias", f"{foreign}.bias")


def _table(native: str, foreign: str) -> Rule:
    """Returns the rule of tokens that are an embedding there, (tokens, width), and here (1, tokens, width)."""
    return through(native, foreign, lambda tensor: tensor[None], lambda tensor: tensor[0])


def written_rules(config: ModelConfig) -> list[Rule]:
    """Returns the rules by which a model is written that `completed` has completed. Raises UserError if transformers'
    Eomt cannot express it."""
    require(
        config,
        "Hugging Face's Eomt",
        stages=None,
        positions="learned",
        class_token=True,
        class_position=False,
        distillation_token=False,
        norm_after_pooling=False,
        activation=("gelu", "swiglu"),
        qkv_bias=True,
    )
    rows, columns = config.rows_columns
    if rows != columns:
        raise UserError(f"Hugging Face's Eomt cannot express this model: its images are square, not {rows} x {columns}")
    _mlp_ratio(config)
    return [
        *eomt_rules(config),
        same(_PROBABILITIES, _PROBABILITIES),
        same(_CLASS_WEIGHTS, _CLASS_WEIGHTS),
    ]


def completed(config: ModelConfig, state: Tensors) -> tuple[ModelConfig, Tensors, dict[str, str]]:
    """Adds the tensors that transformers' Eomt always has and a model may lack, so that it computes the same.

    Returns the configuration and tensors with them, and what was created: why, by name.
    """
    state, created, width = dict(state), {}, config.width
    if config.layer_scale is None:
        for layer in range(config.depth):
            for name in (f"blocks.{layer}.ls1.gamma", f"blocks.{layer}.ls2.gamma"):
                state[name] = torch.ones(width)
                created[name] = "ones: the model has no LayerScale"
        config = config.with_(layer_scale=1.0)
    if not config.qkv_bias:
        for layer in range(config.depth):
            name = f"blocks.{layer}.attn.qkv.bias"
            state[name] = torch.zeros(3 * width)
            created[name] = "zeros: the model has no such bias"
        config = config.with_(qkv_bias=True)
    if config.positions == "sincos":
        config = config.with_(positions="learned")
    elif config.positions == "none":
        state["pos_embed"] = torch.zeros(1, config.grid[0] * config.grid[1], width)
        created["pos_embed"] = "zeros: the model has no positions"
        config = config.with_(positions="learned", class_position=False)
    if config.class_position and not config.distillation_token and config.class_token:
        before, state["pos_embed"] = state["pos_embed"].split(
            [config.prefix_tokens, state["pos_embed"].shape[1] - config.prefix_tokens], dim=1
        )
        state["cls_token"] = state["cls_token"] + before[:, :1]
        if config.registers:
            state["reg_token"] = state["reg_token"] + before[:, 1:]
        config = config.with_(class_position=False)
    state[_PROBABILITIES] = torch.zeros(config.query_layers)
    created[_PROBABILITIES] = "zeros: no attention is masked after training"
    state[_CLASS_WEIGHTS] = torch.tensor([1.0] * config.num_classes + [_NO_OBJECT])
    created[_CLASS_WEIGHTS] = "the paper's weights of the classes in the loss"
    return config, state, created


def eomt_json(config: ModelConfig) -> dict[str, Any]:
    """Builds the config.json that transformers reads, without the class names."""
    return {
        "architectures": ["EomtForUniversalSegmentation"],
        "model_type": "eomt",
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "mlp_ratio": _mlp_ratio(config),
        "use_swiglu_ffn": config.activation == "swiglu",
        "hidden_act": "gelu",
        "hidden_dropout_prob": config.dropout,
        "attention_dropout": config.attention_dropout,
        "drop_path_rate": 0.0,
        "layer_norm_eps": config.norm_eps,
        "image_size": config.rows_columns[0],
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "layerscale_value": 1.0,
        "num_register_tokens": config.registers,
        "num_queries": config.queries,
        "num_blocks": config.query_layers,
        "num_upscale_blocks": config.upscale_blocks,
        "no_object_weight": _NO_OBJECT,
    }


def _mlp_ratio(config: ModelConfig) -> int:
    """Returns the whole number from which transformers' Eomt computes the hidden units of its MLPs."""
    for ratio in range(1, 65):
        hidden = ratio * config.width
        if config.activation == "swiglu":
            hidden = 2 * ((int(hidden * 2 / 3) + _SWIGLU_STEP - 1) // _SWIGLU_STEP * _SWIGLU_STEP)
        if hidden == config.mlp_dim:
            return ratio
    raise UserError(
        f"Hugging Face's Eomt cannot express this model: its mlp_dim {config.mlp_dim} follows from no whole multiple "
        f"of its width {config.width}"
    )
