"""Hugging Face folders: ViTForImageClassification, ViTModel and ViTMAE, read and written.

transformers writes the names of its first release to disk whatever its modules are called in memory; both are read,
the names on disk are written. The decoder of a ViTMAE keeps Facebook's names on our side (`decoder_blocks.0...`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from vitrail.checkpoints.formats import Beside, WeightsFormat
from vitrail.checkpoints.preprocessing import SQUASHED
from vitrail.checkpoints.rules import Reading, Rule, Tensors, read, require, same, stacked, write
from vitrail.checkpoints.shapes import count, grid_of, heads_of
from vitrail.checkpoints.told import NOTHING, Told, note_of
from vitrail.config import ModelConfig, Preprocessing, pair
from vitrail.errors import UserError
from vitrail.models.card import Card

PATCHES = "embeddings.patch_embeddings.projection.weight"
DISK = {
    "layers": "encoder.layer",
    "q": "attention.attention.query",
    "k": "attention.attention.key",
    "v": "attention.attention.value",
    "o": "attention.output.dense",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
    "decoder": "decoder.decoder_encoder.layer",
}
MEMORY = {
    "layers": "layers",
    "q": "attention.q_proj",
    "k": "attention.k_proj",
    "v": "attention.v_proj",
    "o": "attention.o_proj",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
    "decoder": "decoder.decoder_layers",
}
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}


class HuggingFace(WeightsFormat):
    endings = ("",)
    preprocessing = SQUASHED
    fills_in = True
    patches = PATCHES

    def recognises(self, tensors: Mapping[str, Tensor]) -> bool:
        return recognises(tensors)

    def read(self, tensors: Mapping[str, Tensor], told: Told, beside: Beside = "nothing") -> Reading:
        return from_huggingface(tensors, told)

    def rules(self, state: Mapping[str, Tensor], config: ModelConfig) -> list[Rule]:
        return target_rules(state, config)

    def documents(
        self, config: ModelConfig, card: Card, preprocessing: Preprocessing, state: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        return {
            "config.json": config_json(config, card, state),
            "preprocessor_config.json": preprocessor_json(preprocessing),
        }


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    return PATCHES in tensors or f"vit.{PATCHES}" in tensors


def facts_of(info: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What config.json says, as fields of ModelConfig; what it leaves out is as transformers' ViTConfig has it."""
    activation, pooler = info.get("hidden_act", "gelu"), info.get("pooler_act", "tanh")
    if activation not in ACTIVATIONS:
        raise UserError(f"config.json: hidden_act {activation!r} is not one of {', '.join(ACTIVATIONS)}")
    if pooler != "tanh" and any(name.endswith("pooler.dense.weight") for name in tensors):
        raise UserError(f"config.json: pooler_act is {pooler!r}; this program's pooler computes tanh only")
    theirs = {
        "width": "hidden_size",
        "depth": "num_hidden_layers",
        "mlp_dim": "intermediate_size",
        "patch_size": "patch_size",
        "channels": "num_channels",
        "qkv_bias": "qkv_bias",
    }
    return {
        **{ours: info[name] for ours, name in theirs.items() if name in info},
        **({"image_size": pair(info["image_size"])} if "image_size" in info else {}),
        "num_heads": info.get("num_attention_heads", 12),
        "activation": ACTIVATIONS[activation],
        "norm_eps": float(info.get("layer_norm_eps", 1e-12)),
    }


def from_huggingface(tensors: Mapping[str, Tensor], told: Told = NOTHING) -> Reading:
    """`told` is what is known beside the tensors: a folder's config.json, or the user's word."""
    notes: list[str] = []
    prefix = "vit." if f"vit.{PATCHES}" in tensors else ""
    names = _names_used(tensors)
    config = _config(tensors, prefix, names, told, notes)
    decoder_depth = count(tensors, names["decoder"].replace(".", r"\.") + r"\.(\d+)\.")
    # A decoder under other names than transformers' (an older release) is left out, and said so below.
    has_decoder = decoder_depth and "decoder.decoder_pred.weight" in tensors
    wanted = list(rules(config, prefix, names, decoder_depth if has_decoder else 0))
    state, origin = read(wanted, tensors, "the Hugging Face folder")
    used = {name for parts in origin.values() for name in parts}
    dropped = {name: "not a part of the model" for name in tensors if name not in used}
    return Reading("huggingface", config, state, origin, dropped, notes)


def to_huggingface(state: Mapping[str, Tensor], config: ModelConfig) -> Tensors:
    return write(target_rules(state, config), state)


