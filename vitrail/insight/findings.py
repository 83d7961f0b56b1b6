"""Computes all that the report shows of one model, once, and the same as numbers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from vitrail.errors import UserError
from vitrail.insight.attention import class_attention, patch_grid
from vitrail.insight.attention_distance import Distances, attention_distance, rounded
from vitrail.insight.explained_score import ExplainedScore, class_name, find_class, has_classes, why_no_classes
from vitrail.insight.explorer import Explorer, explore
from vitrail.insight.features import as_colours, nearest_patches, patch_features
from vitrail.insight.filters import Filters, described, filters
from vitrail.insight.images import Given, Images, chosen, drawn, of_training, spread_first
from vitrail.insight.occlusion import Windows, affordable_windows, occlusion, usual_windows
from vitrail.insight.position_similarity import has_positions, locality, position_similarity
from vitrail.insight.rollout import gradient_rollout, rollout
from vitrail.insight.statistics import rank_correlation
from vitrail.models.cost import cost
from vitrail.models.positions import Grid
from vitrail.models.vit import ViT

_SHOWN = 6
"""The number of images with maps of their own; distances are over all images."""
COMPARED = 24
"""The number of images that are searched for the nearest patches."""
_NEIGHBOURS = 5
"""The number of nearest patches to show."""
OCCLUSION_MACS = 1e12
"""The cost that all occlusion maps together may have, in multiply-adds: about a minute on one processor core."""
FEWEST_WINDOWS = 36
"""The smallest number of windows for which an occlusion map is worth making."""

Progress = Callable[[str, int, int], None]
"""Takes what is being done, how much of it was done just now, and how much there is in total."""


def silent(what: str, done: int, total: int) -> None:
    """Ignores progress."""


@dataclass(frozen=True)
class ImageFindings:
    """One image, and the maps [rows, columns] of what the model's answer for it depends on."""

    id: str
    name: str
    """The id without the folder that all images are in."""
    pixels: np.ndarray
    """The image as the model sees it, uint8 [rows, columns, channels]."""
    label: str | None
    """The class that is explained, in words; None without classes."""
    probability: float | None
    attention: np.ndarray
    """What the classifier reads attends to, [steps, heads, rows, columns]."""
    rollout: np.ndarray
    gradient: np.ndarray
    """Gradient rollout."""
    occlusion: np.ndarray | None
    """None if it was not computed."""

    def to_json(self) -> dict[str, Any]:
        """Returns the maps, and how well they agree, as a JSON object."""
        hidden = self.occlusion
        return {
            "image": self.id,
            "class": self.label,
            "probability": None if self.probability is None else round(self.probability, 4),
            "rollout_and_gradient": rank_correlation(self.rollout, self.gradient),
            "rollout_and_occlusion": None if hidden is None else rank_correlation(self.rollout, hidden),
            "gradient_and_occlusion": None if hidden is None else rank_correlation(self.gradient, hidden),
            "rollout": rounded(self.rollout, 6),
            "gradient_rollout": rounded(self.gradient, 6),
            "occlusion": None if hidden is None else rounded(hidden, 5),
        }


@dataclass(frozen=True)
class Neighbours:
    """A patch and the patches of other images that are most similar; places are (image, row, column)."""

    query: tuple[int, int, int]
    """The patch."""
    places: np.ndarray
    """The most similar patches, [found, 3]."""
    cosines: np.ndarray
    """Their cosine similarities, [found]."""


@dataclass(frozen=True)
class Merging:
    """A way to find which patches would be merged, given by the part of the package that can merge tokens."""

    per_layer: int
    """The number of patches that each layer would merge."""
    groups: Callable[[ViT, Tensor], np.ndarray]
    """Takes prepared images and returns [images, rows, columns], with equal numbers for patches that end in one
    token."""


