"""Predictions of learned queries, and what they say of each cell of a picture."""

import torch
from torch import Tensor

Predictions = tuple[Tensor, Tensor]
"""Class logits (batch, queries, classes + 1), the last of which means "no object", and mask logits (batch, queries,
rows, columns)."""


def dense_scores(predictions: Predictions) -> Tensor:
    """Computes a score for each class in each cell, (batch, classes, rows, columns).

    It is the logarithm of a sum over the queries: the probability of the class times that of the cell's being in the
    mask. So the softmax of the scores gives the shares of the classes in that sum.
    """
    classes, masks = predictions
    shares = classes.float().softmax(dim=-1)[..., :-1].transpose(1, 2)  # (batch, classes, queries)
    summed = shares @ masks.float().sigmoid().flatten(2)
    return summed.clamp(min=torch.finfo(torch.float32).tiny).log().unflatten(2, masks.shape[2:])
