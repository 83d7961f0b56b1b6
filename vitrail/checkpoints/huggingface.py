"""Hugging Face folders: ViTForImageClassification, ViTModel, ViTMAE and Eomt (`eomt.py`), read and written.

transformers writes tensors to disk under the names of its first release, whatever its modules are called in memory.
Both sets of names are read; those on disk are written. In this program, the decoder of a ViTMAE has the names of
Facebook's code (`decoder_blocks.0...`).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from torch import Tensor

from vitrail.checkpoints import eomt
from vitrail.checkpoints.declared_config import NOTHING, Declared, note_of
from vitrail.checkpoints.formats import Beside, WeightsFormat
from vitrail.checkpoints.name_maps import Reading, Rule, read_by_rules, require, same, stacked
from vitrail.checkpoints.preprocessing import SQUASHED
from vitrail.checkpoints.shapes import count, grid_of, heads_of
from vitrail.config import ModelConfig, Preprocessing, pair
from vitrail.errors import UserError
from vitrail.models.card import Card

PATCHES = "embeddings.patch_embeddings.projection.weight"
"""The name of the patch projection, by which the format is recognised; models with a head have `vit.` before it."""
# The names of a layer's parts, on disk and in memory.
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
# transformers' hidden_act -> ModelConfig.activation.
_ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}
_RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "box", 5: "hamming"}
"""Pillow's numbers of resampling filters, as preprocessor_config.json has them, and their names."""


