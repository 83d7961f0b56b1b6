"""OpenVINO: its own .xml and .bin, or an .onnx file, without torch."""

import threading
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.errors import UserError
from vitrail.inference.engines import ExportedEngine, first_line, package, processors
from vitrail.inference.engines.facts import KEY, Facts, read_onnx_facts


class OpenVinoEngine(ExportedEngine):
    name = "openvino"

    def __init__(self, path: Path, workers: int = 1, facts: Facts | None = None) -> None:
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
        request = getattr(self._requests, "own", None)
        if request is None:
            request = self._requests.own = self._compiled.create_infer_request()
        request.infer([images])
        return request.get_tensor(output).data.copy()  # the next call writes to the same memory


def read_xml_facts(path: Path, model: Any) -> Facts:
    text = model.get_rt_info([KEY, "facts"]).astype(str) if model.has_rt_info([KEY, "facts"]) else None
    return Facts.from_text(path, text)
