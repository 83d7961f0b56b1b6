"""PyTorch: any model, in memory."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrail.inference.engines import FEATURES, NamedOutputs, batch_in_caches, processors
from vitrail.inference.engines.facts import Facts


class TorchEngine(NamedOutputs):
    """Any module with `config`, `card` and `features`: ours, or one made from it."""

    name = "torch"

    def __init__(self, model: nn.Module, workers: int = 1) -> None:
        self.model: Any = model
        self.facts = Facts.of(self.model.config, self.model.card)
        self.device = next(model.parameters()).device
        self.workers = workers
        # One thread that calls may use what PyTorch is set to; several share the processors.
        self.threads = torch.get_num_threads() if workers == 1 else max(1, processors() // workers)

    @property
    def batch_size(self) -> int:
        return batch_in_caches(self.facts) if self.device.type == "cpu" else 64

    @torch.inference_mode()
    def run(self, output: str, images: np.ndarray) -> np.ndarray:
        if torch.get_num_threads() != self.threads:  # every thread has a number of its own
            torch.set_num_threads(self.threads)
        function = self.model.features if output == FEATURES else self.model
        return function(torch.from_numpy(images).to(self.device)).float().cpu().numpy()

    @contextmanager
    def running(self) -> Iterator[None]:
        threads, training = torch.get_num_threads(), self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(training)
            torch.set_num_threads(threads)
