"""Multi-head self-attention (Appendix A of the paper), and a recorder of what is computed in the layers.

    A = softmax(q k^T / sqrt(head width))         the weights of every token over all tokens
    SA(z) = A v                                   MSA concatenates the heads and projects them

Attention is computed by PyTorch's fused kernel unless a Recorder asks for the weights.
"""

from collections.abc import Iterable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import ModelConfig
from vitrail.models.positions import Grid, position_embedding

Kind = Literal["attention", "hidden"]
"""What a Recorder can keep: attention weights, or the hidden states after the blocks."""


class Recorder:
    """Keeps what `encode` computes in the layers: `recorder.attention[3]`, `recorder.hidden[3]`. Layers count from 0.

    attention: the weights after the softmax, (batch, heads, tokens, tokens). In the axial variant there are two for
    each layer, numbered 2 * layer for the rows, (batch * rows, heads, columns, columns), and 2 * layer + 1 for the
    columns, (batch * columns, heads, rows, rows).

    hidden: the tokens after the block, (batch, tokens, width).

    To save memory, make a subclass whose `keep` reduces each tensor as it comes.
    """

    def __init__(self, *kinds: Kind, layers: Iterable[int] | None = None):
        """Makes an empty recorder, to be given to `ViT.encode`.

        Args:
            kinds: what to keep, "attention" or "hidden"; none given means both.
            layers: the layers to keep; None means all. In the axial variant attention is numbered as above.
        """
        self.kinds: frozenset[Kind] = frozenset(kinds or ("attention", "hidden"))
        self.layers = None if layers is None else frozenset(layers)
        self.attention: dict[int, Tensor] = {}
        self.hidden: dict[int, Tensor] = {}

    def wants(self, kind: Kind, layer: int) -> bool:
        """Whether this kind of tensor is to be kept for this layer."""
        return kind in self.kinds and (self.layers is None or layer in self.layers)

    def keep(self, kind: Kind, layer: int, tensor: Tensor) -> None:
        """Stores the tensor of a layer under its kind, "attention" or "hidden"; a subclass may reduce it first."""
        (self.attention if kind == "attention" else self.hidden)[layer] = tensor


class Attention(nn.Module):
    """Multi-head self-attention: (batch, tokens, width) -> (batch, tokens, width)."""

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.num_heads, self.dropout = config.num_heads, config.attention_dropout
        self.qkv = nn.Linear(config.width, 3 * config.width, bias=config.qkv_bias)
        self.relative = position_embedding(config).in_attention(config)
        self.proj = nn.Linear(config.width, config.width)
        self.proj_drop = nn.Dropout(config.dropout)

    def forward(
        self,
        x: Tensor,
        grid: Grid,
        record: Recorder | None = None,
        layer: int = 0,
        first: int | None = None,
        bias: Tensor | None = None,
    ) -> Tensor:
        """Computes the output of every token, or of the first `first` tokens only; those still attend to all tokens.

        Args:
            x: (batch, tokens, width).
            grid: rows and columns of the patches among the tokens.
            record: keeps the attention weights, if it wants them.
            layer: the number under which they are kept.
            first: how many tokens to compute; None for all.
            bias: added to the scores, (batch, 1, tokens, tokens), where positions have no bias; None for nothing.
        """
        q, k, v = self.split(x)
        bias = bias if self.relative is None else self.relative(q, grid)
        return self.attend(q[:, :, :first], k, v, bias, record, layer)

    def split(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Returns queries, keys and values, each (batch, heads, tokens, head width)."""
        batch, tokens, width = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, self.num_heads, width // self.num_heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        return q, k, v

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, record: Recorder | None = None, layer: int = 0
    ) -> Tensor:
        """Averages the values by the attention weights, joins the heads and projects them: (batch, queries, width).

        Args:
            q: queries (batch, heads, queries, head width).
            k: keys (batch, heads, tokens, head width).
            v: values, shaped as the keys.
            bias: added to the scores before the softmax, (batch, heads, queries, tokens); None for nothing.
            record: keeps the attention weights, if it wants them.
            layer: the number under which they are kept.
        """
        dropout = self.dropout if self.training else 0.0
        if record is not None and record.wants("attention", layer):
            scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
            weights = (scores if bias is None else scores + bias).softmax(dim=-1)
            record.keep("attention", layer, weights)
            x = F.dropout(weights, dropout) @ v
        else:
            x = F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=dropout)
        return self.proj_drop(self.proj(x.transpose(1, 2).flatten(2)))
