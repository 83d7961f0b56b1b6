"""Attention of one image: everything a page needs in one compact document, or one map as numbers or as a picture."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.data.decode import to_bytes
from vitrail.insight.attention import read_by_head, record, step_names
from vitrail.insight.attention_distance import mean_distances, pixel_distances
from vitrail.insight.explorer import membership
from vitrail.insight.position_similarity import has_positions, position_similarity
from vitrail.insight.rollout import Product
from vitrail.insight.tiles import overlay
from vitrail.models.positions import Grid
from vitrail.models.vit import ViT
from vitrail.serving.images import Preparer
from vitrail.serving.refusals import Refusal

MOST_BYTES = 6_000_000
"""Of attention in one document; as base64 they are 8 MB."""
MOST_NUMBERS = 500_000
"""In one answer of plain JSON."""


@dataclass(frozen=True)
class Question:
    """What `POST /attention` asks. Layers, heads and patches are counted from 0, as the arrays are; -1 is the last."""

    layer: int | None = None
    """None: all."""
    head: int | Literal["mean", "rollout"] = "mean"
    query: int | Literal["class", "all"] = "class"
    """class: what the classifier reads; a number: a patch, row by row; all: every patch."""


@dataclass(frozen=True)
class Asked:
    pixels: np.ndarray
    image: np.ndarray
    question: Question | None
    """None: the whole document for the page."""


@dataclass(frozen=True)
class Answer:
    layers: list[int]
    """Empty for rollout, which joins them."""
    queries: list[int | str]
    maps: np.ndarray
    """[layers (1 for rollout), queries, rows, columns]"""
    pixels: np.ndarray


class AttentionRun:
    """The `run` of a lane: one image at a time, since each takes as much memory as a batch of predictions."""

    def __init__(self, model: ViT):
        self.model = model
        self.grid = model.config.grid
        self.steps = step_names(model.config)

    def prepare(self, preparer: Preparer) -> Callable[[tuple[bytes, Question | None]], Asked]:
        def prepare(given: tuple[bytes, Question | None]) -> Asked:
            content, question = given
            if question is not None:
                self.check(question)
            pixels = preparer.pixels(content)
            return Asked(to_bytes(pixels), preparer.normalised(pixels), question)

        return prepare

    def __call__(self, inputs: list[Asked]) -> list[Any]:
        return [self.document(each) if each.question is None else self.answer(each, each.question) for each in inputs]

    def check(self, question: Question) -> None:
        patches, heads = self.grid[0] * self.grid[1], self.model.config.num_heads
        ranges = (("layer", question.layer, len(self.steps)), ("head", question.head, heads))
        for name, value, count in (*ranges, ("query", question.query, patches)):
            if isinstance(value, int) and not -count <= value < count:
                raise Refusal(422, "invalid_parameter", f"{name} {value}: the model has {count}, counted from 0")
        layers = len(self.steps) if question.layer is None and question.head != "rollout" else 1
        if layers * (patches if question.query == "all" else 1) * patches > MOST_NUMBERS:
            message = "so many maps are too much for one answer: ask for one layer or one query, or use /attention/map"
            raise Refusal(422, "too_much", message)

    def answer(self, asked: Asked, question: Question) -> Answer:
        count = len(self.steps)
        layers = list(range(count)) if question.layer is None else [question.layer % count]
        product, maps = Product(), {}

        def reduce(step: int, weights: Tensor) -> None:
            head = question.head
            if head == "rollout":
                product.add(step, weights)
            else:
                chosen = weights.float().mean(dim=1) if head == "mean" else weights[:, head].float()
                maps[step] = self._rows(chosen[0], question.query)

        rollout = question.head == "rollout"
        record(self.model, torch.from_numpy(asked.image)[None], reduce, None if rollout else layers)
        if rollout:
            assert product.matrix is not None
            layers, maps = [], {0: self._rows(product.matrix[0], question.query)}
        patches = self.grid[0] * self.grid[1]
        queries = range(patches) if question.query == "all" else [question.query]
        queries = [each % patches if isinstance(each, int) else each for each in queries]
        return Answer(layers, queries, np.stack([maps[step] for step in sorted(maps)]), asked.pixels)

    def _rows(self, matrix: Tensor, query: int | str) -> np.ndarray:
        """Of (tokens, tokens) the rows asked for, over the patches: [queries, rows, columns]."""
        if query == "class":
            return read_by_head(matrix, self.model.config, self.grid)[None].cpu().numpy()
        first = self.model.config.prefix_tokens
        rows = matrix[first:, first:]
        chosen = rows[[query]] if isinstance(query, int) else rows
        return chosen.unflatten(-1, self.grid).cpu().numpy()

    def document(self, asked: Asked) -> dict[str, Any]:
        """All layers, heads and queries in 8 bits, rollout, attention distance, and what the model saw."""
        config = self.model.config
        averaged, grid = self._size()
        packed, largest, distances, product = [], [], [], Product()
        members = None if grid == self.grid else membership(self.grid, grid)
        between = pixel_distances(self.grid, config.patch_pixels)

        def reduce(step: int, weights: Tensor) -> None:
            product.add(step, weights)
            first = config.prefix_tokens
            each, _ = mean_distances(weights[:, :, first:], between, first)
            distances.append([round(value, 2) for value in each[0].tolist()])
            rows = torch.cat([weights[0, :, : int(config.class_token)], weights[0, :, first:]], dim=1)[
                ..., first:
            ].float()
            rows = pooled(rows.mean(dim=0, keepdim=True) if averaged else rows, members, int(config.class_token))
            peaks = rows.amax(dim=-1)
            packed.append((rows / peaks.clamp_min(1e-30)[..., None] * 255).round().to(torch.uint8).cpu().numpy())
            largest.append(peaks.cpu().numpy().astype("<f2"))

        record(self.model, torch.from_numpy(asked.image)[None], reduce)
        assert product.matrix is not None
        rollout = read_by_head(product.matrix, config, self.grid)[0].flatten()
        rollout = (rollout if members is None else members.to(rollout) @ rollout).cpu().numpy()
        return {
            "grid": list(grid),
            "depth": len(self.steps),
            "layers": self.steps,
            "num_heads": 1 if averaged else config.num_heads,
            "averaged": averaged,
            "coarse": members is not None,
            "prefix": config.class_token,
            "attention": text(np.stack(packed)),
            "scale": text(np.stack(largest)),
            "rollout": text(np.rint(rollout / max(float(rollout.max()), 1e-30) * 255).astype(np.uint8)),
            "rollout_max": float(rollout.max()),
            "distance": distances,
            "image": text(png(asked.pixels)),
        }

    def _size(self) -> tuple[bool, Grid]:
        """(heads averaged, grid): as much as fits, first without heads, then on a coarser grid."""

        def size(heads: int, grid: Grid) -> int:
            patches = grid[0] * grid[1]
            return len(self.steps) * heads * (patches + 1) * patches

        if size(self.model.config.num_heads, self.grid) <= MOST_BYTES:
            return False, self.grid
        factor, grid = 1, self.grid
        while size(1, grid) > MOST_BYTES and max(grid) > 1:
            factor += 1
            grid = -(-self.grid[0] // factor), -(-self.grid[1] // factor)
        return True, grid


def pooled(rows: Tensor, members: Tensor | None, prefix: int) -> Tensor:
    """(heads, queries, patches) on a coarser grid: queries of a cell are averaged, what they attend to is added up."""
    if members is None:
        return rows
    members = members.to(rows)
    mean = members / members.sum(dim=1, keepdim=True)
    return torch.cat([rows[:, :prefix], mean @ rows[:, prefix:]], dim=1) @ members.T


@cache
def positions(model: ViT) -> dict[str, Any]:
    """Cosines of every position's embedding with every other's, -1..1 as 0..255."""
    patches = model.config.grid[0] * model.config.grid[1]
    if not has_positions(model):
        raise Refusal(
            404, "no_positions", f"the model's positions are {model.config.positions!r}: none can be compared"
        )
    if patches**2 > MOST_BYTES:
        raise Refusal(404, "too_many_positions", f"the similarity of {patches} positions is too much for one answer")
    cosines = position_similarity(model).reshape(patches, patches)
    levels = np.rint((np.clip(cosines, -1, 1) + 1) * 127.5).astype(np.uint8)
    return {"grid": list(model.config.grid), "similarity": text(levels), "minimum": -1, "maximum": 1}


def overlay_png(answer: Answer) -> bytes:
    """The first map over the image."""
    return png(overlay(answer.pixels, answer.maps[0, 0]))


def png(pixels: np.ndarray) -> bytes:
    shown = pixels[..., :3] if pixels.shape[-1] >= 3 else pixels[..., 0]
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(shown)).save(stream, "PNG", compress_level=3)
    return stream.getvalue()


def text(values: np.ndarray | bytes) -> str:
    return base64.b64encode(values if isinstance(values, bytes) else values.tobytes()).decode()
