"""Classifies by nearest neighbours, measured by cosine similarity: shows how good features are with nothing trained on
them."""

import torch
from torch import Tensor

from vitrail.tasks.classification.top1 import best

_SIMILARITIES = 1 << 24
"""How many similarities are held in memory at a time, 64 MB of them: queries are classified in chunks."""


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
    """Predicts the class that the k most similar training samples vote for, int64 [queries].

    Of classes with equal votes the first is predicted. If there are fewer than k training samples, all of them vote.

    Args:
        train: features [samples, width].
        labels: their classes, int64 [samples].
        queries: features to classify, [queries, width].
        num_classes: the number of classes.
        k: the number of neighbours.
        temperature: a neighbour of similarity s votes with weight exp(s / temperature), as in DINO; None: each has one
            vote.
    """
    assert len(train) == len(labels)
    assert len(train)
    assert k >= 1
    k = min(k, len(train))
    # The products are divided by the norms, which saves a normalised copy of the training features.
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
            # Only ratios of weights matter: similarities are taken relative to the nearest, so that none overflows.
            weights = ((nearest - nearest[:, :1]) / temperature).exp()
        votes = nearest.new_zeros(len(part), num_classes).scatter_add_(1, labels[places], weights)
        predicted[start : start + chunk] = best(votes)
    return predicted
