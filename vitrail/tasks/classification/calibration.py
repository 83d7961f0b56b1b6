"""Calibration: whether scores can be read as probabilities. Compares how sure the model was with how often it was
right."""

from dataclasses import dataclass

import numpy as np

BINS = 15
"""The number of bins, of equal width from 0 to 1; 15 is what most papers use."""


@dataclass(frozen=True)
class Calibration:
    """Counts of predictions by their score, and the share of them that was right.

    Bin b of 15 holds the scores above b/15, up to and including (b + 1)/15.
    """

    counts: np.ndarray  # [bins] int64
    scores: np.ndarray  # [bins] the mean score, 0 where a bin is empty
    accuracy: np.ndarray  # [bins] the share that was right, 0 where a bin is empty

    @property
    def error(self) -> float:
        """The expected calibration error: the distance between accuracy and mean score of each bin, averaged over the
        samples."""
        gaps = np.abs(self.accuracy - self.scores)
        return float((self.counts * gaps).sum() / max(int(self.counts.sum()), 1))


def calibration(scores: np.ndarray, right: np.ndarray, bins: int = BINS) -> Calibration:
    """Counts predictions in bins by their score. scores: [n], from 0 to 1. right: bool [n], whether each is right."""
    place = np.clip(np.ceil(scores.astype(np.float64) * bins).astype(np.int64) - 1, 0, bins - 1)
    counts = np.bincount(place, minlength=bins)
    some = np.maximum(counts, 1)
    return Calibration(
        counts,
        np.bincount(place, weights=scores, minlength=bins) / some,
        np.bincount(place, weights=right, minlength=bins) / some,
    )
