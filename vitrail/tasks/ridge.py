"""Ridge regression from features to any targets, in closed form and in double precision.

Every task whose head is linear can be solved so: what differs is the targets. With the eigenvectors of the features at
hand, the ridge of any strength, and what it says of each sample when solved on all the others, cost one product more.
So nothing need be held out to choose the strength.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.random_stream import permutation

STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""Of regularisation, by the number of samples: what l2 is divided by."""
JUDGED = 10_000
"""Of more samples so many are left out in turn, to judge a strength by."""
BIAS = 100.0
"""The constant feature: so large that the bias it stands for is hardly regularised."""
EPSILON = 1e-5
_ROWS = 8192
"""Samples turned into doubles at a time."""

Wanted = Callable[[Tensor], Tensor]
"""Indices of samples -> their targets, float64 [samples, outputs]: made when needed, since they can be large."""


@dataclass(frozen=True)
class LeastSquares:
    """A linear map from features to outputs."""

    mean: Tensor  # [width]
    std: Tensor  # [width], EPSILON added
    weights: Tensor  # [width + 1, outputs]; the last row belongs to the constant feature

    def scores(self, features: Tensor) -> Tensor:
        """Computes the outputs, float64 [n, outputs]."""
        parts = [prepared(part, self.mean, self.std) @ self.weights for part in features.split(_ROWS)]
        return torch.cat(parts)

    def linear(self, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """Gives the same map of plain features, times a scale: weight [outputs, width] and bias [outputs], float32."""
        weight = scale * self.weights[:-1] / self.std[:, None]
        bias = scale * BIAS * self.weights[-1] - self.mean @ weight
        return weight.T.float().contiguous(), bias.float()


def solve(features: Tensor, wanted: Wanted, l2: float, counts: Tensor | None = None) -> LeastSquares:
    """Finds the weights that minimise |X W - Y|^2 + l2 |W|^2.

    X are the standardised features [n, width] with the constant appended, Y what is wanted. The Gram matrix that is
    smaller is taken apart: X'X, or with fewer samples than features X X'. counts: [n], how often a sample counts; None:
    once.
    """
    assert len(features)
    assert l2 > 0
    mean, std = moments(features, counts)
    if len(features) > features.shape[1]:
        matrix, right = gram(features, wanted, mean, std, counts)
        values, vectors = torch.linalg.eigh(matrix)
        found = vectors @ ((vectors.T @ right) / (values + l2)[:, None])
    else:
        root = None if counts is None else counts.sqrt()
        x, y = scaled(prepared(features, mean, std), root), scaled(wanted(torch.arange(len(features))), root)
        values, vectors = torch.linalg.eigh(x @ x.T)
        found = x.T @ (vectors @ ((vectors.T @ y) / (values + l2)[:, None]))
    return LeastSquares(mean, std, found)


def leave_one_out(
    features: Tensor, wanted: Wanted, counts: Tensor | None = None, strengths: tuple[float, ...] = STRENGTHS
) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Gives (l2, outputs float64 [judged, outputs], indices [judged]) for each strength: what the ridge says of a
    sample when solved on all others. Mean and deviation of the features are those of all samples."""
    mean, std = moments(features, counts)
    if len(features) > features.shape[1]:
        matrix, right = gram(features, wanted, mean, std, counts)
        values, vectors = torch.linalg.eigh(matrix)
        judged = torch.from_numpy(permutation(len(features), "left out", 0)[:JUDGED].copy()).sort().values
        rows = prepared(features[judged], mean, std) @ vectors
        answer = vectors.T @ right
    else:
        root = None if counts is None else counts.sqrt()
        x = scaled(prepared(features, mean, std), root)
        values, vectors = torch.linalg.eigh(x @ x.T)
        judged = torch.arange(len(features))
        rows = vectors * values.clamp(min=0).sqrt()
        answer = rows.T @ scaled(wanted(judged), root)
        rows = rows if root is None else rows / root[:, None]
    own = wanted(judged)
    for strength in strengths:
        l2 = strength * len(features)
        damped = rows / (values + l2)
        fitted, leverage = damped @ answer, (damped * rows).sum(dim=1, keepdim=True)
        leverage = scaled(leverage, None if counts is None else counts[judged])
        yield l2, own - (own - fitted) / (1 - leverage), judged


def gram(
    features: Tensor, wanted: Wanted, mean: Tensor, std: Tensor, counts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Computes (X'X, X'Y) of the standardised features and what is wanted, each sample as often as `counts` says."""
    matrix, right = features.new_zeros((), dtype=torch.float64), features.new_zeros((), dtype=torch.float64)
    for rows in torch.arange(len(features)).split(_ROWS):
        x, count = prepared(features[rows], mean, std), None if counts is None else counts[rows]
        matrix = matrix + x.T @ scaled(x, count)
        right = right + x.T @ scaled(wanted(rows), count)
    return matrix, right


def moments(features: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Computes the mean of every feature, and its deviation + EPSILON."""
    number = len(features) if counts is None else counts.sum()
    parts = [(rows, None if counts is None else counts[rows]) for rows in torch.arange(len(features)).split(_ROWS)]
    sums = [scaled(features[rows].double(), own).sum(dim=0) for rows, own in parts]
    mean = torch.stack(sums).sum(dim=0) / number
    squares = [scaled((features[rows].double() - mean).square(), own).sum(dim=0) for rows, own in parts]
    return mean, (torch.stack(squares).sum(dim=0) / number).sqrt() + EPSILON


def scaled(rows: Tensor, factors: Tensor | None) -> Tensor:
    """Multiplies each row by its factor; None: leaves them as they are."""
    return rows if factors is None else rows * factors[:, None]


def prepared(features: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Makes X: standardised, with the constant feature appended, in double precision."""
    return torch.nn.functional.pad((features.double() - mean) / std, (0, 1), value=BIAS)
