"""The model and its objective as one set of named tensors: what is optimised, averaged and kept in snapshots."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.models.build import Model
from vitrail.training.objectives.base import Objective

PREFIX = "objective."
"""Before the names of what is the objective's own. A model's names never begin so."""


@dataclass(frozen=True)
class Learner:
    model: Model
    objective: Objective

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self.model.named_parameters()
        yield from ((PREFIX + name, parameter) for name, parameter in self.objective.named_parameters())

    def parameters(self) -> Iterator[nn.Parameter]:
        yield from (parameter for _, parameter in self.named_parameters())

    def state_dict(self) -> dict[str, Tensor]:
        own = {PREFIX + name: tensor for name, tensor in self.objective.state_dict().items()}
        return {**self.model.state_dict(), **own}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """All of it, by name."""
        own = self.state_dict()
        assert own.keys() == state.keys()
        for name, tensor in own.items():
            tensor.copy_(state[name])

    def train(self) -> None:
        self.model.train()
        self.objective.train()
