"""Runs a model in memory with PyTorch."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrail.inference.engines import FEATURES, NamedOutputs, batch_in_caches, processors
from vitrail.inference.engines.facts import ExportMetadata


class TorchEngine(NamedOutputs):
    """A model in memory: any module with `config`, `card` and `features`, ours or one made from it."""

    name = "torch"

    def __init__(self, model: nn.Module, workers: int = 1) -> None:
        self.model: Any = model
        self.facts = ExportMetadata.of(self.model.config, self.model.card)
        self.device = next(model.parameters()).device
        self.workers = workers
        # A single calling thread uses PyTorch's own setting; several divide the processors among them.
        self.threads = torch.get_num_threads() if workers == 1 else max(1, processors() // workers)

    @property
    def batch_size(self) -> int:
        """Returns the number of pictures at a time: what fits the caches on the CPU, 64 elsewhere."""
        return batch_in_caches(self.facts) if self.device.type == "cpu" else 64

    @torch.inference_mode()
    def run(self, output: str, images: np.ndarray) -> np.ndarray:
        """Computes an output by its name, in the calling thread."""
        if torch.get_num_threads() != self.threads:  # the setting is per thread
            torch.set_num_threads(self.threads)
        function = self.model.features if output == FEATURES else self.model
        return function(torch.from_numpy(images).to(self.device)).float().cpu().numpy()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Puts the model into evaluation mode; its mode and PyTorch's number of threads are restored afterwards."""
        threads, training = torch.get_num_threads(), self.model.training
        self.model.eval()
        try:
            yield
        finally:
            self.model.train(training)
            torch.set_num_threads(threads)