def target_rules(state: Mapping[str, Tensor], config: ModelConfig) -> list[Rule]:
    """The rules to write this model by, or a UserError that says what transformers' ViT cannot express."""
    require(
        config,
        "Hugging Face's ViT",
        family="vit",
        stages=None,
        attention="full",
        positions=("learned", "sincos"),
        positions_at="stem",
        class_token=True,
        class_position=True,
        pooling="class",
        registers=0,
        distillation_token=False,
        layer_scale=None,
        activation=("gelu", "gelu_tanh"),
    )
    if config.representation_size and config.num_classes:
        raise UserError(
            "Hugging Face's ViT has a pooler (ViTModel) or a classifier (ViTForImageClassification), not both"
        )
    depth = count(state, r"decoder_blocks\.(\d+)\.")
    prefix = "vit." if config.num_classes or depth else ""
    return list(rules(config, prefix, DISK, depth))


def rules(config: ModelConfig, prefix: str, names: dict[str, str] = DISK, decoder_depth: int = 0) -> Iterator[Rule]:
    yield from _both("patch_embed.proj", f"{prefix}embeddings.patch_embeddings.projection")
    yield same("cls_token", f"{prefix}embeddings.cls_token")
    yield same("pos_embed", f"{prefix}embeddings.position_embeddings")
    for layer in range(config.depth):
        theirs = f"{prefix}{names['layers']}.{layer}"
        yield from _block(f"blocks.{layer}", theirs, names, config.qkv_bias)
    yield from _both("norm", f"{prefix}layernorm")
    if config.representation_size:
        yield from _both("pre_logits.fc", f"{prefix}pooler.dense")
    if config.num_classes:
        yield from _both("head", "classifier")
    if decoder_depth:
        yield from _decoder(names, decoder_depth, config.qkv_bias)


def _block(ours: str, theirs: str, names: dict[str, str], qkv_bias: bool) -> Iterator[Rule]:
    yield from _both(f"{ours}.norm1", f"{theirs}.layernorm_before")
    for kind in ("weight", "bias") if qkv_bias else ("weight",):
        yield stacked(f"{ours}.attn.qkv.{kind}", [f"{theirs}.{names[part]}.{kind}" for part in "qkv"])
    yield from _both(f"{ours}.attn.proj", f"{theirs}.{names['o']}")
    yield from _both(f"{ours}.norm2", f"{theirs}.layernorm_after")
    yield from _both(f"{ours}.mlp.fc1", f"{theirs}.{names['fc1']}")
    yield from _both(f"{ours}.mlp.fc2", f"{theirs}.{names['fc2']}")


def _decoder(names: dict[str, str], depth: int, qkv_bias: bool) -> Iterator[Rule]:
    yield same("mask_token", "decoder.mask_token")
    yield same("decoder_pos_embed", "decoder.decoder_pos_embed")
    for part in ("decoder_embed", "decoder_norm", "decoder_pred"):
        yield from _both(part, f"decoder.{part}")
    for layer in range(depth):
        yield from _block(f"decoder_blocks.{layer}", f"{names['decoder']}.{layer}", names, qkv_bias)


def _both(native: str, foreign: str) -> Iterator[Rule]:
    yield same(f"{native}.weight", f"{foreign}.weight")
    yield same(f"{native}.bias", f"{foreign}.bias")


