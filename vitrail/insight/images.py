"""What is given as images, of any kind that predict takes, as one list the model can take.

An image is read when it is asked for, so that memory does not grow with the number of files. Held are those that come
from memory themselves, and the bytes of an archive's members.
"""

from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.checkpoints.preprocessing import assumed
from vitrail.config import Preprocessing
from vitrail.data.decode import BadImage, to_bytes
from vitrail.data.inputs import Content, Input, Prepared, from_memory, writable
from vitrail.data.preparation import Preparation
from vitrail.data.sources import open_source
from vitrail.data.transforms import EvaluationTransform
from vitrail.errors import UserError
from vitrail.models.vit import ViT

Given = Any
"""All that `data.inputs.from_memory` reads."""


class Images:
    """A list of images, each made into the model's input when it is asked for, as predict makes it.

    What is `Prepared` already may have any size the model can cut into patches.
    """

    def __init__(self, model: ViT, given: Given, limit: int | None = None):
        self.preprocessing = preprocessing_of(model)
        self._prepare = Preparation(self.preprocessing)
        self.given = chosen(given, limit)
        if not self.given:
            raise UserError("there are no images to look at: the list is empty")
        named = enumerate(self.given, 1)
        self.ids = [f"image {number}" if each.path is None else writable(each.path) for number, each in named]
        self.names = short_names(self.ids)

    def __len__(self) -> int:
        return len(self.given)

    def first(self, count: int) -> "Images":
        """The same list, cut short."""
        few = copy(self)
        few.given, few.ids, few.names = self.given[:count], self.ids[:count], self.names[:count]
        return few

    def tensor(self, index: int) -> Tensor:
        """(channels, rows, columns), as the model takes it."""
        seen = self._seen(index)
        if isinstance(seen, Prepared):
            return torch.tensor(seen.values)
        return torch.from_numpy(self._prepare.normalise(seen[None])[0])

    def pixels(self, index: int) -> np.ndarray:
        """uint8 [rows, columns, channels], as the model sees it: resized and cropped."""
        seen = self._seen(index)
        return unnormalised(seen, self.preprocessing) if isinstance(seen, Prepared) else to_bytes(seen)

    def _seen(self, index: int) -> np.ndarray | Prepared:
        try:
            content: Content = self.given[index].read()
            return content if isinstance(content, Prepared) else self._prepare.pixels(content)
        except BadImage as error:
            raise UserError(f"{self.ids[index]}: {error}") from error

    def batches(self, size: int) -> Iterator[Tensor]:
        """All of them in order, (batch, channels, rows, columns) at a time."""
        for start in range(0, len(self), size):
            tensors = [self.tensor(index) for index in range(start, min(start + size, len(self)))]
            if len({each.shape for each in tensors}) > 1:
                raise UserError("what is given as prepared must all have the same shape, that of the others too")
            yield torch.stack(tensors)


def preprocessing_of(model: ViT) -> Preprocessing:
    """The bundle's; a model made in memory has none, and gets what weights without any are given."""
    return model.card.preprocessing or assumed("", model.config)[0]


def chosen(given: Given, limit: int | None) -> list[Input]:
    """The images that are meant, at most so many, evenly spread. Of an archive the bytes of no others are held."""
    if limit is None:
        return list(from_memory(given, required=True))
    if _comes_once(given):
        return _thinned(from_memory(given, required=True), limit)
    count = sum(1 for _ in from_memory(given, required=True))
    places = set(spread(list(range(count)), limit))
    return [each for place, each in enumerate(from_memory(given, required=True)) if place in places]


def _comes_once(given: Given) -> bool:
    """Whether it is a generator, or has one in it, and cannot be counted first."""
    return isinstance(given, Iterator) or (isinstance(given, list | tuple) and any(map(_comes_once, given)))


def _thinned(found: Iterator[Input], limit: int) -> list[Input]:
    """Spread over all that comes, as evenly as can be while no more than twice as many are held."""
    kept, step = [], 1
    for place, each in enumerate(found):
        if place % step == 0:
            kept.append(each)
        if len(kept) > 2 * limit:
            kept, step = kept[::2], 2 * step
    return spread(kept, limit)


