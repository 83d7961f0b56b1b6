"""Measures an objective without labels on samples that it does not learn from, with the same masks every time."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from vitrail.data.loader import Batch
from vitrail.models.build import Model
from vitrail.training.loop import step_seed
from vitrail.training.objectives.base import Illustration, Objective

_RANK = -1
"""Stands in the seed for the number of a process, so that masks of validation are none of those of training."""


@torch.no_grad()
def validate(
    objective: Objective, model: Model, batches: Iterable[Batch], device: torch.device, seed: int
) -> dict[str, Any]:
    """Computes n, skipped, the mean loss, and the means of the objective's other measures."""
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
    """Draws what the objective has learned on these samples; None if it has nothing to show."""
    with _still(objective, model, device):
        torch.manual_seed(step_seed(seed, 0, _RANK))
        return objective.illustrate(model, batch.to(device))


@contextmanager
def _still(objective: Objective, model: Model, device: torch.device) -> Iterator[None]:
    """Puts model and objective into evaluation mode, and restores mode and random state at the end."""
    before = model.training, objective.training
    model.eval()
    objective.eval()
    try:
        with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
            yield
    finally:
        model.train(before[0])
        objective.train(before[1])
