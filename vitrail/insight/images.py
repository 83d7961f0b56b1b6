"""What is given as images (paths, folders, globs, Pillow images, arrays, tensors) as one list the model can take.

Nothing is kept: an image is read when it is asked for, so that memory does not grow with their number.
"""

import glob
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitrail.checkpoints.preprocessing import assumed
from vitrail.config import Preprocessing
from vitrail.data.decode import EXTENSIONS, BadImage, convert, to_array, to_bytes
from vitrail.data.loader import Normaliser
from vitrail.data.sources import files_split, open_source
from vitrail.data.sources.listing import walk
from vitrail.data.transforms import EvaluationTransform
from vitrail.errors import UserError
from vitrail.models.vit import ViT


@dataclass(frozen=True)
class Sample:
    """A picture of a data set, read already: the bytes of its file, or its pixels."""

    id: str
    content: bytes | np.ndarray


Picture = str | Path | Image.Image | np.ndarray | Tensor | Sample
Given = Picture | Sequence[Picture]


class Images:
    """A list of images, each made into the model's input when it is asked for.

    Files, Pillow images and arrays [rows, columns, channels] are prepared as the model's bundle says. A tensor
    (channels, rows, columns) is taken to be prepared already, at any size the model can cut into patches.
    """

    def __init__(self, model: ViT, given: Given, limit: int | None = None):
        self.preprocessing = preprocessing_of(model)
        self._transform = EvaluationTransform(self.preprocessing)
        self._normalise = Normaliser(self.preprocessing)
        self.given = spread(expand(given), limit)
        if not self.given:
            raise UserError("there are no images to look at: the list is empty")
        self.ids = [_id(each, number) for number, each in enumerate(self.given, 1)]
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
        each = self.given[index]
        if isinstance(each, Tensor):
            return each.detach().cpu().float()
        return self._normalise(self._prepared(index, each)[None])[0]

    def pixels(self, index: int) -> np.ndarray:
        """uint8 [rows, columns, channels], as the model sees it: resized and cropped."""
        each = self.given[index]
        if isinstance(each, Tensor):
            return unnormalised(each.detach().cpu().float(), self.preprocessing)
        return to_bytes(self._prepared(index, each))

    def _prepared(self, index: int, each: Picture) -> np.ndarray:
        try:
            return self._transform(self._content(each))
        except BadImage as error:
            raise UserError(f"{self.ids[index]}: {error}") from error

    def batches(self, size: int) -> Iterator[Tensor]:
        """All of them in order, (batch, channels, rows, columns) at a time."""
        for start in range(0, len(self), size):
            tensors = [self.tensor(index) for index in range(start, min(start + size, len(self)))]
            if len({each.shape for each in tensors}) > 1:
                raise UserError("tensors given as images must all have the same shape")
            yield torch.stack(tensors)

    def _content(self, each: Picture) -> bytes | np.ndarray | Image.Image:
        if isinstance(each, Image.Image) and self.preprocessing.range is not None:
            return each
        if isinstance(each, Image.Image):
            return to_array(convert(each, len(self.preprocessing.mean)))
        if isinstance(each, np.ndarray):
            return each
        if isinstance(each, Sample):
            return each.content
        content = files_split([str(each)]).read(0)
        assert isinstance(content, bytes | np.ndarray)
        return content


def _id(picture: Picture, number: int) -> str:
    if isinstance(picture, Sample):
        return picture.id
    return str(picture) if isinstance(picture, str | Path) else f"image {number}"


def preprocessing_of(model: ViT) -> Preprocessing:
    """The bundle's; a model made in memory has none, and gets what weights without any are given."""
    return model.card.preprocessing or assumed("", model.config)[0]


def expand(given: Given) -> list[Picture]:
    """One entry an image: folders and globs become their files, batches their members."""
    if isinstance(given, str | Path):
        return list(find_files(given))
    if isinstance(given, Image.Image | Sample):
        return [given]
    if isinstance(given, np.ndarray):
        return list(given) if given.ndim == 4 else [given]
    if isinstance(given, Tensor):
        return list(given) if given.ndim == 4 else [given]
    if not isinstance(given, Sequence):
        raise UserError(f"images are paths, Pillow images, arrays or tensors, not a {type(given).__name__}")
    return [picture for each in given for picture in expand(each)]


def find_files(name: str | Path) -> list[Path]:
    """The image files a path means: itself, those below a folder, or those a glob matches."""
    path = Path(name)
    if path.is_dir():
        found = [file for file in walk(path) if file.suffix.lower() in EXTENSIONS]
        if not found:
            raise UserError(f"{path}: there is no image in this folder")
        return found
    if path.exists():
        return [path]
    found = sorted(Path(each) for each in glob.glob(str(name), recursive=True))  # noqa: PTH207
    if not found:
        raise UserError(f"{path}: there is no such image, folder or glob")
    return [file for each in found for file in find_files(each)]


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


def unnormalised(tensor: Tensor, preprocessing: Preprocessing) -> np.ndarray:
    """A prepared tensor back as pixels; what lies outside 0..255 is clipped."""
    mean, std = (torch.tensor(each).view(-1, 1, 1) for each in (preprocessing.mean, preprocessing.std))
    if len(mean) != len(tensor):
        raise UserError(f"a tensor of shape {tuple(tensor.shape)} is no image of {len(mean)} channels")
    pixels = (tensor * std + mean).mul(255).round().clamp(0, 255)
    return np.ascontiguousarray(pixels.to(torch.uint8).permute(1, 2, 0).numpy())


def of_training(model: ViT, count: int) -> tuple[list[Sample], str] | None:
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
        found.append(Sample(sample.id, content))
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