class HuggingFace(WeightsFormat):
    """The format "huggingface"."""

    endings = ("",)
    preprocessing = SQUASHED
    fills_in = True
    patches = PATCHES

    def recognises(self, tensors: Mapping[str, Tensor]) -> bool:
        return recognises(tensors)

    def read(self, tensors: Mapping[str, Tensor], told: Declared, beside: Beside = "nothing") -> Reading:
        return eomt.from_eomt(tensors, told) if eomt.has_queries(tensors) else from_huggingface(tensors, told)

    def rules(self, state: Mapping[str, Tensor], config: ModelConfig) -> list[Rule]:
        return eomt.written_rules(config) if config.query_tokens else target_rules(state, config)

    def documents(
        self, config: ModelConfig, card: Card, preprocessing: Preprocessing, state: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        return {
            "config.json": config_json(config, card, state),
            "preprocessor_config.json": preprocessor_json(preprocessing),
        }


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    """Tells whether the tensors have the names of transformers' ViT, by its patch projection."""
    return PATCHES in tensors or f"vit.{PATCHES}" in tensors


def huggingface_fields(info: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """Translates a folder's config.json to fields of ModelConfig; what it leaves out has the default of ViTConfig.

    Raises UserError if its activation or its pooler is one that this program does not compute.
    """
    if eomt.has_queries(tensors):
        return eomt.eomt_fields(info)
    activation, pooler = info.get("hidden_act", "gelu"), info.get("pooler_act", "tanh")
    if activation not in _ACTIVATIONS:
        raise UserError(f"config.json: hidden_act {activation!r} is not one of {', '.join(_ACTIVATIONS)}")
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
        "activation": _ACTIVATIONS[activation],
        "norm_eps": float(info.get("layer_norm_eps", 1e-12)),
    }


def from_huggingface(tensors: Mapping[str, Tensor], told: Declared = NOTHING) -> Reading:
    """Translates the tensors of a Hugging Face folder.

    told: what is known besides the tensors: from the folder's config.json or from the user. Raises UserError if the
    tensors make no whole ViT.
    """
    notes: list[str] = []
    prefix = "vit." if f"vit.{PATCHES}" in tensors else ""
    names = _names_used(tensors)
    config = _config(tensors, prefix, names, told, notes)
    decoder_depth = count(tensors, names["decoder"].replace(".", r"\.") + r"\.(\d+)\.")
    # A decoder under names of another release of transformers is left out, and listed as dropped below.
    has_decoder = decoder_depth and "decoder.decoder_pred.weight" in tensors
    wanted = list(rules(config, prefix, names, decoder_depth if has_decoder else 0))
    state, origin = read_by_rules(wanted, tensors, "the Hugging Face folder")
    used = {name for parts in origin.values() for name in parts}
    dropped = {name: "not a part of the model" for name in tensors if name not in used}
    return Reading("huggingface", config, state, origin, dropped, notes)


def target_rules(state: Mapping[str, Tensor], config: ModelConfig) -> list[Rule]:
    """Returns the rules by which this model is written. Raises UserError if transformers' ViT cannot express it."""
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
    """Yields a rule for every tensor of the model.

    Args:
        config: The model.
        prefix: The prefix of all foreign names of the encoder: "vit." in a model with a head, else "".
        names: The names of a layer's parts, `DISK` or `MEMORY`.
        decoder_depth: The number of layers of a masked autoencoder's decoder; 0 for none.
    """
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
    """Returns the set of names that the tensors have, `DISK` or `MEMORY`."""
    return DISK if any(".attention.attention.query." in name for name in tensors) else MEMORY


def _config(
    tensors: Mapping[str, Tensor], prefix: str, names: dict[str, str], told: Declared, notes: list[str]
) -> ModelConfig:
    """Finds the configuration from what is known, names and shapes; adds a note on what had to be assumed.

    Raises UserError if there is no whole layer or no class token.
    """
    projection = tensors[f"{prefix}{PATCHES}"]
    layers = f"{prefix}{names['layers']}"
    depth = count(tensors, layers.replace(".", r"\.") + r"\.(\d+)\.")
    hidden = tensors.get(f"{layers}.0.{names['fc1']}.weight")
    if not depth or hidden is None or projection.ndim != 4:
        raise UserError("there is Hugging Face's patch projection but no whole encoder layer of its ViT")
    if f"{prefix}embeddings.cls_token" not in tensors:
        raise UserError("this is I-JEPA or a similar model: it has Hugging Face's names for a ViT, but no class token")
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
    """Builds the config.json that transformers reads. state: the tensors, which show whether there is a decoder."""
    document = eomt.eomt_json(config) if config.query_tokens else _vit_json(config)
    if config.num_classes:
        labels = _labels(card) or [f"LABEL_{index}" for index in range(config.num_classes)]
        document["id2label"] = {str(index): label for index, label in enumerate(labels)}
        document["label2id"] = {label: index for index, label in enumerate(labels)}
    if "decoder_pred.weight" in state:
        document |= _decoder_json(state)
    return document


def _labels(card: Card) -> list[str]:
    """Returns what config.json calls the classes. transformers maps labels to numbers, so labels must differ: they are
    the names if two descriptions are equal."""
    names = card.label_names
    described = [card.label_descriptions.get(name, name) for name in names]
    return described if len(set(described)) == len(described) else list(names)


def _vit_json(config: ModelConfig) -> dict[str, Any]:
    """Builds the fields of config.json for a ViT, without the class names."""
    rows, columns = config.rows_columns
    return {
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


def _decoder_json(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """Builds the fields of config.json for a masked autoencoder with its decoder.

    The tensors do not show the decoder's number of heads; published ones have 16.
    """
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
    """Reads the class names, in order, from the `id2label` of a config.json; () if it has only the placeholders of
    transformers (LABEL_0, LABEL_1 ...). Raises UserError if it is malformed."""
    table = info.get("id2label") or {}
    if not isinstance(table, dict):
        raise UserError("config.json: id2label must map numbers to names")
    try:
        ordered = [str(table[key]) for key in sorted(table, key=int)]
    except (TypeError, ValueError) as error:
        raise UserError("config.json: id2label must map numbers to names") from error
    if all(label == f"LABEL_{index}" for index, label in enumerate(ordered)):
        return ()
    # Names must differ, but ImageNet has two classes "crane": a repeated name gets its index appended.
    return tuple(label if label not in ordered[:index] else f"{label} ({index})" for index, label in enumerate(ordered))


def preprocessing_from(info: dict[str, Any]) -> Preprocessing:
    """Translates a preprocessor_config.json, which states either a resize to the given size, or a resize of the shorter
    side and then a centre crop."""
    size = info.get("size", 224)
    common: dict[str, Any] = {
        "mean": tuple(info.get("image_mean", (0.5, 0.5, 0.5))),
        "std": tuple(info.get("image_std", (0.5, 0.5, 0.5))),
        "resample": _RESAMPLE.get(info.get("resample", 2), "bilinear"),
    }
    if info.get("do_center_crop"):
        crop = _edges(info.get("crop_size", size))
        shorter = size["shortest_edge"] if isinstance(size, dict) and "shortest_edge" in size else min(_edges(size))
        return Preprocessing(image_size=crop, crop="center", crop_fraction=min(1.0, min(crop) / shorter), **common)
    return Preprocessing(image_size=_edges(size), crop="squash", crop_fraction=1.0, **common)


def notes_on_preprocessing(info: dict[str, Any]) -> list[str]:
    """Returns a warning if a preprocessor_config.json asks for what this program does not do."""
    asked = [name for name in ("do_split_image", "do_pad") if info.get(name)]
    if not asked:
        return []
    note = (
        f"WARNING: preprocessor_config.json says {' and '.join(asked)}: there a picture is cut into parts or padded, "
        "here it is resized as a whole, so results will differ a little"
    )
    return [note]


def preprocessor_json(preprocessing: Preprocessing) -> dict[str, Any]:
    """Builds the preprocessor_config.json that transformers reads."""
    rows, columns = preprocessing.rows_columns
    resample = {name: number for number, name in _RESAMPLE.items()}[preprocessing.resample]
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
    """Reads (rows, columns) from any of the forms in which transformers states a size."""
    if isinstance(size, dict):
        if "height" in size and "width" in size:
            return int(size["height"]), int(size["width"])
        return pair(int(size.get("shortest_edge", 224)))
    return pair(size)
