"""ONNX Runtime: an .onnx file, without torch."""

from pathlib import Path
from typing import Any

import numpy as np

from vitrail.errors import UserError
from vitrail.inference.engines import ExportedEngine, first_line, package, processors
from vitrail.inference.engines.facts import Facts, read_onnx_facts


class OnnxEngine(ExportedEngine):
    name = "onnxruntime"

    def __init__(self, path: Path, workers: int = 1, facts: Facts | None = None) -> None:
        self.facts = facts or read_onnx_facts(path)
        self.workers = workers
        runtime = package("onnxruntime")
        options: Any = runtime.SessionOptions()
        options.log_severity_level = 3
        # The threads that call work too; the rest of the processors helps whichever of them asks.
        options.intra_op_num_threads = max(1, processors() - workers + 1)
        if workers > 1:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        try:
            self.session: Any = runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # the runtime has a kind of error for each way a file can be wrong
            raise UserError(f"{path}: ONNX Runtime cannot load it ({first_line(error)})") from error
        self.names = frozenset(output.name for output in self.session.get_outputs())
        self._input = self.session.get_inputs()[0].name

    def compute(self, output: str, images: np.ndarray) -> np.ndarray:
        return self.session.run([output], {self._input: images})[0]
