"""Runs an .onnx file with ONNX Runtime, without torch."""

from pathlib import Path
from typing import Any

import numpy as np

from vitrail.errors import UserError, first_line
from vitrail.inference.engines import ExportedEngine, package, processors
from vitrail.inference.engines.facts import ExportMetadata, read_onnx_facts


class OnnxEngine(ExportedEngine):
    """An .onnx file in ONNX Runtime; a UserError if it cannot be loaded."""

    name = "onnxruntime"

    def __init__(self, path: Path, workers: int = 1, facts: ExportMetadata | None = None) -> None:
        self.facts = facts or read_onnx_facts(path)
        self.path, self.workers = path, workers
        runtime = package("onnxruntime")
        options: Any = runtime.SessionOptions()
        options.log_severity_level = 3
        # Calling threads compute too; the remaining processors form one pool that helps all of them.
        options.intra_op_num_threads = max(1, processors() - workers + 1)
        if workers > 1:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self.session: Any = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime has many error classes for damaged files
            raise UserError(f"{path}: ONNX Runtime cannot load it ({first_line(error)})") from error
        self.names = frozenset(output.name for output in self.session.get_outputs())
        self._input = self.session.get_inputs()[0].name

    def compute(self, output: str, images: np.ndarray) -> np.ndarray:
        """Computes an output that the file has."""
        try:
            result = self.session.run([output], {self._input: images})[0]
        except Exception as error:  # a damaged file may load, and ask for what cannot be computed
            raise UserError(f"{self.path}: ONNX Runtime cannot run it ({first_line(error)})") from error
        if not isinstance(result, np.ndarray) or result.dtype != np.float32 or result.shape[:1] != images.shape[:1]:
            raise UserError(f"{self.path}: its output {output!r} is not one row of numbers a picture; export it again")
        return result
