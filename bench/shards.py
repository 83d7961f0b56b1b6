"""Reading tar shards beside webdataset's own reader: the same files, taking turns, as ratios; and the cold start.

    python bench/shards.py [--rounds 15] [--least 1.0] [--most 2.0] [--json FILE]

Both give the same: the bytes of samples with their keys and labels, in order or shuffled; or batches of decoded and
normalised pictures, which are compared before anything is timed. webdataset decodes with its own `rgb8` and batches
with its own `batched`; with two workers it has PyTorch's processes where we have threads. A ratio is webdataset's time
over ours, above 1 we are faster. Ours checks the SHA-256 of every sample meanwhile.

The cold start is of 100,000 samples: from the start of a fresh Python to the first training batch, and from
`open_source` to it. The files have been read before: it is our start that is measured, not the disk's.
"""

import argparse
import hashlib
import io
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import webdataset
from PIL import Image

from vitrail.config import Preprocessing
from vitrail.data import Source, Split, open_source
from vitrail.data.loader import EvaluationLoader, Normaliser
from vitrail.data.order import create_order
from vitrail.data.shard_writer import write_shards
from vitrail.data.sources.base import Content

peer: Any = webdataset  # whose types are its own affair
BATCH = 64
BUFFER = 10_000
COLD = """
import sys, time
import torch
ready = time.time()
from vitrail.config import Preprocessing, TransformConfig
from vitrail.data import open_source
from vitrail.data.loader import TrainingLoader
opened = time.time()
split = open_source(sys.argv[1], val_fraction=0, test_fraction=0).split("train")
options = {"batch_size": 256, "seed": 0, "num_classes": 10, "shuffle": sys.argv[2]}
batch = next(iter(TrainingLoader(split, TransformConfig(), Preprocessing(image_size=32), **options)))
assert len(batch) == 256 and len(split) == int(sys.argv[3])
print(ready, opened, time.time())
"""


