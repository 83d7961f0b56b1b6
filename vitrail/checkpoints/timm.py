"""timm's files and folders, read and written. DeiT, MAE, DINO, DINOv2 and this program use timm's tensor names too.

So little needs translating: the prefixes of training checkpoints, DINOv2's names of registers and SwiGLU, a BiT head
stored as a 1 x 1 convolution. `describe` finds the arguments by which `timm.create_model` builds the same model.
"""

import re
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any

from torch import Tensor

from vitrail.checkpoints.declared_config import NOTHING, Declared, note_of
from vitrail.checkpoints.files import TORCH_SUFFIXES
from vitrail.checkpoints.formats import Beside, WeightsFormat
from vitrail.checkpoints.name_maps import Reading, Rule, Tensors, read_by_rules, same, through, write_by_rules
from vitrail.checkpoints.preprocessing import NAMED
from vitrail.checkpoints.shapes import count, grid_of, heads_of
from vitrail.config import Interpolation, ModelConfig, Preprocessing
from vitrail.errors import UserError
from vitrail.models.build import build
from vitrail.models.card import Card

PREFIXES = ("module.", "model.", "_orig_mod.", "backbone.", "encoder.", "timm_model.")
"""Prefixes that wrappers in training code give to all names."""
PATCHES = "patch_embed.proj.weight"
"""The name of a ViT's patch projection, by which the format is recognised."""
DECODER = ("decoder_", "mask_token")
"""The beginnings of names in a masked autoencoder's decoder."""
# (width, depth) -> the size in timm's names of plain ViTs.
_SIZES = {(192, 12): "tiny", (384, 12): "small", (768, 12): "base", (1024, 24): "large", (1280, 32): "huge"}
# (residual units of each stage, width factor) -> timm's BiT ResNet.
_RESNETS: dict[tuple[tuple[int, ...], int], str] = {
    ((3, 4, 6, 3), 1): "resnetv2_50x1_bit",
    ((3, 4, 6, 3), 3): "resnetv2_50x3_bit",
    ((3, 4, 23, 3), 1): "resnetv2_101x1_bit",
    ((3, 4, 23, 3), 3): "resnetv2_101x3_bit",
    ((3, 8, 36, 3), 2): "resnetv2_152x2_bit",
    ((3, 8, 36, 3), 4): "resnetv2_152x4_bit",
}
# Residual units of each stage of the stem -> a timm hybrid with that stem.
HYBRIDS: dict[tuple[int, ...], str] = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}


class Timm(WeightsFormat):
    """The format "timm"."""

    endings = ("", ".safetensors", *TORCH_SUFFIXES)
    preprocessing = MappingProxyType(NAMED["imagenet"])
    patches = PATCHES

    def recognises(self, tensors: Mapping[str, Tensor]) -> bool:
        return recognises(tensors)

    def read(self, tensors: Mapping[str, Tensor], told: Declared, beside: Beside = "nothing") -> Reading:
        # A file of this program may hold a model whose kind no tensor shows (relative positions, axial blocks): then
        # the header's configuration is taken as it is.
        if beside == "header" and told.config:
            return reading_for(told.config, tensors, "timm")
        return from_timm(tensors, told, folder=beside == "folder")

    def rules(self, state: Mapping[str, Tensor], config: ModelConfig) -> list[Rule]:
        return target_rules(state, config)

    def documents(
        self, config: ModelConfig, card: Card, preprocessing: Preprocessing, state: Mapping[str, Tensor]
    ) -> dict[str, Any]:
        describe_model(config)  # raises if timm cannot build the model: such a folder would be of no use
        document = {
            **model_config_json(config),
            "num_classes": config.num_classes,
            "num_features": config.width,
            "pretrained_cfg": pretrained_config(config, preprocessing),
        }
        if card.label_names and config.num_classes:
            document["label_names"] = list(card.label_names)
            document["label_descriptions"] = card.label_descriptions
        return {"config.json": document}


def recognises(tensors: Mapping[str, Tensor]) -> bool:
    """Tells whether the tensors have timm's names, by the patch projection of a ViT or the stem of a ResNet."""
    return any(name.endswith((PATCHES, "stem.conv.weight")) for name in tensors)