@dataclass(frozen=True)
class Findings:
    """All that the report shows of one model."""

    model: ViT
    grid: Grid
    images: Images
    drawn: bool
    """Whether the images are the program's own drawings."""
    filters: Filters
    similarity: np.ndarray | None
    """Position similarity, [rows, columns, rows, columns]; None without positions."""
    distances: Distances
    maps: list[ImageFindings]
    windows: Windows | None
    """The occlusion windows; None if no map was made."""
    colours: np.ndarray
    """The patch features as colours, [images, rows, columns, 3]."""
    explained: np.ndarray
    """The share of the features' variance that each of the three colours explains."""
    neighbours: list[Neighbours]
    explorer: Explorer
    merging: Merging | None = None
    groups: np.ndarray | None = None
    """Which patches would be merged, for the images with maps, [images, rows, columns]."""
    notes: list[str] = field(default_factory=list)
    """Sentences about what cannot be shown, and why."""

    def to_json(self) -> dict[str, Any]:
        """Returns the content of numbers.json."""
        config = self.model.config
        maps = [each.to_json() for each in self.maps]
        pairs = ("rollout_and_gradient", "rollout_and_occlusion", "gradient_and_occlusion")
        return {
            "model": {
                "name": config.name,
                "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
                "image_size": [side * config.patch_pixels for side in self.grid],
                "grid": list(self.grid),
                "patch_pixels": config.patch_pixels,
                "layers": config.depth,
                "heads": config.num_heads,
                "prefix_tokens": config.prefix_tokens,
            },
            "images": {"n": len(self.images), "drawn_by_the_program": self.drawn, "with_maps": len(self.maps)},
            "filters": {
                "of": described(self.model),
                "explained_variance": rounded(self.filters.explained, 5),
                "explained_together": round(float(self.filters.explained.sum()), 4),
            },
            "position_similarity": None if self.similarity is None else locality(self.similarity),
            "attention_distance": self.distances.to_json(),
            "agreement": {
                "measure": "Spearman's rank correlation over the patches, mean over images",
                "n": sum(each["rollout_and_occlusion"] is not None for each in maps),
                **{pair: _mean([each[pair] for each in maps]) for pair in pairs},
                "occlusion_window": None if self.windows is None else self.windows._asdict(),
            },
            "maps": maps,
            "features": {
                "explained_by_three": rounded(self.explained, 4),
                "nearest": [
                    {
                        "patch": _place(self.images, each.query),
                        "like": [
                            {**_place(self.images, place), "cosine": round(float(cosine), 4)}
                            for place, cosine in zip(each.places, each.cosines, strict=True)
                        ],
                    }
                    for each in self.neighbours
                ],
            },
            "merging": self._merging(),
            "notes": self.notes,
        }

    def _merging(self) -> dict[str, Any] | None:
        """Returns the numbers on merging; None if it was left out."""
        if self.merging is None or self.groups is None:
            return None
        sizes = [np.unique(each, return_counts=True)[1] for each in self.groups]
        return {
            "per_layer": self.merging.per_layer,
            "patches": self.grid[0] * self.grid[1],
            "tokens_left": _mean([len(each) for each in sizes]),
            "largest_group": max(int(each.max()) for each in sizes),
        }


def examine(
    model: ViT,
    given: Given | None,
    *,
    label: str | None = None,
    limit: int = 128,
    occlusion_images: int | None = None,
    merging: Merging | None = None,
    progress: Progress = silent,
) -> Findings:
    """Examines a model on images.

    Args:
        model: The model.
        given: The images; None takes a few of the data that the model was trained on, or else drawings.
        label: The class to explain; None explains each image's predicted class.
        limit: The largest number of images; of more, evenly spread ones are taken.
        occlusion_images: The number of images with an occlusion map; None takes what a minute of one processor core
            allows.
        merging: How to find merged patches; None leaves them out.
        progress: Is called as work proceeds.
    """
    wanted = None if label is None else find_class(model, label)
    notes: list[str] = []
    by_us = False
    if given is None and (found := of_training(model, COMPARED)) is not None:
        given, what = found
        notes.append(f"No image was given: the model is shown on {what}, the data it was trained on.")
    if given is None:
        by_us = True
        notes.append(
            "No image was given, and the data the model was trained on is not at hand. Filters and positions need "
            "none; the rest is shown on four drawings made by the program, and its numbers say little about photos."
        )
        images = Images(model, drawn(model))
    else:
        images = Images(model, spread_first(chosen(given, limit), (COMPARED, _SHOWN)))
    grid = patch_grid(model, images)
    similarity = position_similarity(model) if has_positions(model) else None
    notes += _missing(model)
    n = len(images)
    distances = attention_distance(model, images, lambda done: progress("attention distance", done, n))
    if not np.isfinite(distances.mean).all():
        raise UserError("the model's attention is not a number: its weights hold NaN or infinity, or overflow")
    maps, windows = _maps(model, images, grid, wanted, occlusion_images, progress)
    progress("features and neighbours", 0, 3)
    features = patch_features(model, images.first(COMPARED))
    colours, explained = as_colours(features)
    progress("features and neighbours", 1, 3)
    explorer = explore(model, images)
    progress("features and neighbours", 1, 3)
    groups = None if merging is None else _groups(model, images.first(len(maps)), merging)
    progress("features and neighbours", 1, 3)
    return Findings(
        model=model,
        grid=grid,
        images=images,
        drawn=by_us,
        filters=filters(model),
        similarity=similarity,
        distances=distances,
        maps=maps,
        windows=windows,
        colours=colours[: len(maps)],
        explained=explained,
        neighbours=[_neighbours(features, index, each) for index, each in enumerate(maps[:4])],
        explorer=explorer,
        merging=merging,
        groups=groups,
        notes=notes,
    )


