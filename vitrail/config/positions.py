"""The kinds of position embeddings (Appendix D.4, Table 8), as far as they can be known without torch.

A kind is an entry of `POSITION_KINDS`, which configurations, costs and the optimizer read, and a class in
`vitrail.models`, which does the computing and which the entry names.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from vitrail.errors import UserError

if TYPE_CHECKING:
    from vitrail.config.model import ModelConfig

Shapes = dict[str, tuple[int, ...]]
"""Shapes of tensors by their names in the state dict."""


@dataclass(frozen=True)
class PositionKind:
    """Describes one kind of position embeddings. The defaults describe a kind without tensors."""

    computed_by: str
    """The file and class in `vitrail.models` that compute it, such as "positions.Learned"."""
    tensors: Callable[["ModelConfig"], Shapes] = lambda config: {}
    """Returns the shapes of all tensors that the kind adds to a model."""
    learned: bool = True
    """Whether these tensors are learned; if not, they are fixed and kept as buffers."""
    decays: bool = False
    """Whether weight decay is applied to the learned tensors."""
    in_attention: bool = False
    """Whether the kind acts inside the attention of every layer, and is not added to the tokens."""
    attention_cost: Callable[["ModelConfig"], tuple[int, int]] = lambda config: (0, 0)
    """Counts what the kind adds to the attention of one layer for one image: MACs, and numbers kept for the backward
    pass."""
    divisor: int = 1
    """The width must be divisible by this."""
    divisor_reason: str = ""
    """Why the width must be divisible, for the message."""
    no_places: str = ""
    """A sentence that says why patches have no position embeddings of their own; empty if each patch has one."""

    @property
    def added(self) -> bool:
        """Whether each patch has a position embedding, which is added to its token."""
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
    """Returns how many sets of learned positions there are: the leading dimension of the tensors."""
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
    """The names of the kinds, as a type for help texts."""
else:
    Positions = Literal[tuple(POSITION_KINDS)]
"""The names of the kinds, for help texts."""


def known_kind(value: Any, called: str) -> str:
    """Accepts the kinds there are, those added by others included."""
    if value not in list(POSITION_KINDS):
        raise UserError(f"{called} is {value!r}; choose one of {', '.join(POSITION_KINDS)}")
    return value
