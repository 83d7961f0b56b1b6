"""Ridge regression in closed form and double precision: a linear map from features to the targets of any task.

Once the features are decomposed into eigenvectors, trying another strength of regularisation costs one matrix product,
and so do the outputs for each sample by a map that was fitted on all the other samples (leave-one-out). The strength
can thus be chosen without setting samples aside.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.random_stream import permutation

STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
"""The strengths of regularisation to try. The penalty l2 is a strength times the number of samples."""
JUDGED = 10_000
"""The largest number of samples that are left out, one at a time, to compare the strengths."""
BIAS = 100.0
"""The value of the constant feature, whose weight is the bias: so large that the penalty hardly affects the bias."""
EPSILON = 1e-5
"""Added to standard deviations, so that features that never change can be divided by them."""
_ROWS = 8192
"""How many samples are converted to double precision at a time."""

Wanted = Callable[[Tensor], Tensor]
"""Returns, for indices of samples, their targets: float64 [samples, outputs]. They are made when needed, as they can be
large."""


@dataclass(frozen=True)
class LeastSquares:
    """A linear map from features to outputs."""

    mean: Tensor  # [width]
    std: Tensor  # [width], EPSILON added
    weights: Tensor  # [width + 1, outputs]; the last row belongs to the constant feature

    def scores(self, features: Tensor) -> Tensor:
        """Computes the outputs, float64 [samples, outputs], for features [samples, width]."""
        parts = [standardised(part, self.mean, self.std) @ self.weights for part in features.split(_ROWS)]
        return torch.cat(parts)

    def linear(self, scale: float = 1.0) -> tuple[Tensor, Tensor]:
        """Returns the map for features that are not standardised, its outputs multiplied by `scale`: weight [outputs,
        width] and bias [outputs], both float32."""
        weight = scale * self.weights[:-1] / self.std[:, None]
        bias = scale * BIAS * self.weights[-1] - self.mean @ weight
        return weight.T.float().contiguous(), bias.float()


def solve(features: Tensor, wanted: Wanted, l2: float, counts: Tensor | None = None) -> LeastSquares:
    """Finds the weights W that minimise |X W - Y|^2 + l2 |W|^2.

    X are the standardised features with the constant feature appended, Y the targets. Whichever Gram matrix is smaller
    is decomposed: X'X, or X X' if there are fewer samples than features.

    Args:
        features: [samples, width].
        wanted: returns the targets.
        l2: the penalty, above 0.
        counts: [samples], how often each sample counts; None: once.
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
        x, y = (
            scaled_rows(standardised(features, mean, std), root),
            scaled_rows(wanted(torch.arange(len(features))), root),
        )
        values, vectors = torch.linalg.eigh(x @ x.T)
        found = x.T @ (vectors @ ((vectors.T @ y) / (values + l2)[:, None]))
    return LeastSquares(mean, std, found)


def leave_one_out(
    features: Tensor, wanted: Wanted, counts: Tensor | None = None, strengths: tuple[float, ...] = STRENGTHS
) -> Iterator[tuple[float, Tensor, Tensor]]:
    """Tries each strength: yields (l2, outputs, indices) for it.

    `outputs`, float64 [judged, outputs], are what the ridge returns for a sample if it is fitted on all others, and
    `indices` [judged] say which samples these are. Features are standardised by the mean and deviation of all samples.
    """
    mean, std = moments(features, counts)
    if len(features) > features.shape[1]:
        matrix, right = gram(features, wanted, mean, std, counts)
        values, vectors = torch.linalg.eigh(matrix)
        judged = torch.from_numpy(permutation(len(features), "left out", 0)[:JUDGED].copy()).sort().values
        rows = standardised(features[judged], mean, std) @ vectors
        answer = vectors.T @ right
    else:
        root = None if counts is None else counts.sqrt()
        x = scaled_rows(standardised(features, mean, std), root)
        values, vectors = torch.linalg.eigh(x @ x.T)
        judged = torch.arange(len(features))
        rows = vectors * values.clamp(min=0).sqrt()
        answer = rows.T @ scaled_rows(wanted(judged), root)
        rows = rows if root is None else rows / root[:, None]
    own = wanted(judged)
    for strength in strengths:
        l2 = strength * len(features)
        damped = rows / (values + l2)
        fitted, leverage = damped @ answer, (damped * rows).sum(dim=1, keepdim=True)
        leverage = scaled_rows(leverage, None if counts is None else counts[judged])
        yield l2, own - (own - fitted) / (1 - leverage), judged


def gram(
    features: Tensor, wanted: Wanted, mean: Tensor, std: Tensor, counts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Computes X'X and X'Y of the standardised features X and the targets Y, each sample counted as `counts` says."""
    matrix, right = features.new_zeros((), dtype=torch.float64), features.new_zeros((), dtype=torch.float64)
    for rows in torch.arange(len(features)).split(_ROWS):
        x, count = standardised(features[rows], mean, std), None if counts is None else counts[rows]
        matrix = matrix + x.T @ scaled_rows(x, count)
        right = right + x.T @ scaled_rows(wanted(rows), count)
    return matrix, right


def moments(features: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Computes the mean of every feature, and its standard deviation + EPSILON."""
    number = len(features) if counts is None else counts.sum()
    parts = [(rows, None if counts is None else counts[rows]) for rows in torch.arange(len(features)).split(_ROWS)]
    sums = [scaled_rows(features[rows].double(), own).sum(dim=0) for rows, own in parts]
    mean = torch.stack(sums).sum(dim=0) / number
    squares = [scaled_rows((features[rows].double() - mean).square(), own).sum(dim=0) for rows, own in parts]
    return mean, (torch.stack(squares).sum(dim=0) / number).sqrt() + EPSILON


def scaled_rows(rows: Tensor, factors: Tensor | None) -> Tensor:
    """Multiplies each row by its factor; with None, returns the rows unchanged."""
    return rows if factors is None else rows * factors[:, None]


def standardised(features: Tensor, mean: Tensor, std: Tensor) -> Tensor:
    """Makes X: standardises the features, in double precision, and appends the constant feature."""
    return torch.nn.functional.pad((features.double() - mean) / std, (0, 1), value=BIAS)
