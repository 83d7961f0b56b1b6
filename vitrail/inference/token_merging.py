"""Merges tokens (Bolya et al., "Token Merging: Your ViT But Faster", 2023): each layer joins r pairs of patches.

Between attention and MLP, the patches are split into two sets, every other one. Each patch of the first set finds the
patch of the second set whose key is nearest. The r nearest pairs become one token each, the average of all patches in
it. A token that stands for m patches counts m times in attention (log m is added to its scores) and in average pooling.
Class, distillation and register tokens are never merged. For a head that reads every patch, each merged token is put
back to all of its patches after the last layer.

    model = merged(vitrail.load("my-bundle"), 8)       # the same weights, fewer tokens from layer to layer

Everything is written in operators that ONNX has, and every number of tokens is known before the model runs.
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
from vitrail.models.query_head import QueryMasking
from vitrail.models.vit import Block, ViT


def merged(model: nn.Module, r: int | Sequence[int]) -> "MergedViT":
    """Returns a model that shares the given one's weights and merges r patches in each layer.

    Args:
        model: A Vision Transformer.
        r: The number of patches, for all layers or one number a layer.

    Raises:
        UserError: The model cannot merge tokens, or `r` does not fit it.
    """
    if not isinstance(model, ViT):
        raise UserError("token merging is for Vision Transformers: a ResNet has no tokens to merge")
    return MergedViT(model, schedule(model.config, r))


def schedule(config: ModelConfig, r: int | Sequence[int]) -> tuple[int, ...]:
    """Returns how many patches are merged in each layer, at most half of those left.

    Raises:
        UserError: The model cannot merge tokens, or `r` does not fit it.
    """
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
    """Returns why a model cannot merge its tokens, as the end of a sentence; None if it can."""
    if config.family != "vit":
        return "is for Vision Transformers: a ResNet has no tokens to merge"
    if config.stages is not None:
        return "is not supported for hybrids: the ResNet before them takes most of the time, and merging none of it"
    if config.attention == "axial":
        return "is not possible with axial attention, which needs whole rows and columns of patches"
    if config.query_tokens:
        return "is not possible with a head of queries, whose masks need every patch in its place"
    kind = config.position_kind
    if kind.in_attention:
        return f"is not possible with {config.positions} positions: a merged token stands in many places"
    if config.positions_at != "stem" and kind.added:
        return "is not possible with positions added at every layer: a merged token stands in many places"
    return None


@dataclass(frozen=True)
class Match:
    """The tokens of the first set that are joined to tokens of the second; indices count within a set."""

    kept: Tensor
    """Tokens of the first set that stay, in their order, [batch, first - r]."""
    sources: Tensor
    """Tokens of the first set that are merged, those of the most similar pair first, [batch, r]."""
    targets: Tensor
    """The token of the second set that each of `sources` joins, [batch, r]."""


def match(first: Tensor, second: Tensor, r: int) -> Match:
    """Finds the r tokens of the first set that are nearest to one of the second (bipartite soft matching).

    Args:
        first: Keys of length 1, [batch, tokens, width], so that nearness is the cosine.
        second: Keys of the other set, likewise.
        r: The number of tokens to match.
    """
    best, partner = (first @ second.transpose(1, 2)).max(dim=-1)
    order = best.sort(dim=-1, descending=True).indices
    sources = order[:, :r]
    return Match(order[:, r:].sort(dim=-1).values, sources, partner.gather(1, sources))


class MergedViT(ViT):
    """A ViT with fewer patches after every layer. It has no weights of its own but shares those of the given model."""

    def __init__(self, model: ViT, schedule: tuple[int, ...]):
        nn.Module.__init__(self)
        # The dictionaries of modules and parameters are copied; the modules and parameters in them are shared.
        shared = {name: value.copy() if isinstance(value, dict) else value for name, value in vars(model).items()}
        vars(self).update(shared)
        self.schedule = schedule

    def forward(self, images: Tensor) -> Tensor:
        """Computes the logits of images [batch, channels, rows, columns]."""
        if self.config.pooling == "patches":
            tokens = self._every_patch(images)
            logits = self.classify(self.pool(tokens), tokens)
            return logits.transpose(1, 2).unflatten(2, self.grid_of(images))
        tokens, sizes = self.merge(self.embed(images), first=self.read_tokens)
        return self.classify(self.pool(tokens, sizes), tokens)

    def head_input(self, images: Tensor) -> Tensor:
        """Computes what the head is given for images [batch, channels, rows, columns]: [batch, width], or [batch,
        patches, width] if it reads every patch."""
        if self.config.pooling == "patches":
            return self.pool(self._every_patch(images))
        return self.pool(*self.merge(self.embed(images), first=self.read_tokens))

    def _every_patch(self, images: Tensor) -> Tensor:
        """Computes as many tokens as the plain model has: each merged token stands in the place of all its patches."""
        matches: list[Match] = []
        tokens, _ = self.merge(self.embed(images), matches=matches)
        rows, columns = self.grid_of(images)
        return put_back_merged(tokens, matches, self.config.prefix_tokens, rows * columns)

    def encode(
        self,
        tokens: Tensor,
        grid: Grid | None = None,
        record: Recorder | None = None,
        first: int | None = None,
        masking: QueryMasking | None = None,
    ) -> Tensor:
        """Computes the tokens after the last layer; fewer than the plain model's, since patches are merged."""
        assert masking is None, "a model with queries does not merge its tokens"
        return self.merge(tokens, record, first=first)[0]

    def pool(self, tokens: Tensor, sizes: Tensor | None = None) -> Tensor:
        """Pools tokens as the plain model does, but in an average each merged token counts once for each of its
        patches."""
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
        """Runs the blocks and the final norm, merging patches in each layer.

        Args:
            tokens: The embedded images, [batch, tokens, width].
            record: Records attention and hidden states where it asks for them.
            matches: Gets the match of each merging layer appended.
            first: The last layer computes only the first `first` tokens; those still attend to all.

        Returns:
            The tokens, and the number of patches that each stands for, [batch, tokens, 1]; None if each stands for one.
        """
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
                tokens, sizes = average_matched(tokens, sizes, found, prefix)
                if matches is not None:
                    matches.append(found)
            tokens = tokens + block.drop_path(block.ls2(block.mlp(block.norm2(tokens))))
            if record is not None and record.wants("hidden", layer):
                record.keep("hidden", layer, tokens)
        return self.norm(tokens), sizes


