"""How well an objective without labels does on samples it does not learn from: the same masks every time."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vitrail.data.loader import Batch
from vitrail.models.build import Model
from vitrail.training.loop import step_seed
from vitrail.training.objectives.base import Illustration, Objective

_RANK = -1
"""In the place of a process's number: masks of validation are none of training's."""


@torch.no_grad()
def measure(
    objective: Objective, model: Model, batches: Iterable[Batch], device: torch.device, seed: int
) -> dict[str, Any]:
    """n, skipped, the mean loss and the means of what else the objective measures."""
    n = skipped = 0
    sums: dict[str, float] = {}
    with _still(objective, model, device):
        for number, batch in enumerate(batches):
            skipped += len(batch.bad)
            if not len(batch):
                continue
            torch.manual_seed(step_seed(seed, number, _RANK))
            losses = objective(model, batch.to(device))
            n += losses.count
            found = {"loss": losses.loss.item() * losses.count, **losses.measures}
            sums = {name: sums.get(name, 0.0) + value for name, value in found.items()}
    return {"n": n, "skipped": skipped, **{name: value / n for name, value in sums.items()}}


def illustrate(
    objective: Objective, model: Model, batch: Batch, device: torch.device, seed: int
) -> Illustration | None:
    """What the objective has to show of these samples."""
    with _still(objective, model, device):
        torch.manual_seed(step_seed(seed, 0, _RANK))
        return objective.illustrate(model, batch.to(device))


@contextmanager
def _still(objective: Objective, model: Model, device: torch.device) -> Iterator[None]:
    """Nothing is dropped, and the random numbers of whoever called go on as if nothing had been drawn."""
    before = model.training, objective.training
    model.eval()
    objective.eval()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        model.train(before[0])
        objective.train(before[1])
