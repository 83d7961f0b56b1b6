"""Multi-head self-attention (Appendix A), and the recorder of what it and the blocks compute.

    A = softmax(q k^T / sqrt(head width))         every token's weights over all tokens
    SA(z) = A v                                   and MSA joins the heads

Attention goes through PyTorch's fused kernel, unless a Recorder asks to see it.
"""

from collections.abc import Iterable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import ModelConfig
from vitrail.models.positions import Grid, position_embedding

Kind = Literal["attention", "hidden"]


class Recorder:
    """Keeps what `encode` computes on the way, layer by layer: `recorder.attention[3]`, `recorder.hidden[3]`.

    attention: (batch, heads, tokens, tokens), after the softmax; in the axial variant two a layer, rows
    (batch * rows, heads, columns, columns) then columns. hidden: (batch, tokens, width), after the block.
    Subclass it and override `keep` to reduce each tensor as it comes, so that memory does not grow with depth.
    """

    def __init__(self, *kinds: Kind, layers: Iterable[int] | None = None):
        self.kinds: frozenset[Kind] = frozenset(kinds or ("attention", "hidden"))
        self.layers = None if layers is None else frozenset(layers)
        self.attention: dict[int, Tensor] = {}
        self.hidden: dict[int, Tensor] = {}

    def wants(self, kind: Kind, layer: int) -> bool:
        return kind in self.kinds and (self.layers is None or layer in self.layers)

    def keep(self, kind: Kind, layer: int, tensor: Tensor) -> None:
        (self.attention if kind == "attention" else self.hidden)[layer] = tensor


class Attention(nn.Module):
    """Lets every token attend to all: (batch, tokens, width) -> the same shape. With `first` only so many tokens are
    computed; these still attend to all."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.num_heads, self.dropout = config.num_heads, config.attention_dropout
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.relative = position_embedding(config).in_attention(config)
        self.proj = nn.Linear(config.width, config.width)
        self.proj_drop = nn.Dropout(config.dropout)

    def forward(
        self, x: Tensor, grid: Grid, record: Recorder | None = None, layer: int = 0, first: int | None = None
    ) -> Tensor:
        q, k, v = self.split(x)
        bias = None if self.relative is None else self.relative(q, grid)
        return self.attend(q[:, :, :first], k, v, bias, record, layer)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each (batch, heads, tokens, head width)."""
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.num_heads, width // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, record: Recorder | None = None, layer: int = 0
    ) -> Tensor:
        """Each query's average of the values (batch, tokens, width); `bias` is added to the scores."""
        dropout = self.dropout if self.training else 0.0
        if record is not None and record.wants("attention", layer):
            scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
            weights = (scores if bias is None else scores + bias).softmax(dim=-1)
            record.keep("attention", layer, weights)
            x = F.dropout(weights, dropout) @ v
        else:
            x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        return self.proj_drop(self.proj(x.transpose(1, 2).flatten(2)))
