"""Between the user's units and standardised numbers: what a model of numbers gives, and its loss is measured in."""

import math
from dataclasses import dataclass

import numpy as np

from vitrail.tasks.base import Constants

MEAN, STD = "mean", "std"
"""The constants that are kept with a model: a list each, a number for every output."""


@dataclass(frozen=True)
class Scale:
    """The mean and the deviation of every output's targets in training, float64 [outputs] each."""

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def of(cls, constants: Constants, outputs: int) -> "Scale":
        """Reads the constants of a model; one that was never trained has none, and its outputs stay as they are."""
        mean, std = constants.get(MEAN, [0.0] * outputs), constants.get(STD, [1.0] * outputs)
        return cls(np.asarray(mean, dtype=np.float64), np.asarray(std, dtype=np.float64))

    def standardised(self, values: np.ndarray) -> np.ndarray:
        """Brings values [..., outputs] in the user's units to mean 0 and deviation 1."""
        return (values - self.mean) / self.std

    def restored(self, outputs: np.ndarray) -> np.ndarray:
        """Brings a model's outputs [..., outputs] to the user's units, float64."""
        return np.asarray(outputs, dtype=np.float64) * self.std + self.mean

    def part(self, places: np.ndarray) -> "Scale":
        """Gives the scale of some of the outputs, in this order."""
        return Scale(self.mean[places], self.std[places])

    def decimals(self, figures: int) -> list[int]:
        """Counts, for each output, the decimals that show so many figures of its deviation, at least none."""
        return [max(0, figures - 1 - math.floor(math.log10(std))) for std in self.std.tolist()]
