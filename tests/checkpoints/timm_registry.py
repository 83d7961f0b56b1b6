"""What timm's own registry says of the weights in vitrail/checkpoints/published.json, which this writes:

python -m tests.checkpoints.timm_registry
"""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import torch

from vitrail.checkpoints.peers.libraries import import_peer
from vitrail.checkpoints.timm import from_timm
from vitrail.models.sizes import MODEL_NAMES, name_for

TABLE = Path(__file__).parents[2] / "vitrail/checkpoints/published.json"
SIZES = "(tiny|small|base|large|huge)"
LISTED = (
    rf"vit_{SIZES}_patch\d+_\d+\.(augreg2?|orig)_in21k(_ft_in1k)?",
    rf"vit_{SIZES}_patch\d+_224\.(dino|mae)",
    rf"vit_{SIZES}_patch14_(reg4_)?dinov2\.lvd142m",
    rf"vit_{SIZES}_r\w*\.(augreg|orig)_in21k(_ft_in1k)?",
    rf"deit_{SIZES}_(distilled_)?patch16_\d+\.fb_in1k",
    rf"deit3_{SIZES}_patch\d+_\d+\.fb_in22k_ft_in1k",
    r"resnetv2_\d+x\d_bit\.goog_(in21k(_ft_in1k)?|distilled_in1k)",
)
DATA = {"in1k": "ImageNet-1k", "in21k": "ImageNet-21k", "in22k": "ImageNet-22k", "lvd142m": "LVD-142M"}
# timm's tag is the method alone. The papers (arXiv 2104.14294, 2111.06377) and the cards facebook/dino-* and
# facebook/vit-mae-* name the data.
DATA_OF_METHOD = {"dino": "ImageNet-1k", "mae": "ImageNet-1k"}


def timm() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return import_peer("timm")


def listed() -> list[str]:
    pattern = re.compile("|".join(f"(?:{each})" for each in LISTED))
    return [each for each in timm().list_models(pretrained=True) if pattern.fullmatch(each)]


def name_of(identifier: str) -> str:
    """The paper's name, as our loader reads it from the shapes of timm's own model."""
    with torch.device("meta"):
        model = timm().create_model(identifier, pretrained=False)
    return name_for(from_timm(model.state_dict(), folder=True).config)


def facts(identifier: str) -> dict[str, Any]:
    """A row of the table, but for the name."""
    configuration = timm().models.get_pretrained_cfg(identifier)
    assert configuration.license, identifier
    assert configuration.hf_hub_filename is None, identifier  # then it is timm's usual name
    return {
        "variant": _variant(identifier, configuration.input_size[1]),
        "id": identifier,
        "hub": configuration.hf_hub_id,
        "file": timm().models._hub.HF_SAFE_WEIGHTS_NAME,
        "trained_on": _trained_on(identifier),
        "licence": configuration.license,
        "image_size": configuration.input_size[1],
        "num_classes": configuration.num_classes,
        "mean": list(configuration.mean),
        "std": list(configuration.std),
        "resample": configuration.interpolation,
        "crop": configuration.crop_mode,
        "crop_fraction": configuration.crop_pct,
    }


def order(row: dict[str, Any]) -> tuple[Any, ...]:
    """The first of a name is what the name alone means: it has ImageNet's classes, is of the paper's own training and
    not DeiT's, is what timm loads for its architecture, and has the smallest images."""
    default = timm().models.get_pretrained_cfg(row["id"].partition(".")[0])
    return (
        row["num_classes"] != 1000,
        row["id"].startswith("deit"),
        not row["id"].endswith(f".{default.tag}"),
        row["image_size"],
        row["id"],
    )


def _variant(identifier: str, size: int) -> str:
    architecture, _, tag = identifier.partition(".")
    parts = tag.split("_")
    name = parts[0]
    if architecture.startswith("deit"):
        name = architecture.partition("_")[0] + "-distilled" * ("distilled" in architecture)
    elif "dinov2" in architecture:
        name = "dinov2" + "-reg4" * ("reg4" in architecture)
    elif architecture.startswith("resnetv2"):
        name = "bit" + "-distilled" * ("distilled" in tag)
    name += "-in21k" * ("in21k" in parts and "ft" not in parts)
    return name + f"-{size}" * architecture.endswith(f"_{size}") * (size != 224)


def _trained_on(identifier: str) -> str:
    parts = identifier.partition(".")[2].split("_")
    if parts[0] in DATA_OF_METHOD:
        return f"{DATA_OF_METHOD[parts[0]]} without labels"
    data = ", then ".join(DATA[each] for each in parts if each in DATA)
    return data + " without labels" * (parts[0] == "lvd142m")


def main() -> None:
    rows = [{"name": name_of(each), **facts(each)} for each in listed()]
    known = [row for row in rows if row["name"] in MODEL_NAMES or "/" in row["name"]]
    places = {name: place for place, name in enumerate(MODEL_NAMES)}
    known.sort(key=lambda row: (places.get(row["name"], len(places)), row["name"], order(row)))
    lines = ",\n".join(json.dumps(row) for row in known)
    TABLE.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
