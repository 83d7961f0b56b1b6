"""Exports a model as a file that other programs run: ONNX, OpenVINO IR, or a torch.export program.

Any module with `config`, `card` and `head` can be exported: ours, or one made from it, such as one with merged tokens.
The file has two outputs, the task's (`logits` for classification) and `features`. It takes any number of images at a
time, and its metadata says how images are prepared and what the classes are called.
"""

import copy
import os
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import UserError, first_line
from vitrail.inference.engines import FEATURES, Engine, package
from vitrail.inference.engines.facts import KEY, ExportMetadata
from vitrail.inference.engines.onnxruntime import OnnxEngine
from vitrail.inference.engines.openvino import OpenVinoEngine
from vitrail.inference.engines.torch import TorchEngine
from vitrail.io.files import sync
from vitrail.io.progress import working
from vitrail.models.card import Card
from vitrail.models.resnet import Root, StandardizedConv2d

ExportFormat = Literal["onnx", "openvino", "torch"]
_ENDINGS: dict[str, str] = {"onnx": ".onnx", "openvino": ".xml", "torch": ".pt2"}
"""The ending of the file's name for each format."""
OPSET = 20
"""The version of ONNX's operators; 20 is the first with an operator for GELU."""
LARGEST_PROTOBUF = 1_900_000_000
"""The size in bytes from which on weights are stored in a file beside the .onnx file, which cannot exceed 2 GB."""

Accept = Callable[[Engine], None]
"""Checks the exported model before its file gets its name; if it raises a UserError nothing is left behind."""


@dataclass(frozen=True)
class Exported:
    """The files that an export has written, and what they say of the model."""

    files: tuple[Path, ...]
    """All files that were written; the first is the one to open."""
    facts: ExportMetadata
    """What the file says of its model."""


def export(
    model: nn.Module,
    out: str | Path,
    to: ExportFormat = "onnx",
    *,
    opset: int = OPSET,
    overwrite: bool = False,
    changes: dict[str, Any] | None = None,
    accept: Accept | None = None,
) -> Exported:
    """Exports a model to a file that another engine runs; the file is written whole or not at all.

    Args:
        model: A module with `config`, `card` and `head`, such as `vitrail.load` gives. It is not changed.
        out: The file to write: its name must end in .onnx, .xml or .pt2, as `to` says.
        to: The format: onnx, openvino (.xml and .bin) or torch (a torch.export program).
        opset: The version of ONNX's operators.
        overwrite: Replace `out` if it exists.
        changes: What was changed in the model, such as {"merge_tokens": 8}; written into the file's metadata.
        accept: Is called with the exported model, opened by its engine, before the file gets its name. If it raises a
            UserError nothing is left behind.

    Returns:
        The files that were written, the one to open first, and the facts they hold.

    Raises:
        UserError: `out` exists or cannot be written, a package is missing, or the model cannot be exported.
    """
    out = Path(out)
    check_destination(out, to, overwrite)
    prepared: Any = fixed(model)
    facts = ExportMetadata.of(prepared.config, prepared.card, **(changes or {}))
    if facts.input_shape != (facts.config.channels, *facts.config.rows_columns):
        raise UserError(
            f"the images are prepared at {facts.preprocessing.rows_columns}, but the model takes "
            f"{facts.config.rows_columns}; give --image-size"
        )
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent) as temporary:
            draft = Path(temporary) / out.name
            with working(f"exporting to {to}"):
                program = trace(prepared)
                if to == "torch":
                    _write_torch(program, draft, facts)
                else:
                    _write_onnx(program, draft.with_suffix(".onnx"), facts, opset)
                if to == "openvino":
                    _write_openvino(draft, facts)
            if accept is not None:
                accept(_reopen(draft, to, program, facts))
            return Exported(_put_in_place(draft, out), facts)
    except OSError as error:
        raise UserError(f"{out}: cannot be written: {error.strerror or error}") from error


