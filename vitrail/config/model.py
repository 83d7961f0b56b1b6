"""The configuration of a model, as one frozen dataclass.

It is checked when it is made, so a ModelConfig that exists describes a model that can be built.
"""

from dataclasses import dataclass
from typing import Annotated, Literal

from vitrail.config.fields import (
    LARGEST_SIDE,
    Configuration,
    Count,
    CountOrZero,
    ImageSize,
    ShareBelowOne,
    Whole,
    Within,
    pair,
)
from vitrail.config.positions import POSITION_KINDS, PositionKind, Positions, known_kind
from vitrail.errors import UserError

Activation = Literal["gelu", "gelu_tanh", "swiglu"]
"""The activation function of the MLP."""
PositionsAt = Literal["stem", "every_layer", "every_layer_shared"]
"""Places where position embeddings are added."""
Interpolation = Literal["official", "timm", "torchvision", "huggingface", "dinov2"]
"""Conventions of interpolating position embeddings to another grid."""
Pooling = Literal["class", "average", "patches"]
"""What the head reads of the last layer: one vector made of its tokens, or every patch token."""
HeadKind = Literal["linear", "queries"]
"""Kinds of heads."""

LARGEST = {"depth": 1000, "width": 2**17, "channels": 2**14, "patch_size": 2**14, "image_size": LARGEST_SIDE}
"""The largest accepted values, beyond those of any real model: a configuration file with larger ones is damaged or
hostile."""
QUERY_FIELDS = ("head", "queries", "query_layers", "upscale_blocks")
"""The fields that say which head there is, and what belongs to a head of queries."""
MOST_PATCHES = 2**20
"""The largest accepted number of patches, likewise: positions are computed for each of them when a model is made."""
MOST_QUERIES = 2**14
"""The largest accepted number of queries, likewise."""


