"""Fine-tuning runs that begin with a head in closed form, whole and killed, in one process and in two.

    python -m tests.training.probed MODEL OUT

The children are forked as in tests.training.several_processes; how each ended is printed as JSON.
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from tests.training.several_processes import at_step, die, nothing, start
from vitrail.checkpoints import bundle
from vitrail.config import TrainConfig
from vitrail.transfer import chosen_config


def configured(model: str) -> TrainConfig:
    config = chosen_config(model, "digits")
    return config.with_(steps=12, evaluate_every=4, snapshot_every=3, log_every=1, ema=0.9)


def at_bundle(folder: str, after: bool) -> Callable[[], None]:
    """Die when a bundle of the run is about to be written, or just was."""

    def install() -> None:
        original = bundle.save

        def save(model: Any, path: Path, overwrite: bool) -> None:
            if path.name == folder and not after:
                die()
            original(model, path, overwrite)
            if path.name == folder:
                die()

        bundle.save = save

    return install


KILLS = {
    "before-anything": at_bundle("best", after=False),
    "before-the-probe": at_bundle("probe", after=False),
    "after-the-probe": at_bundle("probe", after=True),
    "before-a-snapshot": at_step(2, die),
    "after-a-snapshot": at_step(8, die),
    "at-the-end": at_bundle("bundle", after=False),
}


def main(model: str, out: Path) -> None:
    torch.set_num_threads(1)
    config = configured(model)
    found = {"whole": [start(config, out / "whole", 1)], "two": [start(config, out / "two", 2)]}
    for name, kill in KILLS.items():
        found[name] = [start(config, out / name, 1, before) for before in (kill, nothing)]
    for name in ("before-the-probe", "after-the-probe"):
        found[f"two-{name}"] = [start(config, out / f"two-{name}", 2, before) for before in (KILLS[name], nothing)]
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
