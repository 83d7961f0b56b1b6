"""Objectives that learn without labels, and their settings."""

from dataclasses import dataclass
from typing import Annotated, Literal

from vitrail.config.fields import (
    Configuration,
    Count,
    CountOrZero,
    ImageSize,
    NotNegative,
    Positive,
    Rising,
    Share,
    SharePositive,
    Whole,
)
from vitrail.errors import UserError

PatchTarget = Literal["mean", "small", "pixels"]
"""What masked patch prediction predicts of a patch."""


@dataclass(frozen=True)
class ObjectiveKind:
    """Describes an objective that needs no labels, as far as it can be known without torch."""

    computed_by: str
    """The file and class in `vitrail.training.objectives` that compute it."""
    hides_patches: bool = False
    """Whether it hides patches from the model. It then works without hybrids, patch dropout and pictures of a single
    patch."""


SELF_SUPERVISED: dict[str, ObjectiveKind] = {
    "masked_patch": ObjectiveKind("masked_patch.MaskedPatch", hides_patches=True),
    "mae": ObjectiveKind("mae.MaskedAutoencoder", hides_patches=True),
    "dino": ObjectiveKind("dino.SelfDistillation"),
}
"""The objectives that need no labels. Their settings are the fields of TrainConfig with the same names."""


@dataclass(frozen=True)
class MaskedPatchConfig(Configuration):
    """Masked patch prediction, as in the paper's Appendix B.1.2."""

    target: PatchTarget = "mean"
    """What is predicted of a corrupted patch. mean: its mean colour, in 3 bits a channel; small: the patch reduced to 4
    x 4 pixels, in 3 bits a channel; pixels: all of its pixels, by squared error."""
    fraction: SharePositive = 0.5
    """Share of the patch embeddings that are corrupted."""
    masked: Share = 0.8
    """Share of the corrupted embeddings that are replaced by the learned [mask] embedding."""
    replaced: Share = 0.1
    """Share of the corrupted embeddings that are replaced by that of another patch; what masked and replaced leave
    stays as it is."""

    part = "masked_patch"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.masked + self.replaced > 1:
            raise UserError(
                f"masked_patch: masked {self.masked:g} and replaced {self.replaced:g} are more than the whole"
            )


@dataclass(frozen=True)
class MaeConfig(Configuration):
    """Masked autoencoder (He and others, 2022): the encoder sees the visible patches, and a small decoder predicts the
    others."""

    fraction: SharePositive = 0.75
    """Share of the patches that are masked."""
    decoder_width: Count = 512
    """Numbers in each token of the decoder."""
    decoder_depth: Count = 8
    """Number of layers of the decoder."""
    decoder_heads: Count = 16
    """Attention heads in each layer of the decoder."""
    normalise: bool = True
    """Whether the pixels of each patch are brought to mean 0 and variance 1 before they are predicted."""

    part = "mae"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.fraction == 1:
            raise UserError("mae: a fraction of 1 leaves the encoder nothing to see")
        if self.decoder_width % self.decoder_heads or self.decoder_width % 4:
            raise UserError(
                f"mae: decoder_width {self.decoder_width} must be divisible by decoder_heads "
                f"{self.decoder_heads} and by 4, for sine and cosine of two axes"
            )


@dataclass(frozen=True)
class DinoConfig(Configuration):
    """Self-distillation (DINO; Caron and others, 2021). A student sees all crops of a picture; for each crop it learns
    to predict what the teacher, a running average of the student, returns for two large crops."""

    out_dim: Annotated[int, Whole(2, 2**24)] = 65_536
    """Outputs of the projection head; student and teacher each return a distribution over them."""
    hidden_dim: Annotated[int, Whole(2, 2**24)] = 2048
    """Hidden units of the projection head."""
    bottleneck_dim: Annotated[int, Whole(2, 2**24)] = 256
    """Width of the projection head before its last layer."""
    local_crops: CountOrZero = 8
    """Small crops of each picture, besides the two large ones that --transform describes."""
    local_size: ImageSize | None = None
    """Side of a small crop in pixels, a multiple of the patch size (default: three sevenths of the picture's, as 96 is
    of 224)."""
    local_area: Annotated[tuple[float, float], Rising(1)] = (0.05, 0.4)
    """Smallest and largest share of the picture's area in a small crop."""
    momentum: Share = 0.996
    """Momentum of the teacher's running average at the start; it rises to 1 along a cosine."""
    student_temperature: Positive = 0.1
    """Temperature of the student's softmax."""
    teacher_temperature: Positive = 0.04
    """Temperature of the teacher's softmax; lower values make its distributions sharper."""
    warmup_temperature: Positive = 0.04
    """Temperature of the teacher's softmax at the start."""
    warmup_epochs: NotNegative = 0.0
    """Epochs in which the teacher's temperature goes linearly from warmup_temperature to teacher_temperature."""
    centre_momentum: Share = 0.9
    """Momentum of the running mean of the teacher's outputs. The mean is subtracted from them, so that no output
    dominates."""
    freeze_last_epochs: NotNegative = 1.0
    """Epochs at the start in which the last layer of the projection head does not learn."""

    part = "dino"