def _maps(
    model: ViT, images: Images, grid: Grid, label: int | None, occlusion_images: int | None, progress: Progress
) -> tuple[list[ImageFindings], Windows | None]:
    """Computes the maps of the first few images, and returns them with the occlusion windows."""
    few = images.first(_SHOWN)
    progress("maps", 0, len(few))
    rolled, attended = rollout(model, few), class_attention(model, few)
    count, windows = _occlusion_plan(model, grid, len(few), occlusion_images)
    total, maps = count * windows.count(grid), []
    for index in range(len(few)):
        image = few.tensor(index)
        question = ExplainedScore(model, image, label)
        hidden = None
        if index < count:
            hidden = occlusion(model, image, question, windows, lambda done: progress("occlusion", done, total))
        gradient = gradient_rollout(model, image, question)
        maps.append(
            ImageFindings(
                id=few.ids[index],
                name=few.names[index],
                pixels=few.pixels(index),
                label=class_name(model, question.label),
                probability=question.probability,
                attention=attended[index],
                rollout=rolled[index],
                gradient=gradient,
                occlusion=hidden,
            )
        )
        progress("maps", 1, len(few))
    return maps, windows if count else None


def _occlusion_plan(model: ViT, grid: Grid, few: int, asked: int | None) -> tuple[int, Windows]:
    """Returns how many images get an occlusion map, and with which windows: a map runs the model once for every
    window."""
    step = model.config.patch_pixels
    one = cost(model.config.with_(image_size=(grid[0] * step, grid[1] * step))).macs
    if asked is not None:
        return min(asked, few), usual_windows(grid)
    runs = OCCLUSION_MACS / one
    needed = min(FEWEST_WINDOWS, grid[0] * grid[1])
    count = int(max(1, min(few, 4, runs // needed)))
    return count, affordable_windows(grid, int(runs // count))


def _neighbours(features: np.ndarray, index: int, maps: ImageFindings) -> Neighbours:
    """Finds the patches most similar to the one that gradient rollout marks most in an image."""
    row, column = divmod(int(maps.gradient.argmax()), maps.gradient.shape[1])
    return Neighbours((index, row, column), *nearest_patches(features, index, row, column, _NEIGHBOURS))


def _groups(model: ViT, few: Images, merging: Merging) -> np.ndarray:
    """Finds which patches would be merged, [images, rows, columns]."""
    return np.concatenate([merging.groups(model, few.tensor(index)[None]) for index in range(len(few))])


def _missing(model: ViT) -> list[str]:
    """Lists what cannot be shown of this model, and why."""
    config, notes = model.config, []
    if not has_positions(model):
        reason = config.position_kind.no_places
        notes.append(f"{reason}: there is no embedding of a place to compare with another.")
    elif config.positions_at == "every_layer":
        notes.append("Every layer has positions of its own: those of the first are shown.")
    if model.patch_embed.backbone is not None:
        notes.append("The model is a hybrid: its filters are those of the stem's first convolution.")
    if config.attention == "axial":
        notes.append("Attention is axial: every layer attends along the rows, then along the columns.")
    if not has_classes(model):
        notes.append(
            f"{why_no_classes(model).capitalize()}. In place of a class's score, gradient rollout and occlusion follow "
            "the image's own features: how much of them is kept."
        )
    return notes


def _place(images: Images, place: Any) -> dict[str, Any]:
    """Returns a patch's place as a JSON object, with the image's id."""
    image, row, column = (int(each) for each in place)
    return {"image": images.ids[image], "row": row, "column": column}


def _mean(values: Sequence[float | None]) -> float | None:
    """Returns the mean of the values that are known; None if there are none."""
    known = [each for each in values if each is not None]
    return round(float(np.mean(known)), 4) if known else None
