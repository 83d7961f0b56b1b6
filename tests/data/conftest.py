"""Pictures and data sets, made on the spot."""

import io
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from vitrail.data import Source, decode


def smooth(rows: int = 40, columns: int = 60, seed: int = 0, channels: int = 3) -> np.ndarray:
    """A picture with large shapes, as photos have, so that resizing and JPEG keep it recognisable."""
    generator = np.random.default_rng(seed)
    small = generator.integers(0, 256, (5, 6, channels), dtype=np.uint8)
    planes = [
        np.asarray(Image.fromarray(small[:, :, band]).resize((columns, rows), Image.Resampling.BICUBIC))
        for band in range(channels)
    ]
    return np.stack(planes, axis=2)


def picture(rows: int = 40, columns: int = 60, seed: int = 0, mode: str = "RGB") -> Image.Image:
    return Image.fromarray(smooth(rows, columns, seed)).convert(mode)


def encoded(image: Image.Image, format: str = "PNG", **options) -> bytes:  # noqa: A002
    stream = io.BytesIO()
    image.save(stream, format, **options)
    return stream.getvalue()


def write_class_folders(root: Path, counts: dict[str, int], seed: int = 0) -> Path:
    """PNG pictures, `counts` of each class, all different."""
    for number, (name, count) in enumerate(counts.items()):
        (root / name).mkdir(parents=True, exist_ok=True)
        for index in range(count):
            image = picture(20 + index % 5, 24, seed=seed + 1000 * number + index)
            (root / name / f"{index:03d}.png").write_bytes(encoded(image))
    return root


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch) -> Iterator[Path]:
    """A cache of the test's own: nothing is kept in the home of whoever runs the tests."""
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "vitrail-cache"))
    monkeypatch.delenv("VITRAIL_CACHE_SIZE", raising=False)
    yield tmp_path / "vitrail-cache"
    finish_fetching()  # what is still on its way would arrive in the next test's cache


def finish_fetching() -> None:
    """Wait for everything that is fetched ahead in the background."""
    for thread in threading.enumerate():
        if thread.name == "vitrail-fetch":
            thread.join(30)
            assert not thread.is_alive()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_class_folders(tmp_path / "animals", {"bee": 10, "ant": 10, "cat": 20})


def counts(source: Source) -> dict[str, int]:
    return {name: len(split) for name, split in source.splits.items()}


def check_whole(source: Source) -> None:
    """What must hold for any source: unique ids, readable samples, threads and processes can share it."""
    everything = source.split("all")
    assert len(set(everything.ids)) == len(everything) == sum(counts(source).values())
    assert list(everything.ids) == sorted(everything.ids)
    assert set(everything.labels.tolist()) <= set(range(len(source.classes)))
    copy = pickle.loads(pickle.dumps(source))
    assert copy.fingerprint() == source.fingerprint()
    for split in source.splits.values():
        for index in (0, len(split) - 1):
            sample = split[index]
            pixels = decode(sample.read())
            assert np.array_equal(pixels, decode(copy.split(split.name).read(index)))
            place = list(everything.ids).index(sample.id)
            assert np.array_equal(pixels, decode(everything.read(place)))
            assert everything.labels[place] == sample.target
    with pytest.raises(IndexError):
        everything[len(everything)]
