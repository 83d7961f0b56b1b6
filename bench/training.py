"""Our training loop against a plain timm loop: the same model, AdamW, the same batch, interleaved, as ratios.

    python bench/training.py [--rounds 15] [--least 1.0] [--json FILE] [--data FOLDER]

The peer is what most scripts are: `zero_grad`, forward, cross-entropy, backward, `torch.optim.AdamW.step`, with nothing
else. Ours is the whole step of the trainer: seeding, the learning rate, the check for finite losses, the gradient norm
and clipping, and the meters. A ratio is the peer's time over ours, above 1 we are faster.

With --data a folder of photos is trained on for a while; the share of the time that the loop waited for data is given.
"""

import argparse
import itertools
import json
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from vitrail.checkpoints import timm
from vitrail.checkpoints.peers.libraries import import_peer
from vitrail.config import DataConfig, ModelConfig, OptimizerConfig, TrainConfig, TransformConfig
from vitrail.data.loader import Batch
from vitrail.models.build import create
from vitrail.models.sizes import config_for
from vitrail.tasks.base import LossSettings
from vitrail.train import fit
from vitrail.training.learner import Learner
from vitrail.training.loop import Trainer
from vitrail.training.objectives.supervised import Supervised

CASES = {
    "Ti/16 224 px batch 16": (config_for("Ti/16"), 16),
    "Ti 32 px patch 4 batch 16": (config_for("Ti/16", image_size=32, patch_size=4, num_classes=10), 16),
    "Ti 32 px patch 4 batch 128": (config_for("Ti/16", image_size=32, patch_size=4, num_classes=10), 128),
}


def ours(config: ModelConfig, batch: Batch) -> Callable[[], Any]:
    """One step of the trainer."""
    model = create(config)
    settings = TrainConfig(model=config, steps=10**9, batch_size=len(batch), optimizer=OptimizerConfig(lr=1e-4))
    trainer = Trainer(
        config=settings,
        run=Path(),
        learner=Learner(model, Supervised(config.task, LossSettings("softmax", config.num_classes))),
        total=10**9,
        batches=lambda position: itertools.repeat(batch),
        evaluate=None,
        keep_best=lambda *_: None,
        epoch_samples=len(batch),
        device=torch.device("cpu"),
    )
    endless = itertools.repeat(batch)
    return lambda: trainer.step(endless)


def theirs(config: ModelConfig, batch: Batch) -> Callable[[], Any]:
    architecture, arguments = timm.describe_model(config)
    model: nn.Module = import_peer("timm").create_model(architecture, num_classes=config.num_classes, **arguments)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1)

    def step() -> float:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch.images), batch.targets)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def compare(name: str, config: ModelConfig, size: int, rounds: int) -> dict[str, Any]:
    torch.manual_seed(0)
    images = torch.randn(size, 3, *config.rows_columns)
    batch = Batch(images, torch.randint(0, config.num_classes, (size,)), [str(each) for each in range(size)])
    mine, peer = ours(config, batch), theirs(config, batch)
    repeats = max(1, round(1.0 / seconds(mine, 2)))
    seconds(peer, 2)
    ratios, speeds = [], []
    for turn in range(rounds):
        pair = [("mine", mine), ("peer", peer)]
        times = {who: seconds(step, repeats) for who, step in (pair if turn % 2 else pair[::-1])}
        ratios.append(times["peer"] / times["mine"])
        speeds.append(1 / times["mine"])
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "what": f"training step {name}",
        "subject": "vitrail",
        "peer": "timm",
        "ratio": round(statistics.median(ratios), 3),
        "spread": [round(low, 3), round(high, 3)],
        "unit": "peer's time / ours",
        "steps_per_second": round(statistics.median(speeds), 2),
    }


def seconds(step: Callable[[], Any], repeats: int) -> float:
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    return (time.perf_counter() - start) / repeats


def waiting(data: str, steps: int) -> dict[str, Any]:
    """The share of the loop's time that it waited for images, at Ti/16 224 px batch 16 with the paper's crops."""
    with tempfile.TemporaryDirectory() as folder:
        config = TrainConfig(
            model=config_for("Ti/16"),
            data=DataConfig(data, val_fraction=0.02, test_fraction=0.02),
            transform=TransformConfig(),
            steps=steps,
            batch_size=16,
            evaluate_every=steps,
        )
        fit(config, Path(folder) / "run")
        lines = (Path(folder) / "run" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    records = [each for each in map(json.loads, lines) if each["kind"] == "train"]
    return {
        "what": f"waiting for data, {steps} steps of Ti/16 224 px batch 16",
        "share": round(statistics.fmean(each["waiting"] for each in records), 4),
        "most": max(each["waiting"] for each in records),
        "images_per_second": statistics.median(each["images_per_second"] for each in records),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--least", type=float, help="exit 1 if a ratio is below this")
    parser.add_argument("--data", help="a folder of photos")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    threads = torch.get_num_threads()
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {threads} threads, torch {torch.__version__}"
    print(f"{machine}; median of {options.rounds} interleaved rounds [middle half]")
    rows = []
    for name, (config, size) in CASES.items():
        row = compare(name, config, size, options.rounds)
        rows.append(row)
        print(
            f"{row['what']:<40} vs {row['peer']:<6} {row['ratio']:.3f} "
            f"[{row['spread'][0]:.3f}, {row['spread'][1]:.3f}]   {row['steps_per_second']:.2f} steps/s"
        )
    if options.data:
        row = waiting(options.data, options.steps)
        rows.append(row)
        print(f"{row['what']}: {row['share']:.2%} of the time, {row['images_per_second']:.1f} images/s")
    if options.json:
        options.json.write_text(json.dumps({"machine": machine, "rounds": options.rounds, "rows": rows}, indent=2))
    if options.least and any(row.get("ratio", options.least) < options.least for row in rows):
        raise SystemExit(f"a ratio is below {options.least}")


if __name__ == "__main__":
    main()
