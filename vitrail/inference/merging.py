"""Token merging (Bolya et al., "Token Merging: Your ViT But Faster", 2023): each layer joins the r most alike patches.

Between attention and MLP the patches are dealt into two hands, every other one. Each of the first hand finds the
one of the second whose key is nearest; the r nearest pairs become one token, the average of all patches in it. A token
that stands for m patches counts m times in attention (log m is added to its scores) and in average pooling. Class,
distillation and register tokens are never merged.

    model = merged(vitrail.load("my-bundle"), 8)       # the same weights, fewer tokens from layer to layer

Everything is written in operators that ONNX has, with all numbers of tokens known before the model runs.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import ModelConfig
from vitrail.errors import UserError
from vitrail.models.attention import Recorder
from vitrail.models.positions import Grid
from vitrail.models.vit import Block, ViT


def merged(model: nn.Module, r: int | Sequence[int]) -> "MergedViT":
    """The model, sharing its weights, that merges r patches a layer; or as many as a list says, layer by layer."""
    if not isinstance(model, ViT):
        raise UserError("token merging is for Vision Transformers: a ResNet has no tokens to merge")
    return MergedViT(model, schedule(model.config, r))


def schedule(config: ModelConfig, r: int | Sequence[int]) -> tuple[int, ...]:
    """How many patches go in each layer. One number is cut where it is more than half of the patches left."""
    if reason := refusal(config):
        raise UserError(f"token merging {reason}")
    wanted = [r] * config.depth if isinstance(r, int) else list(r)
    if len(wanted) != config.depth:
        raise UserError(f"the merging schedule has {len(wanted)} numbers, but the model {config.depth} layers")
    if min(wanted) < 0:
        raise UserError(f"a layer cannot merge {min(wanted)} patches: give 0 or more")
    left, result = config.grid[0] * config.grid[1], []
    for count in wanted:
        result.append(min(count, left // 2))
        left -= result[-1]
    return tuple(result)


def refusal(config: ModelConfig) -> str | None:
    """Why a model cannot merge its tokens, as the end of a sentence; None where it can."""
    if config.family != "vit":
        return "is for Vision Transformers: a ResNet has no tokens to merge"
    if config.stages is not None:
        return "is not supported for hybrids: the ResNet before them takes most of the time, and merging none of it"
    if config.attention == "axial":
        return "is not possible with axial attention, which needs whole rows and columns of patches"
    kind = config.position_kind
    if kind.in_attention:
        return f"is not possible with {config.positions} positions: a merged token stands in many places"
    if config.positions_at != "stem" and kind.added:
        return "is not possible with positions added at every layer: a merged token stands in many places"
    return None


@dataclass(frozen=True)
class Match:
    """Which tokens of the first hand go where; numbers count within a hand."""

    kept: Tensor  # (batch, first - r): of the first hand, in their order
    sources: Tensor  # (batch, r): of the first hand, the most alike pair first
    targets: Tensor  # (batch, r): of the second hand


def match(first: Tensor, second: Tensor, r: int) -> Match:
    """Bipartite soft matching: the r of the first hand that are nearest to one of the second. Both are keys of length 1
    (batch, tokens, width), so that nearness is their cosine."""
    best, partner = (first @ second.transpose(1, 2)).max(dim=-1)
    order = best.sort(dim=-1, descending=True).indices
    sources = order[:, :r]
    return Match(order[:, r:].sort(dim=-1).values, sources, partner.gather(1, sources))


class MergedViT(ViT):
    """A ViT with fewer patches after every layer. It has no weights of its own: they are the given model's."""

    def __init__(self, model: ViT, schedule: tuple[int, ...]):
        nn.Module.__init__(self)
        # Its modules and parameters by their own names; the lists of them are copied, what they hold is shared.
        shared = {name: value.copy() if isinstance(value, dict) else value for name, value in vars(model).items()}
        vars(self).update(shared)
        self.schedule = schedule

    def forward(self, images: Tensor) -> Tensor:
        tokens, sizes = self.merge(self.embed(images), first=self.read_tokens)
        return self.classify(self.pool(tokens, sizes), tokens)

    def features(self, images: Tensor) -> Tensor:
        return self.pool(*self.merge(self.embed(images), first=self.read_tokens))

    def encode(
        self, tokens: Tensor, grid: Grid | None = None, record: Recorder | None = None, first: int | None = None
    ) -> Tensor:
        return self.merge(tokens, record, first=first)[0]

    def pool(self, tokens: Tensor, sizes: Tensor | None = None) -> Tensor:
        """As the plain model, but the average is over patches: a merged token counts as often as it has patches."""
        if sizes is None or self.config.pooling == "class":
            return super().pool(tokens)
        prefix = self.config.prefix_tokens
        tokens, sizes = tokens[:, prefix:], sizes[:, prefix:]
        pooled = (tokens * sizes).sum(dim=1) / sizes.sum(dim=1)
        return self.pre_logits(self.fc_norm(pooled))

    def merge(
        self,
        tokens: Tensor,
        record: Recorder | None = None,
        matches: list[Match] | None = None,
        first: int | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The blocks and the final norm: tokens, and how many patches each stands for (None: one). What was matched in
        each merging layer is added to `matches`. With `first` the last layer is for so many of the prefix alone."""
        prefix, sizes = self.config.prefix_tokens, None
        for layer, (block, r) in enumerate(zip(self.blocks, self.schedule, strict=True)):
            assert isinstance(block, Block)
            read = first if layer == len(self.blocks) - 1 else None
            q, k, v = block.attn.split(block.norm1(tokens))
            bias = None if sizes is None else sizes.log().transpose(1, 2)[:, None]  # (batch, 1, 1, tokens)
            attended = block.attn.attend(q[:, :, :read], k, v, bias, record, layer)
            tokens = tokens[:, :read] + block.drop_path(block.ls1(attended))
            if r and read is None:
                keys = F.normalize(k.mean(dim=1), dim=-1)
                found = match(*deal(keys, prefix), r)
                tokens, sizes = join(tokens, sizes, found, prefix)
                if matches is not None:
                    matches.append(found)
            tokens = tokens + block.drop_path(block.ls2(block.mlp(block.norm2(tokens))))
            if record is not None and record.wants("hidden", layer):
                record.keep("hidden", layer, tokens)
        return self.norm(tokens), sizes


def join(tokens: Tensor, sizes: Tensor | None, found: Match, prefix: int) -> tuple[Tensor, Tensor]:
    """Tokens with the matched ones averaged by their sizes: the prefix, those kept of the first hand, the second."""
    if sizes is None:
        sizes = torch.ones_like(tokens[:, :, :1])
    (first, second), (first_sizes, second_sizes) = deal(tokens, prefix), deal(sizes, prefix)
    # A product with a matrix of zeros and sizes adds up what goes together: faster than scattering.
    share = F.one_hot(found.targets, second.shape[1]) * take(first_sizes, found.sources)  # (batch, r, second)
    new_sizes = second_sizes + share.sum(dim=1)[..., None]
    joined = (second * second_sizes + share.transpose(1, 2) @ take(first, found.sources)) / new_sizes
    tokens = torch.cat([tokens[:, :prefix], take(first, found.kept), joined], dim=1)
    return tokens, torch.cat([sizes[:, :prefix], take(first_sizes, found.kept), new_sizes], dim=1)


def deal(tokens: Tensor, prefix: int) -> tuple[Tensor, Tensor]:
    """The patches in two hands. Every other token of all is in the first, as published; so the class token is."""
    return tokens[:, prefix + prefix % 2 :: 2], tokens[:, prefix + 1 - prefix % 2 :: 2]


def take(tokens: Tensor, index: Tensor) -> Tensor:
    """tokens (batch, tokens, width) at index (batch, n) -> (batch, n, width), by rows and not by numbers."""
    batch, count, _ = tokens.shape
    starts = torch.arange(batch, device=tokens.device)[:, None] * count
    return F.embedding(index + starts, tokens.flatten(0, 1))


@torch.inference_mode()
def merge_map(model: MergedViT, images: Tensor) -> Tensor:
    """Which patches ended in one token: (batch, rows, columns) of numbers, the same for those that are together."""
    matches: list[Match] = []
    grid, prefix, sizes = model.grid_of(images), model.config.prefix_tokens, None
    model.merge(model.embed(images), matches=matches)
    # Every patch as a vector with one number that is not 0: averaged like tokens, the vectors say who is in whom.
    own = F.pad(torch.eye(grid[0] * grid[1], device=images.device), (0, 0, prefix, 0))
    members = own.expand(len(images), -1, -1)
    for found in matches:
        members, sizes = join(members, sizes, found, prefix)
    return members[:, prefix:].argmax(dim=1).unflatten(1, grid)
