"""The models of the paper by name: Ti/16, B/16, R50+B/16, BiT-R50x1, Axial-B/16 ... Without torch.

| size | depth | width | mlp  | heads |
|------|-------|-------|------|-------|
| Ti   | 12    | 192   | 768  | 3     |
| S    | 12    | 384   | 1536 | 6     |
| B    | 12    | 768   | 3072 | 12    |
| L    | 24    | 1024  | 4096 | 16    |
| H    | 32    | 1280  | 5120 | 16    |
| g    | 40    | 1408  | 6144 | 16    |
"""

import difflib
import re
from typing import Any

from vitrail.config import ModelConfig, check_fields
from vitrail.errors import UserError

SIZES: dict[str, dict[str, int]] = {
    "Ti": {"depth": 12, "width": 192, "mlp_dim": 768, "num_heads": 3},
    "S": {"depth": 12, "width": 384, "mlp_dim": 1536, "num_heads": 6},
    "B": {"depth": 12, "width": 768, "mlp_dim": 3072, "num_heads": 12},
    "L": {"depth": 24, "width": 1024, "mlp_dim": 4096, "num_heads": 16},
    "H": {"depth": 32, "width": 1280, "mlp_dim": 5120, "num_heads": 16},
    "g": {"depth": 40, "width": 1408, "mlp_dim": 6144, "num_heads": 16},
}
"""The sizes of the paper, and g of "Scaling Vision Transformers"."""

STEMS: dict[tuple[str, int], tuple[tuple[int, ...], int]] = {
    ("R", 16): ((), 8),
    ("R26", 32): ((2, 2, 2, 2), 1),
    ("R50", 16): ((3, 4, 9), 1),
    ("R50", 32): ((3, 4, 6, 3), 1),
}
"""The stems of the hybrids: (name of the ResNet, patch size of the model) -> (units of each stage, side of a patch on
the stem's feature map).

R50 with patch size 16 leaves out the fourth stage and moves its units to the third. The stem of R+Ti/16 is the root
alone. Its stride is 4, although the name counts on 2: with patches of 8 x 8 cells a token covers 32 pixels, as in the
published weights.
"""

RESNETS: dict[str, tuple[int, ...]] = {
    "R50": (3, 4, 6, 3),
    "R101": (3, 4, 23, 3),
    "R152": (3, 8, 36, 3),
    "R200": (3, 24, 36, 3),
}
"""How many units each stage of a BiT ResNet has."""

MODEL_NAMES = (
    *("Ti/16", "S/32", "S/16", "B/32", "B/16", "L/32", "L/16", "H/14", "g/14"),
    *("R+Ti/16", "R26+S/32", "R50+B/32", "R50+B/16", "R50+L/32", "R50+L/16"),
    *("BiT-R50x1", "BiT-R50x2", "BiT-R101x1", "BiT-R152x1", "BiT-R152x2", "BiT-R200x3"),
    *("Axial-B/32", "Axial-B/16"),
)
"""The models that the paper and its code name. Any other patch size works too: `Ti/8`, `B/7`."""

_TRANSFORMER = re.compile(r"(?:vit[-_ ])?(axial-)?(?:(r\d*)\+)?(?:vit[-_ ])?(ti|s|b|l|h|g)[-_/ ]?(\d+)", re.IGNORECASE)
_RESNET = re.compile(r"(?:bit[-_ ])?(r\d+)x(\d+)", re.IGNORECASE)


def config_for(name: str, **overrides: Any) -> ModelConfig:
    """Returns the configuration of a model by name, with any of its fields changed by `overrides`.

    A `ViT-` prefix and lower case are accepted: `vit-b16` is `B/16`. A UserError names the nearest model if there is
    none.
    """
    check_fields(ModelConfig, overrides)
    return ModelConfig(**{**_fields(name), **overrides})


def size_fields(name: str) -> dict[str, Any]:
    """Returns all fields of ModelConfig that a name decides, including those that it leaves at their defaults."""
    return {**{key: getattr(_PLAIN, key) for key in (*_SHAPE, "stem", "stem_arithmetic")}, **_fields(name)}


def name_for(config: ModelConfig) -> str:
    """Returns the paper's name for a configuration, or "" if it has none."""
    axial = "Axial-" if config.attention == "axial" else ""
    plain = [f"{axial}{size}/{config.patch_size}" for size in SIZES]
    for name in (*plain, *MODEL_NAMES):
        fields = _fields(name)
        if all(getattr(config, key) == fields.get(key, getattr(_PLAIN, key)) for key in _SHAPE):
            return fields["name"]
    return ""


def _fields(name: str) -> dict[str, Any]:
    if (match := _RESNET.fullmatch(name.strip())) and match[1].upper() in RESNETS:
        return _resnet(match[1].upper(), int(match[2]))
    match = _TRANSFORMER.fullmatch(name.strip())
    # The case matters for one letter only: G is another model than g.
    if not match or match[3] == "G":
        spellings = {_spelling(each): each for each in MODEL_NAMES}
        near = difflib.get_close_matches(_spelling(name), spellings, n=1, cutoff=0.5)
        hint = f"did you mean {spellings[near[0]]}?" if near else "for example B/16, R50+B/16 or BiT-R50x1"
        raise UserError(f"there is no model named {name!r}; {hint} (`vitrail models` lists them)")
    axial, stem, size, patch_size = match[1], (match[2] or "").upper(), match[3], int(match[4])
    size = {"ti": "Ti", "g": "g"}.get(size.lower(), size.upper())
    fields: dict[str, Any] = {"name": f"{size}/{patch_size}", "patch_size": patch_size, **SIZES[size]}
    if axial:
        fields |= {
            "name": f"Axial-{fields['name']}",
            "attention": "axial",
            "class_token": False,
            "pooling": "average",
        }
    if stem:
        if axial or (stem, patch_size) not in STEMS:
            known = ", ".join(f"{stem}+.../{patch}" for stem, patch in STEMS)
            raise UserError(f"there is no hybrid {name!r}; the stems are {known}")
        stages, patch = STEMS[stem, patch_size]
        fields |= {"name": f"{stem}+{fields['name']}", "stages": stages, "patch_size": patch}
    return fields


def _spelling(name: str) -> str:
    """Reduces a name to what all ways of writing it have in common."""
    return re.sub(r"^vit[-_ ]?|[-_/ ]", "", name.strip().lower())


def _resnet(kind: str, factor: int) -> dict[str, Any]:
    if not 1 <= factor <= 8:
        raise UserError(f"a width factor of {factor} is out of range: 1 to 8")
    return {
        "name": f"BiT-{kind}x{factor}",
        "family": "resnet",
        "stages": RESNETS[kind],
        "stem_width": 64 * factor,
        "stem_arithmetic": "timm",
        "width": 2048 * factor,
        "depth": sum(RESNETS[kind]),
        "num_heads": 1,
        "mlp_dim": 1,
        "patch_size": 1,
        "positions": "none",
        "class_token": False,
        "pooling": "average",
    }


_PLAIN = ModelConfig()
_SHAPE = ("family", "attention", "stages", "stem_width", "patch_size", "width", "depth", "num_heads", "mlp_dim")
"""The fields of ModelConfig that a name decides."""