def _names_used(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    return DISK if any(".attention.attention.query." in name for name in tensors) else MEMORY


def _config(
    tensors: Mapping[str, Tensor], prefix: str, names: dict[str, str], told: Told, notes: list[str]
) -> ModelConfig:
    projection = tensors[f"{prefix}{PATCHES}"]
    layers = f"{prefix}{names['layers']}"
    depth = count(tensors, layers.replace(".", r"\.") + r"\.(\d+)\.")
    hidden = tensors.get(f"{layers}.0.{names['fc1']}.weight")
    if not depth or hidden is None or projection.ndim != 4:
        raise UserError("there is Hugging Face's patch projection but no whole encoder layer of its ViT")
    if f"{prefix}embeddings.cls_token" not in tensors:
        raise UserError(
            "this is I-JEPA or its kin: under Hugging Face's names, without the class token that its ViT has"
        )
    width, channels, patch_size = projection.shape[:3]
    size, class_position = grid_of(tensors.get(f"{prefix}embeddings.position_embeddings"), 1, patch_size, told)
    heads, assumed = heads_of(width, depth, told)
    pooler = tensors.get(f"{prefix}pooler.dense.bias")
    notes += note_of(
        [
            *([f"{heads} heads"] if assumed else []),
            *([] if told.get("activation") else ["exact GELU"]),
            *([] if told.get("norm_eps") else ["LayerNorm eps 1e-12"]),
        ]
    )
    return ModelConfig(
        name=told.name,
        image_size=size,
        channels=channels,
        patch_size=patch_size,
        width=width,
        depth=depth,
        num_heads=heads,
        mlp_dim=hidden.shape[0],
        num_classes=tensors["classifier.bias"].shape[0] if "classifier.bias" in tensors else 0,
        class_position=class_position,
        representation_size=pooler.shape[0] if pooler is not None else 0,
        interpolation="huggingface",
        activation=told.get("activation") or "gelu",
        norm_eps=told.get("norm_eps") or 1e-12,
        qkv_bias=f"{layers}.0.{names['q']}.bias" in tensors,
    )


def config_json(config: ModelConfig, card: Card, state: Mapping[str, Tensor]) -> dict[str, Any]:
    """config.json as transformers reads it."""
    rows, columns = config.rows_columns
    names = card.label_names
    described = [card.label_descriptions.get(name, name) for name in names]
    # transformers keys labels by text: where two descriptions are equal the names tell them apart.
    labels = described if len(set(described)) == len(described) else list(names)
    document: dict[str, Any] = {
        "architectures": ["ViTForImageClassification" if config.num_classes else "ViTModel"],
        "model_type": "vit",
        "hidden_size": config.width,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": "gelu_pytorch_tanh" if config.activation == "gelu_tanh" else "gelu",
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": config.attention_dropout,
        "layer_norm_eps": config.norm_eps,
        "image_size": rows if rows == columns else [rows, columns],
        "patch_size": config.patch_size,
        "num_channels": config.channels,
        "qkv_bias": config.qkv_bias,
        "pooler_act": "tanh",
        "pooler_output_size": config.representation_size or config.width,
    }
    if config.num_classes:
        labels = labels or [f"LABEL_{index}" for index in range(config.num_classes)]
        document["id2label"] = {str(index): label for index, label in enumerate(labels)}
        document["label2id"] = {label: index for index, label in enumerate(labels)}
    if "decoder_pred.weight" in state:
        document |= _decoder_json(state)
    return document


def _decoder_json(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """A masked autoencoder's decoder; its heads leave no trace in the tensors, the published ones have 16."""
    width = state["decoder_embed.weight"].shape[0]
    return {
        "architectures": ["ViTMAEForPreTraining"],
        "model_type": "vit_mae",
        "decoder_hidden_size": width,
        "decoder_num_hidden_layers": count(state, r"decoder_blocks\.(\d+)\."),
        "decoder_num_attention_heads": 16 if width % 16 == 0 else 1,
        "decoder_intermediate_size": state["decoder_blocks.0.mlp.fc1.weight"].shape[0],
    }


def labels_from(info: dict[str, Any]) -> tuple[str, ...]:
    """Class names in order from id2label; transformers' placeholders (LABEL_0 ...) are none."""
    table = info.get("id2label") or {}
    if not isinstance(table, dict):
        raise UserError("config.json: id2label must map numbers to names")
    try:
        ordered = [str(table[key]) for key in sorted(table, key=int)]
    except (TypeError, ValueError) as error:
        raise UserError("config.json: id2label must map numbers to names") from error
    if all(label == f"LABEL_{index}" for index, label in enumerate(ordered)):
        return ()
    # ImageNet has two cranes: names must tell classes apart, so the second one gets its number.
    return tuple(label if label not in ordered[:index] else f"{label} ({index})" for index, label in enumerate(ordered))


def preprocessing_from(info: dict[str, Any]) -> Preprocessing:
    """From preprocessor_config.json: a plain resize, or a resize of the shorter side and a centre crop."""
    size = info.get("size", 224)
    common: dict[str, Any] = {
        "mean": tuple(info.get("image_mean", (0.5, 0.5, 0.5))),
        "std": tuple(info.get("image_std", (0.5, 0.5, 0.5))),
        "resample": RESAMPLE.get(info.get("resample", 2), "bilinear"),
    }
    if info.get("do_center_crop"):
        crop = _edges(info.get("crop_size", size))
        shorter = size["shortest_edge"] if isinstance(size, dict) and "shortest_edge" in size else min(_edges(size))
        return Preprocessing(image_size=crop, crop="center", crop_fraction=min(1.0, min(crop) / shorter), **common)
    return Preprocessing(image_size=_edges(size), crop="squash", crop_fraction=1.0, **common)


def preprocessor_json(preprocessing: Preprocessing) -> dict[str, Any]:
    rows, columns = preprocessing.rows_columns
    resample = {name: number for number, name in RESAMPLE.items()}[preprocessing.resample]
    document: dict[str, Any] = {
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(preprocessing.mean),
        "image_std": list(preprocessing.std),
        "do_resize": True,
        "resample": resample,
    }
    if preprocessing.crop == "squash":
        return {
            "image_processor_type": "ViTImageProcessor",
            **document,
            "size": {"height": rows, "width": columns},
        }
    return {
        "image_processor_type": "BitImageProcessor",
        **document,
        "size": {"shortest_edge": int(min(rows, columns) / preprocessing.crop_fraction)},
        "do_center_crop": True,
        "crop_size": {"height": rows, "width": columns},
    }


def _edges(size: Any) -> tuple[int, int]:
    if isinstance(size, dict):
        if "height" in size and "width" in size:
            return int(size["height"]), int(size["width"])
        return pair(int(size.get("shortest_edge", 224)))
    return pair(size)