@dataclass(frozen=True)
class ModelConfig(Configuration):
    """Everything that decides what a model computes, besides its weights.

    The defaults are ViT-B/16 at 224 pixels. Names follow the paper; `vitrail.models.sizes` has the table.
    """

    name: str = ""
    """Name of the model that the other fields were taken from, such as B/16. It is for people only: nothing depends on
    it."""
    family: Literal["vit", "resnet"] = "vit"
    """vit: a Vision Transformer, hybrids included; resnet: a BiT ResNet."""

    image_size: ImageSize = 224
    """Rows and columns of an image in pixels; one number means a square."""
    channels: Annotated[int, Whole(1, LARGEST["channels"])] = 3
    """Channels of an image: 3 for colour, 1 for grey, or any other number."""
    patch_size: Annotated[int, Whole(1, LARGEST["patch_size"])] = 16
    """Side of a patch in pixels; for a hybrid, in cells of the stem's feature map."""
    width: Annotated[int, Whole(1, LARGEST["width"])] = 768
    """Numbers in each token."""
    depth: Annotated[int, Whole(1, LARGEST["depth"])] = 12
    """Number of layers (blocks)."""
    num_heads: Count = 12
    """Attention heads in each layer; they share the width equally."""
    mlp_dim: Count = 3072
    """Hidden units of the MLP in each layer."""
    num_classes: CountOrZero = 1000
    """Outputs of the head: one for each class, label or number that the task has. 0: no head, the model returns
    features."""
    task: str = "classification"
    """What the outputs stand for, such as classification or regression."""

    stages: tuple[Annotated[int, Whole(1, LARGEST["depth"])], ...] | None = None
    """Hybrids and ResNets: number of units in each stage of the ResNet. None: no ResNet, patches are cut from the
    pixels; (): only the first layers of a ResNet, without stages."""
    stem: Literal["bottleneck", "plain"] = "bottleneck"
    """Hybrids: kind of convolutions before the patches. bottleneck: the paper's ResNet, whose first layers make the
    picture 4 times smaller; plain, for small pictures: one 3 x 3 convolution at full size, then 3 x 3 convolutions in
    stages, each of which halves the picture and doubles the channels (after Xiao and others, 2021)."""
    stem_width: Count = 64
    """Hybrids and ResNets: channels of the first convolution; 64 times the width factor for a ResNet."""
    stem_arithmetic: Literal["official", "timm"] = "official"
    """Hybrids and ResNets: whose small constants are used, those of the official JAX code or of timm. Weights fit one
    of them."""

    patch_embedding: Literal["convolution", "linear"] = "convolution"
    """How patches are embedded: by a strided convolution, or by a reshape and a Linear. Both compute the same from the
    same weights."""
    attention: Literal["full", "axial"] = "full"
    """full: every token attends to all. axial: along the rows, then along the columns, each followed by an MLP
    (Appendix D.6)."""
    positions: Annotated[Positions, known_kind] = "learned"
    """Kind of position embeddings (Appendix D.4): learned, one for each patch, is the paper's choice; learned_2d, one
    for each row and each column; relative, for the offset between two patches; sincos, fixed sines and cosines;
    none."""
    positions_at: PositionsAt = "stem"
    """Where position embeddings are added. stem: once, before the first layer; every_layer: before each layer, and each
    has its own; every_layer_shared: the same ones before each layer."""
    interpolation: Interpolation = "official"
    """Convention by which position embeddings are interpolated to another image size. Weights were made for one of
    them."""
    class_token: bool = True
    """Whether a class token is put before the patches."""
    class_position: bool = True
    """Whether class, distillation and register tokens have position embeddings too."""
    distillation_token: bool = False
    """Whether there is a distillation token with a head of its own, as in DeiT."""
    registers: CountOrZero = 0
    """Number of register tokens: further tokens before the patches, which the head does not read (DINOv2)."""
    pooling: Pooling = "class"
    """What the head reads: class, the class token; average, the mean of the patch tokens; patches, each patch token by
    itself, for answers to every part of an image."""
    norm_after_pooling: bool = False
    """Whether the last LayerNorm follows pooling (timm, MAE) or precedes it (official)."""
    representation_size: CountOrZero = 0
    """Width of the hidden layer of the pre-training head (Linear, tanh, Linear); 0: the head is one Linear."""
    head_bias: float = 0.0
    """Initial bias of the head; -10 for sigmoid pre-training on multi-label data, as in the official code."""
    head: HeadKind = "linear"
    """Kind of head. linear: one linear map; queries, for masks: learned tokens that join the patches in the last
    layers, each of which becomes a class and a mask (EoMT)."""
    queries: Count = 100
    """Head of queries: how many there are."""
    query_layers: Count = 3
    """Head of queries: the number of layers, the last ones, that queries take part in."""
    upscale_blocks: Annotated[int, Whole(0, 8)] = 2
    """Head of queries: how often the grid of patches is doubled before it is compared with the queries."""
    activation: Activation = "gelu"
    """Activation of the MLP: gelu is exact, gelu_tanh the approximation of the official code, swiglu that of DINOv2's
    largest model."""
    norm_eps: Annotated[float, Within(0, 1, above=True, below=True)] = 1e-6
    """Added to the variance in every LayerNorm, against division by zero."""
    qkv_bias: bool = True
    """Whether queries, keys and values have a bias."""
    layer_scale: float | None = None
    """Initial factor of LayerScale, which scales each residual branch; None: no LayerScale."""

    dropout: ShareBelowOne = 0.0
    """Dropout after the position embeddings, after attention, and after both Linears of the MLP."""
    attention_dropout: ShareBelowOne = 0.0
    """Dropout of the attention weights."""
    drop_path: ShareBelowOne = 0.0
    """Stochastic depth: probability of skipping a residual branch of the last layer in training. It rises linearly from
    0 at the first layer."""
    patch_dropout: ShareBelowOne = 0.0
    """Share of the patch tokens that are left out, at random, in each training step."""
    gradient_checkpointing: bool = False
    """Whether each layer is computed again in the backward pass, which saves memory and takes a third more time."""

    left_out = ("task", *QUERY_FIELDS)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.head == "queries":
            object.__setattr__(self, "pooling", "patches")  # beside the queries, it reads every patch
        if not all(1 <= size <= LARGEST["image_size"] for size in self.rows_columns):
            raise UserError(f"image_size must be from 1 to {LARGEST['image_size']} pixels, not {self.rows_columns}")
        if self.stages is not None and len(self.stages) > 4:
            raise UserError(f"stages must be at most four numbers, not {self.stages}")
        if self.stages is not None and self.stem_width % 32:
            raise UserError(f"stem_width {self.stem_width} is not a multiple of 32, the groups of GroupNorm")
        if self.family == "vit":
            _check_transformer(self)
        elif not self.stages:
            raise UserError("a resnet needs stages, for example (3, 4, 6, 3)")
        elif self.pooling == "patches":
            what = "a head of queries" if self.head == "queries" else "pooling 'patches'"
            raise UserError(f"a resnet has no patches: {what} goes with a Vision Transformer")
        elif self.stem != "bottleneck":
            raise UserError("a resnet is made of bottlenecks: stem 'plain' goes with a Vision Transformer")

    @property
    def rows_columns(self) -> tuple[int, int]:
        """Returns the image size as (rows, columns)."""
        return pair(self.image_size)

    @property
    def stem_stride(self) -> int:
        """Returns the pixels along one side of a cell of the stem's feature map: 1 without a stem."""
        if self.stages is None:
            return 1
        return 2 ** len(self.stages) if self.stem == "plain" else 4 * 2 ** max(len(self.stages) - 1, 0)

    @property
    def stem_outputs(self) -> int:
        """Returns the channels of the stem's feature map, or of the image if there is no stem."""
        if self.stages is None:
            return self.channels
        if self.stem == "plain":
            return self.stem_width * 2 ** len(self.stages)
        return self.stem_width * (4 * 2 ** (len(self.stages) - 1) if self.stages else 1)

    @property
    def patch_pixels(self) -> int:
        """Returns the pixels along one side of a patch."""
        return self.stem_stride * self.patch_size

    @property
    def grid(self) -> tuple[int, int]:
        """Returns the patches of an image as (rows, columns)."""
        return self.grid_for(self.rows_columns)

    def grid_for(self, image_size: tuple[int, int]) -> tuple[int, int]:
        """Returns the patches, as (rows, columns), of an image of another `image_size`, (rows, columns) in pixels; a
        UserError if patches do not divide it."""
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
        """Returns the number of tokens before the patches: class, distillation, registers."""
        return int(self.class_token) + int(self.distillation_token) + self.registers

    @property
    def positioned_prefix(self) -> int:
        """Returns the number of tokens before the patches that have position embeddings: all of them or none."""
        return self.prefix_tokens if self.class_position else 0

    @property
    def position_kind(self) -> PositionKind:
        """Returns what is known without torch of the kind of position embeddings."""
        return POSITION_KINDS[self.positions]

    @property
    def tokens(self) -> int:
        """Returns the number of tokens in each layer, without queries."""
        rows, columns = self.grid
        return self.prefix_tokens + rows * columns

    @property
    def query_tokens(self) -> int:
        """Returns the number of queries that follow the other tokens from layer `first_query_layer` on; 0 for other
        heads."""
        return self.queries if self.head == "queries" and self.num_classes else 0

    @property
    def first_query_layer(self) -> int:
        """Returns the layer, counted from 0, before which queries join the tokens; the depth if there are none."""
        return self.depth - (self.query_layers if self.query_tokens else 0)


