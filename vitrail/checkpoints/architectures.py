"""timm's architectures by name: the settings of those that this program can run, and why the others are refused.

Tensors do not show the number of heads, the form of the GELU or the kind of pooling, and a post-norm model has the same
tensor names as a pre-norm one. A timm folder names its `architecture`, and timm's code for that name decides these
settings. Only a name listed here is taken for a plain ViT. Every other name is refused, because a model loaded with
wrong settings would run and give wrong results.
"""

import re
from typing import Any

from vitrail.config import pair
from vitrail.errors import UserError

# (width, depth, heads) -> the names, separated by spaces, of timm's architectures of that size.
PLAIN_SIZES: dict[tuple[int, int, int], str] = {
    (64, 6, 2): "test_vit",
    (64, 8, 2): "test_vit2",
    (192, 12, 3): """
        vit_tiny_patch16_224 vit_tiny_patch16_384 deit_tiny_patch16_224 deit_tiny_distilled_patch16_224
        vit_tiny_r_s16_p8_224 vit_tiny_r_s16_p8_384""",
    (256, 14, 4): "vit_wee_patch16_reg1_gap_256",
    (320, 14, 5): "vit_little_patch16_reg1_gap_256 vit_little_patch16_reg4_gap_256",
    (384, 12, 6): """
        vit_small_patch8_224 vit_small_patch16_224 vit_small_patch16_384 vit_small_patch32_224 vit_small_patch32_384
        vit_small_patch14_dinov2 vit_small_patch14_reg4_dinov2 vit_small_r26_s32_224 vit_small_r26_s32_384
        deit_small_patch16_224 deit_small_distilled_patch16_224 deit3_small_patch16_224 deit3_small_patch16_384
        flexivit_small""",
    (384, 36, 6): "vit_small_patch16_36x1_224",
    (512, 12, 8): """
        vit_medium_patch16_gap_240 vit_medium_patch16_gap_256 vit_medium_patch16_gap_384
        vit_medium_patch16_reg1_gap_256 vit_medium_patch16_reg4_gap_256 deit3_medium_patch16_224""",
    (512, 20, 8): "vit_mediumd_patch16_reg4_gap_256 vit_mediumd_patch16_reg4_gap_384",
    (640, 12, 10): """
        vit_betwixt_patch16_gap_256 vit_betwixt_patch16_reg1_gap_256 vit_betwixt_patch16_reg4_gap_256
        vit_betwixt_patch16_reg4_gap_384""",
    (768, 12, 12): """
        vit_base_patch8_224 vit_base_patch16_224 vit_base_patch16_384 vit_base_patch16_224_miil vit_base_patch32_224
        vit_base_patch32_384 vit_base_patch14_dinov2 vit_base_patch14_reg4_dinov2 vit_base_patch14_reg1_tipsv2
        vit_base_patch16_reg4_gap_256 vit_base_patch16_siglip_gap_224 vit_base_patch16_siglip_gap_256
        vit_base_patch16_siglip_gap_384 vit_base_patch16_siglip_gap_512 vit_base_patch32_siglip_gap_256
        vit_base_r26_s32_224 vit_base_r50_s16_224 vit_base_r50_s16_384 deit_base_patch16_224 deit_base_patch16_384
        deit_base_distilled_patch16_224 deit_base_distilled_patch16_384 deit3_base_patch16_224 deit3_base_patch16_384
        flexivit_base""",
    (768, 12, 16): "vit_base_patch16_gap_224",
    (832, 21, 13): """
        vit_so150m2_patch16_reg1_gap_256 vit_so150m2_patch16_reg1_gap_384 vit_so150m2_patch16_reg1_gap_448""",
    (896, 12, 14): "vit_base_patch16_plus_240 vit_base_patch32_plus_256",
    (896, 18, 14): "vit_so150m_patch16_reg4_gap_256 vit_so150m_patch16_reg4_gap_384",
    (1024, 24, 16): """
        vit_large_patch14_224 vit_large_patch16_224 vit_large_patch16_384 vit_large_patch32_224 vit_large_patch32_384
        vit_large_patch14_dinov2 vit_large_patch14_reg4_dinov2 vit_large_patch14_reg1_tipsv2
        vit_large_patch16_siglip_gap_256 vit_large_patch16_siglip_gap_384 vit_large_patch16_siglip_gap_512
        vit_large_r50_s32_224 vit_large_r50_s32_384 deit3_large_patch16_224 deit3_large_patch16_384
        eva_large_patch14_196 eva_large_patch14_336 flexivit_large""",
    (1152, 27, 16): """
        vit_so400m_patch14_reg1_tipsv2 vit_so400m_patch14_siglip_gap_224 vit_so400m_patch14_siglip_gap_378
        vit_so400m_patch14_siglip_gap_384 vit_so400m_patch14_siglip_gap_448 vit_so400m_patch14_siglip_gap_896
        vit_so400m_patch16_siglip_gap_256 vit_so400m_patch16_siglip_gap_384 vit_so400m_patch16_siglip_gap_512""",
    (1280, 32, 16): """
        vit_huge_patch14_224 vit_huge_patch14_gap_224 vit_huge_patch16_gap_448 deit3_huge_patch14_224""",
    (1408, 40, 16): "vit_giant_patch14_224 vit_giant_patch16_gap_224",
    (1536, 40, 16): "vit_giantopt_patch16_siglip_gap_256 vit_giantopt_patch16_siglip_gap_384",
    (1536, 40, 24): "vit_giant_patch14_dinov2 vit_giant_patch14_reg4_dinov2 vit_giant_patch14_reg1_tipsv2",
    (1664, 48, 16): "vit_gigantic_patch14_224",
}
ARCHITECTURE_SIZES = {name: size for size, names in PLAIN_SIZES.items() for name in names.split()}
"""(width, depth, heads) by the name of the architecture."""
TANH = re.compile(r"vit_(base_patch32|giantopt_patch16|so400m_patch16)_siglip_gap_\d+|vit_large_patch16_siglip_gap_512")
"""Names among `SIZES` of models that compute the tanh form of GELU."""
AVERAGE = re.compile(r".*_gap_\d+|eva_large_.*|test_vit2")
"""Names among `SIZES` of models that pool by averaging all patches."""
GATED = re.compile(r"vit_giant_patch14_(dinov2|reg4_dinov2|reg1_tipsv2)")
"""Names among `SIZES` of models with a SwiGLU MLP."""
_RESNETS = re.compile(r"resnetv2_(50x1|50x3|101x1|101x3|152x2|152x4)_bit")
"""Names of timm's BiT ResNets, which this program runs too; their tensors show all that must be known."""

