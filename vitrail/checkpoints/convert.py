"""From any format to any other, with a parity report: what was mapped, dropped, made up, and the logits compared."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoints import bundle, timm
from vitrail.checkpoints.files import (
    TORCH_SUFFIXES,
    WeightsFrom,
    npz,
    safetensors,
    torch_file,
    write_model_folder,
)
from vitrail.checkpoints.formats import FORMATS, WeightsFormat, weights_format
from vitrail.checkpoints.load import METADATA_KEY, Source, assemble, load, open_source, resize
from vitrail.checkpoints.peers import PeerMissing, outputs
from vitrail.checkpoints.rules import Tensors, write
from vitrail.config import ModelConfig, Preprocessing
from vitrail.errors import UserError
from vitrail.io.files import Fill, json_text, write_file
from vitrail.models.build import Model
from vitrail.models.card import Card


@dataclass
class Report:
    """What a conversion did."""

    source: str
    result: str
    mapped: list[dict[str, Any]] = field(default_factory=list)
    dropped: dict[str, str] = field(default_factory=dict)
    created: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    max_logit_difference: float | None = None
    compared: str = ""
    """Whose logits were compared, or why none were."""

    def to_json(self) -> dict[str, Any]:
        return dict(vars(self))


def convert(
    source: str | Path,
    destination: str | Path,
    to: str = "bundle",
    *,
    model: str | ModelConfig | None = None,
    image_size: int | tuple[int, int] | None = None,
    preprocessing: str | Preprocessing | None = None,
    labels: str | Path | None = None,
    weights_from: WeightsFrom | None = None,
    overwrite: bool = False,
    check: bool = True,
) -> Report:
    """Convert a checkpoint; nothing is left behind when it fails."""
    destination = Path(destination)
    _check_destination(destination, to, overwrite)
    found = open_source(source, model=model, preprocessing=preprocessing, labels=labels, weights_from=weights_from)
    loaded = assemble(found.reading, found.card)
    report = Report(f"{found.reading.format}: {source}", f"{to}: {destination}", dropped=dict(found.reading.dropped))
    if image_size is not None:
        before = loaded.config
        resize(loaded, image_size)
        if before.family == "vit":
            report.notes.append(f"positions interpolated from a grid of {before.grid} to {loaded.config.grid}")
    state = {**found.reading.state, **loaded.state_dict()}
    if to == "bundle":
        loaded.card.provenance = {
            **loaded.card.provenance,
            "converted_from": found.reading.format,
            "file": found.path.name,
        }
        bundle.save(loaded, destination, overwrite)
        for name in state.keys() - loaded.state_dict().keys():
            report.dropped[" + ".join(found.reading.origin[name])] = "a bundle holds the encoder, not the decoder"
        names = {name: (name,) for name in loaded.state_dict()}
    else:
        if to == "timm" and not destination.suffix:  # timm loads a folder strictly: no tensor too many
            for name in [name for name in state if name.startswith(timm.DECODER)]:
                report.dropped[name] = "timm has the encoder only; a flat file keeps the decoder"
                del state[name]
        fitted, state = _fit(loaded.config, state, to, report)
        _warn_of_constants(fitted, to, destination, report)
        rules = weights_format(to).rules(state, fitted)
        _write(weights_format(to), destination, write(rules, state), fitted, loaded.card, state, overwrite)
        names = {rule.native: rule.foreign for rule in rules}
    report.mapped = [
        {"source": list(found.reading.origin[name]), "result": list(names[name])}
        for name in names
        if name in found.reading.origin and name not in report.created
    ]
    report.notes = [*loaded.card.notes, *report.notes]
    if check:
        _compare(report, found, loaded, destination, to)
    return report


def _check_destination(destination: Path, to: str, overwrite: bool) -> None:
    if to not in ("bundle", *FORMATS):
        raise UserError(f"there is no format {to!r}; there are {', '.join(('bundle', *FORMATS))}")
    endings = ("",) if to == "bundle" else weights_format(to).endings
    ending = (
        destination.suffix.lower() if destination.suffix.lower() in (".npz", ".safetensors", *TORCH_SUFFIXES) else ""
    )
    if ending not in endings:
        wanted = " or ".join(ending or "no ending (a folder)" for ending in endings)
        raise UserError(f"{destination}: --to {to} writes to a name with {wanted}")
    if destination.exists() and not overwrite:
        raise UserError(f"{destination}: exists already; choose another name or give --overwrite")


def _fit(config: ModelConfig, state: Tensors, to: str, report: Report) -> tuple[ModelConfig, Tensors]:
    """Bring a model into a form the target can hold: exactly where that is possible, loudly where it is not."""
    if config.representation_size and (to == "timm" or (to == "huggingface" and config.num_classes)):
        keeps_pooler = to == "huggingface"
        gone = [name for name in state if name.startswith("head" if keeps_pooler else ("head", "pre_logits"))]
        for name in gone:
            report.dropped[name] = f"{to} has no pre-training head (Linear, tanh, Linear)"
        what = "the head" if keeps_pooler else "the pre-logits layer and the head behind it"
        report.notes.append(f"WARNING: {to} cannot hold the pre-training head: {what} was dropped; features remain")
        state = {name: tensor for name, tensor in state.items() if name not in gone}
        config = config.with_(num_classes=0, representation_size=config.representation_size if keeps_pooler else 0)
    target = weights_format(to)
    if target.fills_in:
        config, state = _add_zeros(config, state, to, report)
    if target.tensors_only and config.positions == "sincos":
        config = config.with_(positions="learned")
        report.notes.append("the fixed sine-cosine positions are written as learned ones, the same numbers")
    if target.activation and config.activation != target.activation:
        form = "tanh" if target.activation == "gelu_tanh" else "exact"
        report.notes.append(
            f"WARNING: {to}'s own code computes the {form} GELU, this model the other form: its logits there will "
            "differ in the third digit"
        )
    if to == "google" and config.stages is not None and config.stem_arithmetic != "official":
        report.notes.append("WARNING: the official code standardises weights with other constants than this model")
    if to == "timm":
        try:
            timm.describe(config)
        except UserError as error:
            report.notes.append(f"WARNING: {error}; the file holds timm's names, but timm will not build it")
    return config, state


def _warn_of_constants(config: ModelConfig, to: str, destination: Path, report: Report) -> None:
    """What a file of that format cannot say, and its reader will assume otherwise."""
    bare = weights_format(to).tensors_only or destination.suffix.lower() in TORCH_SUFFIXES
    if config.norm_eps != 1e-6 and (bare or to == "timm"):
        report.notes.append(
            f"WARNING: {to}'s code computes LayerNorm with eps 1e-06, this model with {config.norm_eps:g}"
        )
    if to == "timm" and bare and config.activation == "gelu_tanh":
        report.notes.append(
            "WARNING: the file cannot say that the GELU is the tanh form; a .safetensors file or a folder can"
        )


def _add_zeros(config: ModelConfig, state: Tensors, to: str, report: Report) -> tuple[ModelConfig, Tensors]:
    """Parts the target always has and this model lacks: zeros change nothing."""
    state, width = dict(state), config.width
    patches = config.grid[0] * config.grid[1]
    if config.positions == "none" and to != "google":
        state["pos_embed"] = torch.zeros(1, config.prefix_tokens + patches, width)
        report.created["pos_embed"] = "zeros: the model has no positions"
        config = config.with_(positions="learned", class_position=True)
    elif config.class_token and not config.class_position and not config.registers and "pos_embed" in state:
        state["pos_embed"] = torch.cat([torch.zeros(1, config.prefix_tokens, width), state["pos_embed"]], dim=1)
        report.created["pos_embed"] = "a zero position for the class token, which has none"
        config = config.with_(class_position=True)
    if not config.qkv_bias and to != "huggingface" and config.family == "vit":
        for layer in range(config.depth):
            name = f"blocks.{layer}.attn.qkv.bias"
            state[name] = torch.zeros(3 * width)
            report.created[name] = "zeros: the model has no such bias"
        config = config.with_(qkv_bias=True)
    return config, state


def _write(
    target: WeightsFormat,
    destination: Path,
    tensors: Tensors,
    config: ModelConfig,
    card: Card,
    state: Tensors,
    overwrite: bool,
) -> None:
    metadata = {METADATA_KEY: json.dumps(config.to_json())}
    suffix = destination.suffix.lower()
    if suffix == ".npz":
        write_file(destination, npz(tensors), overwrite)
    elif suffix in TORCH_SUFFIXES:
        write_file(destination, torch_file(tensors), overwrite)
    elif suffix == ".safetensors":
        write_file(destination, safetensors(tensors, metadata), overwrite)
    else:
        preprocessing = card.preprocessing or bundle.default_preprocessing(config)
        documents = target.documents(config, card, preprocessing, state)
        write_model_folder(destination, _folder(safetensors(tensors, metadata), documents), overwrite)


def _folder(weights: Fill, documents: dict[str, Any]) -> Fill:
    def fill(folder: Path) -> None:
        weights(folder / "model.safetensors")
        for name, document in documents.items():
            (folder / name).write_text(json_text(document), encoding="utf-8")

    return fill


def _compare(report: Report, found: Source, loaded: Model, destination: Path, to: str) -> None:
    """The source by its own library against the result by its own; vitrail stands in where one cannot be asked."""
    config = loaded.config
    images = torch.randn(2, config.channels, *config.rows_columns, generator=torch.Generator().manual_seed(0))
    resized = config.image_size != found.reading.config.image_size
    if to == "google":  # what the official code will compute, whatever the model did
        config = config.with_(activation="gelu_tanh", norm_eps=1e-6, stem_arithmetic="official")
    written = open_source(destination, model=config, preprocessing=loaded.card.preprocessing)
    result_config = written.reading.config
    headless = config.num_classes and not result_config.num_classes

    def mine(model: Model) -> Tensor:
        with torch.no_grad():
            return model.features(images) if headless else model(images)

    try:
        if resized or headless:
            raise PeerMissing("the model was changed on the way")
        before, by = (
            outputs(found.reading.format, found.path, found.tensors, config, images),
            found.reading.format,
        )
    except PeerMissing as missing:
        before, by = mine(loaded), f"vitrail, since {missing}"
    try:
        after, after_by = outputs(to, destination, written.tensors, result_config, images), to
    except PeerMissing as missing:
        after, after_by = (
            mine(load(destination, model=config)),
            "vitrail" if to == "bundle" else f"vitrail, since {missing}",
        )
    if headless and after.shape != before.shape:
        report.compared = "not compared: the result lacks what the source's output is made of"
        return
    difference = (before - after).abs().max().item()
    report.max_logit_difference = difference if math.isfinite(difference) else None
    what = "features" if headless or not config.num_classes else "logits"
    report.compared = f"{what} of the source by {by}; of the result by {after_by}"