def trace(model: nn.Module) -> torch.export.ExportedProgram:
    """Traces the model to a graph over images [batch, channels, rows, columns] with any batch size."""
    config: Any = model.config
    images = torch.zeros(2, config.channels, *config.rows_columns)
    batch = {"images": {0: torch.export.Dim("batch", min=1, max=1 << 20)}}
    # Not inference mode: tensors that the model caches (indices, positions) could not be used in training afterwards.
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model(images)  # so that what it caches is made from real tensors, not from the tracer's
            return torch.export.export(Outputs(model).eval(), (images,), dynamic_shapes=batch, strict=False)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            raise UserError(f"this model cannot be exported ({first_line(error)})") from error


class Outputs(nn.Module):
    """A module that computes (logits, features) of a model in one pass; the features are what the head is given."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Computes (logits, features) of images [batch, channels, rows, columns]; features are one vector each."""
        seen: list[Tensor] = []
        head: Any = self.model.head
        config: Any = self.model.config
        hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            logits = self.model(images)
        finally:
            hook.remove()
        if config.pooling == "patches":
            return logits, seen[0].mean(dim=1)
        # Without a head, logits and features are the same tensor, but ONNX does not allow one output under two names.
        return (logits if logits is not seen[0] else logits.clone()), seen[0]


def fixed(model: nn.Module) -> nn.Module:
    """Copies a model to the CPU for inference only.

    Convolutions that standardise their weights get the standardised weights themselves.
    """
    fresh = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    for module in fresh.modules():
        if isinstance(module, StandardizedConv2d):
            module.weight.copy_(module.standardized())
            module.__class__ = _FixedConv2d  # padding and stride as before
        elif isinstance(module, Root) and module.norm is None:
            module.__class__ = _FixedRoot
    return fresh


class _FixedConv2d(StandardizedConv2d):
    """A convolution whose weights have been standardised already."""

    def standardized(self) -> Tensor:
        """Returns the weights as they are."""
        return self.weight


class _FixedRoot(Root):
    """The root of BiT for export: pads with zeros, then pools.

    ONNX Runtime would merge padding and pooling into one operator that pads with minus infinity. A lower bound below
    any real number, placed between the two, prevents that.
    """

    def forward(self, images: Tensor) -> Tensor:
        """Computes the root's output, as the plain one does."""
        padded = F.pad(self.conv(images), (1, 1, 1, 1))
        return F.max_pool2d(padded.clamp_min(-3e38), 3, 2)


def _write_onnx(program: torch.export.ExportedProgram, path: Path, facts: ExportMetadata, opset: int) -> None:
    """Writes a program as ONNX with our facts, and checks the file. Weights over 2 GB go into a file beside it."""
    onnx = package("onnx")
    package("onnxscript")
    names: dict[str, Any] = {"input_names": ["images"], "output_names": [facts.output, FEATURES]}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecations inside the exporter
        try:
            result = torch.onnx.export(
                program,
                (),
                dynamo=True,
                opset_version=opset,
                verbose=False,
                custom_translation_table={torch.ops.aten.scaled_dot_product_attention.default: _attention},
                **names,
            )
        except torch.onnx.errors.OnnxExporterError as error:
            raise UserError(f"this model cannot be exported to ONNX ({first_line(error)})") from error
    assert result is not None
    document = result.model_proto
    _tidy(document, facts)
    outside = document.ByteSize() > LARGEST_PROTOBUF
    extra = {"save_as_external_data": True, "location": f"{path.name}.data"} if outside else {}
    onnx.save_model(document, str(path), **extra)
    onnx.checker.check_model(str(path), full_check=not outside)