# (pattern of a name, family, what that family has and this program's ViT lacks). The first pattern found decides.
FOREIGN: tuple[tuple[str, str, str], ...] = (
    (r"_rpn_", "a post-norm ViT", "each LayerNorm after attention and MLP, under the names of a pre-norm model"),
    (r"_relpos_|_srelpos_", "a ViT of relative positions", "a bias by relative position in every attention"),
    (r"^samvit", "SAM's image encoder", "attention in windows, relative positions in every layer and a neck"),
    (r"dinov3|lingbot", "DINOv3", "rotary positions in every layer, and LayerScale under other names"),
    (r"sapiens", "Sapiens", "rotary positions in every layer, RMSNorm and norms of queries and keys"),
    (r"_pe_(core|lang|spatial)", "a Perception Encoder", "rotary positions in every layer and a norm before them"),
    (r"_rope_|_rope$", "a RoPE ViT", "rotary positions in every layer"),
    (r"^naflexvit", "NaFlexViT", "patches of varying size from a Linear, and positions for any aspect ratio"),
    (r"_clip(_|$)", "CLIP's image tower", "a LayerNorm before the first layer, and LayerNorm eps 1e-05"),
    (r"_siglip", "SigLIP", "attention pooling"),
    (r"_map(_|$)|^test_vit3", "a ViT that pools by attention", "queries of its own for pooling"),
    (r"^aimv2", "AIMv2", "RMSNorm in place of LayerNorm, and SwiGLU in two parts"),
    (r"^beit3", "BEiT-3", "a LayerNorm inside attention and inside the MLP"),
    (r"^beit", "BEiT", "relative positions in every layer, and LayerScale under other names"),
    (r"^eva", "EVA", "rotary positions in every layer or a SwiGLU in two parts"),
    (r"_xp_|_18x2_|pwee", "a ViT of parallel layers", "attention and MLP side by side, not one after the other"),
    (r"dlittle|dwee", "a ViT of differential attention", "attention as a difference of two"),
    (r"^vit_intern", "InternViT", "no LayerNorm behind its layers"),
    (r"^test_vit4", "a ViT of another norm", "RMSNorm in place of LayerNorm"),
    (r"resnet(26|50)d|_mci_|^vitamin", "a hybrid of another stem", "a convolutional stem that is not BiT's ResNet"),
    (r"^mobilevit", "MobileViT", "convolutions, and small Transformers in its stages"),
    (r"hiera", "Hiera", "stages of falling resolution, with attention inside mask units"),
    (r"^swin|^mvit|^pit|^pvt|^twins|^davit|^nest|^levit|^maxvit|^coat|^crossvit|^efficientformer|^gcvit",
     "a hierarchical Transformer", "stages of falling resolution"),
    (r"^cait", "CaiT", "talking heads, and layers of their own for the class token"),
    (r"^xcit", "XCiT", "attention between channels"),
    (r"^volo|^tnt|^convit|^visformer", "a Transformer of another kind", "attention that is not plain self-attention"),
    (r"^mixer|^resmlp|^gmlp", "an MLP model", "no attention"),
    (r"^resnetv2", "a ResNet-v2", "a stem, norms or convolutions that are not BiT's"),
    (r"^(resnet|resnext|convnext|efficientnet|regnet|densenet|mobilenet|vgg)", "a convolutional network", "no patches"),
)  # fmt: skip