def from_timm(tensors: Mapping[str, Tensor], told: Declared = NOTHING, folder: bool = False) -> Reading:
    """Translates tensors under timm's names.

    Args:
        tensors: The tensors by their names in the file.
        told: What is known besides them.
        folder: Whether they came with a timm folder's config.json.

    Raises:
        UserError: If they make no whole model, or may belong to a family that this program does not run.
    """
    notes: list[str] = []
    full_names = _stripped(tensors)
    tensors = {short: tensors[name] for short, name in full_names.items()}
    tensors, full_names = _fold_dinov2(tensors, full_names, notes)
    if "patch_embed.proj.weight" not in tensors:
        config = _resnet_config(tensors, told)
    else:
        config = _config(tensors, told, folder, notes)
    decoder = [name for name in tensors if name.startswith(DECODER)]
    state, origin = read_by_rules([*rules(config), *(same(name, name) for name in decoder)], tensors, "the file")
    used = {name for names in origin.values() for name in names}
    dropped = {full_names[name]: _why(name) for name in tensors if name not in used}
    origin = {native: tuple(full_names[name] for name in names) for native, names in origin.items()}
    return Reading("timm", config, state, origin, dropped, notes)


def reading_for(config: ModelConfig, tensors: Mapping[str, Tensor], kind: str) -> Reading:
    """Translates tensors under timm's names by a known configuration, from a bundle or from the header of a file.

    kind: the name of the format for the result. Raises UserError if a tensor is missing.
    """
    state, origin = read_by_rules(target_rules(tensors, config), tensors, "the weights file")
    used = {name for names in origin.values() for name in names}
    dropped = {name: "not a part of the model" for name in tensors if name not in used}
    return Reading(kind, config, state, origin, dropped)


def to_timm(state: Mapping[str, Tensor], config: ModelConfig) -> Tensors:
    """Translates a model's tensors to timm's names. Whether timm can build the model is checked by `describe` alone."""
    return write_by_rules(target_rules(state, config), state)


def target_rules(state: Mapping[str, Tensor], config: ModelConfig) -> list[Rule]:
    """Returns the rules by which this model is written, with those of a decoder among its tensors."""
    decoder = [name for name in state if name.startswith(DECODER)]
    return [*rules(config), *(same(name, name) for name in decoder)]


def rules(config: ModelConfig) -> Iterator[Rule]:
    """Yields a rule for every tensor of the model."""
    for name in build(config, "meta").state_dict():
        if config.family == "resnet" and name == "head.weight":
            yield through(name, "head.fc.weight", lambda t: t.flatten(1), lambda t: t[:, :, None, None])
        elif config.family == "resnet" and name == "head.bias":
            yield same(name, "head.fc.bias")
        else:
            yield same(name, name)


def describe_model(config: ModelConfig) -> tuple[str, dict[str, Any]]:
    """Finds the architecture and the arguments by which `timm.create_model` builds this model.

    Raises UserError, which names the field, if timm cannot express the model.
    """
    if config.family == "resnet":
        return _describe_resnet(config)
    limits: dict[str, tuple[Any, ...]] = {
        "attention": ("full",),
        "positions": ("learned", "sincos", "none"),
        "positions_at": ("stem",),
        "representation_size": (0,),
        "stem": ("bottleneck",),
        "pooling": ("class", "average"),
        "stem_arithmetic": ("timm",) if config.stages is not None else ("official", "timm"),
    }
    for name, allowed in limits.items():
        if getattr(config, name) not in allowed:
            raise UserError(f"timm cannot express this model: {name} is {getattr(config, name)!r}")
    if config.norm_eps > 1e-5:
        raise UserError(f"timm cannot express this model: its norm_eps is 1e-06, not {config.norm_eps}")
    arguments: dict[str, Any] = {
        "img_size": list(config.rows_columns),
        "patch_size": config.patch_size,
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": config.mlp_dim / config.width,
        "qkv_bias": config.qkv_bias,
        "init_values": config.layer_scale,
        "class_token": config.class_token,
        "no_embed_class": not config.class_position,
        "reg_tokens": config.registers,
        "global_pool": "token" if config.pooling == "class" else "avg",
        "fc_norm": config.norm_after_pooling,
    }
    if config.positions == "none":
        arguments["pos_embed"] = "none"
    if config.activation == "gelu_tanh":
        arguments["act_layer"] = "gelu_tanh"
    if int(config.width * arguments["mlp_ratio"]) != config.mlp_dim:
        raise UserError(f"timm cannot express mlp_dim {config.mlp_dim} as a multiple of width {config.width}")
    if config.distillation_token:
        if config.layer_scale is not None or config.registers or not config.class_position:
            raise UserError("timm cannot express a distillation token with registers or LayerScale")
        for unknown in ("class_token", "no_embed_class", "reg_tokens", "fc_norm"):
            del arguments[unknown]
        return "deit_base_distilled_patch16_224", arguments
    if config.activation == "swiglu":
        return "vit_giant_patch14_dinov2", arguments
    if config.stages is not None:
        if config.stages not in HYBRIDS or config.stem_width != 64:
            raise UserError(f"timm has no hybrid with stages {config.stages} and a stem of {config.stem_width}")
        return HYBRIDS[config.stages], arguments
    return _plain_name(config), arguments


