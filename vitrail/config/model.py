"""What a model is, as one frozen dataclass.

A configuration is checked when it is made, so a ModelConfig that exists describes a model that can be built.
"""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal, Self, get_args

from vitrail.config.fields import check_fields, pair
from vitrail.config.positions import POSITION_KINDS, PositionKind, Positions
from vitrail.errors import UserError

Activation = Literal["gelu", "gelu_tanh", "swiglu"]
PositionsAt = Literal["stem", "every_layer", "every_layer_shared"]
Interpolation = Literal["official", "timm", "torchvision", "huggingface", "dinov2"]
Pooling = Literal["class", "average"]

LARGEST = {"depth": 1000, "width": 2**17, "channels": 2**14, "patch_size": 2**14, "image_size": 2**17}
"""Beyond any model there is: a configuration file that asks for more is damaged or hostile."""


@dataclass(frozen=True)
class ModelConfig:
    """Everything that decides what a model computes, given its weights.

    The defaults are ViT-B/16 at 224 px. Names follow the paper; see `vitrail.models.sizes` for the table.
    """

    name: str = ""
    """The name it was made from, such as B/16; for people only, nothing depends on it."""
    family: Literal["vit", "resnet"] = "vit"
    """A Vision Transformer (hybrids included), or a BiT ResNet."""

    image_size: int | tuple[int, int] = 224
    """Rows and columns in pixels; one number means a square."""
    channels: int = 3
    """Image channels: 3 for colour, 1 for grey, any number works."""
    patch_size: int = 16
    """Side of a patch: in pixels, or in cells of the stem's feature map for a hybrid."""
    width: int = 768
    depth: int = 12
    num_heads: int = 12
    mlp_dim: int = 3072
    num_classes: int = 1000
    """Outputs of the head: one a class, or what else the task asks for. 0: no head, the model returns features."""
    task: str = "classification"
    """What the outputs answer: a folder of vitrail/tasks."""

    stages: tuple[int, ...] | None = None
    """ResNet units a stage. None: patches come straight from the pixels. (): the stem's root alone."""
    stem: Literal["bottleneck", "plain"] = "bottleneck"
    """bottleneck: the paper's ResNet, whose root makes the picture 4 times smaller. plain, for small pictures: one
    3 x 3 convolution at full size, then in each stage 3 x 3 convolutions, the first of which halves the picture and
    doubles the width (after Xiao and others, 2021)."""
    stem_width: int = 64
    """Channels of the stem's first convolution; of a ResNet, 64 times the width factor."""
    stem_arithmetic: Literal["official", "timm"] = "official"
    """Which small constants a ResNet uses: the official JAX code's or timm's. Weights fit one of them."""

    patch_embedding: Literal["convolution", "linear"] = "convolution"
    """The same map from the same weights, computed by a strided convolution or by reshape and Linear."""
    attention: Literal["full", "axial"] = "full"
    """Full, or axial: row attention and MLP, then column attention and MLP (Appendix D.6)."""
    positions: Positions = "learned"
    positions_at: PositionsAt = "stem"
    interpolation: Interpolation = "official"
    """By which convention positions are interpolated to another grid."""
    class_token: bool = True
    class_position: bool = True
    """Whether class, distillation and register tokens have position embeddings of their own."""
    distillation_token: bool = False
    registers: int = 0
    pooling: Pooling = "class"
    norm_after_pooling: bool = False
    """LayerNorm after average pooling (timm, MAE) in place of before it (official)."""
    representation_size: int = 0
    """Width of the pre-training head's hidden layer (Linear, tanh, Linear); 0: a plain head."""
    head_bias: float = 0.0
    """The head's bias at the start: -10 for sigmoid pre-training on multi-label data."""
    activation: Activation = "gelu"
    """gelu is the exact form, gelu_tanh the official code's; swiglu is DINOv2's largest model's."""
    norm_eps: float = 1e-6
    qkv_bias: bool = True
    layer_scale: float | None = None
    """LayerScale's initial value; None: no LayerScale."""

    dropout: float = 0.0
    attention_dropout: float = 0.0
    drop_path: float = 0.0
    """Stochastic depth of the last block; rises linearly from 0 at the first."""
    patch_dropout: float = 0.0
    """Share of the patch tokens left out of each training step."""
    gradient_checkpointing: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "image_size", pair(self.image_size))
        if self.stages is not None:
            object.__setattr__(self, "stages", tuple(int(units) for units in self.stages))
        _check_choices(self)
        _check_numbers(self)
        if self.family == "vit":
            _check_transformer(self)
        elif not self.stages:
            raise UserError("a resnet needs stages, for example (3, 4, 6, 3)")
        elif self.stem != "bottleneck":
            raise UserError("a resnet is made of bottlenecks: stem 'plain' goes with a Vision Transformer")

    @property
    def rows_columns(self) -> tuple[int, int]:
        """The image size as (rows, columns)."""
        return pair(self.image_size)

    @property
    def stem_stride(self) -> int:
        """Pixels a cell of the stem's feature map spans: 1 without a stem, 4 for the root alone."""
        if self.stages is None:
            return 1
        return 2 ** len(self.stages) if self.stem == "plain" else 4 * 2 ** max(len(self.stages) - 1, 0)

    @property
    def stem_outputs(self) -> int:
        """Channels of the stem's feature map, or of the picture where there is no stem."""
        if self.stages is None:
            return self.channels
        if self.stem == "plain":
            return self.stem_width * 2 ** len(self.stages)
        return self.stem_width * (4 * 2 ** (len(self.stages) - 1) if self.stages else 1)

    @property
    def patch_pixels(self) -> int:
        """Pixels a token spans along one side."""
        return self.stem_stride * self.patch_size

    @property
    def grid(self) -> tuple[int, int]:
        """Patches as (rows, columns)."""
        return self.grid_for(self.rows_columns)

    def grid_for(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """The grid of patches for an image size, or a UserError that says which numbers clash."""
        rows, columns = image_size
        step = self.patch_pixels
        if rows < step or columns < step:
            raise UserError(f"an image of {rows} x {columns} pixels is smaller than one patch of {step} x {step}")
        if rows % step or columns % step:
            near = [max(step, round(size / step) * step) for size in (rows, columns)]
            raise UserError(
                f"an image of {rows} x {columns} pixels cannot be cut into patches of {step} x {step}; "
                f"the nearest size that can is {near[0]} x {near[1]}"
            )
        return rows // step, columns // step

    @property
    def prefix_tokens(self) -> int:
        """Tokens that stand before the patches: class, distillation, registers."""
        return int(self.class_token) + int(self.distillation_token) + self.registers

    @property
    def positioned_prefix(self) -> int:
        """Tokens before the patches that have position embeddings of their own: all or none."""
        return self.prefix_tokens if self.class_position else 0

    @property
    def position_kind(self) -> PositionKind:
        """What is known of the kind of positions without torch."""
        return POSITION_KINDS[self.positions]

    @property
    def tokens(self) -> int:
        rows, columns = self.grid
        return self.prefix_tokens + rows * columns

    def with_(self, **changes: Any) -> Self:
        """A copy with some fields changed; an unknown field is a UserError with a near miss suggested."""
        check_fields(type(self), changes)
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        """As a dict; the task only where it is not the default, so that files of that are as they always were."""
        values = asdict(self)
        return values if self.task != ModelConfig.task else {name: values[name] for name in values if name != "task"}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        check_fields(cls, values)
        try:
            return cls(**values)
        except (TypeError, ValueError) as error:
            raise UserError(f"the model configuration cannot be read: {error}") from error


def _check_choices(config: ModelConfig) -> None:
    choices: dict[str, tuple[str, ...]] = {
        "family": ("vit", "resnet"),
        "stem": ("bottleneck", "plain"),
        "stem_arithmetic": ("official", "timm"),
        "patch_embedding": ("convolution", "linear"),
        "attention": ("full", "axial"),
        "positions": tuple(POSITION_KINDS),
        "positions_at": get_args(PositionsAt),
        "interpolation": get_args(Interpolation),
        "pooling": get_args(Pooling),
        "activation": get_args(Activation),
    }
    for name, allowed in choices.items():
        if getattr(config, name) not in allowed:
            raise UserError(f"{name} is {getattr(config, name)!r}; choose one of {', '.join(allowed)}")


def _check_numbers(config: ModelConfig) -> None:
    positive = ("channels", "patch_size", "width", "depth", "num_heads", "mlp_dim", "stem_width")
    for name in (*positive, "num_classes", "registers", "representation_size"):
        value, least, most = getattr(config, name), 1 if name in positive else 0, LARGEST.get(name, 2**24)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise UserError(f"{name} must be a whole number from {least} to {most}, not {value!r}")
    switches = ("class_token", "class_position", "distillation_token", "norm_after_pooling", "qkv_bias")
    for name in (*switches, "gradient_checkpointing"):
        if not isinstance(getattr(config, name), bool):
            raise UserError(f"{name} must be true or false, not {getattr(config, name)!r}")
    for name in ("dropout", "attention_dropout", "drop_path", "patch_dropout"):
        value = getattr(config, name)
        if not isinstance(value, (int, float)) or not 0 <= value < 1:
            raise UserError(f"{name} must be at least 0 and below 1, not {value!r}")
    for name in ("head_bias", *(["layer_scale"] if config.layer_scale is not None else [])):
        if not isinstance(getattr(config, name), (int, float)) or isinstance(getattr(config, name), bool):
            raise UserError(f"{name} must be a number, not {getattr(config, name)!r}")
    if not all(1 <= size <= LARGEST["image_size"] for size in config.rows_columns):
        raise UserError(f"image_size must be from 1 to {LARGEST['image_size']} pixels, not {config.rows_columns}")
    if not isinstance(config.norm_eps, (int, float)) or not config.norm_eps > 0:
        raise UserError(f"norm_eps must be above 0, not {config.norm_eps!r}")
    if config.stages is not None and (len(config.stages) > 4 or any(units < 1 for units in config.stages)):
        raise UserError(f"stages must be at most four numbers of at least 1, not {config.stages}")
    if config.stages is not None and config.stem_width % 32:
        raise UserError(f"stem_width {config.stem_width} is not a multiple of 32, the groups of GroupNorm")


def _check_transformer(config: ModelConfig) -> None:
    width, heads = config.width, config.num_heads
    if width % heads:
        raise UserError(f"width {width} cannot be divided among {heads} heads ({width} / {heads} = {width / heads:g})")
    config.grid  # noqa: B018  a size that patches do not divide is refused here
    if config.activation == "swiglu" and config.mlp_dim % 2:
        raise UserError(f"swiglu halves mlp_dim, so it must be even, not {config.mlp_dim}")
    kind, positions = config.position_kind, f"{config.positions} positions"
    if width % kind.divisor:
        raise UserError(f"{positions} need a width divisible by {kind.divisor}, not {width}: {kind.divisor_reason}")
    if kind.in_attention and config.positions_at != "stem":
        raise UserError(f"{positions} act inside every attention already: leave positions_at at its default")
    if config.pooling == "class" and not config.class_token:
        raise UserError("pooling 'class' needs a class token: set class_token, or pooling 'average'")
    if config.norm_after_pooling and config.pooling == "class":
        raise UserError("norm_after_pooling goes with pooling 'average'")
    if config.distillation_token and (not config.class_token or config.pooling != "class"):
        raise UserError("distillation_token goes with a class token and pooling 'class'")
    if config.attention == "axial":
        if config.prefix_tokens:
            raise UserError(
                "axial attention has rows and columns of patches only: set class_token False, registers 0 and "
                "pooling 'average'"
            )
        if config.patch_dropout:
            raise UserError("axial attention needs whole rows and columns: patch_dropout must be 0")
        if kind.in_attention:
            raise UserError(f"{positions} are not defined for axial attention: choose another kind")
    if config.patch_dropout and (kind.in_attention or config.positions_at != "stem"):
        raise UserError("positions inside the layers need every patch in its place: patch_dropout must be 0")
