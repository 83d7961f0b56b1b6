"""Looks inside a model: the paper's figures as plain arrays, or all of them as a report.

    model = vitrail.load("my-model")
    vitrail.inspect.attention(model, "photo.jpg")             # [images, layers, heads, tokens, tokens]
    vitrail.inspect.rollout(model, ["a.jpg", "b.jpg"])        # [images, rows, columns]
    vitrail.inspect.report(model, "photos", "report")         # report.html, numbers.json, PNG files

Images are all that `vitrail.predict` takes: paths (files, folders, globs, archives), bytes of an image file, Pillow
images, arrays [rows, columns, channels], tensors [channels, rows, columns], or lists of these. They are prepared as
predict prepares them. Images that are already prepared are given as `vitrail.Prepared(tensor)`, at any size that the
model can cut into patches. Rows and columns of results are those of the patches. Attention is recorded explicitly only
in this module; everywhere else the fused kernel is used.
"""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.inference.token_merging import merge_map, merged, refusal
from vitrail.insight import attention as recording
from vitrail.insight import attention_distance as distances
from vitrail.insight import features as patches
from vitrail.insight import filters as projection
from vitrail.insight import occlusion as hiding
from vitrail.insight import position_similarity as places
from vitrail.insight import rollout as rolling
from vitrail.insight.attention import attentive, batch_size, evaluating, patch_grid, to_model
from vitrail.insight.explained_score import ExplainedScore, find_class
from vitrail.insight.filters import COMPONENTS, Filters
from vitrail.insight.findings import Findings, Merging, Progress, examine, silent
from vitrail.insight.images import Given, Images
from vitrail.insight.report import write_inspection
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
    """Computes the main patterns of the patch projection's filters: their principal components.

    Args:
        model: A Vision Transformer or a hybrid.
        components: The number of components.

    Returns:
        `tiles` [components, rows, columns, channels], here rows and columns of pixels, and `explained` [components],
        the share of the variance that each explains.

    Raises:
        UserError: The model is a ResNet.
    """
    return projection.filters(attentive(model), components)


def position_similarity(model: Model, layer: int = 0) -> np.ndarray:
    """Computes how similar every position's embedding is to every other's.

    Args:
        model: A Vision Transformer or a hybrid.
        layer: The layer, counted from 0, for models with positions at every layer.

    Returns:
        Cosines, [rows, columns, rows, columns]; entry (i, j) is the map of position (i, j) with all others.

    Raises:
        UserError: The model is a ResNet, or its positions have no embedding.
    """
    return places.position_similarity(attentive(model), layer)


def attention(model: Model, images: Given, layers: Iterable[int] | None = None) -> np.ndarray:
    """Computes attention after the softmax.

    Args:
        model: A Vision Transformer or a hybrid.
        images: All that `vitrail.predict` takes.
        layers: The layers, counted from 0; None takes all. An axial layer counts twice: along the rows, then along the
            columns.

    Returns:
        [images, layers, heads, tokens, tokens], queries before keys. Patches are the last tokens, in reading order.

    Raises:
        UserError: The model is a ResNet, an image cannot be read, or the result would take over 4 GB.
    """
    vit = attentive(model)
    return recording.attention(vit, Images(vit, images), layers)


def class_attention(model: Model, images: Given) -> np.ndarray:
    """Computes what the class token attends to, or with average pooling what all patches attend to on average.

    Args:
        model: A Vision Transformer or a hybrid.
        images: All that `vitrail.predict` takes.

    Returns:
        [images, layers, heads, rows, columns].

    Raises:
        UserError: The model is a ResNet, or an image cannot be read.
    """
    vit = attentive(model)
    return recording.class_attention(vit, Images(vit, images))


def attention_distance(model: Model, images: Given) -> np.ndarray:
    """Computes how far each head looks: the mean distance from a patch to what it attends to.

    Args:
        model: A Vision Transformer or a hybrid.
        images: All that `vitrail.predict` takes.

    Returns:
        Distances in pixels, [layers, heads], averaged over patches and images.

    Raises:
        UserError: The model is a ResNet, or an image cannot be read.
    """
    vit = attentive(model)
    return distances.attention_distance(vit, Images(vit, images)).mean


def rollout(model: Model, images: Given, *, matrix: bool = False) -> np.ndarray:
    """Computes attention rollout: how much of each patch is in what the classifier reads, over all layers.

    Args:
        model: A Vision Transformer or a hybrid.
        images: All that `vitrail.predict` takes.
        matrix: Return how much of each token is in each other token.

    Returns:
        [images, rows, columns]; with `matrix` [images, tokens, tokens], where every row sums to 1.

    Raises:
        UserError: The model is a ResNet, or an image cannot be read.
    """
    vit = attentive(model)
    given = Images(vit, images)
    if matrix:
        return np.concatenate([each.cpu().numpy() for each in rolling.rollout_matrices(vit, given)])
    return rolling.rollout(vit, given)


def gradient_rollout(model: Model, images: Given, label: str | None = None) -> np.ndarray:
    """Computes rollout of only that attention which raises the score of a class.

    Args:
        model: A Vision Transformer or a hybrid.
        images: All that `vitrail.predict` takes.
        label: The class, by name, description or number; None takes each image's predicted class.

    Returns:
        [images, rows, columns].

    Raises:
        UserError: The model is a ResNet, there is no such class, or an image cannot be read.
    """
    return _class_maps(rolling.gradient_rollout, model, images, label)


