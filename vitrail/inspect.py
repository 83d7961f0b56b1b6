"""Look inside a model: the paper's figures as plain arrays, or all of them as a report.

    model = vitrail.load("my-model")
    vitrail.inspect.attention(model, "photo.jpg")             # [images, layers, heads, tokens, tokens]
    vitrail.inspect.rollout(model, ["a.jpg", "b.jpg"])        # [images, rows, columns]
    vitrail.inspect.report(model, "photos", "report")         # report.html, numbers.json, PNG files

Images are all that `vitrail.predict` takes, prepared by the same code as the model's bundle says: paths (files,
folders, globs, archives), bytes of an image file, Pillow images, arrays [rows, columns, channels], tensors [channels,
rows, columns], or lists of these. What is prepared already, at any size the model can cut into patches, is given as
`vitrail.Prepared(tensor)`. Attention is recorded explicitly only here; everywhere else the fused kernel stays on.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.inference.merging import merge_map, merged, refusal
from vitrail.insight import attention as recording
from vitrail.insight import attention_distance as distances
from vitrail.insight import features as patches
from vitrail.insight import filters as projection
from vitrail.insight import occlusion as hiding
from vitrail.insight import position_similarity as places
from vitrail.insight import rollout as rolling
from vitrail.insight.attention import attentive, batch_size, evaluating, grid_of, to_model
from vitrail.insight.filters import COMPONENTS, Filters
from vitrail.insight.findings import Findings, Merging, Progress, examine, silent
from vitrail.insight.images import Given, Images
from vitrail.insight.question import Question, find_class
from vitrail.insight.report import write_report
from vitrail.models.build import Model
from vitrail.models.vit import ViT

__all__ = [
    "attention",
    "attention_distance",
    "class_attention",
    "feature_colours",
    "filters",
    "gradient_rollout",
    "merged_patches",
    "nearest_patches",
    "occlusion",
    "patch_features",
    "position_similarity",
    "report",
    "rollout",
]


def filters(model: Model, components: int = COMPONENTS) -> Filters:
    """(tiles [components, rows, columns, channels], explained [components]): the patch projection's main patterns."""
    return projection.filters(attentive(model), components)


def position_similarity(model: Model, layer: int = 0) -> np.ndarray:
    """[rows, columns, rows, columns]: cosines of every position's embedding with every other's."""
    return places.position_similarity(attentive(model), layer)


def attention(model: Model, images: Given, layers: Iterable[int] | None = None) -> np.ndarray:
    """[images, layers, heads, tokens, tokens], after the softmax; the patches come last, in reading order.

    Layers are counted from 0. An axial layer counts twice: along the rows, then along the columns.
    """
    vit = attentive(model)
    return recording.attention(vit, Images(vit, images), layers)


def class_attention(model: Model, images: Given) -> np.ndarray:
    """[images, layers, heads, rows, columns]: what the class token attends to, or with average pooling the patches."""
    vit = attentive(model)
    return recording.class_attention(vit, Images(vit, images))


def attention_distance(model: Model, images: Given) -> np.ndarray:
    """[layers, heads]: how far in pixels each head looks, averaged over patches and images."""
    vit = attentive(model)
    return distances.attention_distance(vit, Images(vit, images)).mean


def rollout(model: Model, images: Given, *, matrix: bool = False) -> np.ndarray:
    """[images, rows, columns]: how much of each patch is in what the classifier reads; or, as a matrix, how much of
    each token is in each: [images, tokens, tokens], rows summing to 1."""
    vit = attentive(model)
    given = Images(vit, images)
    if matrix:
        return np.concatenate([each.cpu().numpy() for each in rolling.rollout_matrices(vit, given)])
    return rolling.rollout(vit, given)


def gradient_rollout(model: Model, images: Given, label: str | None = None) -> np.ndarray:
    """[images, rows, columns]: rollout of what raises the score of a class, by default the one the model says."""
    vit, given, wanted = _asked(model, images, label)
    tensors = [given.tensor(index) for index in range(len(given))]
    return np.stack([rolling.gradient_rollout(vit, each, Question(vit, each, wanted)) for each in tensors])


def occlusion(model: Model, images: Given, label: str | None = None) -> np.ndarray:
    """[images, rows, columns]: how much the score of a class falls when a patch and those around it are hidden."""
    vit, given, wanted = _asked(model, images, label)
    tensors = [given.tensor(index) for index in range(len(given))]
    return np.stack([hiding.occlusion(vit, each, Question(vit, each, wanted)) for each in tensors])


def patch_features(model: Model, images: Given, layer: int | None = None) -> np.ndarray:
    """[images, rows, columns, width]: the patches after the final norm, or after a layer counted from 0."""
    vit = attentive(model)
    return patches.patch_features(vit, Images(vit, images), layer)


def feature_colours(model: Model, images: Given, layer: int | None = None) -> np.ndarray:
    """[images, rows, columns, 3] in 0..1: the three main directions of the patch features as red, green and blue."""
    return patches.as_colours(patch_features(model, images, layer))[0]


def nearest_patches(
    model: Model, images: Given, image: int, row: int, column: int, count: int = 5
) -> tuple[np.ndarray, np.ndarray]:
    """The patches of other images most like one patch: (places [found, 3] as image, row, column; cosines [found])."""
    return patches.nearest_patches(patch_features(model, images), image, row, column, count)


def merged_patches(model: Model, images: Given, per_layer: int) -> np.ndarray:
    """[images, rows, columns]: the same number for patches that end in one token when so many a layer are merged."""
    vit = attentive(model)
    given = Images(vit, images)
    batches = given.batches(batch_size(vit.config, grid_of(vit, given)))
    return np.concatenate([_groups(vit, batch, per_layer) for batch in batches])


def report(
    model: Model,
    images: Given | None,
    out: str | Path,
    *,
    title: str | None = None,
    label: str | None = None,
    limit: int = 128,
    occlusion_images: int | None = None,
    merge_tokens: int | None = None,
    progress: Progress = silent,
) -> dict[str, Any]:
    """Write report.html, numbers.json and the figures to a new folder; returns the numbers.

    Without images, a few of the data that the model was trained on are taken where that can be opened here, else
    drawings of the program's own. Of more than `limit` images, evenly spread ones are taken.
    `merge_tokens` patches a layer are merged in the view of that; by default half of them in all, 0 leaves it out.
    """
    vit = attentive(model)
    name = title or f"Inside {vit.config.name or 'the model'}"
    if merge_tokens is None and refusal(vit.config) is None:
        merge_tokens = max(1, vit.config.grid[0] * vit.config.grid[1] // (2 * vit.config.depth))
    merging = None
    if merge_tokens:
        merged(vit, merge_tokens)  # refused at once, if it has to be
        merging = Merging(merge_tokens, lambda each, prepared: _groups(each, prepared, merge_tokens))

    def look() -> Findings:
        return examine(
            vit,
            images,
            label=label,
            limit=limit,
            occlusion_images=occlusion_images,
            merging=merging,
            progress=progress,
        )

    return write_report(Path(out), name, look, progress)


def _groups(vit: ViT, prepared: Tensor, per_layer: int) -> np.ndarray:
    with evaluating(vit):
        return merge_map(merged(vit, per_layer), to_model(vit, prepared)).cpu().numpy()


def _asked(model: Model, images: Given, label: str | None) -> tuple[ViT, Images, int | None]:
    vit = attentive(model)
    return vit, Images(vit, images), None if label is None else find_class(vit, label)
