"""What a frozen model makes of every sample of a split: computed once, then used by every probe."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.data.loader import Batch
from vitrail.models.build import Model


@dataclass(frozen=True)
class Features:
    """The features of a split's samples, in order."""

    ids: list[str]
    values: Tensor
    """float32 [n, width], on the CPU: what the head sees."""
    labels: Tensor
    """int64 [n]; -1 where there is none."""
    skipped: int
    """Samples that could not be read."""

    def __len__(self) -> int:
        return len(self.ids)

    def where(self, chosen: Tensor) -> "Features":
        """The samples at these indices, in this order."""
        ids = [self.ids[index] for index in chosen.tolist()]
        return Features(ids, self.values[chosen], self.labels[chosen], self.skipped)


@torch.no_grad()
def extract(model: Model, loader: Iterable[Batch], device: torch.device) -> Features:
    """Run a model over batches, every sample once; it is left in the mode it was in."""
    # Not in inference mode: its tensors could not be trained on.
    ids: list[str] = []
    values: list[Tensor] = []
    labels: list[Tensor] = []
    skipped = 0
    before = model.training
    model.eval()
    try:
        for batch in loader:
            skipped += len(batch.bad)
            if len(batch):
                ids += batch.ids
                values.append(model.features(batch.images.to(device)).float().cpu())
                labels.append(batch.labels.cpu())
    finally:
        model.train(before)
    if not ids:
        return Features([], torch.empty(0, 0), torch.empty(0, dtype=torch.int64), skipped)
    return Features(ids, torch.cat(values), torch.cat(labels), skipped)