def occlusion(model: Model, images: Given, label: str | None = None) -> np.ndarray:
    """Computes how much the score of a class falls when a patch and those around it are hidden.

    Args:
        model: A Vision Transformer or a hybrid.
        images: All that `vitrail.predict` takes.
        label: The class, by name, description or number; None takes each image's predicted class.

    Returns:
        [images, rows, columns].

    Raises:
        UserError: The model is a ResNet, there is no such class, or an image cannot be read.
    """
    return _class_maps(hiding.occlusion, model, images, label)


def patch_features(model: Model, images: Given, layer: int | None = None) -> np.ndarray:
    """Computes the features of the patches.

    Args:
        model: A Vision Transformer or a hybrid.
        images: All that `vitrail.predict` takes.
        layer: The layer, counted from 0; None takes the patches after the final norm.

    Returns:
        [images, rows, columns, width].

    Raises:
        UserError: The model is a ResNet, or an image cannot be read.
    """
    vit = attentive(model)
    return patches.patch_features(vit, Images(vit, images), layer)


def feature_colours(model: Model, images: Given, layer: int | None = None) -> np.ndarray:
    """Computes colours of patch features: their three main directions are red, green and blue.

    Args:
        model: A Vision Transformer or a hybrid.
        images: All that `vitrail.predict` takes.
        layer: The layer, counted from 0; None takes the patches after the final norm.

    Returns:
        [images, rows, columns, 3] in 0..1.

    Raises:
        UserError: The model is a ResNet, or an image cannot be read.
    """
    return patches.as_colours(patch_features(model, images, layer))[0]


def nearest_patches(
    model: Model, images: Given, image: int, row: int, column: int, count: int = 5
) -> tuple[np.ndarray, np.ndarray]:
    """Finds the patches of other images that are most similar to one patch, at most one an image.

    If there is only one image, its own other patches are searched.

    Args:
        model: A Vision Transformer or a hybrid.
        images: All that `vitrail.predict` takes.
        image: The image of the patch, counted from 0.
        row: The row of the patch.
        column: The column of the patch.
        count: How many patches to return at most.

    Returns:
        Their places [found, 3] as image, row and column, and their cosines [found], the most similar first.

    Raises:
        UserError: The model is a ResNet, or an image cannot be read.
    """
    return patches.nearest_patches(patch_features(model, images), image, row, column, count)


def merged_patches(model: Model, images: Given, per_layer: int) -> np.ndarray:
    """Computes which patches would become one token if each layer merged some.

    Args:
        model: A Vision Transformer or a hybrid.
        images: All that `vitrail.predict` takes.
        per_layer: The number of patches that each layer merges.

    Returns:
        [images, rows, columns]; patches that end in one token have the same number.

    Raises:
        UserError: The model is a ResNet or cannot merge tokens, or an image cannot be read.
    """
    vit = attentive(model)
    given = Images(vit, images)
    batches = given.batches(batch_size(vit.config, patch_grid(vit, given)))
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
    """Writes a report on a model: report.html, numbers.json and the figures as PNG.

    Args:
        model: A Vision Transformer or a hybrid.
        images: All that `vitrail.predict` takes. None takes a few of the data that the model was trained on, if it can
            be opened here, else drawings made by the program.
        out: The folder to write; it must be new, empty or an earlier report.
        title: The page's title.
        label: The class to explain, by name, description or number; None takes each image's predicted class.
        limit: The largest number of images; of more, evenly spread ones are taken.
        occlusion_images: The number of images with an occlusion map; None takes what a minute of one processor core
            allows.
        merge_tokens: The number of patches that each layer merges in the view of merged patches. None merges half of
            all patches over all layers; 0 leaves the view out.
        progress: Is called with what is being done, how much of it was done just now, and how much there is in total.

    Returns:
        The content of numbers.json.

    Raises:
        UserError: The model is a ResNet, the folder cannot be written, there is no such class, or an image cannot be
            read.
    """
    vit = attentive(model)
    name = title or f"Inside {vit.config.name or 'the model'}"
    if merge_tokens is None and refusal(vit.config) is None:
        merge_tokens = max(1, vit.config.grid[0] * vit.config.grid[1] // (2 * vit.config.depth))
    merging = None
    if merge_tokens:
        merged(vit, merge_tokens)  # raises at once if the model cannot merge tokens
        merging = Merging(merge_tokens, lambda each, prepared: _groups(each, prepared, merge_tokens))

    def look() -> Findings:
        """Examines the model."""
        return examine(
            vit,
            images,
            label=label,
            limit=limit,
            occlusion_images=occlusion_images,
            merging=merging,
            progress=progress,
        )

    return write_inspection(Path(out), name, look, progress)


def _groups(vit: ViT, prepared: Tensor, per_layer: int) -> np.ndarray:
    """Finds which patches of prepared images end in one token, [images, rows, columns]."""
    with evaluating(vit):
        return merge_map(merged(vit, per_layer), to_model(vit, prepared)).cpu().numpy()


def _class_maps(
    explain: Callable[[ViT, Tensor, ExplainedScore], np.ndarray], model: Model, images: Given, label: str | None
) -> np.ndarray:
    """Computes for every image the map by which `explain` explains the score of a class, [images, rows, columns].
    label: the class; None takes each image's predicted class."""
    vit = attentive(model)
    given = Images(vit, images)
    wanted = None if label is None else find_class(vit, label)
    tensors = [given.tensor(index) for index in range(len(given))]
    return np.stack([explain(vit, each, ExplainedScore(vit, each, wanted)) for each in tensors])
