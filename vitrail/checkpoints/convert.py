"""Converting weights from any format to any other, with a report: the tensors that were mapped, dropped or created, and
how far the result's logits are from the source's."""

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoints import bundle, eomt, timm
from vitrail.checkpoints.files import (
    TORCH_SUFFIXES,
    WeightsFrom,
    npz,
    safetensors,
    torch_file,
    write_model_folder,
)
from vitrail.checkpoints.formats import FORMATS, WeightsFormat, weights_format
from vitrail.checkpoints.load import METADATA_KEY, OpenCheckpoint, assemble, load, open_checkpoint, resize_model
from vitrail.checkpoints.name_maps import Tensors, write_by_rules
from vitrail.checkpoints.peers.libraries import PeerMissing, outputs
from vitrail.config import ModelConfig, Preprocessing
from vitrail.errors import UserError
from vitrail.io.files import Fill, json_text, write_file
from vitrail.models.build import Model
from vitrail.models.card import Card


@dataclass
class Report:
    """The record of a conversion."""

    source: str
    """The format and the name of what was converted: "timm: deit.pth"."""
    result: str
    """The format and the path of what was written."""
    mapped: list[dict[str, Any]] = field(default_factory=list)
    """One {"source": [names], "result": [names]} for each of the model's tensors: its names in either file."""
    dropped: dict[str, str] = field(default_factory=dict)
    """The reason why a tensor of the source was left out, by its name."""
    created: dict[str, str] = field(default_factory=dict)
    """The value given to a tensor that the source lacks and the result needs, by its name."""
    notes: list[str] = field(default_factory=list)
    """Sentences for the user; those about a loss begin with WARNING."""
    max_logit_difference: float | None = None
    """The largest absolute difference between logits of source and result; None if not compared or not finite."""
    compared: str = ""
    """The programs that computed the logits of either side, or the reason why none were compared."""

    def to_json(self) -> dict[str, Any]:
        """Returns the fields as a JSON object."""
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
    """Converts weights to another format and checks the result. If it fails while writing, nothing is left behind.

    Args:
        source: What `vitrail.load` takes: a bundle, run, weights file or folder, `hf:owner/name` or published name.
        destination: The file or folder to write; its ending must suit the format.
        to: The format to write: "bundle", "google", "huggingface", "torchvision" or "timm".
        model: What the source cannot say about its model, as for `vitrail.load`.
        image_size: Another resolution, to which the position embeddings are interpolated; pixels or (rows, columns).
        preprocessing: The preprocessing, where the source has none or another is wanted, as for `vitrail.load`.
        labels: A file with the class names.
        weights_from: "average" or "raw": which weights to take of a training checkpoint that has both.
        overwrite: Replace `destination` if it exists.
        check: Run source and result on the same random images, each by its own library where it is installed, and
            compare their logits.

    Returns:
        The report.

    Raises:
        UserError: If the source cannot be read, the format cannot hold the model, or the result cannot be written.
    """
    destination = Path(destination)
    _check_destination(destination, to, overwrite)
    found = open_checkpoint(source, model=model, preprocessing=preprocessing, labels=labels, weights_from=weights_from)
    loaded = assemble(found.reading, found.card)
    report = Report(f"{found.reading.format}: {source}", f"{to}: {destination}", dropped=dict(found.reading.dropped))
    if image_size is not None:
        before = loaded.config
        resize_model(loaded, image_size)
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
        if to == "timm" and not destination.suffix:  # timm refuses a folder that has more tensors than its model
            for name in [name for name in state if name.startswith(timm.DECODER)]:
                report.dropped[name] = "a timm folder holds the encoder only; a single file keeps the decoder"
                del state[name]
        fitted, state = _fit(loaded.config, state, to, report)
        _warn_of_constants(fitted, to, destination, report)
        rules = weights_format(to).rules(state, fitted)
        _write(weights_format(to), destination, write_by_rules(rules, state), fitted, loaded.card, state, overwrite)
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
    """Raises UserError for an unknown format, an ending that does not suit it, or a path that must not be replaced."""
    if to not in ("bundle", *FORMATS):
        raise UserError(f"there is no format {to!r}; there are {', '.join(('bundle', *FORMATS))}")
    endings = ("",) if to == "bundle" else weights_format(to).endings
    ending = (
        destination.suffix.lower() if destination.suffix.lower() in (".npz", ".safetensors", *TORCH_SUFFIXES) else ""
    )
    if ending not in endings:
        wanted = " or ".join(
            f"a file that ends in {ending}" if ending else "a folder, without ending" for ending in endings
        )
        raise UserError(f"{destination}: --to {to} writes {wanted}; choose such a name")
    if destination.exists() and not overwrite:
        raise UserError(f"{destination}: exists already; choose another name or give --overwrite")


