"""Trains a small run again and again in children that are killed with SIGKILL, until it is finished.

    python -m tests.training.killing OUT KILLS SEED [OBJECTIVE]

Half of the kills come inside the write of a snapshot, at a random one of the system calls it makes; the others at a
random moment. Each child has another number of workers. Imports are paid once: children are forked.
"""

import os
import random
import shutil
import signal
import sys
import threading
from pathlib import Path

import torch

from tests.training import unlabelled
from vitrail.config import (
    DataConfig,
    ModelConfig,
    OptimizerConfig,
    Preprocessing,
    ScheduleConfig,
    TrainConfig,
    TransformConfig,
)
from vitrail.train import fit
from vitrail.training import snapshots

CONFIG = TrainConfig(
    recipe="digits",
    model=ModelConfig(
        image_size=8, channels=1, patch_size=4, width=32, depth=2, num_heads=2, mlp_dim=64, dropout=0.1, drop_path=0.1
    ),
    data=DataConfig("digits", workers=0),
    transform=TransformConfig(crop="evaluation", flip=0.0, rotate=10, translate=0.1, mixup=0.2, label_smoothing=0.1),
    preprocessing=Preprocessing(8, (0.5,), (0.5,), crop="squash"),
    optimizer=OptimizerConfig(lr=2e-3),
    schedule=ScheduleConfig(warmup_steps=10),
    steps=240,
    batch_size=48,
    accumulate=2,
    ema=0.95,
    evaluate_every=20,
    snapshot_every=4,
    log_every=5,
)
QUERIES = TrainConfig(
    model=ModelConfig(
        image_size=32, patch_size=8, width=16, depth=2, num_heads=2, mlp_dim=32, head="queries", queries=5,
        query_layers=2, upscale_blocks=1,
    ),
    data=DataConfig("shapes", workers=0),
    preprocessing=Preprocessing(32, crop="squash"),
    objective="matched_masks",
    steps=16,
    batch_size=4,
    accumulate=2,
    evaluate_every=8,
    snapshot_every=2,
    log_every=5,
)  # fmt: skip
"""Masked attention falls from 1 to 0 within these steps."""


def configured(workers: int, objective: str) -> TrainConfig:
    """With labels the runs above; without them a smaller one."""
    if objective == QUERIES.objective:
        return QUERIES.with_(data=DataConfig("shapes", workers=workers))
    config = CONFIG if objective == CONFIG.objective else unlabelled.settings(objective, steps=40, accumulate=2)
    return config.with_(data=DataConfig("digits", workers=workers))


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def die_inside_a_write(generator: random.Random) -> None:
    """Before or after a random one of the calls that write a snapshot, in a random one of the first few snapshots."""
    skip = generator.randrange(40)
    calls = {"left": skip}

    def counted(module, name):
        original = getattr(module, name)

        def wrapper(*args, **kwargs):
            calls["left"] -= 1
            if calls["left"] == 0:
                die()
            result = original(*args, **kwargs)
            if calls["left"] == -1:
                die()
            return result

        setattr(module, name, wrapper)

    for module, name in ((snapshots, "save_file"), (snapshots, "sync"), (snapshots, "sum_line"), (shutil, "rmtree")):
        counted(module, name)
    counted(Path, "rename")
    counted(Path, "mkdir")
    counted(Path, "write_text")


def child(out: Path, config: TrainConfig, generator: random.Random, inside: bool | None) -> int:
    """Train in a forked process; returns its wait status."""
    seed = generator.random()
    pid = os.fork()
    if pid:
        return os.waitpid(pid, 0)[1]
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115, PTH123  it lives as long as the process
    choice = random.Random(seed)
    if inside:
        die_inside_a_write(choice)
    elif inside is False:
        threading.Timer(choice.uniform(0.1, 1.2), die).start()
    try:
        fit(config, out, resume=(out / "config.json").exists(), report=False)
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(1)
    os._exit(0)


def main(out: Path, kills: int, seed: int, objective: str = CONFIG.objective) -> None:
    torch.set_num_threads(1)
    assert child(out / "whole", configured(0, objective), random.Random(seed), None) == 0
    generator, killed, finished = random.Random(seed), 0, 0
    counts = {True: 0, False: 0}
    while killed < kills:
        inside = killed % 2 == 0
        status = child(out / "killed", configured(killed % 3, objective), generator, inside)
        if status == signal.SIGKILL and not (out / "killed" / "config.json").exists():
            continue  # before there was a run: nothing to lose yet
        if status == signal.SIGKILL:
            killed += 1
            counts[inside] += 1
        elif status == 0:  # finished before the kill came: begin again, it is the kills that count
            finished += 1
            shutil.rmtree(out / "killed")
        else:
            raise SystemExit(f"a child failed with status {status}")
    if not (out / "killed").exists() or child(out / "killed", configured(1, objective), generator, None) != 0:
        raise SystemExit("the last child did not finish")
    print(f"{killed} kills, {counts[True]} inside a snapshot write, {finished} runs finished in between")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), *sys.argv[4:])
