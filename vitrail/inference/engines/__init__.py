"""What executes a model: PyTorch, ONNX Runtime or OpenVINO behind one small interface.

    engine.run(output, images)   float32 [batch, channels, rows, columns] -> float32 [batch, ...] of the output's name
    engine.outputs(images)       what the task's answers are made of; of classes, logits [batch, num_classes]
    engine.features(images)      float32 [batch, features_width]

Several threads may call an engine at once; it was made for `workers` of them and shares the processors among them.
"""

import importlib
import os
from abc import ABC, abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, Protocol, get_args

import numpy as np

from vitrail.errors import UserError
from vitrail.inference.engines.facts import Facts
from vitrail.launched import available_processors

Name = Literal["torch", "onnxruntime", "openvino"]
NAMES: tuple[Name, ...] = get_args(Name)
FEATURES = "features"
"""The output that is what the head is given, in every exported file."""
TOKENS = 1024
"""Of a batch that a processor does best: with more, what a layer leaves is out of the caches when the next reads it."""


class Engine(Protocol):
    name: str
    facts: Facts
    workers: int
    """How many threads it is ready to be called by at once."""

    @property
    def batch_size(self) -> int:
        """How many pictures at a time it does best."""
        ...

    def run(self, output: str, images: np.ndarray) -> np.ndarray:
        """Computes an output by its name: FEATURES, or that of the task."""
        ...

    def outputs(self, images: np.ndarray) -> np.ndarray:
        """Computes what the task's answers are made of."""
        ...

    def features(self, images: np.ndarray) -> np.ndarray:
        """Computes what the head is given."""
        ...

    def running(self) -> AbstractContextManager[None]:
        """Wrap what calls the engine from many threads: settings it needs meanwhile are put back afterwards."""
        ...


class NamedOutputs(ABC):
    """What engines share: the outputs that every model has, by name."""

    facts: Facts

    @abstractmethod
    def run(self, output: str, images: np.ndarray) -> np.ndarray: ...

    def outputs(self, images: np.ndarray) -> np.ndarray:
        require_head(self.facts)
        return self.run(self.facts.output, images)

    def features(self, images: np.ndarray) -> np.ndarray:
        return self.run(FEATURES, images)


class ExportedEngine(NamedOutputs):
    """What engines of exported files share: only the outputs the file has, and threads that need no settings."""

    names: frozenset[str]
    """Of the outputs in the file."""

    @property
    def batch_size(self) -> int:
        return batch_in_caches(self.facts)

    def run(self, output: str, images: np.ndarray) -> np.ndarray:
        if output not in self.names:
            raise UserError(f"the exported model has no output {output!r}; make it again with vitrail export")
        return self.compute(output, images)

    @abstractmethod
    def compute(self, output: str, images: np.ndarray) -> np.ndarray:
        """Computes an output that the file has."""

    def running(self) -> AbstractContextManager[None]:
        return nullcontext()


def processors() -> int:
    """How many there are for us: those we may run on, or fewer where OMP_NUM_THREADS says so."""
    available = available_processors()
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return max(1, min(available, int(wanted))) if wanted.isdigit() else available


def batch_in_caches(facts: Facts) -> int:
    config = facts.config
    return 16 if config.family == "resnet" else max(1, min(16, TOKENS // config.tokens))


def package(name: str) -> Any:
    """An engine's package, or a sentence about how to get it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise UserError(f'the package {name} is not installed: pip install "vitrail[export]"') from error


def require_head(facts: Facts) -> None:
    if not facts.config.num_classes:
        raise UserError("the model has no head, so it knows no classes; vitrail embed gives its features")


def first_line(error: BaseException) -> str:
    text = (str(error).strip() or type(error).__name__).splitlines()[0]
    return text if len(text) < 160 else text[:157] + "..."
