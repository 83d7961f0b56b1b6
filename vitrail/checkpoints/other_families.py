"""Families of models that this program does not run, recognised by their tensors or by Hugging Face's `model_type`, so
that the error message can name the family and what it has that a ViT lacks."""

import re
from collections.abc import Iterable
from typing import Any

from vitrail.errors import UserError

# (pattern of a tensor's name, the family that has such a tensor, what that family has and this program's ViT lacks).
# The first pattern that is found decides.
SIGNS: tuple[tuple[str, str, str], ...] = (
    (r"visual\.class_embedding$", "CLIP as OpenAI and OpenCLIP write it", "a LayerNorm before the first layer"),
    (r"head\.probe$", "SigLIP", "attention pooling"),
    (r"pre_layrnorm\.weight$", "CLIP", "a LayerNorm before the first layer, and QuickGELU in most of its models"),
    (r"layer_scale1\.lambda1$", "Hugging Face's DINOv2 or DINOv3", "LayerScale under names of its own"),
    (r"embeddings\.distillation_token$", "Hugging Face's DeiT", "a distillation token under names of its own"),
    (r"embeddings\.detection_tokens$", "YOLOS", "detection tokens"),
    (r"\.lambda_1$", "Hugging Face's BEiT or Data2Vec", "relative positions, and LayerScale under names of its own"),
    (r"embeddings\.mask_token$", "Hugging Face's ViTForMaskedImageModeling", "a mask token and a decoder of pixels"),
    (r"layers\.\d+\.blocks\.\d+\.attn\.", "Swin", "stages of falling resolution, with attention in windows"),
    (r"attn\.rel_pos_[hw]$", "SAM's image encoder", "relative positions in every layer, attention in windows, a neck"),
    (
        r"rel_pos\.mlp\.|rel_pos\.relative_",
        "a ViT of relative positions",
        "a bias by relative position in every attention",
    ),
    (r"blocks_token_only\.", "CaiT", "talking heads, and layers of their own for the class token"),
    (r"cls_attn_blocks\.", "XCiT", "attention between channels, and layers of their own for the class token"),
    (r"relative_position_bias_table$", "BEiT", "relative positions in every layer"),
    (r"mlp\.fc1_g\.", "DINOv3-plus, EVA-02 or AIMv2", "a SwiGLU in two parts, and rotary positions or RMSNorm"),
    (r"blocks\.\d+\.gamma_1$", "DINOv3, EVA, BEiT or a RoPE ViT", "rotary or relative positions in every layer"),
    (r"attn\.q_bias$|attn\.q_proj\.", "EVA or BEiT", "biases of queries and values only, and rotary positions"),
    (r"norm_pre\.weight$", "CLIP's image tower", "a LayerNorm before the first layer"),
    (r"attn_pool\.", "SigLIP or its kin", "attention pooling"),
    (r"attn\.lambda_q1$", "a ViT of differential attention", "attention as a difference of two"),
    (r"attn\.[qk]_norm\.", "a ViT of QK-norm", "a norm of queries and keys in every attention"),
    (r"attn\.norm\.|mlp\.norm\.", "BEiT-3, EVA or their kin", "a norm inside attention or inside the MLP"),
    (r"stages\.\d+\.\d+\.conv1_1x1\.", "MobileViT", "convolutions, and small Transformers in its stages"),
    (r"^(.*\.)?blocks\.\d+\.proj\.weight$", "Hiera", "stages of falling resolution"),
)

