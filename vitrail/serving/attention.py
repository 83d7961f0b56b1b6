"""The attention of one image: all of it in one compact document for the page, or some maps as numbers or a picture."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.config import ModelConfig
from vitrail.data.decode import to_bytes
from vitrail.insight.attention import read_by_head, record, step_names
from vitrail.insight.attention_distance import mean_distances, pixel_distances
from vitrail.insight.explorer import membership
from vitrail.insight.overlays import overlay
from vitrail.insight.position_similarity import has_positions, position_similarity
from vitrail.insight.rollout import Product
from vitrail.models.positions import Grid
from vitrail.models.vit import ViT
from vitrail.serving.errors import ApiError
from vitrail.serving.images import Preparer

MOST_BYTES = 6_000_000
"""The most bytes of attention in the page's document; as base64 they are 8 MB."""
MOST_NUMBERS = 500_000
"""The most numbers in one answer of plain JSON."""


@dataclass(frozen=True)
class AttentionRequest:
    """A request for attention maps. Layers, heads and patches are counted from 0; -1 is the last."""

    layer: int | None = None
    """The layer, or None for all."""
    head: int | Literal["mean", "rollout"] = "mean"
    """The head, "mean" for the mean of all heads, or "rollout" for one map that joins all layers."""
    query: int | Literal["class", "all"] = "class"
    """The patch that attends, counted row by row, "all" for every patch, or "class" for what the classifier reads."""


@dataclass(frozen=True)
class AttentionInput:
    """An image that is prepared, and what is asked about it."""

    pixels: np.ndarray
    """What the model sees, for pictures: uint8 [rows, columns, channels]."""
    image: np.ndarray
    """The model's input: float32 [channels, rows, columns]."""
    maps: AttentionRequest | None
    """The maps that are asked for, or None for the page's document."""


@dataclass(frozen=True)
class AttentionResult:
    """The maps that an AttentionRequest asked for."""

    layers: list[int]
    """The layers, in the order of `maps`; empty for rollout, which joins all."""
    queries: list[int | str]
    """The query patches, or "class", in the order of `maps`."""
    maps: np.ndarray
    """Float32 [layers (1 for rollout), queries, rows, columns]: each map adds up to 1 over all tokens."""
    pixels: np.ndarray
    """What the model sees: uint8 [rows, columns, channels]."""


class AttentionRunner:
    """Computes the attention of single images, each of which takes as much memory as a batch of predictions.

    It is the `run` of an Operation, whose `prepare` it makes.
    """

    def __init__(self, model: ViT):
        self.model = model
        self.grid = model.config.grid
        self.steps = step_names(model.config)

    def prepare(self, preparer: Preparer) -> Callable[[tuple[bytes, AttentionRequest | None]], AttentionInput]:
        """Returns the function that turns an image file, and the maps it is asked for, into an AttentionInput."""

        def prepare(given: tuple[bytes, AttentionRequest | None]) -> AttentionInput:
            content, wanted = given
            if wanted is not None:
                self.check_request(wanted)
            pixels = preparer.pixels(content)
            return AttentionInput(to_bytes(pixels), preparer.normalised(pixels), wanted)

        return prepare

    def __call__(self, inputs: list[AttentionInput]) -> list[Any]:
        """Returns for each input its AttentionResult, or the page's document."""
        return [self.document(each) if each.maps is None else self.maps(each, each.maps) for each in inputs]

    def check_request(self, wanted: AttentionRequest) -> None:
        """Raises an ApiError for a layer, head or query that the model has not, and for too many maps."""
        patches, heads = self.grid[0] * self.grid[1], self.model.config.num_heads
        ranges = (("layer", wanted.layer, len(self.steps)), ("head", wanted.head, heads))
        for name, value, count in (*ranges, ("query", wanted.query, patches)):
            if isinstance(value, int) and not -count <= value < count:
                raise ApiError(422, "invalid_parameter", f"{name} {value}: the model has {count}, counted from 0")
        layers = len(self.steps) if wanted.layer is None and wanted.head != "rollout" else 1
        if layers * (patches if wanted.query == "all" else 1) * patches > MOST_NUMBERS:
            message = "so many maps are too much for one answer: ask for one layer or one query, or use /attention/map"
            raise ApiError(422, "too_much", message)

    def maps(self, prepared: AttentionInput, wanted: AttentionRequest) -> AttentionResult:
        """Computes the maps that are asked for."""
        count = len(self.steps)
        layers = list(range(count)) if wanted.layer is None else [wanted.layer % count]
        product, maps = Product(), {}

        def reduce(step: int, weights: Tensor) -> None:
            head = wanted.head
            if head == "rollout":
                product.add(step, weights)
            else:
                chosen = weights.float().mean(dim=1) if head == "mean" else weights[:, head].float()
                maps[step] = self._rows(chosen[0], wanted.query)

        rollout = wanted.head == "rollout"
        record(self.model, torch.from_numpy(prepared.image)[None], reduce, None if rollout else layers)
        if rollout:
            assert product.matrix is not None
            layers, maps = [], {0: self._rows(product.matrix[0], wanted.query)}
        patches = self.grid[0] * self.grid[1]
        queries = range(patches) if wanted.query == "all" else [wanted.query]
        queries = [each % patches if isinstance(each, int) else each for each in queries]
        return AttentionResult(layers, queries, np.stack([maps[step] for step in sorted(maps)]), prepared.pixels)

    def _rows(self, matrix: Tensor, query: int | str) -> np.ndarray:
        """Returns the rows of a matrix (tokens, tokens) that `query` names, as maps [queries, rows, columns]."""
        if query == "class":
            return read_by_head(matrix, self.model.config, self.grid)[None].cpu().numpy()
        first = self.model.config.prefix_tokens
        rows = matrix[first:, first:]
        chosen = rows[[query]] if isinstance(query, int) else rows
        return chosen.unflatten(-1, self.grid).cpu().numpy()

    def document(self, prepared: AttentionInput) -> dict[str, Any]:
        """Computes the page's document: all layers, heads and queries in 8 bits, rollout, distances, the picture."""
        config = self.model.config
        averaged, grid = self._size()
        packed, largest, distances, product = [], [], [], Product()
        members = None if grid == self.grid else membership(self.grid, grid)
        shown = int(read_class_token(config))
        between = pixel_distances(self.grid, config.patch_pixels)

        def reduce(step: int, weights: Tensor) -> None:
            product.add(step, weights)
            first = config.prefix_tokens
            each, _ = mean_distances(weights[:, :, first:], between, first)
            distances.append([round(value, 2) for value in each[0].tolist()])
            rows = torch.cat([weights[0, :, :shown], weights[0, :, first:]], dim=1)[..., first:].float()
            rows = pool_to_grid(rows.mean(dim=0, keepdim=True) if averaged else rows, members, shown)
            peaks = rows.amax(dim=-1)
            packed.append((rows / peaks.clamp_min(1e-30)[..., None] * 255).round().to(torch.uint8).cpu().numpy())
            largest.append(peaks.cpu().numpy().astype("<f2"))

        record(self.model, torch.from_numpy(prepared.image)[None], reduce)
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
            "prefix": read_class_token(config),
            "attention": to_base64(np.stack(packed)),
            "scale": to_base64(np.stack(largest)),
            "rollout": to_base64(np.rint(rollout / max(float(rollout.max()), 1e-30) * 255).astype(np.uint8)),
            "rollout_max": float(rollout.max()),
            "distance": distances,
            "image": to_base64(encode_png(prepared.pixels)),
        }

    def _size(self) -> tuple[bool, Grid]:
        """Returns whether heads must be averaged and which grid fits MOST_BYTES; the grid is made coarser only then."""

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


