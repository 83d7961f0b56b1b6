"""Engines that run a model: PyTorch, ONNX Runtime and OpenVINO behind one small interface.

    engine.run(output, images)   the output of that name: float32 [batch, channels, rows, columns] -> float32 [batch,
    ...]
    engine.outputs(images)       what the task makes its answers of; for classification, logits [batch, num_classes]
    engine.features(images)      what the head is given, float32 [batch, features_width]

Several threads may call an engine at once. It is made for `workers` of them and divides the processors among them.
"""

import os
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol, get_args

import numpy as np

from vitrail.environment import available_processors, import_without_telemetry
from vitrail.errors import UserError
from vitrail.inference.engines.facts import ExportMetadata

Name = Literal["torch", "onnxruntime", "openvino"]
"""The name of an engine."""
ENGINE_NAMES: tuple[Name, ...] = get_args(Name)
FEATURES = "features"
"""The name, in every exported file, of the output that the head is given."""
_TOKENS = 1024
"""The number of tokens in a batch that a processor computes fastest; with more, a layer's output no longer fits the
caches when the next layer reads it."""


class Engine(Protocol):
    """A model that is ready to run, and what is known of it."""

    name: str
    facts: ExportMetadata
    workers: int
    """The number of threads that may call it at once."""

    @property
    def batch_size(self) -> int:
        """Returns the number of pictures at a time that it computes most efficiently."""
        ...

    def run(self, output: str, images: np.ndarray) -> np.ndarray:
        """Computes the output of the given name, FEATURES or the task's, for images [batch, channels, rows,
        columns]."""
        ...

    def outputs(self, images: np.ndarray) -> np.ndarray:
        """Computes what the task makes its answers of."""
        ...

    def features(self, images: np.ndarray) -> np.ndarray:
        """Computes what the head is given."""
        ...

    def running(self) -> AbstractContextManager[None]:
        """Wraps the time in which threads call the engine: settings that it changes for that are restored
        afterwards."""
        ...


class NamedOutputs(ABC):
    """The outputs that every model has; the base of all engines."""

    facts: ExportMetadata

    @abstractmethod
    def run(self, output: str, images: np.ndarray) -> np.ndarray:
        """Computes the output of the given name for images [batch, channels, rows, columns]."""
        ...

    def outputs(self, images: np.ndarray) -> np.ndarray:
        """Computes what the task makes its answers of; raises a UserError for a model without a head."""
        require_head(self.facts)
        return self.run(self.facts.output, images)

    def features(self, images: np.ndarray) -> np.ndarray:
        """Computes what the head is given, [batch, features_width]."""
        return self.run(FEATURES, images)


class ExportedEngine(NamedOutputs):
    """An engine of an exported file: it has only the outputs in the file, and changes no settings."""

    names: frozenset[str]
    """The names of the outputs in the file."""

    @property
    def batch_size(self) -> int:
        """Returns the number of pictures at a time that fits the processor's caches."""
        return batch_in_caches(self.facts)

    def run(self, output: str, images: np.ndarray) -> np.ndarray:
        """Computes an output by its name; raises a UserError if the file does not have it."""
        if output not in self.names:
            raise UserError(f"the exported model has no output {output!r}; make it again with vitrail export")
        return self.compute(output, images)

    @abstractmethod
    def compute(self, output: str, images: np.ndarray) -> np.ndarray:
        """Computes an output that the file has."""

    def running(self) -> AbstractContextManager[None]:
        """Changes no settings."""
        return nullcontext()


def processors() -> int:
    """Returns the number of processors that this process may use; OMP_NUM_THREADS can lower it."""
    available = available_processors()
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(available, int(wanted))) if wanted.isdigit() else available


def batch_in_caches(facts: ExportMetadata) -> int:
    """Returns the number of pictures whose tokens fit the processor's caches, at most 16."""
    config = facts.config
    return 16 if config.family == "resnet" else max(1, min(16, _TOKENS // config.tokens))


def package(name: str) -> Any:
    """Imports an engine's package, or raises a UserError that says what to install."""
    try:
        return import_without_telemetry(name)
    except ImportError as error:
        raise UserError(f'the package {name} is not installed: pip install "vitrail[export]"') from error


def require_head(facts: ExportMetadata) -> None:
    """Raises a UserError for a model without a head."""
    if not facts.config.num_classes:
        raise UserError("the model has no head, so it knows no classes; vitrail embed gives its features")
