"""A small model with facts, exported once, and pictures as files."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.conftest import toy
from vitrail.config import Preprocessing
from vitrail.inference.export import export
from vitrail.models.build import Model

CLASSES = tuple(f"n{place}" for place in range(7))


def described(model: Model, preprocessing: Preprocessing | None = None) -> Model:
    """With class names and preprocessing, as a bundle has them."""
    mean = (0.4, 0.5, 0.6)[: model.config.channels]
    model.card.preprocessing = preprocessing or Preprocessing(model.config.image_size, mean, (0.2, 0.25, 0.3))
    model.card.label_names = CLASSES[: model.config.num_classes]
    model.card.label_descriptions = {"n1": "a thing, of sorts", "n2": "ein Ding — 物"}
    return model


def picture(seed: int, rows: int = 40, columns: int = 52) -> Image.Image:
    generator = np.random.default_rng(seed)
    coarse = generator.integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((columns, rows), Image.Resampling.BICUBIC)


def encoded(seed: int, kind: str = "PNG", **sizes: int) -> bytes:
    stream = io.BytesIO()
    picture(seed, **sizes).save(stream, kind)
    return stream.getvalue()


@pytest.fixture(scope="session")
def model() -> Model:
    return described(toy(depth=1))


@pytest.fixture(scope="session")
def exported(model, tmp_path_factory) -> Path:
    """The toy model as .onnx."""
    return export(model, tmp_path_factory.mktemp("exported") / "toy.onnx").files[0]


@pytest.fixture
def photos(tmp_path) -> Path:
    """Twelve pictures in three folders, two of them broken."""
    for place in range(12):
        folder = tmp_path / "photos" / f"n{place % 3}"
        folder.mkdir(parents=True, exist_ok=True)
        content = {4: b"", 7: encoded(7)[:200]}.get(place, encoded(place, "JPEG" if place % 2 else "PNG"))
        (folder / f"{place:02d}.{'jpg' if place % 2 else 'png'}").write_bytes(content)
    (tmp_path / "photos" / "readme.txt").write_text("not a picture")
    return tmp_path / "photos"
