"""The model and its objective as one set of named tensors, which are optimised, averaged and kept in snapshots."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.models.build import Model
from vitrail.training.objectives.base import Objective

PREFIX = "objective."
"""The beginning of the names of the objective's tensors. No tensor of a model begins so."""


@dataclass(frozen=True)
class Learner:
    """A model together with the objective that trains it."""

    model: Model
    objective: Objective

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yields the parameters of the model and of the objective, by name."""
        yield from self.model.named_parameters()
        yield from ((PREFIX + name, parameter) for name, parameter in self.objective.named_parameters())

    def parameters(self) -> Iterator[nn.Parameter]:
        """Yields the parameters of the model and of the objective."""
        yield from (parameter for _, parameter in self.named_parameters())

    def state_dict(self) -> dict[str, Tensor]:
        """Returns all tensors of the model and of the objective, by name."""
        own = {PREFIX + name: tensor for name, tensor in self.objective.state_dict().items()}
        return {**self.model.state_dict(), **own}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Copies all tensors from `state`, which must have exactly the names of `state_dict`."""
        own = self.state_dict()
        assert own.keys() == state.keys()
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def train(self) -> None:
        """Puts model and objective into training mode."""
        self.model.train()
        self.objective.train()
