"""Reads images of any kind that predict takes, as one list for the model.

An image is read when it is asked for, so that memory does not grow with the number of files. Only images that come from
memory, and the bytes of an archive's members, are kept.
"""

from collections.abc import Iterator
from copy import copy
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.config import Preprocessing
from vitrail.data.decode import BadImage, to_bytes
from vitrail.data.inputs import Input, PictureContent, Prepared, from_memory, writable
from vitrail.data.preparation import Preparation
from vitrail.data.sources import open_source
from vitrail.data.transforms import EvaluationTransform
from vitrail.errors import UserError
from vitrail.models.vit import ViT

Given = Any
"""Anything that `data.inputs.from_memory` reads."""


class Images:
    """A list of images; each is prepared for the model when it is asked for, as predict does.

    `Prepared` ones may have any size that the model can cut into patches.
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
        """Returns a list of the first `count` images."""
        few = copy(self)
        few.given, few.ids, few.names = self.given[:count], self.ids[:count], self.names[:count]
        return few

    def tensor(self, index: int) -> Tensor:
        """Returns an image as the model takes it, [channels, rows, columns]."""
        seen = self._seen(index)
        if isinstance(seen, Prepared):
            return torch.tensor(seen.values)
        return torch.from_numpy(self._prepare.normalise(seen[None])[0])

    def pixels(self, index: int) -> np.ndarray:
        """Returns an image as the model sees it, resized and cropped: uint8 [rows, columns, channels]."""
        seen = self._seen(index)
        return unnormalised(seen, self.preprocessing) if isinstance(seen, Prepared) else to_bytes(seen)

    def _seen(self, index: int) -> np.ndarray | Prepared:
        """Reads an image: resized and cropped pixels, or what is prepared already. Raises a UserError if it cannot be
        read."""
        try:
            content: PictureContent = self.given[index].read()
            return content if isinstance(content, Prepared) else self._prepare.pixels(content)
        except BadImage as error:
            raise UserError(f"{self.ids[index]}: {error}") from error

    def batches(self, size: int) -> Iterator[Tensor]:
        """Yields all images in order, in batches [batch, channels, rows, columns]."""
        for start in range(0, len(self), size):
            tensors = [self.tensor(index) for index in range(start, min(start + size, len(self)))]
            if len({each.shape for each in tensors}) > 1:
                raise UserError("what is given as prepared must all have the same shape, that of the others too")
            yield torch.stack(tensors)


def preprocessing_of(model: ViT) -> Preprocessing:
    """Returns the model's preprocessing; a model without any gets what weights without any are given."""
    return model.card.preprocessing_for(model.config)


def chosen(given: Given, limit: int | None) -> list[Input]:
    """Returns at most `limit` of the images, evenly spread. For an archive, only the bytes of those are kept in
    memory."""
    if limit is None:
        return list(from_memory(given, required=True))
    if _comes_once(given):
        return _thinned(from_memory(given, required=True), limit)
    count = sum(1 for _ in from_memory(given, required=True))
    places = set(spread(list(range(count)), limit))
    return [each for place, each in enumerate(from_memory(given, required=True)) if place in places]


def _comes_once(given: Given) -> bool:
    """Tells whether the images are a generator, or contain one, so that they cannot be counted first."""
    return isinstance(given, Iterator) or (isinstance(given, list | tuple) and any(map(_comes_once, given)))


def _thinned(found: Iterator[Input], limit: int) -> list[Input]:
    """Takes `limit` images from an iterator, spread as evenly as possible while at most twice as many are kept."""
    kept, step = [], 1
    for place, each in enumerate(found):
        if place % step == 0:
            kept.append(each)
        if len(kept) > 2 * limit:
            kept, step = kept[::2], 2 * step
    return spread(kept, limit)


def spread(items: list[Any], limit: int | None) -> list[Any]:
    """Returns at most `limit` items, evenly spread, since the first files of a sorted folder are all of one class."""
    if limit is None or len(items) <= limit:
        return items
    return [items[place * len(items) // limit] for place in range(limit)]


def spread_first(items: list[Any], counts: tuple[int, ...]) -> list[Any]:
    """Reorders items so that the first few are evenly spread.

    The first `counts[0]` are spread over all items, the first `counts[1]` over those, and so on.
    """
    if not counts:
        return items
    places = set(spread(list(range(len(items))), counts[0]))
    chosen = [each for place, each in enumerate(items) if place in places]
    return spread_first(chosen, counts[1:]) + [each for place, each in enumerate(items) if place not in places]


def short_names(ids: list[str]) -> list[str]:
    """Returns the names without the folder that all of them are in."""
    folders = [{each, *each.parents} for each in (Path(name).parent for name in ids)]
    shared = max(set.intersection(*folders), key=lambda folder: len(folder.parts), default=None)
    return ids if shared is None else [str(Path(name).relative_to(shared)) for name in ids]


def unnormalised(prepared: Prepared, preprocessing: Preprocessing) -> np.ndarray:
    """Turns prepared input back into pixels, uint8 [rows, columns, channels]; values outside 0..255 are clipped."""
    tensor = torch.tensor(prepared.values)
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (preprocessing.mean, preprocessing.std))
    if len(mean) != len(tensor):
        raise UserError(f"prepared input of shape {tuple(tensor.shape)} is no image of {len(mean)} channels")
    pixels = (tensor * std + mean).mul(255).round().clamp(0, 255)
    return np.ascontiguousarray(pixels.to(torch.uint8).permute(1, 2, 0).numpy())


def of_training(model: ViT, count: int) -> tuple[list[Input], str] | None:
    """Returns a few pictures of the data that the model was trained on, evenly spread, and a description of them.

    None if the model does not say which data that was, or if it cannot be opened here; nothing is downloaded.
    """
    data = model.card.provenance.get("data")
    name = data.get("source") if isinstance(data, dict) else None
    if not isinstance(name, str) or not name or name.startswith("hf:") or "://" in name:
        return None
    try:
        source = open_source(name)
    except UserError:
        return None
    if model.card.label_names and set(model.card.label_names) != set(source.classes):
        return None  # a different data set with the same name
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
    """Makes four simple drawings, so that attention can be shown if no image was given."""
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
