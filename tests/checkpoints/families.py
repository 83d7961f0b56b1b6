"""What becomes of the models of timm and transformers: loaded to the same numbers, or refused with a sentence.

`python -m tests.checkpoints.families --write` builds each at toy size with random weights, lets its own library write
it, loads it, and writes docs/checkpoint-table.md. A model that loads and differs is neither, and fails.
"""

import argparse
import json
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

import vitrail
from vitrail.checkpoints.peers.libraries import import_peer
from vitrail.errors import UserError

TABLE = Path(__file__).parents[2] / "docs/checkpoint-table.md"
CLASSES = 7
TOLERANCE = 1e-4
"""Of the largest output: far above what another order of additions makes, far below what another model makes."""


@dataclass(frozen=True)
class Row:
    """One model, written in one way."""

    name: str
    how: str = "folder"
    """folder, or file: the weights alone."""
    model: str = ""
    """What --model says of it."""
    settings: tuple[tuple[str, Any], ...] = ()
    """Of transformers: fields of its configuration."""

    @property
    def label(self) -> str:
        said = ", ".join(f"{name}={value}" for name, value in self.settings)
        how = f"{self.how}, --model {self.model}" if self.model else self.how
        return f"{self.name} ({said}), {how}" if said else f"{self.name}, {how}"


TIMM_FOLDERS = """
    vit_tiny_patch16_224 vit_small_patch16_224 vit_small_patch32_384 vit_base_patch8_224 vit_base_patch16_224
    vit_base_patch16_224_miil vit_large_patch14_224 vit_huge_patch14_224 vit_giant_patch14_224 vit_gigantic_patch14_224
    vit_base_patch16_gap_224 vit_huge_patch14_gap_224 vit_giant_patch16_gap_224 vit_medium_patch16_gap_240
    vit_medium_patch16_reg4_gap_256 vit_mediumd_patch16_reg4_gap_256 vit_betwixt_patch16_reg1_gap_256
    vit_little_patch16_reg1_gap_256 vit_wee_patch16_reg1_gap_256 vit_base_patch16_reg4_gap_256
    vit_so150m_patch16_reg4_gap_256 vit_so150m2_patch16_reg1_gap_256 vit_base_patch16_plus_240
    vit_small_patch16_36x1_224 vit_base_patch16_siglip_gap_224 vit_base_patch32_siglip_gap_256
    vit_large_patch16_siglip_gap_256 vit_large_patch16_siglip_gap_512 vit_so400m_patch14_siglip_gap_224
    vit_so400m_patch16_siglip_gap_256 vit_giantopt_patch16_siglip_gap_256 vit_small_patch14_dinov2
    vit_base_patch14_reg4_dinov2 vit_giant_patch14_dinov2 vit_giant_patch14_reg4_dinov2 vit_base_patch14_reg1_tipsv2
    vit_so400m_patch14_reg1_tipsv2 deit_tiny_patch16_224 deit_small_distilled_patch16_224 deit3_small_patch16_224
    deit3_medium_patch16_224 deit3_huge_patch14_224 flexivit_small eva_large_patch14_196 test_vit test_vit2
    vit_tiny_r_s16_p8_224 vit_small_r26_s32_224 vit_base_r26_s32_224 vit_base_r50_s16_224 resnetv2_50x1_bit
    vit_base_patch16_rpn_224 vit_base_patch16_clip_224 vit_base_patch16_clip_quickgelu_224 vit_base_patch16_siglip_224
    vit_so150m_patch16_reg4_map_256 vit_base_patch16_xp_224 vit_base_patch16_18x2_224 vit_dwee_patch16_reg1_gap_256
    vit_pwee_patch16_reg1_gap_256 vit_intern300m_patch14_448 test_vit3 test_vit4 vit_srelpos_small_patch16_224
    vit_relpos_small_patch16_224 vit_relpos_base_patch32_plus_rpn_256 samvit_base_patch16 vit_small_patch16_dinov3
    vit_small_plus_patch16_dinov3 vit_small_patch16_rope_224 vit_pe_core_tiny_patch16_384 beit_base_patch16_224
    beitv2_base_patch16_224 beit3_base_patch16_224 eva02_tiny_patch14_224 aimv2_large_patch14_224 cait_xxs24_224
    xcit_nano_12_p16_224 vit_small_resnet26d_224 mobilevit_xxs mobilevitv2_050 hiera_tiny_224
    swin_tiny_patch4_window7_224 naflexvit_base_patch16_gap convit_tiny mixer_s32_224 resnetv2_50 resnet18
    vitamin_small_224
"""
TIMM_FILES: dict[str, str] = {
    "vit_tiny_patch16_224": "",
    "deit_tiny_distilled_patch16_224": "",
    "vit_small_patch14_reg4_dinov2": "",
    "deit3_small_patch16_224": "",
    "vit_giant_patch14_224": "",
    "vit_gigantic_patch14_224": "",
    "vit_so400m_patch14_siglip_gap_224": "",
    "vit_base_patch32_siglip_gap_256": "activation=gelu_tanh",
    "vit_base_patch16_gap_224": "num_heads=16",
    "test_vit": "num_heads=2",
    "test_vit2": "num_heads=2",
    **dict.fromkeys(
        [
            "vit_base_patch16_rpn_224",
            "vit_base_patch16_clip_224",
            "vit_base_patch16_siglip_224",
            "vit_srelpos_small_patch16_224",
            "vit_relpos_small_patch16_224",
            "samvit_base_patch16",
            "vit_small_patch16_dinov3",
            "vit_small_plus_patch16_dinov3",
            "vit_small_patch16_rope_224",
            "beit_base_patch16_224",
            "eva02_tiny_patch14_224",
            "aimv2_large_patch14_224",
            "cait_xxs24_224",
            "vit_dwee_patch16_reg1_gap_256",
            "mobilevit_xxs",
            "hiera_tiny_224",
            "swin_tiny_patch4_window7_224",
        ],
        "",
    ),
}
HUGGING_FACE: tuple[Row, ...] = (
    Row("ViTModel"),
    Row("ViTModel", settings=(("hidden_act", "gelu_new"),)),
    Row("ViTModel", settings=(("hidden_act", "quick_gelu"),)),
    Row("ViTModel", settings=(("pooler_act", "relu"),)),
    Row("ViTModel", settings=(("layer_norm_eps", 0.1),)),
    Row("ViTModel", "file", "num_heads=4"),
    Row("ViTModel", settings=(("qkv_bias", False),)),
    Row("ViTForImageClassification"),
    Row("ViTMAEModel"),
    Row("ViTMAEForPreTraining"),
    *(
        Row(name)
        for name in [
            "ViTForMaskedImageModeling",
            "ViTMSNModel",
            "DeiTModel",
            "DeiTForImageClassification",
            "DeiTForImageClassificationWithTeacher",
            "Dinov2Model",
            "Dinov2ForImageClassification",
            "Dinov2WithRegistersModel",
            "DINOv3ViTModel",
            "IJepaModel",
            "IJepaForImageClassification",
            "CLIPModel",
            "CLIPVisionModel",
            "SiglipModel",
            "SiglipVisionModel",
            "BeitModel",
            "BeitForImageClassification",
            "Data2VecVisionModel",
            "YolosModel",
            "VivitModel",
            "SwinModel",
            "HieraModel",
            "MobileViTModel",
            "ResNetModel",
        ]
    ),
    *(
        Row(name, "file")
        for name in [
            "ViTForMaskedImageModeling",
            "DeiTModel",
            "Dinov2Model",
            "DINOv3ViTModel",
            "IJepaModel",
            "CLIPVisionModel",
            "SiglipVisionModel",
            "BeitModel",
        ]
    ),
)


