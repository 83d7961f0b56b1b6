"""A small model that gives masks, and folders of pictures with masks, for tests of what is made of such models."""

import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from tests.conftest import randomised
from vitrail.config import ModelConfig, Preprocessing
from vitrail.models.build import Model, create
from vitrail.tasks import task

NAMES = ("sky", "road", "tree")
TINY = ModelConfig(image_size=(32, 48), patch_size=8, width=32, depth=2, num_heads=2, mlp_dim=64, num_classes=3)


def mask_model(**changes) -> Model:
    """Random weights, with which all classes occur: a model of three classes of pixels, of 4 x 6 patches."""
    config = task("segmentation").head.adapted(TINY.with_(**changes)).with_(task="segmentation")
    model = randomised(create(config))
    with torch.no_grad():
        model.head.weight.normal_(generator=torch.Generator().manual_seed(3))
        model.head.bias.zero_()
    model.card.label_names = NAMES
    model.card.preprocessing = Preprocessing(image_size=config.image_size, crop="squash")
    return model.eval()


def smooth_picture(seed: int = 0, rows: int = 80, columns: int = 100) -> np.ndarray:
    """A picture of soft blotches, uint8 [rows, columns, 3]."""
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 9, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((columns, rows), Image.Resampling.BICUBIC))


def picture_file(seed: int = 0, rows: int = 80, columns: int = 100) -> bytes:
    """Such a picture as a PNG file."""
    stream = io.BytesIO()
    Image.fromarray(smooth_picture(seed, rows, columns)).save(stream, "PNG")
    return stream.getvalue()


def mask_folder(folder: Path, model: Model, count: int = 6) -> Path:
    """Pictures with the masks that the model itself gives, but for a corner of each that is another class."""
    for part in ("images", "masks"):
        (folder / part).mkdir(parents=True)
    for seed in range(count):
        pixels = smooth_picture(seed, 50 + seed, 70 - seed)
        (answer,) = model.predict(pixels)
        mask = answer.mask.copy()
        mask[:6, :9] = (mask[:6, :9] + 1) % 3
        Image.fromarray(pixels).save(folder / "images" / f"{seed}.png")
        Image.fromarray(mask).save(folder / "masks" / f"{seed}.png")
    (folder / "classes.txt").write_text("\n".join(NAMES) + "\n")
    return folder
