"""Converts between the user's units and standardised numbers, which a regression model returns and its loss
compares."""

import math
from dataclasses import dataclass

import numpy as np

from vitrail.tasks.base import Constants

MEAN, STD = "mean", "std"
"""The keys of the constants kept with a model: each holds a list with a number for every output."""


@dataclass(frozen=True)
class TargetScale:
    """The mean and the standard deviation of every output's training targets, float64 [outputs] each."""

    mean: np.ndarray
    std: np.ndarray

    @classmethod
    def of(cls, constants: Constants, outputs: int) -> "TargetScale":
        """Reads the constants of a model. A model that was not trained has none: its outputs are then returned
        unchanged."""
        mean, std = constants.get(MEAN, [0.0] * outputs), constants.get(STD, [1.0] * outputs)
        return cls(np.asarray(mean, dtype=np.float64), np.asarray(std, dtype=np.float64))

    def standardised(self, values: np.ndarray) -> np.ndarray:
        """Converts values [..., outputs] in the user's units to mean 0 and standard deviation 1."""
        return (values - self.mean) / self.std

    def restored(self, outputs: np.ndarray) -> np.ndarray:
        """Converts a model's outputs [..., outputs] to the user's units, float64."""
        return np.asarray(outputs, dtype=np.float64) * self.std + self.mean

    def part(self, places: np.ndarray) -> "TargetScale":
        """Returns the scale of some of the outputs, in the order of `places`."""
        return TargetScale(self.mean[places], self.std[places])

    def decimals(self, figures: int) -> list[int]:
        """Returns how many decimals show `figures` significant figures of each output's standard deviation; at least
        0."""
        return [max(0, figures - 1 - math.floor(math.log10(std))) for std in self.std.tolist()]