def _check_transformer(config: ModelConfig) -> None:
    """Raises a UserError for fields of a Vision Transformer that do not go together."""
    width, heads = config.width, config.num_heads
    if width % heads:
        raise UserError(f"width {width} cannot be divided among {heads} heads ({width} / {heads} = {width / heads:g})")
    rows, columns = config.grid  # a size that patches do not divide is refused here
    if rows * columns > MOST_PATCHES:
        raise UserError(
            f"{rows} x {columns} patches are more than {MOST_PATCHES:,}: take larger ones or smaller images"
        )
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
    if config.distillation_token and (not config.class_token or config.pooling == "average"):
        raise UserError("distillation_token goes with a class token and pooling 'class'")
    if config.pooling == "patches" and config.patch_dropout:
        raise UserError("a head that reads every patch needs all of them: patch_dropout must be 0")
    if config.head == "queries":
        _check_queries(config)
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


def _check_queries(config: ModelConfig) -> None:
    """Raises a UserError for fields that do not go with a head of queries."""
    if config.query_layers > config.depth:
        raise UserError(
            f"queries cannot take part in {config.query_layers} layers of a model that has {config.depth}: set "
            f"query_layers to {config.depth} or less"
        )
    if 2**config.upscale_blocks > config.patch_pixels:
        side = 2**config.upscale_blocks
        raise UserError(
            f"{config.upscale_blocks} upscale_blocks make {side} x {side} cells of a patch of {config.patch_pixels} "
            "pixels: set fewer"
        )
    if config.queries > MOST_QUERIES:
        raise UserError(f"queries must be at most {MOST_QUERIES:,}, not {config.queries:,}")
    if config.attention == "axial":
        raise UserError("axial attention has rows and columns of patches only, and no place for queries")
    if config.position_kind.in_attention or config.positions_at != "stem":
        raise UserError("queries have no place in the grid: their positions must be added once, at the stem")
    if config.representation_size:
        raise UserError("a head of queries has no pre-training layer before it: representation_size must be 0")
