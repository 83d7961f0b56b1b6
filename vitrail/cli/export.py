"""`vitrail export MODEL --to onnx --out FILE`: writes a model for other engines, and checks its accuracy."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from vitrail.cli import emit_json, note
from vitrail.cli.model_flags import Flags, NamedWeights
from vitrail.errors import UserError

CALIBRATION = 64
"""The number of images on which --calibrate measures."""


def command(
    model: Annotated[str, tyro.conf.Positional],
    *,
    out: Path,
    to: Literal["onnx", "openvino", "torch"] = "onnx",
    check: str | None = None,
    unlabelled: tuple[str, ...] = (),
    max_drop: float = 1.0,
    int8: bool = False,
    calibrate: str | None = None,
    merge_tokens: int = 0,
    fast: bool = False,
    opset: int = 20,
    overwrite: bool = False,
    weights: Annotated[NamedWeights, Flags] = NamedWeights(),
    json: bool = False,
) -> None:
    """Writes a model for ONNX Runtime, OpenVINO or torch.export, with any batch size, the output of its task, such as
    logits, and features.

    Preprocessing and class names are in the file, so vitrail predict can run it without torch. With --check both models
    are run on a data set, and nothing is written unless at most --max-drop points of accuracy, or of mean IoU for
    masks, are lost, with 95 % confidence.

    Args:
        model: The model: a bundle, a run folder, a weights file, hf:owner/name, or a name such as Ti/16 (vitrail models
            --weights lists them).
        out: The file to write: .onnx; .xml for openvino, with its weights beside it in .bin; .pt2 for torch.
        to: The format to write.
        check: A data set on which accuracy, agreement and speed are compared: digits, a folder of class folders, or
            another source that vitrail data check --help lists.
        unlabelled: More pictures for --check that need no labels: files, folders or globs. They make the bound tighter.
        max_drop: The largest loss of top-1 accuracy, or of mean IoU for masks, in percentage points; judged by an upper
            bound that holds with 95 % confidence.
        int8: Convert matrix products to 8 bits: a quarter of the size, and faster (ONNX only).
        calibrate: A data set on which --int8 measures the ranges of activations once, instead of each time the model
            runs.
        merge_tokens: The number of patches that each layer merges with similar ones: fewer tokens, faster, a little
            less accurate.
        fast: Search --int8, --merge-tokens and engines together for the fastest file within --max-drop; needs --check.
        opset: The version of ONNX's operators.
        overwrite: Replace the output if it exists.
        json: Print one JSON document.
    """
    from vitrail.checkpoints.load import load
    from vitrail.inference.compare import CheckSet, compare_accuracy, compare_engines, refusal_of_drop
    from vitrail.inference.engines import Engine
    from vitrail.inference.engines.facts import ExportMetadata
    from vitrail.inference.engines.torch import TorchEngine
    from vitrail.inference.optimised_export import export_fastest, export_optimised

    if not 18 <= opset <= 23:
        raise UserError(f"--opset must be from 18 to 23, not {opset}")
    if fast and (check is None or to != "onnx"):
        raise UserError("--fast writes ONNX and needs images to hold accuracy on: give --to onnx and --check SRC")
    if fast and (int8 or merge_tokens):
        raise UserError("--fast chooses --int8 and --merge-tokens itself: leave them out")
    if unlabelled and check is None:
        raise UserError("--unlabelled adds to --check SRC: a data set with labels is needed too")
    if calibrate is not None and not int8:
        raise UserError("--calibrate goes with --int8")
    loaded = load(model, **weights.options())
    for line in loaded.card.notes:
        note(line)
    found: list[Any] = []
    facts = ExportMetadata.of(loaded.config, loaded.card)
    pictures = None if check is None else CheckSet(facts, check, unlabelled=unlabelled)
    if fast and pictures is not None and pictures.meter.adds_up:
        name = pictures.meter.score_name
        raise UserError(
            f"--fast is judged by classes, not by {name}: give --int8 or --merge-tokens with --check instead"
        )
    if pictures is not None and pictures.note:
        note(pictures.note)

    def accept(engine: Engine) -> None:
        """Compares the exported model with the plain one, and raises a UserError if it may lose too much."""
        if pictures is not None:
            found.append(compare_engines(TorchEngine(loaded), engine, pictures))
            if not found[0].loss.within(max_drop):
                raise refusal_of_drop(found[0].loss, max_drop)

    if fast:
        assert pictures is not None
        written, outcome = export_fastest(
            loaded, out, pictures, max_drop=max_drop, opset=opset, overwrite=overwrite, say=note
        )
        chosen = outcome.chosen
        note(f"chosen: {chosen.candidate}, {chosen.speedup:.2f} x as fast; {chosen.drop.sentence()}")
        engine = _engine(written.files[0], chosen.candidate.engine)
        found.append(compare_accuracy(TorchEngine(loaded), engine, pictures, tests=chosen.drop.tests))
    else:
        written = export_optimised(
            loaded,
            out,
            to,
            merge_tokens=merge_tokens,
            int8=int8,
            calibration=None if calibrate is None else _images(loaded, calibrate),
            opset=opset,
            overwrite=overwrite,
            accept=accept,
        )
    if json:
        size = sum(file.stat().st_size for file in written.files)
        document: dict[str, Any] = {"files": [str(file) for file in written.files], "to": to, "bytes": size}
        emit_json({**document, "check": found[0].to_json() if found else None})
        return
    for file in written.files:
        print(f"{file}  {file.stat().st_size / 1e6:.1f} MB")
    if len(written.files) > 1:
        print(f"keep them together: {written.files[0].name} names the other by its place")
    for each in found:
        print(f"checked on {each.n} images of {check}, {each.skipped} skipped")
        print("\n".join(f"  {line}" for line in each.lines()))


def _engine(path: Path, name: str) -> Any:
    """Opens the engine that the search has chosen for the file."""
    if name == "openvino":
        from vitrail.inference.engines.openvino import OpenVinoEngine

        note(f"run it with vitrail predict {path} --engine openvino")
        return OpenVinoEngine(path)
    from vitrail.inference.engines.onnxruntime import OnnxEngine

    return OnnxEngine(path)


def _images(model: Any, data: str) -> Iterator[Any]:
    """Yields prepared images for calibration, at most CALIBRATION, from the training split if there is one."""
    from vitrail.data import open_source
    from vitrail.data.loader import EvaluationLoader

    source = open_source(data)
    split = source.splits.get("train") or source.all
    every = max(1, len(split) // CALIBRATION)
    chosen = split.subset(range(0, len(split), every)[:CALIBRATION])
    for batch in EvaluationLoader(chosen, model.card.preprocessing, batch_size=8):
        if len(batch):
            yield batch.images.numpy()
