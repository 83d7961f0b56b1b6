"""Features: what a frozen model returns for every sample of a split, computed once and then used by several methods."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.data.loader import Batch
from vitrail.io.progress import progress
from vitrail.models.build import Model


@dataclass(frozen=True)
class Features:
    """The features of a split's samples, in order."""

    ids: list[str]
    values: Tensor
    """float32 [n, width], or [n, patches, width] for a head that reads every patch, on the CPU: what the head is
    given."""
    targets: Tensor
    """[n, ...] as batches have them; classes are int64 [n], -1 for no label."""
    skipped: int
    """Samples that could not be read."""

    def __len__(self) -> int:
        return len(self.ids)

    def where(self, chosen: Tensor) -> "Features":
        """Returns the samples at these indices, in this order."""
        ids = [self.ids[index] for index in chosen.tolist()]
        return Features(ids, self.values[chosen], self.targets[chosen], self.skipped)


@torch.no_grad()
def extract(model: Model, loader: Iterable[Batch], device: torch.device) -> Features:
    """Computes the features of all samples. The model is put into evaluation mode, and back at the end.

    Args:
        model: any model; its head is not used.
        loader: batches in which each sample occurs once.
        device: where the model is.
    """
    # Not in inference mode: a head could not be trained on its tensors.
    ids: list[str] = []
    values: list[Tensor] = []
    targets: list[Tensor] = []
    skipped = 0
    before = model.training
    model.eval()
    try:
        for batch in loader:
            skipped += len(batch.bad)
            if len(batch):
                ids += batch.ids
                values.append(model.head_input(batch.images.to(device)).float().cpu())
                targets.append(batch.targets.cpu())
    finally:
        model.train(before)
    if not ids:
        return Features([], torch.empty(0, 0), torch.empty(0, dtype=torch.int64), skipped)
    return Features(ids, torch.cat(values), torch.cat(targets), skipped)


def join_features(parts: Sequence[Features], ids: Sequence[str]) -> Features:
    """Joins the features that several processes computed of one split, in the order of `ids`, the ids of the split."""
    some = [part for part in parts if len(part)] or parts[:1]
    place = {name: index for index, name in enumerate(ids)}
    whole = Features(
        [name for part in some for name in part.ids],
        torch.cat([part.values for part in some]),
        torch.cat([part.targets for part in some]),
        sum(part.skipped for part in parts),
    )
    return whole.where(torch.tensor(sorted(range(len(whole)), key=lambda index: place[whole.ids[index]])))


def counted(batches: Iterable[Batch], what: str, total: int, after: float = 0.0) -> Iterator[Batch]:
    """Yields batches under a progress bar that counts their images.

    Args:
        batches: the batches.
        what: the label of the bar.
        total: the number of images.
        after: seconds before the bar appears.
    """
    with progress(what, total, after, unit="images") as advance:
        for batch in batches:
            yield batch
            advance(len(batch) + len(batch.bad))