class Pictures:
    """Pictures with large shapes, made when they are asked for: JPEG, or pixels that are stored as PNG."""

    def __init__(self, side: int, jpeg: bool) -> None:
        self.side, self.jpeg = side, jpeg

    def read(self, row: int) -> Content:
        small = np.frombuffer(hashlib.shake_128(str(row).encode()).digest(8 * 8 * 3), np.uint8).reshape(8, 8, 3)
        image = Image.fromarray(small).resize((self.side, self.side), Image.Resampling.BICUBIC)
        if not self.jpeg:
            return np.asarray(small).repeat(self.side // 8, axis=0).repeat(self.side // 8, axis=1)
        stream = io.BytesIO()
        image.save(stream, "JPEG", quality=90)
        return stream.getvalue()

    def size(self, row: int) -> int:
        return -1


def make(folder: Path, count: int, side: int, jpeg: bool, shard_bytes: int) -> tuple[Split, list[str]]:
    """A split of shards, and their paths."""
    ids = [f"{index:06d}" for index in range(count)]
    made = Split.of("train", ids, np.arange(count) % 10, Pictures(side, jpeg))
    source = Source("made", tuple("0123456789"), {"train": made})
    write_shards(source, folder, shard_bytes=shard_bytes)
    split = open_source(folder, val_fraction=0, test_fraction=0).split("train")
    return split, sorted(str(file) for file in folder.glob("*.tar"))


def reader(paths: list[str], shuffled: bool = False) -> Any:
    """webdataset's pipeline over the shards."""
    found = peer.WebDataset(paths, shardshuffle=len(paths) if shuffled else False, seed=0)
    return found.shuffle(BUFFER) if shuffled else found


def our_bytes(split: Split, order: Iterable[int]) -> Iterator[tuple[str, bytes | np.ndarray, int]]:
    return ((split.ids[index], split.read(index), int(split.labels[index])) for index in order)


def their_bytes(pipeline: Any, ending: str) -> Iterator[tuple[str, bytes, int]]:
    return ((sample["__key__"], sample[ending], int(sample["cls"])) for sample in pipeline)


def normalised(batches: Iterable[Any], normalise: Normaliser) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    return ((normalise(np.ascontiguousarray(images)), torch.as_tensor(labels)) for images, labels in batches)


def drain(items: Iterable[Any]) -> None:
    for _ in items:
        pass


def byte_cases(split: Split, paths: list[str], ending: str, count: int) -> dict[str, tuple[Any, Any]]:
    """What each is asked to do, `count` samples at a time."""
    ordered = range(count)
    for mine, theirs in zip(our_bytes(split, ordered), their_bytes(reader(paths), ending), strict=False):
        assert (mine[0].split("/")[1], *mine[1:]) == theirs

    def shuffled() -> Iterator[int]:
        order = create_order(split, 0, 1, "shards", BUFFER)
        return (order.at(position)[1] for position in range(count))

    return {
        "in order": (
            lambda: drain(our_bytes(split, ordered)),
            lambda: drain(itertools.islice(their_bytes(reader(paths), ending), count)),
        ),
        "shuffled": (
            lambda: drain(our_bytes(split, shuffled())),
            lambda: drain(itertools.islice(their_bytes(reader(paths, shuffled=True), ending), count)),
        ),
    }


def batch_cases(split: Split, paths: list[str], ending: str, side: int, workers: int) -> tuple[Any, Any]:
    preprocessing = Preprocessing(image_size=side, crop="squash")
    normalise = Normaliser(preprocessing)
    loader = EvaluationLoader(split, preprocessing, batch_size=BATCH, workers=workers)
    pipeline = reader(paths).decode("rgb8").to_tuple(ending, "cls").batched(BATCH)
    batches: Any = pipeline
    if workers:
        batches = peer.WebLoader(pipeline, batch_size=None, num_workers=workers, persistent_workers=True)
    theirs = dict(_by_content(normalised(pipeline, normalise)))
    ours = dict(_by_content((batch.images, batch.targets) for batch in loader))
    assert ours == theirs
    return lambda: drain(loader), lambda: drain(normalised(batches, normalise))


def _by_content(batches: Iterable[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[tuple[bytes, int]]:
    for images, labels in batches:
        for image, label in zip(images, labels, strict=True):
            yield hashlib.sha256(image.numpy().tobytes()).digest(), int(label)


def compare(what: str, mine: Callable[[], Any], theirs: Callable[[], Any], count: int, rounds: int) -> dict[str, Any]:
    for warm in (mine, theirs):
        warm()
    ratios, speeds = [], []
    for turn in range(rounds):
        pair = [("mine", mine), ("peer", theirs)]
        times = {who: seconds(action) for who, action in (pair if turn % 2 else pair[::-1])}
        ratios.append(times["peer"] / times["mine"])
        speeds.append(count / times["mine"])
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "what": what,
        "subject": "vitrail",
        "peer": "webdataset",
        "ratio": round(statistics.median(ratios), 3),
        "spread": [round(low, 3), round(high, 3)],
        "unit": "peer's time / ours",
        "samples_per_second": round(statistics.median(speeds)),
    }


def seconds(action: Callable[[], Any]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def cold(folder: Path, count: int, shuffle: str, rounds: int) -> dict[str, Any]:
    """Seconds to the first batch, each time in a Python of its own."""
    whole, after, torch_alone = [], [], []
    for _ in range(rounds):
        start = time.time()
        command = [sys.executable, "-c", COLD, str(folder), shuffle, str(count)]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        ready, opened, done = map(float, said.split())
        whole.append(done - start)
        after.append(done - opened)
        torch_alone.append(ready - start)
    return {
        "what": f"cold start of {count:,} samples, shuffle {shuffle}",
        "seconds": round(statistics.median(whole), 2),
        "most": round(max(whole), 2),
        "from_open_source": round(statistics.median(after), 2),
        "importing_torch": round(statistics.median(torch_alone), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--samples", type=int, default=100_000, help="of the small pictures")
    parser.add_argument("--photos", type=int, default=640, help="of 224 px")
    parser.add_argument("--least", type=float, help="exit 1 if a ratio is below this")
    parser.add_argument("--most", type=float, help="exit 1 if a cold start takes longer, in seconds")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    threads = torch.get_num_threads()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads, torch {torch.__version__}"
    print(f"{machine}; median of {options.rounds} interleaved rounds [middle half]")
    rows: list[dict[str, Any]] = []

    def note(row: dict[str, Any]) -> None:
        rows.append(row)
        low, high = row["spread"]
        speed = f"{row['samples_per_second']:>9,} samples/s"
        print(f"{row['what']:<44} {row['ratio']:6.2f} [{low:.2f}, {high:.2f}]   {speed}")

    with tempfile.TemporaryDirectory(prefix="vitrail-bench-") as folder:
        small, paths = make(Path(folder) / "small", options.samples, 32, False, 20_000_000)
        photos, photo_paths = make(Path(folder) / "photos", options.photos, 224, True, 2_000_000)
        count = min(options.samples, 20_000)
        for how, (mine, theirs) in byte_cases(small, paths, "png", count).items():
            note(compare(f"bytes {how}, 32 px PNG", mine, theirs, count, options.rounds))
        for how, (mine, theirs) in byte_cases(photos, photo_paths, "jpg", options.photos).items():
            note(compare(f"bytes {how}, 224 px JPEG", mine, theirs, options.photos, options.rounds))
        for workers in (0, 2):
            mine, theirs = batch_cases(photos, photo_paths, "jpg", 224, workers)
            note(compare(f"batches of 224 px JPEG, {workers} workers", mine, theirs, options.photos, options.rounds))
        for shuffle in ("global", "shards"):
            row = cold(Path(folder) / "small", options.samples, shuffle, min(options.rounds, 7))
            rows.append(row)
            print(
                f"{row['what']}: {row['seconds']:.2f} s (most {row['most']:.2f}), of which torch "
                f"{row['importing_torch']:.2f}; from open_source {row['from_open_source']:.2f}"
            )
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "rounds": options.rounds, "rows": rows}, indent=2))
    if options.least and any(row.get("ratio", options.least) < options.least for row in rows):
        raise SystemExit(f"a ratio is below {options.least}")
    if options.most and any(row.get("seconds", 0) > options.most for row in rows):
        raise SystemExit(f"a cold start took longer than {options.most} s")


if __name__ == "__main__":
    main()