def model_config_json(config: ModelConfig) -> dict[str, Any]:
    """Returns the part of config.json by which timm builds the model; {} if timm cannot express it."""
    try:
        architecture, arguments = describe_model(config)
    except UserError:
        return {}
    return {"architecture": architecture, "model_args": arguments}


def pretrained_config(config: ModelConfig, preprocessing: Preprocessing) -> dict[str, Any]:
    """Returns `pretrained_cfg`, the part of config.json with the preprocessing and the names of the outer layers."""
    resnet, stem = config.family == "resnet", config.stages is not None
    first = "patch_embed.proj" if not stem else "patch_embed.backbone.stem.conv"
    if stem and not config.stages:
        first = "patch_embed.backbone.conv"
    return {
        "input_size": [config.channels, *preprocessing.rows_columns],
        "fixed_input_size": not resnet,
        "interpolation": preprocessing.resample,
        "crop_pct": 1.0 if preprocessing.crop == "squash" else preprocessing.crop_fraction,
        "crop_mode": preprocessing.crop,
        "mean": list(preprocessing.mean),
        "std": list(preprocessing.std),
        "num_classes": config.num_classes,
        "first_conv": "stem.conv" if resnet else first,
        "classifier": "head.fc" if resnet else "head",
    }


def preprocessing_from(info: dict[str, Any]) -> Preprocessing | None:
    """Reads the preprocessing from `pretrained_cfg` in a timm folder's config.json; None if it states none."""
    facts = info.get("pretrained_cfg")
    if not isinstance(facts, dict) or "mean" not in facts:
        return None
    if facts.get("crop_mode", "center") not in ("center", "squash"):
        raise UserError(f"config.json: crop_mode {facts['crop_mode']!r} is not known; center and squash are")
    return Preprocessing(
        image_size=tuple(facts.get("input_size", (3, 224, 224))[1:]),  # pyright: ignore[reportArgumentType]
        mean=tuple(facts["mean"]),
        std=tuple(facts["std"]),
        resample=facts.get("interpolation", "bicubic"),
        crop=facts.get("crop_mode", "center"),
        crop_fraction=float(facts.get("crop_pct", 0.875)),
    )


def _plain_name(config: ModelConfig) -> str:
    """Returns timm's architecture that is nearest in size. The arguments override its sizes, so any plain one would
    do."""
    size = _SIZES.get((config.width, config.depth), "base")
    patch = {"huge": 14, "tiny": 16}.get(size, config.patch_size if config.patch_size in (16, 32) else 16)
    return f"vit_{size}_patch{patch}_224"


def _describe_resnet(config: ModelConfig) -> tuple[str, dict[str, Any]]:
    factor = config.stem_width // 64
    if config.stem_arithmetic != "timm":
        raise UserError("timm cannot express this model: stem_arithmetic is 'official'")
    name = _RESNETS.get((config.stages or (), factor))
    if name is None:
        raise UserError(f"timm has no BiT ResNet with stages {config.stages} and width factor {factor}")
    return name, {"in_chans": config.channels}