def rows() -> tuple[Row, ...]:
    """Every row of the table, timm's first."""
    folders = (Row(name) for name in TIMM_FOLDERS.split())
    return (*folders, *(Row(name, "file", model) for name, model in TIMM_FILES.items()), *HUGGING_FACE)


def is_timm(row: Row) -> bool:
    return row.name[0].islower()


def outcome(row: Row, folder: Path) -> str:
    """equal, refused: SENTENCE, or how far a model that loads is from its own library's."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write = write_timm if is_timm(row) else write_transformers
        path, peer = write(row, folder)
        try:
            loaded = vitrail.load(path, model=row.model or None)
        except UserError as error:
            return f"refused: {str(error).removeprefix(f'{path}: ')}"
        generator = torch.Generator().manual_seed(1)
        images = torch.randn(2, loaded.config.channels, *loaded.config.rows_columns, generator=generator)
        with torch.no_grad():
            theirs, ours = peer(images), loaded(images)
    difference = float((theirs - ours).abs().max()) if theirs.shape == ours.shape else float("inf")
    return "equal" if difference <= TOLERANCE * float(theirs.abs().max()) else f"differs by {difference:.2g}"


def write_timm(row: Row, folder: Path) -> tuple[Path, Callable[[Tensor], Tensor]]:
    """A folder as timm writes it, or the weights alone; and timm's model."""
    timm = import_peer("timm")
    model, arguments = build_timm(timm, row.name, narrow=row.how == "folder")
    fill(model)
    if row.how == "folder":
        timm.models.save_for_hf(model, folder, model_args=arguments, safe_serialization=True)
        return folder, model
    path = folder / "weights.safetensors"
    save_file(model.state_dict(), path)
    return path, model


