"""Exports that are smaller and faster: with merged tokens, in 8 bits, or whatever a search finds fastest.

Each is made beside its place, shown to whoever has to accept it, and only then put there.
"""

import shutil
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from vitrail.errors import UserError
from vitrail.inference.checking import CheckSet
from vitrail.inference.engines import NAMES, Name, package
from vitrail.inference.engines.facts import read_onnx_facts
from vitrail.inference.engines.onnxruntime import OnnxEngine
from vitrail.inference.export import OPSET, Accept, Exported, Target, check_destination, export
from vitrail.inference.fast import Candidate, Outcome, Workshop, most_merged, search
from vitrail.inference.merging import merged
from vitrail.inference.quantize import dynamic, static
from vitrail.io.files import write_file
from vitrail.io.progress import working
from vitrail.models.build import Model

Say = Callable[[str], None]


def export_lighter(
    model: Model,
    out: Path,
    to: Target = "onnx",
    *,
    merge_tokens: int = 0,
    int8: bool = False,
    calibration: Iterable[np.ndarray] | None = None,
    opset: int = OPSET,
    overwrite: bool = False,
    accept: Accept | None = None,
) -> Exported:
    """`export` of the model that merges so many patches a layer, in 8 bits if wanted: ranges as they come, or as they
    are seen on `calibration`, batches of prepared images."""
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
) -> tuple[Exported, Outcome]:
    """Writes the fastest .onnx file that loses at most `max_drop` points, whichever engine runs it."""
    check_destination(out, "onnx", overwrite)
    engines: list[Name] = [name for name in NAMES if name != "torch" and _installed(name)]
    if not engines:
        raise UserError('--fast needs an engine to compare: pip install "vitrail[export]"')
    with tempfile.TemporaryDirectory(prefix="vitrail-") as folder:
        workshop = Workshop(model, Path(folder), pictures, opset=opset)
        most, int8 = most_merged(model.config), model.config.family != "resnet"  # which has convolutions alone
        found = search(workshop, engines=engines, most=most, max_drop=max_drop, int8=int8, say=say)
        chosen = found.chosen.candidate
        draft = workshop.file(Candidate("onnxruntime", chosen.merge_tokens, chosen.int8))
        return _accepted(draft, out, overwrite, None), found


def _accepted(draft: Path, out: Path, overwrite: bool, accept: Accept | None) -> Exported:
    facts = read_onnx_facts(draft)
    if accept is not None:
        accept(OnnxEngine(draft, facts=facts))

    def fill(path: Path) -> None:
        shutil.move(draft, path)

    write_file(out, fill, overwrite)
    return Exported((out,), facts)


def _installed(name: Name) -> bool:
    try:
        package(name)
    except UserError:
        return False
    return True