def average_matched(tokens: Tensor, sizes: Tensor | None, found: Match, prefix: int) -> tuple[Tensor, Tensor]:
    """Averages matched tokens by their sizes.

    Returns the tokens in the order prefix, those kept of the first set, second set; and their sizes, [batch, tokens,
    1].
    """
    if sizes is None:
        sizes = torch.ones_like(tokens[:, :, :1])
    (first, second), (first_sizes, second_sizes) = deal(tokens, prefix), deal(sizes, prefix)
    # Multiplying by a matrix of zeros and sizes adds up the tokens of each group; it is faster than scattering.
    share = F.one_hot(found.targets, second.shape[1]) * take(first_sizes, found.sources)  # (batch, r, second)
    new_sizes = second_sizes + share.sum(dim=1)[..., None]
    joined = (second * second_sizes + share.transpose(1, 2) @ take(first, found.sources)) / new_sizes
    tokens = torch.cat([tokens[:, :prefix], take(first, found.kept), joined], dim=1)
    return tokens, torch.cat([sizes[:, :prefix], take(first_sizes, found.kept), new_sizes], dim=1)


def put_back_merged(tokens: Tensor, matches: Sequence[Match], prefix: int, patches: int) -> Tensor:
    """Puts every merged token back to all of its patches, in the order of the grid.

    Args:
        tokens: The prefix and the tokens that are left, [batch, prefix + left, width].
        matches: What was merged, in the order of the layers.
        prefix: The number of tokens that are no patches.
        patches: The number of patches before any were merged.

    Returns:
        [batch, prefix + patches, width].
    """
    owners = torch.arange(patches, device=tokens.device).expand(tokens.shape[0], -1)  # the token of each patch
    left = patches
    for found in matches:
        owners = _moved_tokens(found, left, prefix).gather(1, owners)
        left -= found.sources.shape[1]
    return torch.cat([tokens[:, :prefix], take(tokens[:, prefix:], owners)], dim=1)


def _moved_tokens(found: Match, count: int, prefix: int) -> Tensor:
    """Computes where each of `count` patch tokens is after a merge, counted among the patch tokens: int64 [batch,
    count]."""
    batch, kept = found.kept.shape
    first = kept + found.sources.shape[1]
    places = torch.arange(kept, device=found.kept.device).expand(batch, -1)
    old, new = torch.cat([found.kept, found.sources], dim=1), torch.cat([places, kept + found.targets], dim=1)
    of_first = torch.zeros_like(new).scatter(1, old, new)
    of_second = (kept + torch.arange(count - first, device=new.device)).expand(batch, -1)
    # The sets take turns; the longer one, if there is one, comes first.
    before, after = (of_second, of_first) if prefix % 2 else (of_first, of_second)
    after = F.pad(after, (0, before.shape[1] - after.shape[1]))
    return torch.stack([before, after], dim=2).flatten(1)[:, :count]


def deal(tokens: Tensor, prefix: int) -> tuple[Tensor, Tensor]:
    """Splits the patches into two sets, every other one. The class token counts as being in the first, as published."""
    return tokens[:, prefix + prefix % 2 :: 2], tokens[:, prefix + 1 - prefix % 2 :: 2]


def take(tokens: Tensor, index: Tensor) -> Tensor:
    """Selects tokens [batch, tokens, width] by index [batch, n] -> [batch, n, width]: whole rows, not single
    numbers."""
    batch, count, _ = tokens.shape
    starts = torch.arange(batch, device=tokens.device)[:, None] * count
    return F.embedding(index + starts, tokens.flatten(0, 1))


@torch.inference_mode()
def merge_map(model: MergedViT, images: Tensor) -> Tensor:
    """Computes which patches end in one token: [batch, rows, columns] of numbers, equal for patches that were
    merged."""
    matches: list[Match] = []
    grid, prefix, sizes = model.grid_of(images), model.config.prefix_tokens, None
    model.merge(model.embed(images), matches=matches)
    # Every patch is a one-hot vector. Averaged as tokens are, the vectors show which patches are in which token.
    own = F.pad(torch.eye(grid[0] * grid[1], device=images.device), (0, 0, prefix, 0))
    members = own.expand(len(images), -1, -1)
    for found in matches:
        members, sizes = average_matched(members, sizes, found, prefix)
    return members[:, prefix:].argmax(dim=1).unflatten(1, grid)
