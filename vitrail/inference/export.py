"""A model as a file that other programs run: ONNX, OpenVINO IR, or a torch.export program.

Any module with `config`, `card` and `head` can be exported: ours, or one made from it (with merged tokens, say). The
file has two outputs, that of its task (of classes: `logits`) and `features`, takes any number of images at a time, and
says in its metadata how they are prepared and what the classes are called.
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

from vitrail.errors import UserError
from vitrail.inference.engines import FEATURES, Engine, first_line, package
from vitrail.inference.engines.facts import KEY, Facts
from vitrail.inference.engines.onnxruntime import OnnxEngine
from vitrail.inference.engines.openvino import OpenVinoEngine
from vitrail.inference.engines.torch import TorchEngine
from vitrail.io.files import sync
from vitrail.io.progress import working
from vitrail.models.card import Card
from vitrail.models.resnet import Root, StandardizedConv2d

Target = Literal["onnx", "openvino", "torch"]
ENDINGS: dict[str, str] = {"onnx": ".onnx", "openvino": ".xml", "torch": ".pt2"}
OPSET = 20
"""The first with a GELU of its own."""
LARGEST_PROTOBUF = 1_900_000_000
"""An .onnx file ends at 2 GB; larger weights lie in a file beside it."""

Accept = Callable[[Engine], None]
"""Looks at the exported model before it gets its name; raising a UserError leaves nothing behind."""


@dataclass(frozen=True)
class Exported:
    """What was written."""

    files: tuple[Path, ...]
    """The first is the one to open."""
    facts: Facts


def export(
    model: nn.Module,
    out: str | Path,
    to: Target = "onnx",
    *,
    opset: int = OPSET,
    overwrite: bool = False,
    changes: dict[str, Any] | None = None,
    accept: Accept | None = None,
) -> Exported:
    """Write a model to `out` for another engine: all of it, or nothing."""
    out = Path(out)
    check_destination(out, to, overwrite)
    prepared: Any = fixed(model)
    facts = Facts.of(prepared.config, prepared.card, **(changes or {}))
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
    """The model as a graph over (batch, channels, rows, columns), any batch."""
    config: Any = model.config
    images = torch.zeros(2, config.channels, *config.rows_columns)
    batch = {"images": {0: torch.export.Dim("batch", min=1, max=1 << 20)}}
    # Not in inference mode: tensors that the model keeps (indices, positions) would be marked by it.
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            model(images)  # what is made once and kept is made of real numbers, not of the tracer's stand-ins
            return torch.export.export(Outputs(model).eval(), (images,), dynamic_shapes=batch, strict=False)
        except (RuntimeError, ValueError, TypeError, NotImplementedError) as error:
            raise UserError(f"this model cannot be exported ({first_line(error)})") from error


class Outputs(nn.Module):
    """(logits, features) of a model, computed once: features are what the head is given."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        seen: list[Tensor] = []
        head: Any = self.model.head
        hook = head.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
        try:
            logits = self.model(images)
        finally:
            hook.remove()
        # A model without a head gives its features; an output must not be another one under a second name.
        return (logits if logits is not seen[0] else logits.clone()), seen[0]


def fixed(model: nn.Module) -> nn.Module:
    """A copy on the CPU for inference alone: convolutions whose weights are standardised get the result as weights."""
    fresh = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    for module in fresh.modules():
        if isinstance(module, StandardizedConv2d):
            module.weight.copy_(module.standardized())
            module.__class__ = _FixedConv2d  # padding and stride as before
        elif isinstance(module, Root) and module.norm is None:
            module.__class__ = _FixedRoot
    return fresh


class _FixedConv2d(StandardizedConv2d):
    def standardized(self) -> Tensor:
        return self.weight


class _FixedRoot(Root):
    """BiT pads by zeros and pools. ONNX Runtime folds the one into the other, which pads by minus infinity instead; a
    bound between the two, below any number there is, keeps them apart."""

    def forward(self, images: Tensor) -> Tensor:
        padded = F.pad(self.conv(images), (1, 1, 1, 1))
        return F.max_pool2d(padded.clamp_min(-3e38), 3, 2)