def _attention(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Any:
    """Writes attention in five ONNX nodes, which every runtime can fuse; the exporter's own translation takes
    fourteen."""
    op = package("onnxscript").opset20
    unsupported = bool(dropout_p) or is_causal or enable_gqa
    assert not unsupported, "no model of ours uses these"
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scaled = op.Mul(query, op.Constant(value_float=float(factor)))
    scores = op.MatMul(scaled, op.Transpose(key, perm=[0, 1, 3, 2]))
    if attn_mask is not None:
        scores = op.Add(scores, attn_mask)
    return op.MatMul(op.Softmax(scores, axis=-1), value)


def _tidy(document: Any, facts: ExportMetadata) -> None:
    """Adds our facts, and removes what the exporter notes: stack traces with paths of this machine."""
    graph = document.graph
    for part in (*graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output, graph):
        del part.metadata_props[:]
        part.doc_string = ""
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del graph.value_info[:]  # shapes between the layers, with another name for the batch; runtimes infer them
    del document.metadata_props[:]
    document.metadata_props.add(key=KEY, value=facts.to_text())
    graph.name = "vitrail"


def _write_openvino(path: Path, facts: ExportMetadata) -> None:
    """Writes `path` (.xml) and its .bin from the .onnx file beside it, which it removes."""
    openvino = package("openvino")
    source = path.with_suffix(".onnx")
    model = openvino.Core().read_model(str(source))
    model.set_rt_info(facts.to_text(), [KEY, "facts"])
    openvino.save_model(model, str(path), compress_to_fp16=False)
    for file in source.parent.glob(f"{source.name}*"):
        file.unlink()


def _write_torch(program: torch.export.ExportedProgram, path: Path, facts: ExportMetadata) -> None:
    """Writes a torch.export program with our facts."""
    torch.export.save(program, path, extra_files={f"{KEY}.json": facts.to_text()})


def _reopen(path: Path, to: ExportFormat, program: torch.export.ExportedProgram, facts: ExportMetadata) -> Engine:
    """Opens the file that was written. A .pt2 file is not read back, since reading it may run code: the program itself
    is used."""
    if to == "onnx":
        return OnnxEngine(path)
    if to == "openvino":
        return OpenVinoEngine(path)
    return TorchEngine(_Program(program, facts))


class _Program(nn.Module):
    """A traced program with the interface of a model."""

    def __init__(self, program: torch.export.ExportedProgram, facts: ExportMetadata):
        super().__init__()
        self.program = program.module()
        self.config = facts.config
        self.card = Card(facts.preprocessing, facts.label_names, facts.label_descriptions, facts.constants)

    def forward(self, images: Tensor) -> Tensor:
        """Computes the logits."""
        return self.program(images)[0]

    def features(self, images: Tensor) -> Tensor:
        """Computes what the head is given."""
        return self.program(images)[1]

    def train(self, mode: bool = True) -> "_Program":
        """Does nothing: a traced program has only the mode in which it was traced."""
        return self


def _put_in_place(draft: Path, out: Path) -> tuple[Path, ...]:
    """Moves the files from the temporary folder to their place; the one that names the others last, so it never names a
    missing file."""
    files = sorted((file for file in draft.parent.iterdir()), key=lambda file: file.name == out.name)
    for file in files:
        sync(file)
        file.replace(out.parent / file.name)
    sync(out.parent)
    return tuple(out.parent / file.name for file in reversed(files))


def check_destination(out: Path, to: str, overwrite: bool) -> None:
    """Raises a UserError if `to` is unknown, or if `out` has another ending, is a folder, or exists and may not be
    replaced."""
    if to not in get_args(ExportFormat):
        raise UserError(f"--to {to}: there are {', '.join(get_args(ExportFormat))}")
    if out.suffix.lower() != _ENDINGS[to]:
        raise UserError(f"{out}: --to {to} writes a file whose name ends in {_ENDINGS[to]}")
    if out.is_dir():
        raise UserError(f"{out}: is a folder; give the name of a file")
    beside = {"onnx": out.with_name(f"{out.name}.data"), "openvino": out.with_suffix(".bin")}  # for weights
    for file in (out, beside.get(to, out)):
        if not overwrite and os.path.lexists(file):
            raise UserError(f"{file}: exists already; choose another name or give --overwrite")
