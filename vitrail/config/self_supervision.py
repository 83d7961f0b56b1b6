"""Learning without labels: the objectives there are, and the settings of those that have any of their own."""

from dataclasses import dataclass
from typing import Any, Literal, get_args

from vitrail.config.fields import pair
from vitrail.errors import UserError

PatchTarget = Literal["mean", "small", "pixels"]


@dataclass(frozen=True)
class ObjectiveKind:
    """Describes an objective that needs no labels, as far as it can be known without torch."""

    computed_by: str
    """Names the class in `vitrail.training.objectives`: file and class."""
    hides_patches: bool = False
    """Whether it chooses patches that the model does not see: then it refuses hybrids, patch dropout, and pictures of
    a single patch."""


SELF_SUPERVISED: dict[str, ObjectiveKind] = {
    "masked_patch": ObjectiveKind("masked_patch.MaskedPatch", hides_patches=True),
    "mae": ObjectiveKind("mae.MaskedAutoencoder", hides_patches=True),
    "dino": ObjectiveKind("dino.SelfDistillation"),
}
"""The objectives that need no labels; settings, where there are any, are fields of TrainConfig of the same names."""


@dataclass(frozen=True)
class MaskedPatchConfig:
    """Masked patch prediction, as the paper's Appendix B.1.2 has it."""

    target: PatchTarget = "mean"
    """What is predicted of a corrupted patch. mean: its mean colour, 3 bits a channel; small: the patch at 4 x 4
    pixels, 3 bits a channel, 16 predictions side by side; pixels: all of it, by squared error."""
    fraction: float = 0.5
    """Share of the patch embeddings that are corrupted."""
    masked: float = 0.8
    """Of those, the share that become the learned [mask] embedding."""
    replaced: float = 0.1
    """Of those, the share that become another patch's embedding; the rest stay as they are."""

    def __post_init__(self) -> None:
        _choice(self, "target", get_args(PatchTarget))
        _share(self, "fraction", above=True)
        _share(self, "masked")
        _share(self, "replaced")
        if self.masked + self.replaced > 1:
            raise UserError(
                f"masked_patch: masked {self.masked:g} and replaced {self.replaced:g} are more than the whole"
            )


@dataclass(frozen=True)
class MaeConfig:
    """A masked autoencoder (He and others, 2022): the encoder sees what is not masked, a light decoder the rest."""

    fraction: float = 0.75
    """Share of the patches that are masked."""
    decoder_width: int = 512
    decoder_depth: int = 8
    decoder_heads: int = 16
    normalise: bool = True
    """Each patch's pixels have mean 0 and variance 1 before they are compared."""

    def __post_init__(self) -> None:
        _share(self, "fraction", above=True)
        if self.fraction == 1:
            raise UserError("mae: a fraction of 1 leaves the encoder nothing to see")
        for name in ("decoder_width", "decoder_depth", "decoder_heads"):
            _whole(self, name, 1)
        if self.decoder_width % self.decoder_heads or self.decoder_width % 4:
            raise UserError(
                f"mae: decoder_width {self.decoder_width} must be divisible by decoder_heads "
                f"{self.decoder_heads} and by 4, for sine and cosine of two axes"
            )


@dataclass(frozen=True)
class DinoConfig:
    """Self-distillation (Caron and others, 2021): a student learns to say of every crop what its own average over
    time, the teacher, says of two large ones."""

    out_dim: int = 65_536
    """Outputs of the projection head, over which both give a distribution."""
    hidden_dim: int = 2048
    bottleneck_dim: int = 256
    local_crops: int = 8
    """Small crops a picture, besides two large ones that --transform describes."""
    local_size: int | tuple[int, int] | None = None
    """Side of a small crop in pixels, a multiple of the patch size (default: three sevenths of the picture's, as 96
    is of 224)."""
    local_area: tuple[float, float] = (0.05, 0.4)
    """Least and most of the picture's area in a small crop."""
    momentum: float = 0.996
    """Of the teacher at the start; it rises to 1 along a cosine."""
    student_temperature: float = 0.1
    teacher_temperature: float = 0.04
    """The lower, the sharper is what the student learns from."""
    warmup_temperature: float = 0.04
    """Where the teacher's temperature starts from."""
    warmup_epochs: float = 0.0
    """Epochs in which it goes from there to `teacher_temperature`, linearly."""
    centre_momentum: float = 0.9
    """Of the mean of the teacher's outputs, which is taken off them so that no output wins always."""
    freeze_last_epochs: float = 1.0
    """Epochs at the start in which the last layer of the head stays as it is."""

    def __post_init__(self) -> None:
        if self.local_size is not None:
            object.__setattr__(self, "local_size", pair(self.local_size))
        object.__setattr__(self, "local_area", tuple(float(value) for value in self.local_area))
        for name in ("out_dim", "hidden_dim", "bottleneck_dim"):
            _whole(self, name, 2)
        _whole(self, "local_crops", 0)
        for name in ("momentum", "centre_momentum"):
            _share(self, name)
        for name in ("student_temperature", "teacher_temperature", "warmup_temperature"):
            _number(self, name, above=True)
        for name in ("warmup_epochs", "freeze_last_epochs"):
            _number(self, name)
        low, high = self.local_area
        if not 0 < low <= high <= 1:
            raise UserError(f"dino: local_area must be two shares, rising, above 0, not {low:g} {high:g}")


def _choice(config: Any, name: str, allowed: tuple[str, ...]) -> None:
    if getattr(config, name) not in allowed:
        raise UserError(f"{_named(config, name)} is {getattr(config, name)!r}; choose one of {', '.join(allowed)}")


def _share(config: Any, name: str, above: bool = False) -> None:
    _number(config, name, above)
    if getattr(config, name) > 1:
        raise UserError(f"{_named(config, name)} is a share, at most 1, not {getattr(config, name):g}")


def _number(config: Any, name: str, above: bool = False) -> None:
    value = getattr(config, name)
    right = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not right or not (value > 0 if above else value >= 0):
        raise UserError(f"{_named(config, name)} must be {'above' if above else 'at least'} 0, not {value!r}")


def _whole(config: Any, name: str, least: int) -> None:
    value = getattr(config, name)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= 2**24:
        raise UserError(f"{_named(config, name)} must be a whole number from {least} to {2**24}, not {value!r}")


def _named(config: Any, name: str) -> str:
    """As the field is reached from a TrainConfig, and on the command line."""
    return f"{PREFIXES[type(config)]}: {name}"


PREFIXES = {MaskedPatchConfig: "masked_patch", MaeConfig: "mae", DinoConfig: "dino"}