def spread(items: list[Any], limit: int | None) -> list[Any]:
    """At most so many, evenly spread: the first of a sorted folder are all of one class."""
    if limit is None or len(items) <= limit:
        return items
    return [items[place * len(items) // limit] for place in range(limit)]


def spread_first(items: list[Any], counts: tuple[int, ...]) -> list[Any]:
    """Ordered anew: the first `counts[0]` are evenly spread over all, of these the first `counts[1]` again, ..."""
    if not counts:
        return items
    places = set(spread(list(range(len(items))), counts[0]))
    chosen = [each for place, each in enumerate(items) if place in places]
    return spread_first(chosen, counts[1:]) + [each for place, each in enumerate(items) if place not in places]


def short_names(ids: list[str]) -> list[str]:
    """For people: without the folder that all of them are in."""
    folders = [{each, *each.parents} for each in (Path(name).parent for name in ids)]
    shared = max(set.intersection(*folders), key=lambda folder: len(folder.parts), default=None)
    return ids if shared is None else [str(Path(name).relative_to(shared)) for name in ids]


def unnormalised(prepared: Prepared, preprocessing: Preprocessing) -> np.ndarray:
    """What was prepared back as pixels; what lies outside 0..255 is clipped."""
    tensor = torch.tensor(prepared.values)
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (preprocessing.mean, preprocessing.std))
    if len(mean) != len(tensor):
        raise UserError(f"prepared input of shape {tuple(tensor.shape)} is no image of {len(mean)} channels")
    pixels = (tensor * std + mean).mul(255).round().clamp(0, 255)
    return np.ascontiguousarray(pixels.to(torch.uint8).permute(1, 2, 0).numpy())


def of_training(model: ViT, count: int) -> tuple[list[Input], str] | None:
    """A few pictures of the data that the model was trained on, evenly spread, and what they are; None where the model
    does not say which that was, or it cannot be opened here. Nothing is fetched over a network for it."""
    told = model.card.provenance.get("data")
    name = told.get("source") if isinstance(told, dict) else None
    if not isinstance(name, str) or not name or name.startswith("hf:") or "://" in name:
        return None
    try:
        source = open_source(name)
    except UserError:
        return None
    if model.card.label_names and set(model.card.label_names) != set(source.classes):
        return None  # another data set of the same name
    part = next(each for each in ("test", "val", "train") if each in source.splits)
    split, transform = source.split(part), EvaluationTransform(preprocessing_of(model))
    found = []
    for place in spread(list(range(len(split))), count):
        sample = split[place]
        try:
            content = sample.read()
            transform(content)
        except BadImage:
            continue
        found.append(Input(sample.id, lambda content=content: content))
    return (found, f"{len(found)} pictures of {name} ({part})") if found else None


def drawn(model: ViT) -> list[np.ndarray]:
    """Four plain drawings, so that attention can be shown where no image was given."""
    (rows, columns), channels = preprocessing_of(model).rows_columns, model.config.channels
    down, right = np.meshgrid(np.linspace(-1, 1, rows), np.linspace(-1, 1, columns), indexing="ij")
    shapes = (
        down**2 + right**2 < 0.35,  # a disc
        ((np.abs(down + 0.35) < 0.3) & (np.abs(right + 0.35) < 0.3)) | (np.hypot(down - 0.5, right - 0.5) < 0.27),
        np.sin(6 * np.pi * (down + right) / 2) > 0,  # stripes
        np.abs(np.hypot(down, right) - 0.65) < 0.14,  # a ring
    )
    paint = np.array([[235, 120, 60], [70, 150, 220], [240, 210, 80], [120, 200, 130]])
    ground = (70 + 40 * down)[..., None] * np.ones(channels)
    drawings = []
    for shape, colour in zip(shapes, paint, strict=True):
        ink = np.resize(colour, channels) if channels >= 3 else np.full(channels, 235)
        drawings.append(np.where(shape[..., None], ink, ground).astype(np.uint8))
    return drawings
