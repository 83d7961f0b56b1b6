"""The kinds of positions (Appendix D.4, Table 8), as far as they can be known without torch.

A kind is an entry of `POSITION_KINDS` here, which configurations, costs and the optimizer ask, and a class in
`vitrail.models`, which computes and which the entry names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from vitrail.config.model import ModelConfig

Shapes = dict[str, tuple[int, ...]]
"""Shapes of tensors by their names in the state dict."""


@dataclass(frozen=True)
class PositionKind:
    """Describes one kind of positions. The defaults describe a kind that has no tensors."""

    computed_by: str
    """Names the class in `vitrail.models`: file and class."""
    tensors: Callable[["ModelConfig"], Shapes] = lambda config: {}
    """Gives the shapes of all tensors that the kind adds to a model."""
    learned: bool = True
    """Whether these tensors are learned, or fixed and kept as buffers."""
    decays: bool = False
    """Whether weight decay shrinks what is learned."""
    in_attention: bool = False
    """Whether the kind acts inside every attention, in place of being added to the tokens."""
    attention_cost: Callable[["ModelConfig"], tuple[int, int]] = lambda config: (0, 0)
    """Counts what the kind adds to one attention and one image: MACs, and numbers kept for the backward pass."""
    divisor: int = 1
    """The width must be divisible by this."""
    divisor_reason: str = ""
    no_places: str = ""
    """Says why no place of the grid has an embedding of its own; empty where each has one."""

    @property
    def added(self) -> bool:
        """Whether every place of the grid has an embedding, which is added to its token."""
        return not self.no_places


def _learned(config: "ModelConfig") -> Shapes:
    rows, columns = config.grid
    return {"pos_embed": (_layers(config), config.positioned_prefix + rows * columns, config.width)}


def _learned_2d(config: "ModelConfig") -> Shapes:
    rows, columns = config.grid
    layers, half = _layers(config), config.width // 2
    return {"pos_embed_rows": (layers, rows, half), "pos_embed_columns": (layers, columns, half)}


def _sincos(config: "ModelConfig") -> Shapes:
    rows, columns = config.grid
    return {"pos_embed": (1, config.positioned_prefix + rows * columns, config.width)}


def _relative(config: "ModelConfig") -> Shapes:
    rows, columns = config.grid
    table = (2 * rows - 1, 2 * columns - 1, config.width // config.num_heads)
    return {f"blocks.{layer}.attn.relative.table": table for layer in range(config.depth)}


def _relative_cost(config: "ModelConfig") -> tuple[int, int]:
    rows, columns = config.grid
    offsets, patches = (2 * rows - 1) * (2 * columns - 1), rows * columns
    return patches * offsets * config.width, config.num_heads * (config.tokens**2 + patches**2)


def _layers(config: "ModelConfig") -> int:
    """Counts the layers that have learned positions of their own: the leading dimension of the tensors."""
    return config.depth if config.positions_at == "every_layer" else 1


POSITION_KINDS: dict[str, PositionKind] = {
    "none": PositionKind("positions.PositionEmbedding", no_places="The model has no positions"),
    "learned": PositionKind("positions.Learned", _learned),
    "learned_2d": PositionKind(
        "positions.Learned2D", _learned_2d, divisor=2, divisor_reason="half is for rows, half for columns"
    ),
    "relative": PositionKind(
        "positions.Relative",
        _relative,
        in_attention=True,
        attention_cost=_relative_cost,
        no_places="The model's positions are relative offsets",
    ),
    "sincos": PositionKind(
        "positions.SineCosine", _sincos, learned=False, divisor=4, divisor_reason="sine and cosine of two axes"
    ),
}

if TYPE_CHECKING:
    Positions = str
else:
    Positions = Literal[tuple(POSITION_KINDS)]
"""The names of the kinds, for help texts."""