def read_class_token(config: ModelConfig) -> bool:
    """Tells whether a model has a class token that its answer may be read from: a head of every patch reads none."""
    return config.class_token and config.pooling != "patches"


def pool_to_grid(rows: Tensor, members: Tensor | None, prefix: int) -> Tensor:
    """Brings attention (heads, queries, patches) to a coarser grid.

    The queries of a cell are averaged, and what is attended to in a cell is added up. `members` [cells, patches] says
    which patches are in which cell; None leaves all as it is. The first `prefix` queries are no patches, and stay.
    """
    if members is None:
        return rows
    members = members.to(rows)
    mean = members / members.sum(dim=1, keepdim=True)
    return torch.cat([rows[:, :prefix], mean @ rows[:, prefix:]], dim=1) @ members.T


def position_similarity_document(model: ViT) -> dict[str, Any]:
    """Computes the cosine of each position's embedding with each other's, in uint8: -1 is 0 and 1 is 255."""
    patches = model.config.grid[0] * model.config.grid[1]
    if not has_positions(model):
        raise ApiError(
            404, "no_positions", f"the model's positions are {model.config.positions!r}: none can be compared"
        )
    if patches**2 > MOST_BYTES:
        raise ApiError(404, "too_many_positions", f"the similarity of {patches} positions is too much for one answer")
    cosines = position_similarity(model).reshape(patches, patches)
    levels = np.rint((np.clip(cosines, -1, 1) + 1) * 127.5).astype(np.uint8)
    return {"grid": list(model.config.grid), "similarity": to_base64(levels), "minimum": -1, "maximum": 1}


def overlay_png(answer: AttentionResult) -> bytes:
    """Draws the first map over the image, as a PNG file."""
    return encode_png(overlay(answer.pixels, answer.maps[0, 0]))


def encode_png(pixels: np.ndarray) -> bytes:
    """Returns uint8 [rows, columns, channels] as a PNG file: in colour, or grey if there are fewer than 3 channels."""
    shown = pixels[..., :3] if pixels.shape[-1] >= 3 else pixels[..., 0]
    stream = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(shown)).save(stream, "PNG", compress_level=3)
    return stream.getvalue()


def to_base64(values: np.ndarray | bytes) -> str:
    """Returns bytes, or the bytes of an array, as base64."""
    return base64.b64encode(values if isinstance(values, bytes) else values.tobytes()).decode()
