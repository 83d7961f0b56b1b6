"""Wraps an exported file as a module, so that the file itself is evaluated, by the engine that runs it."""

import torch
from torch import Tensor, nn

from vitrail.inference.engine_selection import Loading, open_engine
from vitrail.models.card import Card


class ExportedModel(nn.Module):
    """An .onnx or .xml file as a module: images [batch, channels, rows, columns] -> logits, on the CPU."""

    def __init__(self, path: str, loading: Loading | None = None):
        super().__init__()
        self.engine = open_engine(path, loading=loading)
        facts = self.engine.facts
        self.config = facts.config
        self.card = Card(
            preprocessing=facts.preprocessing,
            label_names=facts.label_names,
            label_descriptions=facts.label_descriptions,
            constants=facts.constants,
            provenance=facts.provenance,
        )

    def forward(self, images: Tensor) -> Tensor:
        """Computes the logits."""
        return torch.from_numpy(self.engine.outputs(images.cpu().numpy()))
