"""What a frozen model makes of every sample of a split: computed once, then used by every probe."""

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
    """float32 [n, width], on the CPU: what the head sees."""
    targets: Tensor
    """[n, ...], as batches have them; of classes int64 [n], -1 where there is none."""
    skipped: int
    """Samples that could not be read."""

    def __len__(self) -> int:
        return len(self.ids)

    def where(self, chosen: Tensor) -> "Features":
        """The samples at these indices, in this order."""
        ids = [self.ids[index] for index in chosen.tolist()]
        return Features(ids, self.values[chosen], self.targets[chosen], self.skipped)


@torch.no_grad()
def extract(model: Model, loader: Iterable[Batch], device: torch.device) -> Features:
    """Run a model over batches, every sample once; it is left in the mode it was in."""
    # Not in inference mode: its tensors could not be trained on.
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
                values.append(model.features(batch.images.to(device)).float().cpu())
                targets.append(batch.targets.cpu())
    finally:
        model.train(before)
    if not ids:
        return Features([], torch.empty(0, 0), torch.empty(0, dtype=torch.int64), skipped)
    return Features(ids, torch.cat(values), torch.cat(targets), skipped)


def joined(parts: Sequence[Features], ids: Sequence[str]) -> Features:
    """What several processes computed of one split, as if one had; `ids` are the split's, in order."""
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
    """The batches, under a bar that counts their images and says how many a second."""
    with progress(what, total, after, unit="images") as advance:
        for batch in batches:
            yield batch
            advance(len(batch) + len(batch.bad))
