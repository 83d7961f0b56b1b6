"""Exports models that are smaller and faster: with merged tokens, in 8 bits, or the fastest that a search finds.

Each file is made in a temporary folder, checked by `accept`, and only then moved to its place.
"""

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from vitrail.errors import UserError
from vitrail.inference.compare import CheckSet
from vitrail.inference.engine_selection import Say
from vitrail.inference.engines import ENGINE_NAMES, Name, package
from vitrail.inference.engines.facts import read_onnx_facts
from vitrail.inference.engines.onnxruntime import OnnxEngine
from vitrail.inference.export import OPSET, Accept, Exported, ExportFormat, check_destination, export
from vitrail.inference.quantize import dynamic, static
from vitrail.inference.search import Candidate, SearchResult, Workshop, most_merged, search
from vitrail.inference.token_merging import merged
from vitrail.io.files import write_file
from vitrail.io.progress import working
from vitrail.models.build import Model


def export_optimised(
    model: Model,
    out: Path,
    to: ExportFormat = "onnx",
    *,
    merge_tokens: int = 0,
    int8: bool = False,
    calibration: Iterable[np.ndarray] | None = None,
    opset: int = OPSET,
    overwrite: bool = False,
    accept: Accept | None = None,
) -> Exported:
    """Exports a model with merged tokens, in 8 bits, or both.

    Args:
        model: The model; it is not changed.
        out: The file to write.
        to: The format; 8 bits are for onnx only.
        merge_tokens: The number of patches that each layer merges.
        int8: Whether to convert the weights to 8 bits.
        calibration: Batches of prepared images, float32 [batch, channels, rows, columns], on which the ranges of
            activations are measured. Without them, ranges are measured each time the model runs.
        opset: The version of ONNX's operators.
        overwrite: Replace `out` if it exists.
        accept: As for `export`.
    """
    module = merged(model, merge_tokens) if merge_tokens else model
    changes = {"merge_tokens": merge_tokens} if merge_tokens else {}
    if not int8:
        return export(module, out, to, opset=opset, overwrite=overwrite, changes=changes, accept=accept)
    if to != "onnx":
        raise UserError(f"--int8 is for ONNX: give --to onnx, not {to}; OpenVINO opens .onnx files too")
    check_destination(out, to, overwrite)
    package("onnxruntime")
    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
        plain = export(module, Path(folder) / "plain.onnx", opset=opset, changes=changes).files[0]
        draft = Path(folder) / "int8.onnx"
        with working("8 bits"):
            dynamic(plain, draft) if calibration is None else static(plain, draft, calibration)
        return _accepted(draft, out, overwrite, accept)


def export_fastest(
    model: Model,
    out: Path,
    pictures: CheckSet,
    *,
    max_drop: float,
    opset: int = OPSET,
    overwrite: bool = False,
    say: Say = lambda _: None,
) -> tuple[Exported, SearchResult]:
    """Writes the fastest .onnx file that loses at most `max_drop` points of accuracy, on whichever engine runs it
    fastest.

    Args:
        model: The model; it is not changed.
        out: The file to write.
        pictures: What losses are measured on.
        max_drop: The largest loss of top-1, in percentage points.
        opset: The version of ONNX's operators.
        overwrite: Replace `out` if it exists.
        say: Is called with each result in a line.

    Raises:
        UserError: No engine is installed, or not even the plain export can promise so small a loss.
    """
    check_destination(out, "onnx", overwrite)
    engines: list[Name] = [name for name in ENGINE_NAMES if name != "torch" and _installed(name)]
    if not engines:
        raise UserError('--fast needs an engine to compare: pip install "vitrail[export]"')
    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
        workshop = Workshop(model, Path(folder), pictures, opset=opset)
        most, int8 = most_merged(model.config), model.config.family != "resnet"  # int8 is for matrix products
        found = search(workshop, engines=engines, most=most, max_drop=max_drop, int8=int8, say=say)
        chosen = found.chosen.candidate
        draft = workshop.file(Candidate("onnxruntime", chosen.merge_tokens, chosen.int8))
        return _accepted(draft, out, overwrite, None), found


def _accepted(draft: Path, out: Path, overwrite: bool, accept: Accept | None) -> Exported:
    """Lets `accept` check the draft, then moves it to `out`."""
    facts = read_onnx_facts(draft)
    if accept is not None:
        accept(OnnxEngine(draft, facts=facts))

    def fill(path: Path) -> None:
        shutil.move(draft, path)

    write_file(out, fill, overwrite)
    return Exported((out,), facts)


def _installed(name: Name) -> bool:
    """Tells whether an engine's package is installed."""
    try:
        package(name)
    except UserError:
        return False
    return True