# Arguments of timm's VisionTransformer that change the computation -> the only value that this program's ViT computes.
FIXED: dict[str, Any] = {
    "qk_norm": False,
    "scale_attn_norm": False,
    "scale_mlp_norm": False,
    "proj_bias": True,
    "pre_norm": False,
    "final_norm": True,
    "pool_include_prefix": False,
    "dynamic_img_pad": False,
    "embed_norm_layer": None,
    "norm_layer": None,
}
# Arguments that need no check: those whose value the tensors or the fields below show, and those for training only.
_SHOWN = ("img_size", "patch_size", "in_chans", "num_classes", "embed_dim", "depth", "num_heads", "mlp_ratio")
_SHOWN += ("qkv_bias", "init_values", "class_token", "no_embed_class", "reg_tokens", "fc_norm", "global_pool")
_SHOWN += ("pos_embed", "act_layer")
TRAINING = ("weight_init", "fix_init", "dynamic_img_size", "strict_img_size", "drop_rate", "pos_drop_rate")
TRAINING += ("patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate", "pretrained", "features_only")
# timm's values of act_layer and global_pool -> ours.
_ACTIVATIONS = {"gelu": "gelu", "gelu_erf": "gelu", "gelu_tanh": "gelu_tanh"}
POOLING = {"token": "class", "avg": "average"}


def timm_fields(info: dict[str, Any], known: bool) -> dict[str, Any]:
    """Reads from a timm folder's config.json what its tensors do not show.

    Args:
        info: The content of config.json; it has the key `architecture`.
        known: Whether the user said which model it is (--model), so that an unknown architecture is accepted.

    Returns:
        Fields of ModelConfig and their values.

    Raises:
        UserError: If the architecture is not one that this program computes, or is unknown and `known` is False, or if
            an argument in `model_args` changes what the model computes.
    """
    name = str(info["architecture"]).partition(".")[0]
    arguments = _arguments(info)
    if _RESNETS.fullmatch(name):
        return {}
    facts: dict[str, Any] = {"norm_eps": 1e-6, "activation": "gelu", "positions": "learned"}
    if name in ARCHITECTURE_SIZES:
        facts["width"], facts["depth"], facts["num_heads"] = ARCHITECTURE_SIZES[name]
        facts["pooling"] = "average" if AVERAGE.fullmatch(name) else "class"
        facts["activation"] = "gelu_tanh" if TANH.fullmatch(name) else "swiglu" if GATED.fullmatch(name) else "gelu"
    else:
        if what := foreign(name):
            raise UserError(f"config.json names timm's {name}: {what}")
        if not known:
            raise UserError(
                f"config.json names the architecture {name!r}, which is not known to be a plain ViT; if it is one, say "
                "which (--model NAME, or fields: --model num_heads=12,pooling=class)"
            )
        facts = {}
    renamed = {"width": "embed_dim", "depth": "depth", "num_heads": "num_heads"}
    facts |= {ours: arguments[theirs] for ours, theirs in renamed.items() if theirs in arguments}
    if arguments.get("img_size") is not None:
        facts["image_size"] = pair(arguments["img_size"])
    if (activation := arguments.get("act_layer")) is not None:
        facts["activation"] = _one_of("act_layer", activation, _ACTIVATIONS)
    if arguments.get("pos_embed") in ("", "none"):
        facts["positions"] = "none"
    for source in (info.get("pretrained_cfg"), info, arguments):  # a later one overrides those before it
        if isinstance(source, dict) and source.get("global_pool") is not None:
            facts["pooling"] = _one_of("global_pool", source["global_pool"], POOLING)
    if info.get("num_classes") is not None:
        facts["num_classes"] = info["num_classes"]
    return facts


def foreign(name: str) -> str:
    """Explains why a timm architecture is not this program's ViT, or returns "" if nothing is known about the name."""
    for pattern, family, what in FOREIGN:
        if name not in ARCHITECTURE_SIZES and re.search(pattern, name):
            return f"{family}, with {what}, unlike this program's ViT"
    return ""


def _arguments(info: dict[str, Any]) -> dict[str, Any]:
    """Returns `model_args`. Raises UserError if one changes the computation or is not known to be harmless."""
    arguments = info.get("model_args") or {}
    if not isinstance(arguments, dict):
        raise UserError("config.json: model_args must be an object of timm's arguments")
    for name, value in arguments.items():
        if name in FIXED:
            if value != FIXED[name]:
                raise UserError(
                    f"config.json: model_args sets {name} to {value!r}; this program's ViT supports {FIXED[name]} only"
                )
        elif name not in (*_SHOWN, *TRAINING):
            raise UserError(
                f"config.json: model_args sets {name!r}, an argument this program does not know, so what the model "
                "computes is not certain"
            )
    return arguments


def _one_of(name: str, value: Any, known: dict[str, str]) -> str:
    if value not in known:
        raise UserError(f"config.json: {name} is {value!r}; this program supports {', '.join(known)}")
    return known[value]