PLAIN_TYPES = ("vit", "vit_mae", "eomt")
"""The values of `model_type` that this program reads."""
OTHER_FILES = "; timm's files of the same weights are read"
# Hugging Face's model_type -> (family, what it has and this program's ViT lacks, which other files of it are read).
TYPES: dict[str, tuple[str, str, str]] = {
    "deit": ("DeiT", "a distillation token under names of its own", OTHER_FILES),
    "dinov2": ("DINOv2", "LayerScale under names of its own", OTHER_FILES),
    "dinov2_with_registers": ("DINOv2 with registers", "registers and LayerScale under names of its own", OTHER_FILES),
    "dinov3_vit": ("DINOv3", "rotary positions in every layer", ""),
    "eomt_dinov3": ("EoMT on DINOv3", "rotary positions in every layer", ""),
    "ijepa": ("I-JEPA", "no class token, and the average of its patches in place of one", OTHER_FILES),
    "clip": ("CLIP", "a text tower, a LayerNorm before the first layer and QuickGELU", ""),
    "clip_vision_model": ("CLIP", "a LayerNorm before the first layer and QuickGELU", ""),
    "siglip": ("SigLIP", "a text tower and attention pooling", ""),
    "siglip_vision_model": ("SigLIP", "attention pooling", ""),
    "siglip2": ("SigLIP 2", "a text tower, attention pooling and patches of varying grids", ""),
    "siglip2_vision_model": ("SigLIP 2", "attention pooling and patches of varying grids", ""),
    "beit": ("BEiT", "relative positions in every layer, and LayerScale under names of its own", ""),
    "data2vec-vision": ("Data2Vec", "relative positions in every layer, and LayerScale under names of its own", ""),
    "vit_msn": ("ViT-MSN", "a class of its own and no pooler", ""),
    "yolos": ("YOLOS", "detection tokens, and positions in its middle layers", ""),
    "vivit": ("ViViT", "patches of video", ""),
    "videomae": ("VideoMAE", "patches of video", ""),
    "sam": ("SAM", "relative positions in every layer, attention in windows and a mask decoder", ""),
    "hiera": ("Hiera", "stages of falling resolution", ""),
    "swin": ("Swin", "stages of falling resolution, with attention in windows", ""),
    "swinv2": ("Swin v2", "stages of falling resolution, with attention in windows", ""),
    "mobilevit": ("MobileViT", "convolutions, and small Transformers in its stages", ""),
    "dpt": ("DPT", "a neck and a head for depth", ""),
    "vitdet": ("ViTDet", "relative positions and attention in windows", ""),
    "vit_hybrid": ("ViT hybrid", "a BiT stem under names of its own", OTHER_FILES),
    "aimv2_vision_model": ("AIMv2", "RMSNorm in place of LayerNorm, and SwiGLU", ""),
    "pvt": ("PVT", "stages of falling resolution", ""),
    "segformer": ("SegFormer", "stages of falling resolution", ""),
    "levit": ("LeViT", "stages of falling resolution", ""),
    "convnext": ("ConvNeXt", "convolutions and no attention", ""),
    "resnet": ("ResNet", "convolutions and no attention", ""),
    "bit": ("BiT", "a ResNet under names of its own", OTHER_FILES),
}


def refuse_by_tensors(names: Iterable[str]) -> None:
    """Raises UserError if a tensor's name shows that the checkpoint is of another family; the message names it."""
    text = "\n".join(names)
    for pattern, family, what in SIGNS:
        if found := re.search(pattern, text, re.MULTILINE):
            name = text[text.rfind("\n", 0, found.start()) + 1 :].partition("\n")[0]
            raise UserError(f"this is {family} (it has a tensor {name}), with {what}, unlike this program's ViT")


def refuse_by_type(info: dict[str, Any], known: bool) -> None:
    """Raises UserError if a Hugging Face folder is neither a ViT nor a ViTMAE.

    Args:
        info: The content of config.json; it has the key `model_type`.
        known: Whether the user said which model it is (--model), so that an unknown type is accepted.
    """
    kind = str(info["model_type"])
    if kind in TYPES:
        family, what, elsewhere = TYPES[kind]
        raise UserError(
            f"config.json names Hugging Face's {family} (model_type {kind!r}), which has {what}; of Hugging Face's "
            f"classes ViT, ViTMAE and Eomt are read{elsewhere}"
        )
    if kind not in PLAIN_TYPES and not known:
        raise UserError(
            f"config.json names the model_type {kind!r}, which is not known to be a plain ViT; if it is one, say which "
            "(--model NAME)"
        )
    classes = info.get("architectures") or ()
    if any("MaskedImageModeling" in str(name) for name in classes):
        raise UserError(
            "config.json names Hugging Face's ViTForMaskedImageModeling, which has a mask token and a decoder of "
            "pixels; of Hugging Face's classes ViTModel, ViTForImageClassification, ViTMAE and Eomt are read"
        )