def build_timm(timm: Any, name: str, narrow: bool) -> tuple[Any, dict[str, Any]]:
    """The model two layers deep and (`narrow`) eight columns a head, where its code lets one say so."""
    arguments: dict[str, Any] = {"depth": 2}
    try:
        with torch.device("meta"):
            shown = timm.create_model(name, **arguments)
        if narrow:
            first = shown.blocks[0]  # its heads are its own, its attention's, or those of several attentions
            arguments["embed_dim"] = 8 * getattr(getattr(first, "attn", first), "num_heads", 24)
        patch = shown.patch_embed.patch_size[0]
        # A hybrid's tokens span 32 or 16 pixels.
        arguments["img_size"] = 4 * (32 if "_s16" in name or "_s32" in name else patch)
        return timm.create_model(name, num_classes=CLASSES, **arguments).eval(), arguments
    except (TypeError, AttributeError, RuntimeError, AssertionError, ValueError):
        return timm.create_model(name, num_classes=CLASSES).eval(), {}


SMALL = {
    "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64, "image_size": 32,
    "patch_size": 8, "decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 16,
    "decoder_intermediate_size": 32, "encoder_stride": 8, "num_labels": CLASSES,
}  # fmt: skip


def write_transformers(row: Row, folder: Path) -> tuple[Path, Callable[[Tensor], Tensor]]:
    transformers = import_peer("transformers")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    kind = getattr(transformers, row.name)
    known = vars(kind.config_class()).keys()
    settings = {name: value for name, value in SMALL.items() if name in known or name == "num_labels"}
    if "text_config" in known:
        towers = {name: {**SMALL, "vocab_size": 99} for name in ("text_config", "vision_config")}
        settings = {"projection_dim": 16, **towers} if "projection_dim" in known else towers
    if "depths" in known or row.name == "YolosModel":
        settings = {"image_size": [32, 32]} if row.name == "YolosModel" else {}
    model = kind(kind.config_class(**settings, **dict(row.settings)))
    fill(model.eval())
    model.save_pretrained(folder)

    def peer(images: Tensor) -> Tensor:
        if "MAE" in row.name:  # with nothing masked and the patches in order the encoder is an ordinary ViT
            encoder = getattr(model, "vit", model)
            encoder.config.mask_ratio = encoder.embeddings.config.mask_ratio = 0.0
            noise = torch.arange(16).expand(len(images), -1)
            return encoder(images, noise=noise).last_hidden_state[:, 0]
        result = model(images)
        return result.logits if "logits" in result else result.pooler_output

    if row.how == "file":
        (folder / "config.json").unlink()
        return folder / "model.safetensors", peer
    return folder, peer


def fill(model: Any) -> None:
    """Random numbers in every parameter, so that nothing hides behind an initial zero or one."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            one = parameter.ndim == 1 and name.endswith(("weight", "gamma", "lambda1"))
            scale = 0.1 if parameter.ndim < 2 else 1.2 / max(parameter[0].numel(), 1) ** 0.5
            parameter.copy_(noise * scale + (1.0 if one else 0.0))


def outcomes(wanted: tuple[Row, ...]) -> Iterator[tuple[Row, str]]:
    for row in wanted:
        with tempfile.TemporaryDirectory() as folder:
            yield row, outcome(row, Path(folder))


def text_of(found: dict[Row, str]) -> str:
    """The page, from what was found."""
    head = [
        "# Which models load",
        "",
        "Every row was built at toy size with random weights, written by its own library (timm as a folder with its",
        "`config.json`, transformers by `save_pretrained`; `file`: the weights alone), loaded, and compared with the",
        f"library's own output: *equal* is a largest difference below {TOLERANCE:g} of the largest output. All others",
        "are refused with the sentence shown. `python -m tests.checkpoints.families --write` makes this page.",
    ]
    for title, mine in (("timm", True), ("Hugging Face", False)):
        head += ["", f"## {title}", "", "| model | outcome |", "|---|---|"]
        head += [f"| {row.label} | {text} |" for row, text in found.items() if is_timm(row) == mine]
    return "\n".join(head) + "\n"


def committed() -> dict[str, str]:
    """Label -> outcome, as the page has them."""
    lines = [line for line in TABLE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ", 1)] for line in lines]
    return {label.strip(): text for label, text in cells if label.strip() != "model"}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write docs/checkpoint-table.md")
    parser.add_argument("--only", default="", help="rows whose label holds this text")
    options = parser.parse_args()
    found = {}
    for row, text in outcomes(tuple(row for row in rows() if options.only in row.label)):
        print(f"{row.label}: {text}", flush=True)
        found[row] = text
    bad = [row for row, text in found.items() if not text.startswith(("equal", "refused: "))]
    print(json.dumps({"rows": len(found), "differ": len(bad)}))
    if options.write and not bad:
        TABLE.write_text(text_of(found), encoding="utf-8")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