def _stripped(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """Returns each name without the prefixes of training code, and the full name that belongs to it."""
    names = {name: name for name in tensors}
    again = True
    while again:
        again = False
        for prefix in PREFIXES:
            if any(short == prefix + PATCHES or short.startswith(prefix + "patch_embed.") for short in names):
                names = {short.removeprefix(prefix): name for short, name in names.items()}
                again = True
    return names


def _fold_dinov2(tensors: Tensors, full_names: dict[str, str], notes: list[str]) -> tuple[Tensors, dict[str, str]]:
    """Translates the names of DINOv2's own files to timm's: registers, SwiGLU, and blocks grouped in chunks.

    In DINOv2 the class token has a position embedding and the registers have none. A ModelConfig has positions for all
    of these or for none, so the class token's position is added to the class token itself, which gives the same sum.

    Args:
        tensors: The tensors by short name.
        full_names: The name in the file, by short name.
        notes: A note is added if a position was folded.

    Returns:
        `tensors` and `full_names` with the new names.
    """
    renamed = {}
    for name, tensor in tensors.items():
        new = re.sub(r"^blocks\.\d+\.(\d+)\.(?=norm|attn|ls|mlp)", r"blocks.\1.", name)
        new = new.replace(".mlp.w12.", ".mlp.fc1.").replace(".mlp.w3.", ".mlp.fc2.")
        new = "reg_token" if new == "register_tokens" else new
        full_names = {**full_names, new: full_names[name]} if new != name else full_names
        renamed[new] = tensor
    if "register_tokens" in tensors and "cls_token" in renamed and "pos_embed" in renamed:
        positions = renamed["pos_embed"]
        renamed["cls_token"] = renamed["cls_token"] + positions[:, :1]
        renamed["pos_embed"] = positions[:, 1:]
        notes.append("the class token's position was added to the class token, as registers have none")
    return renamed, full_names


def _why(name: str) -> str:
    """Returns the reason why a tensor is not used."""
    if name.startswith("head."):
        return "a projection head used in pre-training only"
    return "not a part of the model"


def _resnet_config(tensors: Mapping[str, Tensor], told: Declared) -> ModelConfig:
    """Finds the configuration of a BiT ResNet from names and shapes. Raises UserError if it has no stages."""
    root = tensors["stem.conv.weight"]
    stages = tuple(
        count(tensors, rf"stages\.{stage}\.blocks\.(\d+)\.") for stage in range(count(tensors, r"stages\.(\d+)\."))
    )
    if not stages or root.ndim != 4:
        raise UserError("the file has a ResNet's root but no stage")
    factor = root.shape[0] // 64
    return ModelConfig(
        name=told.name,
        family="resnet",
        image_size=told.config.image_size if told.config else 224,
        channels=root.shape[1],
        stages=stages,
        stem_width=root.shape[0],
        stem_arithmetic="timm",
        width=2048 * max(factor, 1),
        depth=sum(stages),
        num_heads=1,
        mlp_dim=1,
        patch_size=1,
        num_classes=tensors["head.fc.bias"].shape[0] if "head.fc.bias" in tensors else 0,
        positions="none",
        class_token=False,
        pooling="average",
    )


def _config(tensors: Mapping[str, Tensor], told: Declared, folder: bool, notes: list[str]) -> ModelConfig:
    """Finds the configuration of a ViT or hybrid from what is known, names and shapes; adds a note on what had to be
    assumed.

    folder: whether the tensors came with timm's config.json. Raises UserError if there is no whole block, or if the
    tensors may be those of a model that this program does not run.
    """
    projection, depth = tensors[PATCHES], count(tensors, r"blocks\.(\d+)\.")
    first, second = tensors.get("blocks.0.mlp.fc1.weight"), tensors.get("blocks.0.mlp.fc2.weight")
    if not depth or first is None or second is None or projection.ndim != 4 or first.ndim != 2 or second.ndim != 2:
        raise UserError("the file has a patch projection but no whole Transformer block")
    width, patch_size = projection.shape[0], projection.shape[2]
    stages, stem_width, channels = _stem(tensors, projection.shape[1])
    registers = tensors["reg_token"].shape[1] if "reg_token" in tensors else 0
    class_token, distilled = "cls_token" in tensors, "dist_token" in tensors
    stride = ModelConfig(patch_size=1, stages=stages, image_size=1024).stem_stride
    positions = tensors.get("pos_embed")
    prefix = int(class_token) + int(distilled) + registers
    size, class_position = grid_of(positions, prefix, patch_size * stride, told)
    after, scaled = "fc_norm.weight" in tensors, "blocks.0.ls1.gamma" in tensors
    if positions is None and told.get("positions") != "none":
        raise UserError(
            "the file has no positions: a ViT with rotary or relative ones, which this program's has not; if it has "
            "none at all, say so (--model positions=none)"
        )
    if after and not (class_token or registers or scaled or told.named):
        raise UserError(
            "the file may be a post-norm ViT (timm's vit_base_patch16_rpn_224 has the same names), which this "
            "program's is not; if it is pre-norm, say which model it is (--model NAME, or fields: --model num_heads=12)"
        )
    gated = second.shape[1] * 2 == first.shape[0]
    heads, assumed = heads_of(width, depth, told, gated)
    pooling = told.get("pooling") or ("average" if after or not class_token else "class")
    activation = "swiglu" if gated else told.get("activation") or "gelu"
    notes += note_of(
        [
            *([f"{heads} heads"] if assumed else []),
            *([] if gated or told.get("activation") else ["exact GELU"]),
            *([] if after or told.get("pooling") else [f"pooling {pooling}"]),
            *([] if told.get("norm_eps") else ["LayerNorm before each part, eps 1e-06"]),
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
        mlp_dim=first.shape[0],
        num_classes=_classes(tensors),
        stages=stages,
        stem_width=stem_width,
        stem_arithmetic="timm",
        positions="none" if positions is None else "learned",
        interpolation=_convention(tensors, folder),
        class_token=class_token,
        class_position=class_position,
        distillation_token=distilled,
        registers=registers,
        pooling=pooling,
        norm_after_pooling=after,
        representation_size=tensors["pre_logits.fc.bias"].shape[0] if "pre_logits.fc.bias" in tensors else 0,
        activation=activation,
        norm_eps=told.get("norm_eps") or 1e-6,
        qkv_bias="blocks.0.attn.qkv.bias" in tensors,
        layer_scale=1e-5 if scaled else None,
    )


def _convention(tensors: Mapping[str, Tensor], folder: bool) -> Interpolation:
    """Returns the convention by which the model's authors interpolate positions.

    A file with a mask token is MAE's if it has a decoder too, else DINOv2's. Other files and timm folders are timm's.
    """
    if folder or "mask_token" not in tensors:
        return "timm"
    return "huggingface" if any(name.startswith("decoder_") for name in tensors) else "dinov2"


def _classes(tensors: Mapping[str, Tensor]) -> int:
    """Returns the number of classes of a linear head, 0 if there is none (a projection head has no `head.bias`)."""
    head = tensors.get("head.weight")
    return head.shape[0] if head is not None and head.ndim == 2 and "head.bias" in tensors else 0


def _stem(tensors: Mapping[str, Tensor], channels: int) -> tuple[tuple[int, ...] | None, int, int]:
    """Finds the convolutional stem of a hybrid.

    channels: the input channels of the patch projection, which in a plain ViT are those of the image.

    Returns (residual units of each stage, stem width, image channels); the first is None for a plain ViT.
    """
    backbone = "patch_embed.backbone."
    for root, stages in ((f"{backbone}conv.weight", ()), (f"{backbone}stem.conv.weight", None)):
        if root in tensors:
            if stages is None:
                found = count(tensors, r"patch_embed\.backbone\.stages\.(\d+)\.")
                if found > 4:
                    raise UserError(f"the file has a stem of {found} stages; there are at most four")
                stages = tuple(
                    count(tensors, rf"patch_embed\.backbone\.stages\.{stage}\.blocks\.(\d+)\.")
                    for stage in range(found)
                )
            return stages, tensors[root].shape[0], tensors[root].shape[1]
    return None, 64, channels
