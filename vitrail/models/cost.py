"""Computes what a model costs from its configuration alone: parameters, multiply-adds, memory. Without torch.

A MAC is one multiply-add of a matrix product or a convolution: 2 FLOPs. Norms, activations and softmax are not counted,
as is usual. A training step costs as much as three forward passes, since the backward pass costs two.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod

from vitrail.config import ModelConfig


@dataclass(frozen=True)
class Cost:
    """The cost of a model for one image."""

    parameters: int
    macs: int
    """Multiply-adds of a forward pass."""
    tokens: int
    """Tokens in each layer, with class token and registers but without queries; 0 for a ResNet."""
    activations: int
    """How many numbers are kept for the backward pass."""
    full_precision: int
    """How many of the activations stay in float32 under autocast: the inputs of the LayerNorms."""

    @property
    def training_flops(self) -> int:
        """FLOPs of a training step on one image: a forward and a backward pass. A head of queries is computed once more
        for each of its layers in training, which is not counted."""
        return 3 * 2 * self.macs


def cost(config: ModelConfig) -> Cost:
    """Computes the cost of a model for one image.

    Args:
        config: the model.

    Returns:
        Its parameters, multiply-adds, tokens and activations.
    """
    parts = list(_resnet(config) if config.family == "resnet" else _transformer(config))
    tokens = config.tokens if config.family == "vit" else 0
    parameters, macs, activations = (sum(numbers) for numbers in zip(*parts, strict=True))
    return Cost(parameters, macs, tokens, activations, _layer_norms(config))


@dataclass(frozen=True)
class Plan:
    """The cost of a training, known before it starts."""

    parameters: int
    gmacs: float
    """Billions of multiply-adds of a forward pass for one image."""
    steps: int
    """Optimizer steps of the whole training."""
    flops_per_step: float
    exaflops: float
    """FLOPs of the whole training, in units of 10^18."""
    memory: dict[str, int]
    """Bytes on one device by what they hold: weights, gradients, optimizer, activations, and half-precision copies of
    weights."""
    seconds: float | None
    """How long the training takes; None if no speed was given."""


def plan(
    config: ModelConfig,
    images: int,
    epochs: float,
    batch: int = 4096,
    flops_per_second: float | None = None,
    optimizer: str = "adamw",
    bytes_per_activation: int = 4,
) -> Plan:
    """Computes FLOPs, memory and time of a training before it starts.

    Args:
        config: the model.
        images: the number of training images.
        epochs: how often each image is seen.
        batch: images in a step.
        flops_per_second: the sustained speed of the device, which gives the time; None: no time is computed.
        optimizer: "adamw" or "sgd".
        bytes_per_activation: 4 for float32, 2 for training under autocast.
    """
    one = cost(config)
    flops = one.training_flops * images * epochs
    return Plan(
        parameters=one.parameters,
        gmacs=one.macs / 1e9,
        steps=max(1, round(images * epochs / batch)),
        flops_per_step=float(one.training_flops * batch),
        exaflops=flops / 1e18,
        memory=memory(config, batch, optimizer, bytes_per_activation),
        seconds=flops / flops_per_second if flops_per_second else None,
    )


def memory(config: ModelConfig, batch: int, optimizer: str, bytes_per_activation: int) -> dict[str, int]:
    """Computes the bytes that a training step on `batch` images needs: weights, gradients, optimizer and activations.

    With activations of two bytes (autocast) there are copies of the weights in two bytes too, and the inputs of
    LayerNorms stay in four bytes.
    """
    one, size = cost(config), bytes_per_activation
    moments = {"adamw": 2, "sgd": 1}[optimizer]
    kept = size * one.activations + (4 - size) * one.full_precision
    if config.gradient_checkpointing and config.family == "vit":
        # Each block keeps only its input, and the activations of one block exist at a time. A stem is not checkpointed.
        stem = size * sum(part[2] for part in _stem(config)) if config.stages is not None else 0
        kept = stem + 4 * one.tokens * config.width * config.depth + (kept - stem) // config.depth
    parts = {
        "weights": 4 * one.parameters,
        "gradients": 4 * one.parameters,
        "optimizer": 4 * moments * one.parameters,
        "activations": kept * batch,
    }
    return {**parts, "copies": size * one.parameters} if size < 4 else parts


def block_parameters(config: ModelConfig) -> list[int]:
    """Counts the parameters of each block of a transformer, or each stage of a ResNet: the pieces that FSDP shards and
    gathers."""
    if config.family == "vit":
        attended = config.grid if config.attention == "axial" else (config.tokens,)
        both = sum(part[0] for along in attended for part in _block(config, config.tokens, along, config.depth))
        return [both // config.depth] * config.depth
    stages = config.stages or ()
    root = _convolution(1, config.channels, config.stem_width, 7)[0]
    sums = [sum(part[0] for part in _stem(config.with_(stages=stages[: place + 1]))) for place in range(len(stages))]
    return [after - before for before, after in pairwise([root, *sums])]


Part = tuple[int, int, int]
"""A part of a model as (parameters, MACs, numbers kept for the backward pass), for one image."""


def _linear(tokens: int, inputs: int, outputs: int, bias: bool = True) -> Part:
    return inputs * outputs + (outputs if bias else 0), tokens * inputs * outputs, tokens * inputs


def _norm(cells: int, width: int) -> Part:
    return 2 * width, 0, cells * width


def _convolution(cells: int, inputs: int, outputs: int, kernel: int, stride: int = 1) -> Part:
    """Counts a convolution with `cells` output positions. Its input is kept; standardised weights are not counted."""
    weights = inputs * outputs * kernel * kernel
    return weights, cells * weights, cells * stride * stride * inputs


def _transformer(config: ModelConfig) -> Iterator[Part]:
    width, (rows, columns) = config.width, config.grid
    patches, tokens = rows * columns, config.tokens
    if config.stages is not None:
        yield from _stem(config)
    yield _linear(patches, config.stem_outputs * config.patch_size**2, width)
    yield config.prefix_tokens * width, 0, 0
    if not config.position_kind.in_attention:
        yield _positions(config), 0, 0
    if config.attention == "axial":
        for along in (columns, rows):
            yield from _block(config, tokens, along, config.depth)
    else:
        yield from _block(config, tokens, tokens, config.first_query_layer)
    if config.query_tokens:
        tokens += config.query_tokens
        yield from _block(config, tokens, tokens, config.query_layers)
        yield _norm(tokens, width)
        yield from _query_head(config)
        return
    yield _norm(1 if config.norm_after_pooling else tokens, width)
    features = config.representation_size or width
    if config.representation_size:
        yield _linear(1, width, features)
    if config.num_classes:
        for _ in range(2 if config.distillation_token else 1):
            yield _linear(patches if config.pooling == "patches" else 1, features, config.num_classes)


def _query_head(config: ModelConfig) -> Iterator[Part]:
    """Counts a head of queries. In training it is computed before each of its layers too, and all is kept."""
    width, queries, cells = config.width, config.query_tokens, config.grid[0] * config.grid[1]
    yield queries * width, 0, 0
    parts = [_linear(queries, width, config.num_classes + 1)]
    parts += [_linear(queries, width, width)] * 3 + [(0, 0, 2 * queries * width)]
    for _ in range(config.upscale_blocks):
        parts.append((4 * width * width + width, 4 * cells * width * width, cells * width))
        cells *= 4
        parts += [(0, 0, cells * width), (9 * width, 9 * cells * width, cells * width), _norm(cells, width)]
    parts.append((0, queries * cells * width, (queries + cells) * width))
    for parameters, macs, kept in parts:
        yield parameters, macs, (config.query_layers + 1) * kept
    yield 0, config.num_classes * queries * cells, queries * cells  # one score for each class in each cell


def _block(config: ModelConfig, tokens: int, attended: int, layers: int) -> Iterator[Part]:
    """Counts the blocks of several layers together.

    Args:
        config: the model.
        tokens: how many tokens each layer computes.
        attended: how many tokens each token attends to.
        layers: how many layers there are.
    """
    width, depth, hidden = config.width, config.depth, config.mlp_dim
    gated = config.activation == "swiglu"
    inner = hidden // 2 if gated else hidden
    # Fused attention keeps q, k, v and its output; the output is counted as the input of proj.
    parts = [
        _norm(tokens, width),
        _linear(tokens, width, 3 * width, config.qkv_bias),
        (0, 2 * tokens * attended * width, 3 * tokens * width),
        _linear(tokens, width, width),
        _norm(tokens, width),
        _linear(tokens, width, hidden),
        (0, 0, tokens * hidden + (2 * tokens * inner if gated else 0)),
        _linear(tokens, inner, width),
    ]
    if config.layer_scale is not None:
        parts += [(width, 0, tokens * width)] * 2
    kind = config.position_kind
    if kind.in_attention:
        parts.append((_positions(config) // depth, *kind.attention_cost(config)))
    for parameters, macs, kept in parts:
        yield layers * parameters, layers * macs, layers * kept


def _layer_norms(config: ModelConfig) -> int:
    """Counts the numbers that LayerNorms keep for the backward pass."""
    if config.family != "vit":
        return 0
    blocks = config.depth * (2 if config.attention == "axial" else 1)
    last = 1 if config.norm_after_pooling and not config.query_tokens else config.tokens
    if config.query_tokens:
        last += (2 * config.query_layers + 1) * config.query_tokens
    return (2 * blocks * config.tokens + last) * config.width


def _positions(config: ModelConfig) -> int:
    """Counts the parameters of the position embeddings, in all layers together."""
    kind = config.position_kind
    return sum(prod(shape) for shape in kind.tensors(config).values()) if kind.learned else 0


def _resnet(config: ModelConfig) -> Iterator[Part]:
    yield from _stem(config)
    rows, columns = _halved(config.rows_columns, 1 + len(config.stages or ()))
    width = config.stem_width * 4 * 2 ** (len(config.stages or ()) - 1)
    yield _norm(2 * rows * columns, width)
    if config.num_classes:
        yield _linear(1, width, config.num_classes)


def _halved(size: tuple[int, int], times: int) -> tuple[int, int]:
    """Halves rows and columns, rounded up, as convolutions of stride 2 do."""
    rows, columns = size
    for _ in range(times):
        rows, columns = -(-rows // 2), -(-columns // 2)
    return rows, columns


def _stem(config: ModelConfig) -> Iterator[Part]:
    """Counts root and stages of a ResNet. A ReLU keeps nothing of its own: its output is the next convolution's
    input."""
    if config.stem == "plain":
        yield from _plain_stem(config)
        return
    post, width = config.family == "vit", config.stem_width
    rows, columns = _halved(config.rows_columns, 1)
    yield _convolution(rows * columns, config.channels, width, 7, 2)
    yield _norm(rows * columns, width) if post else (0, 0, 0)
    yield 0, 0, rows * columns * width  # max pooling
    rows, columns = _halved((rows, columns), 1)
    for index, units in enumerate(config.stages or ()):
        outputs = config.stem_width * 4 * 2**index
        for unit in range(units):
            stride = 2 if index and not unit else 1
            before = rows * columns
            rows, columns = _halved((rows, columns), stride - 1)
            yield from _unit(before, rows * columns, width, outputs, stride, post)
            width = outputs


def _plain_stem(config: ModelConfig) -> Iterator[Part]:
    inputs, outputs, (rows, columns) = config.channels, config.stem_width, config.rows_columns
    strides = [1, *(2 if not unit else 1 for units in config.stages or () for unit in range(units))]
    for stride in strides:
        outputs = 2 * outputs if stride == 2 else outputs
        rows, columns = _halved((rows, columns), stride - 1)
        yield _convolution(rows * columns, inputs, outputs, 3, stride)
        yield _norm(rows * columns, outputs)
        inputs = outputs


def _unit(before: int, after: int, inputs: int, outputs: int, stride: int, post: bool) -> Iterator[Part]:
    """Counts a bottleneck unit. before, after: the cells of its input and of its output."""
    middle = outputs // 4
    if stride != 1 or inputs != outputs:
        yield _convolution(after, inputs, outputs, 1, stride)
        if post:
            yield _norm(after, outputs)
    yield _convolution(before, inputs, middle, 1)
    yield _convolution(after, middle, middle, 3, stride)
    yield _convolution(after, middle, outputs, 1)
    cells_and_widths = (
        ((before, middle), (after, middle), (after, outputs))
        if post
        else ((before, inputs), (before, middle), (after, middle))
    )
    for cells, width in cells_and_widths:
        yield _norm(cells, width)
