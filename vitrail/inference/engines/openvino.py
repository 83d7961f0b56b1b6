"""Runs an .xml file with its .bin, or an .onnx file, with OpenVINO, without torch."""

import threading
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.errors import UserError, first_line
from vitrail.inference.engines import ExportedEngine, package, processors
from vitrail.inference.engines.facts import KEY, ExportMetadata, read_onnx_facts


class OpenVinoEngine(ExportedEngine):
    """An .xml or .onnx file in OpenVINO; a UserError if it cannot be loaded."""

    name = "openvino"

    def __init__(self, path: Path, workers: int = 1, facts: ExportMetadata | None = None) -> None:
        openvino = package("openvino")
        core = openvino.Core()
        settings = {
            "INFERENCE_NUM_THREADS": processors(),
            "NUM_STREAMS": workers,
            "INFERENCE_PRECISION_HINT": "f32",  # some processors would get bfloat16 otherwise
        }
        try:
            model = core.read_model(str(path))
            if facts is None:
                facts = read_onnx_facts(path) if path.suffix.lower() == ".onnx" else read_xml_facts(path, model)
            self._compiled: Any = core.compile_model(model, "CPU", settings)
        except UserError:
            raise
        except Exception as error:  # OpenVINO raises RuntimeError and a few more
            raise UserError(f"{path}: OpenVINO cannot load it ({first_line(error)})") from error
        self.facts = facts
        self.workers = workers
        self.names = frozenset(name for output in self._compiled.outputs for name in output.get_names())
        self._requests = threading.local()

    def compute(self, output: str, images: np.ndarray) -> np.ndarray:
        """Computes an output that the file has; each thread has an inference request of its own."""
        request = getattr(self._requests, "own", None)
        if request is None:
            request = self._requests.own = self._compiled.create_infer_request()
        request.infer([images])
        return request.get_tensor(output).data.copy()  # the next call writes to the same memory


def read_xml_facts(path: Path, model: Any) -> ExportMetadata:
    """Reads the facts from a model that OpenVINO has read from an .xml file."""
    text = model.get_rt_info([KEY, "facts"]).astype(str) if model.has_rt_info([KEY, "facts"]) else None
    return ExportMetadata.from_text(path, text)