def _fit(config: ModelConfig, state: Tensors, to: str, report: Report) -> tuple[ModelConfig, Tensors]:
    """Adapts a model to what the target format can hold; whatever is lost or will differ there is noted in the report.

    Returns the adapted configuration and tensors.
    """
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
    if to == "huggingface" and config.query_tokens:
        config, state, created = eomt.completed(config, state)
        report.created |= created
    elif target.fills_in:
        config, state = _add_zeros(config, state, to, report)
    if target.tensors_only and config.positions == "sincos":
        config = config.with_(positions="learned")
        report.notes.append("the fixed sine-cosine positions are written as learned ones, the same numbers")
    if target.activation and config.activation != target.activation:
        form = "tanh" if target.activation == "gelu_tanh" else "exact"
        report.notes.append(
            f"WARNING: {to}'s own code computes the {form} form of GELU, this model the other form: its logits there "
            "will differ in the third digit"
        )
    if to == "google" and config.stages is not None and config.stem_arithmetic != "official":
        report.notes.append("WARNING: the official code standardises weights with other constants than this model")
    if to == "timm":
        try:
            timm.describe_model(config)
        except UserError as error:
            report.notes.append(f"WARNING: {error}; the file holds timm's names, but timm will not build it")
    return config, state


def _warn_of_constants(config: ModelConfig, to: str, destination: Path, report: Report) -> None:
    """Adds a warning to the report for each constant of the model that the file cannot state and that programs reading
    it will assume to be another."""
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
    """Adds the tensors that the target format always has and this model lacks, as zeros: they do not change logits.

    Returns the configuration and tensors with them; the report lists what was created.
    """
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
    """Writes foreign tensors to a file or a model folder, by the ending of `destination`.

    config, card and state describe the model: they become the header of a .safetensors file and a folder's JSON files.
    """
    metadata = {METADATA_KEY: json.dumps(config.to_json())}
    suffix = destination.suffix.lower()
    if suffix == ".npz":
        write_file(destination, npz(tensors), overwrite)
    elif suffix in TORCH_SUFFIXES:
        write_file(destination, torch_file(tensors), overwrite)
    elif suffix == ".safetensors":
        write_file(destination, safetensors(tensors, metadata), overwrite)
    else:
        preprocessing = card.preprocessing_for(config)
        documents = target.documents(config, card, preprocessing, state)
        write_model_folder(destination, _folder(safetensors(tensors, metadata), documents), overwrite)


def _folder(weights: Fill, documents: dict[str, Any]) -> Fill:
    """Returns a function that writes weights and JSON documents (by file name) into a folder."""

    def fill(folder: Path) -> None:
        weights(folder / "model.safetensors")
        for name, document in documents.items():
            (folder / name).write_text(json_text(document), encoding="utf-8")

    return fill


def _compare(report: Report, found: OpenCheckpoint, loaded: Model, destination: Path, to: str) -> None:
    """Compares the logits of source and result on two random images and writes the largest difference to the report.

    Either side is computed by the library of its own format where that is installed, else by this program. If the
    result has no head, features are compared in place of logits.
    """
    config = loaded.config
    images = torch.randn(2, config.channels, *config.rows_columns, generator=torch.Generator().manual_seed(0))
    resized = config.image_size != found.reading.config.image_size
    if to == "google":  # the settings that the official code has fixed, whatever the model computed with
        config = config.with_(activation="gelu_tanh", norm_eps=1e-6, stem_arithmetic="official")
    written = open_checkpoint(destination, model=config, preprocessing=loaded.card.preprocessing)
    result_config = written.reading.config
    headless = config.num_classes and not result_config.num_classes

    def mine(model: Model) -> Tensor:
        with torch.no_grad():
            return model.features(images) if headless else model(images)

    try:
        if resized or headless:
            raise PeerMissing("the model was changed while converting")
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
        report.compared = "not compared: the result has neither the head nor the features of the source"
        return
    difference = (before - after).abs().max().item()
    report.max_logit_difference = difference if math.isfinite(difference) else None
    what = "features" if headless or not config.num_classes else "logits"
    report.compared = f"{what} of the source by {by}; of the result by {after_by}"