def _write_onnx(program: torch.export.ExportedProgram, path: Path, facts: Facts, opset: int) -> None:
    onnx = package("onnx")
    package("onnxscript")
    names: dict[str, Any] = {"input_names": ["images"], "output_names": [facts.output, FEATURES]}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecations
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
    """Attention in five nodes that every runtime knows how to fuse; the exporter's own way takes fourteen."""
    op = package("onnxscript").opset20
    unheard_of = bool(dropout_p) or is_causal or enable_gqa
    assert not unheard_of, "no model of ours asks for these"
    factor = query.shape[-1] ** -0.5 if scale is None else scale
    scaled = op.Mul(query, op.Constant(value_float=float(factor)))
    scores = op.MatMul(scaled, op.Transpose(key, perm=[0, 1, 3, 2]))
    if attn_mask is not None:
        scores = op.Add(scores, attn_mask)
    return op.MatMul(op.Softmax(scores, axis=-1), value)


def _tidy(document: Any, facts: Facts) -> None:
    """Our facts in, and out with what the exporter notes: stack traces with the paths of this machine."""
    graph = document.graph
    for part in (*graph.node, *graph.initializer, *graph.value_info, *graph.input, *graph.output, graph):
        del part.metadata_props[:]
        part.doc_string = ""
    for value in (*graph.input, *graph.output):
        value.type.tensor_type.shape.dim[0].dim_param = "batch"
    del graph.value_info[:]  # shapes between the layers: runtimes infer them, and they name the batch otherwise
    del document.metadata_props[:]
    document.metadata_props.add(key=KEY, value=facts.to_text())
    graph.name = "vitrail"


def _write_openvino(path: Path, facts: Facts) -> None:
    openvino = package("openvino")
    source = path.with_suffix(".onnx")
    model = openvino.Core().read_model(str(source))
    model.set_rt_info(facts.to_text(), [KEY, "facts"])
    openvino.save_model(model, str(path), compress_to_fp16=False)
    for file in source.parent.glob(f"{source.name}*"):
        file.unlink()


def _write_torch(program: torch.export.ExportedProgram, path: Path, facts: Facts) -> None:
    torch.export.save(program, path, extra_files={f"{KEY}.json": facts.to_text()})


def _reopen(path: Path, to: Target, program: torch.export.ExportedProgram, facts: Facts) -> Engine:
    """What was written, as whoever opens it will run it. A .pt2 file is not read back: reading may run code in it."""
    if to == "onnx":
        return OnnxEngine(path)
    if to == "openvino":
        return OpenVinoEngine(path)
    return TorchEngine(_Program(program, facts))


class _Program(nn.Module):
    """A traced program with the interface of a model."""

    def __init__(self, program: torch.export.ExportedProgram, facts: Facts):
        super().__init__()
        self.program = program.module()
        self.config = facts.config
        self.card = Card(facts.preprocessing, facts.label_names, facts.label_descriptions, facts.constants)

    def forward(self, images: Tensor) -> Tensor:
        return self.program(images)[0]

    def features(self, images: Tensor) -> Tensor:
        return self.program(images)[1]

    def train(self, mode: bool = True) -> "_Program":
        return self  # a program is what it was traced as


def _put_in_place(draft: Path, out: Path) -> tuple[Path, ...]:
    """The file that names the others last, so that it never names what is not there."""
    files = sorted((file for file in draft.parent.iterdir()), key=lambda file: file.name == out.name)
    for file in files:
        sync(file)
        file.replace(out.parent / file.name)
    sync(out.parent)
    return tuple(out.parent / file.name for file in reversed(files))


def check_destination(out: Path, to: str, overwrite: bool) -> None:
    if to not in get_args(Target):
        raise UserError(f"--to {to}: there are {', '.join(get_args(Target))}")
    if out.suffix.lower() != ENDINGS[to]:
        raise UserError(f"{out}: --to {to} writes a file whose name ends in {ENDINGS[to]}")
    if out.is_dir():
        raise UserError(f"{out}: is a folder; give the name of a file")
    beside = {"onnx": out.with_name(f"{out.name}.data"), "openvino": out.with_suffix(".bin")}  # where weights may lie
    for file in (out, beside.get(to, out)):
        if not overwrite and os.path.lexists(file):
            raise UserError(f"{file}: exists already; choose another name or give --overwrite")
