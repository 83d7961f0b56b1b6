"""Nearest neighbours by cosine: how good features are with nothing trained on them."""

import torch
from torch import Tensor

from vitrail.tasks.classification.top1 import best

_SIMILARITIES = 1 << 24
"""Similarities held at a time, 64 MB of them: queries go in chunks, however many there are."""


@torch.no_grad()
def classify(
    train: Tensor,
    labels: Tensor,
    queries: Tensor,
    *,
    num_classes: int,
    k: int = 20,
    temperature: float | None = 0.07,
) -> Tensor:
    """The class that the k most similar training samples vote for, int64 [queries].

    A neighbour of similarity s votes with weight exp(s / temperature), as DINO does; without a temperature each
    has one vote. Of classes with equal votes the first wins. Where there are fewer than k samples, all of them vote.
    """
    assert len(train) == len(labels)
    assert len(train)
    assert k >= 1
    k = min(k, len(train))
    # Norms divide the products, so that no second copy of the training features is made; zeros stay zeros.
    norms = train.norm(dim=1).clamp_min(1e-12)
    predicted = torch.empty(len(queries), dtype=torch.int64, device=queries.device)
    chunk = max(1, _SIMILARITIES // len(train))
    for start in range(0, len(queries), chunk):
        part = queries[start : start + chunk]
        similarity = part @ train.T / norms / part.norm(dim=1, keepdim=True).clamp_min(1e-12)
        nearest, places = similarity.topk(k, dim=1)
        if temperature is None:
            weights = torch.ones_like(nearest)
        else:
            # Only ratios of weights matter: from the nearest down, no exponential overflows.
            weights = ((nearest - nearest[:, :1]) / temperature).exp()
        votes = nearest.new_zeros(len(part), num_classes).scatter_add_(1, labels[places], weights)
        predicted[start : start + chunk] = best(votes)
    return predicted
