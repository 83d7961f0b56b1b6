"""Converts the matrix products of an exported model to 8-bit integers: a quarter of the size, and often faster.

`dynamic` measures the range of a layer's inputs each time it runs, and needs nothing but the file. `static` measures it
once, on calibration images. In both, weights have one scale for each output channel and use only 7 bits: older
processors (AVX2 without VNNI) add two products in 16 bits, and with all 8 bits the sums overflow and accuracy is
silently lost. Layers that take little time and would lose much by 8 bits stay in float: the patch projection, the head,
and the products inside attention, which multiply two activations.
"""

import itertools
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np

from vitrail.errors import UserError, unreadable
from vitrail.inference.engines import package
from vitrail.inference.engines.facts import KEY, ExportMetadata
from vitrail.io.files import write_file

CalibrationKind = Literal["minmax", "entropy", "percentile"]
_PREPARED = ("onnx.quant.pre_process", "onnxruntime.quant")
"""The metadata that keeps onnxruntime from advising a preparation; it is not needed, as shapes are inferred here."""


def dynamic(source: str | Path, out: str | Path, *, overwrite: bool = False) -> Path:
    """Converts `source` (.onnx) to 8-bit weights, with the ranges of activations measured each time the model runs.

    Returns `out`. Raises a UserError if a file or a package cannot be used.
    """
    return _quantize(Path(source), Path(out), "dynamic", _write_dynamic, overwrite)


def static(
    source: str | Path,
    out: str | Path,
    batches: Iterable[np.ndarray],
    *,
    calibration: CalibrationKind = "minmax",
    overwrite: bool = False,
) -> Path:
    """Converts `source` (.onnx) to 8-bit weights, with the ranges of activations measured once, on calibration images.

    Args:
        source: The exported model.
        out: The .onnx file to write.
        batches: Prepared images, float32 [batch, channels, rows, columns]. A few dozen images of the kind that the
            model will see are enough.
        calibration: How a range is chosen: minmax takes all values seen; percentile leaves out the outermost; entropy
            seeks the range that keeps the most information. The last two keep a histogram of every layer and take
            longer.
        overwrite: Replace `out` if it exists.

    Returns:
        `out`.

    Raises:
        UserError: There are no images, or a file or a package cannot be used.
    """
    if calibration not in get_args(CalibrationKind):
        raise UserError(f"calibration is {calibration!r}; choose one of {', '.join(get_args(CalibrationKind))}")
    seen = iter(batches)
    if (one := next(seen, None)) is None:
        raise UserError("int8 by calibration needs images: not one was given")
    seen = itertools.chain([one], seen)

    def write(quantization: Any, document: Any, path: Path, layers: list[str]) -> None:
        """Writes the converted model to `path`."""
        reader = _reader(quantization, seen, document.graph.input[0].name)
        quantization.quantize_static(
            document,
            path,
            reader,
            quant_format=quantization.QuantFormat.QDQ,
            activation_type=quantization.QuantType.QUInt8,
            calibrate_method={
                "minmax": quantization.CalibrationMethod.MinMax,
                "entropy": quantization.CalibrationMethod.Entropy,
                "percentile": quantization.CalibrationMethod.Percentile,
            }[calibration],
            # Outputs of a product stay in float: the next operator adds to them, and rounding would only lose.
            extra_options={"MatMulConstBOnly": True, "OpTypesToExcludeOutputQuantization": ["MatMul"]},
            **_weights(quantization, layers),
        )

    return _quantize(Path(source), Path(out), "static", write, overwrite)


def layers(document: Any) -> list[str]:
    """Returns the names of the products with weights inside the blocks: those after the first LayerNorm, over all
    tokens."""
    constant = {tensor.name for tensor in document.graph.initializer}
    found, inside = [], False
    for node in document.graph.node:
        inside = inside or node.op_type == "LayerNormalization"
        if inside and node.op_type == "MatMul" and node.input[1] in constant:
            found.append(node.name)
    return found


def _write_dynamic(quantization: Any, document: Any, path: Path, layers: list[str]) -> None:
    """Writes the model with dynamic ranges to `path`."""
    quantization.quantize_dynamic(document, path, **_weights(quantization, layers))


def _weights(quantization: Any, layers: list[str]) -> dict[str, Any]:
    """Returns the options that both ways share: which layers, and how their weights are stored."""
    return {
        "op_types_to_quantize": ["MatMul"],
        "nodes_to_quantize": layers,
        "per_channel": True,
        "reduce_range": True,
        "weight_type": quantization.QuantType.QInt8,
    }


def _quantize(source: Path, out: Path, kind: str, write: Callable[..., None], overwrite: bool) -> Path:
    """Reads `source`, lets `write` convert it, and writes `out` with the metadata of `source`; `kind` is added to
    it."""
    quantization = _quantization()
    onnx = package("onnx")
    if not source.is_file():
        raise UserError(f"{source}: there is no such file")
    if out.suffix.lower() != ".onnx":
        raise UserError(f"{out}: int8 is for ONNX files: the name must end in .onnx")
    try:
        document = onnx.load(str(source))
    except Exception as error:  # protobuf's errors are of its own kinds
        raise unreadable(source, "an ONNX file", error) from error
    wanted = layers(document)
    if not wanted:
        raise UserError(f"{source}: has no products with weights between its norms, so int8 would change nothing")
    known = {entry.key: entry.value for entry in document.metadata_props}
    # Shapes noted by the exporter can contradict those of the converted graph; they are inferred again.
    del document.graph.value_info[:]
    document.metadata_props.add(key=_PREPARED[0], value=_PREPARED[1])

    def fill(path: Path) -> None:
        """Converts the model and saves it at `path`."""
        with tempfile.TemporaryDirectory(prefix="vitrail-") as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            draft = Path(folder) / "int8.onnx"
            write(quantization, document, draft, wanted)
            result = onnx.load(str(draft))
        del result.metadata_props[:], result.graph.value_info[:]
        for key, value in known.items():
            result.metadata_props.add(key=key, value=_noted(source, value, kind) if key == KEY else value)
        onnx.save_model(result, str(path))

    write_file(out, fill, overwrite)
    return out


def _noted(source: Path, text: str, kind: str) -> str:
    """Returns the model's facts as text, with the note that it is now in 8 bits."""
    facts = ExportMetadata.from_text(source, text)
    return replace(facts, changes={**facts.changes, "int8": kind}).to_text()


def _quantization() -> Any:
    """Returns onnxruntime's quantization module, or raises a UserError that says what to install."""
    try:
        package("onnxruntime")
        package("onnx")
    except UserError as error:
        raise UserError(f'int8 is made by ONNX Runtime: pip install "vitrail[export]" ({error})') from error
    return package("onnxruntime.quantization")


def _reader(quantization: Any, batches: Iterator[np.ndarray], name: str) -> Any:
    """Wraps calibration images as onnxruntime takes them, one batch at a time."""

    class Reader(quantization.CalibrationDataReader):
        def get_next(self) -> dict[str, np.ndarray] | None:
            """Returns the next batch by the input's name; None at the end."""
            images = next(batches, None)
            return None if images is None else {name: np.ascontiguousarray(images, dtype=np.float32)}

    return Reader()
