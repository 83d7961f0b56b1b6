"""From a folder of photos to labels, against the peers' own ways; large photos; and a cold start. On a quiet machine:

    VITRAIL_ASSETS=FOLDER python bench/predict.py [--rounds 5] [--photos 500] [--large 60] [--least 1.3]
        [--json bench/predict.json]

A ratio is the peer's time over ours for one round, the two run one right after the other in turns; above 1 we are
faster. Median and the middle half of the rounds are given. Real weights (DeiT-Ti), the same in every program.

timm: its ImageDataset, its loader (without processes, and with one a core: the faster one counts) and its model in
inference mode. transformers: its image-classification pipeline over the paths, batches of 8. Ours: what
`vitrail predict` does, rows written to a file. A cold start is a new process that labels one photo.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from PIL import Image

import vitrail
from vitrail.checkpoints.convert import convert
from vitrail.checkpoints.peers.libraries import import_peer
from vitrail.data.inputs import find_pictures
from vitrail.inference.engine_selection import open_engine
from vitrail.inference.export import export
from vitrail.inference.jobs.outputs import open_writer
from vitrail.inference.predictor import Predictor, prediction_workers
from vitrail.tasks.answers import AnswerOptions
from vitrail.tasks.classification.answer import ClassColumns

Answers = dict[str, str]
"""The best class of every path."""

MINIMAL = """
import sys, warnings
warnings.simplefilter("ignore")
from vitrail.checkpoints.peers.libraries import import_peer
import_peer("transformers")
from transformers import pipeline
print(pipeline("image-classification", model=sys.argv[1])(sys.argv[2], top_k=1))
"""


def ours(model: Path, engine: str, out: Path) -> Callable[[Path], Answers]:
    predictor = Predictor(open_engine(model, engine, workers=prediction_workers(single=False)))
    columns = ClassColumns(top=1)

    def run(folder: Path) -> Answers:
        writer = open_writer(out, columns, overwrite=True)
        answers = {}
        for batch in predictor.predictions(find_pictures([folder]), AnswerOptions(1)):
            rows = [columns.row(each) for each in batch]
            writer.write(rows)
            answers.update({str(row["path"]): row["top"][0]["label"] for row in rows})
        writer.close(True)
        return answers

    return run


def timm_loop(model: Path, workers: int) -> Callable[[Path], Answers]:
    timm = import_peer("timm")
    import_peer("timm.data")
    network = timm.create_model(f"local-dir:{model}", pretrained=True).eval()
    settings = timm.data.resolve_data_config({}, model=network)
    labels = vitrail.load(model).card.label_names

    def run(folder: Path) -> Answers:
        dataset = timm.data.ImageDataset(str(folder))
        loader = timm.data.create_loader(
            dataset, batch_size=8, is_training=False, use_prefetcher=False, num_workers=workers, **_wanted(settings)
        )
        best: list[int] = []
        with torch.inference_mode():
            for images, _ in loader:
                best += network(images).argmax(dim=1).tolist()
        names = [str(folder / name) for name in dataset.filenames()]
        return {name: labels[place] for name, place in zip(names, best, strict=True)}

    return run


def _wanted(settings: dict[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in ("input_size", "interpolation", "mean", "std", "crop_pct")}


def transformers_pipeline(model: Path) -> Callable[[Path], Answers]:
    transformers = import_peer("transformers")
    classify = transformers.pipeline("image-classification", model=str(model), batch_size=8)

    def run(folder: Path) -> Answers:
        paths = sorted(str(path) for path in folder.rglob("*.JPEG"))
        return {path: found[0]["label"] for path, found in zip(paths, classify(paths, top_k=1), strict=True)}

    return run


def compare(
    what: str, mine: Callable[[Path], Answers], theirs: dict[str, Callable[[Path], Answers]], folder: Path, rounds: int
) -> list[dict[str, Any]]:
    rows = []
    for peer, run in theirs.items():
        first, second = mine(folder), run(folder)  # also to warm up, and to have the files in memory
        agreement = sum(first[name] == second[name] for name in first) / len(first)
        ratios, speeds = [], []
        for turn in range(rounds):
            pair = [("ours", mine), ("theirs", run)]
            times = {who: _seconds(each, folder) for who, each in (pair if turn % 2 else pair[::-1])}
            ratios.append(times["theirs"] / times["ours"])
            speeds.append(len(first) / times["ours"])
        rows.append(_row(what, peer, ratios, {"images_per_second": statistics.median(speeds), "agreement": agreement}))
    return rows


def cold_start(onnx: Path, huggingface: Path, photo: Path, rounds: int) -> list[dict[str, Any]]:
    mine = [sys.executable, "-m", "vitrail", "predict", str(onnx), str(photo)]
    theirs = [sys.executable, "-c", MINIMAL, str(huggingface), str(photo)]
    ratios, speeds = [], []
    for turn in range(rounds + 1):
        times = []
        for command in (mine, theirs):
            start = time.perf_counter()
            subprocess.run(command, check=True, capture_output=True)
            times.append(time.perf_counter() - start)
        if turn:  # the first reads from the disk
            ratios.append(times[1] / times[0])
            speeds.append(times[0])
    return [_row("cold start, one photo", "transformers", ratios, {"seconds": statistics.median(speeds)})]


def _seconds(run: Callable[[Path], Answers], folder: Path) -> float:
    start = time.perf_counter()
    run(folder)
    return time.perf_counter() - start


def _row(what: str, peer: str, ratios: list[float], more: dict[str, float]) -> dict[str, Any]:
    low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
    row = {"what": what, "subject": "vitrail", "peer": peer, "ratio": round(middle, 3)}
    row |= {"spread": [round(low, 3), round(high, 3)], "unit": "peer's time / ours"}
    row |= {name: round(value, 4) for name, value in more.items()}
    numbers = ", ".join(f"{name} {value:.4g}" for name, value in more.items())
    print(f"{what:<28} vs {peer:<24} {middle:.2f} [{low:.2f}, {high:.2f}]   {numbers}", flush=True)
    return row


def sample(source: Path, folder: Path, count: int, megapixels: float | None = None) -> Path:
    """Some of the photos, evenly taken; as they are, or enlarged to what cameras make."""
    paths = sorted(source.rglob("*.JPEG"))
    for path in paths[:: max(1, len(paths) // count)][:count]:
        inner = folder / path.parent.name
        inner.mkdir(parents=True, exist_ok=True)
        if megapixels is None:
            (inner / path.name).write_bytes(path.read_bytes())
            continue
        image = Image.open(path).convert("RGB")
        factor = (megapixels * 1e6 / (image.width * image.height)) ** 0.5
        size = round(image.width * factor), round(image.height * factor)
        image.resize(size, Image.Resampling.BICUBIC).save(inner / path.name, "JPEG", quality=90)
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--photos", type=int, default=500)
    parser.add_argument("--large", type=int, default=60, help="photos of 12 megapixels; 0: none")
    parser.add_argument("--engine", default="auto")
    parser.add_argument("--least", type=float, help="exit 1 if a ratio is below, or labels agree on under 99 %%")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    assets = Path(os.environ["VITRAIL_ASSETS"])
    threads = torch.get_num_threads()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads, torch {torch.__version__}"
    print(f"{machine}; median of {options.rounds} interleaved rounds [middle half]")
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        bundle, huggingface = work / "bundle", work / "huggingface"
        labels = assets / "imagenet-labels.json"
        convert(assets / "deit-ti16.safetensors", bundle, preprocessing="imagenet", labels=labels, check=False)
        convert(bundle, huggingface, "huggingface", check=False)
        onnx = export(vitrail.load(bundle), work / "model.onnx").files[0]
        photos = sample(assets / "imagenet-sample", work / "photos", options.photos)
        mine = ours(bundle, options.engine, work / "out.jsonl")
        cores = len(os.sched_getaffinity(0))
        peers = {
            "timm": timm_loop(bundle, 0),
            f"timm, {cores} processes": timm_loop(bundle, cores),
            "transformers": transformers_pipeline(huggingface),
        }
        rows = compare(f"folder of {options.photos} photos", mine, peers, photos, options.rounds)
        if options.large:
            large = sample(assets / "imagenet-sample", work / "large", options.large, megapixels=12)
            rows += compare("photos of 12 megapixels", mine, peers, large, max(2, options.rounds // 2))
        rows += cold_start(onnx, huggingface, next(photos.rglob("*.JPEG")), options.rounds)
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "rounds": options.rounds, "rows": rows}, indent=2))
    if options.least is not None:
        sys.exit(any(row["ratio"] < options.least or row.get("agreement", 1.0) < 0.99 for row in rows))


if __name__ == "__main__":
    main()
