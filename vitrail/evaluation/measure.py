"""Runs a model over samples and measures its answers, each sample once."""

from collections.abc import Iterable
from typing import TypeVar

import torch
from torch import nn

from vitrail.data.loader import Batch
from vitrail.tasks.base import Meter

_Meter = TypeVar("_Meter", bound=Meter)


@torch.inference_mode()
def measure(model: nn.Module, batches: Iterable[Batch], meter: _Meter, device: torch.device) -> _Meter:
    """Adds a model's answers to a meter, and returns the meter. The model is put into evaluation mode, and back at the
    end."""
    before = model.training
    model.eval()
    try:
        for batch in batches:
            meter.skipped += len(batch.bad)
            if len(batch):
                meter.add(batch.ids, batch.targets, model(batch.images.to(device)), batch.annotations)
    finally:
        model.train(before)
    return meter
