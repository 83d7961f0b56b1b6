"""`load(anything)`: recognise the format, the size and the grid from the tensors, and return a model."""

import difflib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoints import architectures, bundle, families, hub, huggingface, published, timm
from vitrail.checkpoints.files import SUFFIXES, Contents, WeightsFrom, read_tensors
from vitrail.checkpoints.formats import FORMATS, Beside, weights_format
from vitrail.checkpoints.labels import IMAGENET_NOTE, attach_imagenet, attach_labels
from vitrail.checkpoints.preprocessing import asked, assumed
from vitrail.checkpoints.rules import Reading, Tensors
from vitrail.checkpoints.told import UNSEEN, Told, read_model
from vitrail.config import ModelConfig, Preprocessing
from vitrail.errors import UserError
from vitrail.io.files import read_json
from vitrail.models.build import Model, build
from vitrail.models.card import Card
from vitrail.models.sizes import name_for

METADATA_KEY = "vitrail"
BEHIND = re.compile(
    r"\w*(head|proj|predictor|decoder|mask_token|prototype|classifier|logit|queue|loss|pooler|text|dino|ibot|student|"
    r"teacher|ema|momentum|optim|n_averaged|step|epoch)|fc\.|center$"
)
"""Parts of a checkpoint that stand behind the model or belong to training, by how their names begin."""


@dataclass
class Source:
    """Where a checkpoint was found and what it holds."""

    path: Path
    reading: Reading
    card: Card
    tensors: Tensors
    """As they stand in the file, for the parity report."""
    ours: bool = False
    """Written by this program, with all that was known; what it does not say is not guessed."""


def load(
    source: str | Path,
    *,
    model: str | ModelConfig | None = None,
    image_size: int | tuple[int, int] | None = None,
    num_classes: int | None = None,
    preprocessing: str | Preprocessing | None = None,
    labels: str | Path | None = None,
    weights_from: WeightsFrom | None = None,
) -> Model:
    """A model from a bundle or run folder, a weights file, a timm or Hugging Face folder, `hf:owner/name`, or the name
    of published weights ("Ti/16", "B/16@dino"; `vitrail models --weights` lists them), which are fetched from the hub.

    `model` says what a file cannot: a name such as "B/16", fields ("num_heads=16,pooling=average"), both, or a
    ModelConfig. Of a training checkpoint that has both, `weights_from` takes the "average" of the weights (the default)
    or the "raw" ones. Another `image_size` interpolates the positions, another
    `num_classes` gives a fresh head. `preprocessing` is a Preprocessing, or as the flag says it: a name, fields, or
    both ("imagenet,crop_fraction=0.875"). What had to be assumed stands in `model.card.notes`.
    """
    found = open_source(source, model=model, preprocessing=preprocessing, labels=labels, weights_from=weights_from)
    loaded = assemble(found.reading, found.card)
    if num_classes is not None and num_classes != loaded.config.num_classes:
        loaded = with_fresh_head(loaded, num_classes)
    if image_size is not None:
        resize(loaded, image_size)
    return loaded.eval()


def open_source(
    source: str | Path,
    *,
    model: str | ModelConfig | None = None,
    preprocessing: str | Preprocessing | None = None,
    labels: str | Path | None = None,
    weights_from: WeightsFrom | None = None,
) -> Source:
    """Read a checkpoint without building the model."""
    told = read_model(model)
    path = locate(source)
    if path.is_dir():
        found = _open_folder(path, told, weights_from)
    else:
        contents = read_tensors(path, weights_from)
        reading = _recognise(path, contents, told)
        found = Source(path, reading, Card(), contents.tensors, ours=METADATA_KEY in contents.metadata)
    if fetched := hub.fetch(source):
        fetched.describe(found.card)
    elif published.is_name(str(source)):
        found.card.notes.append(f"{source} is taken for what is here under that name, not for the published weights")
    _set_preprocessing(found, preprocessing)
    if labels is not None:
        attach_labels(found.card, Path(labels), found.reading.config)
    elif not found.ours:
        attach_imagenet(found.card, found.reading.config)
    return found


def locate(source: str | Path) -> Path:
    """The folder or file a MODEL argument means: a run folder is its best bundle, else its last; published weights are
    fetched, unless there is a file or folder of that name."""
    if fetched := hub.fetch(source):
        return fetched.folder
    path = Path(source)
    if not path.exists():
        raise UserError(f"{path}: {published.unknown(str(source))}")
    if path.is_dir() and not bundle.is_bundle(path):
        for inner in ("best", "bundle"):
            if bundle.is_bundle(path / inner):
                return path / inner
    return path


def assemble(reading: Reading, card: Card) -> Model:
    """Put the tensors into modules; every shape must fit. Decoders of MAE checkpoints are left out, and said so."""
    model = build(reading.config, "meta")
    expected = model.state_dict()
    for name, tensor in expected.items():
        if name not in reading.state:
            raise UserError(f"the checkpoint lacks a tensor for {name}")
        if tuple(reading.state[name].shape) != tuple(tensor.shape):
            raise UserError(
                f"{' + '.join(reading.origin[name])}: has the shape {tuple(reading.state[name].shape)}, "
                f"the model needs {tuple(tensor.shape)} for {name}"
            )
    state = {name: reading.state[name].contiguous().clone() for name in expected}
    model.load_state_dict(state, assign=True)
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    model.card = card
    card.notes = [*reading.notes, *card.notes, *_complaints(reading, state)]
    return model.eval()


def with_fresh_head(model: Model, num_classes: int) -> Model:
    """The same model with a zero head for other classes, as fine-tuning starts (the paper); no pre-training layer."""
    config = model.config.with_(num_classes=num_classes, representation_size=0)
    fresh = build(config, "meta")
    old = model.state_dict()
    state = {
        name: torch.zeros(tensor.shape) if name.startswith("head") else old[name]
        for name, tensor in fresh.state_dict().items()
    }
    fresh.load_state_dict(state, assign=True)
    card = model.card
    fresh.card = Card(preprocessing=card.preprocessing, provenance=card.provenance, assumed=card.assumed)
    head = f"the head is new: {num_classes} classes, all weights 0" if num_classes else "the head is left out"
    fresh.card.notes = [*(note for note in model.card.notes if note != IMAGENET_NOTE), head]
    return fresh.eval()


def resize(model: Model, image_size: int | tuple[int, int]) -> None:
    """Another resolution, for the positions and the preprocessing alike."""
    model.resize(image_size)
    if model.card.preprocessing is not None:
        model.card.preprocessing = replace(model.card.preprocessing, image_size=image_size)


def _open_folder(folder: Path, told: Told, weights_from: WeightsFrom | None) -> Source:
    if bundle.is_bundle(folder):
        if weights_from:
            raise UserError(
                f"{folder}: a bundle holds one set of weights, so --weights-from has nothing to choose between"
            )
        reading, card = bundle.read_bundle(folder)
        _check_told(folder, reading, Told(told.config, fields=told.fields))
        return Source(folder, reading, card, reading.state, ours=True)
    info = read_json(folder / "config.json") if (folder / "config.json").is_file() else {}
    contents = _folder_tensors(folder, weights_from)
    reading = _recognise(folder, contents, told, info)
    card = Card()
    if reading.format == "timm":
        card.preprocessing = _facts(folder / "config.json", timm.preprocessing_from)
        names, descriptions = info.get("label_names"), info.get("label_descriptions") or {}
        card.label_names = tuple(map(str, names)) if isinstance(names, list) else ()
        card.label_descriptions = dict(descriptions) if isinstance(descriptions, dict) else {}
    elif reading.format == "huggingface":
        card.label_names = huggingface.labels_from(info)
        if (folder / "preprocessor_config.json").is_file():
            card.preprocessing = _facts(folder / "preprocessor_config.json", huggingface.preprocessing_from)
    if card.label_names and len(card.label_names) != reading.config.num_classes:
        count = len(card.label_names)
        card.notes.append(f"WARNING: {count} class names for {reading.config.num_classes} classes: left out")
        card.label_names, card.label_descriptions = (), {}
    return Source(folder, reading, card, contents.tensors, ours=METADATA_KEY in contents.metadata)


def _facts(path: Path, read: Callable[[dict[str, Any]], Preprocessing | None]) -> Preprocessing | None:
    try:
        return read(read_json(path)) if path.is_file() else None
    except (KeyError, TypeError, ValueError, ZeroDivisionError, AttributeError, IndexError) as error:
        raise UserError(f"{path}: the preprocessing cannot be read: {error}") from error


def _folder_tensors(folder: Path, weights_from: WeightsFrom | None) -> Contents:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        files = read_json(index).get("weight_map")
        if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
            raise UserError(f"{index}: has no weight_map")
        tensors: Tensors = {}
        for name in sorted(set(files.values())):
            if Path(name).name != name:
                raise UserError(f"{index}: names {name!r}, a file outside the folder")
            tensors |= read_tensors(folder / name, weights_from).tensors
        return Contents(tensors, {}, [])
    names = ["model.safetensors", "pytorch_model.bin", "model.npz"]
    found = [folder / name for name in names if (folder / name).is_file()]
    if not found:
        found = sorted(file for file in folder.iterdir() if file.suffix.lower() in SUFFIXES)
        if len(found) != 1:
            what = "several weights files; name one" if found else f"no weights file ({', '.join(SUFFIXES)})"
            raise UserError(f"{folder}: is not a bundle or a run, and has {what}")
    return read_tensors(found[0], weights_from)


def _recognise(path: Path, contents: Contents, told: Told, info: dict[str, Any] | None = None) -> Reading:
    """Read the tensors in the format whose names they have; `info` is the config.json beside them."""
    tensors, user, info = contents.tensors, told, info or {}
    header = METADATA_KEY in contents.metadata and not info  # a config.json beside the weights has the last word
    if header:
        told = Told(_own_metadata(path, contents.metadata[METADATA_KEY]), whole=True)
    try:
        if not header:
            told = told.joined(_facts_beside(tensors, told, info), "config.json")
        reading = _read_format(tensors, told, "header" if header else "folder" if info else "nothing")
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (IndexError, ValueError, TypeError, KeyError, AttributeError, RuntimeError) as error:
        raise UserError(f"{path}: the tensors' shapes make no model ({error})") from error
    _check_told(path, reading, told)
    if header:
        _check_told(path, reading, Told(user.config, fields=user.fields))
    _refuse_misnamed(path, reading)
    reading.config = reading.config.with_(name=reading.config.name or name_for(reading.config))
    reading.notes = [*contents.notes, *reading.notes]
    return reading


def _facts_beside(tensors: Tensors, told: Told, info: dict[str, Any]) -> dict[str, Any]:
    """What a timm or Hugging Face config.json says of the model; another family's is refused by its name."""
    facts: dict[str, Any] = {}
    if "architecture" in info:
        facts = architectures.facts_of(info, told.named)
    elif "model_type" in info:
        families.refuse_by_type(info, told.named)
        facts = huggingface.facts_of(info, tensors)
    families.refuse_by_tensors(tensors)
    return facts


def _read_format(tensors: Tensors, told: Told, beside: Beside) -> Reading:
    for known in map(weights_format, FORMATS):
        if known.recognises(tensors):
            return known.read(tensors, told, beside)
    raise UserError(
        f"not a ViT, hybrid or BiT checkpoint that is known; its tensors begin {', '.join(list(tensors)[:4])}"
    )


def _refuse_misnamed(path: Path, reading: Reading) -> None:
    """A tensor inside a layer that nothing reads, one beside the layers that is no known part of a head or of training,
    or one named almost like another, means that the model computes something we would not: refused. Parts behind the
    model (other heads) and outside of it are only reported."""
    used = {name for names in reading.origin.values() for name in names}
    layers = {match[0] for name in used if (match := re.match(r".*?\d+[./]", name))}
    optional = ("cls_token", "dist_token", "reg_token", "pos_embed", "head.weight", "head.bias", "fc_norm.weight")
    foreign = ("cls", "pre_logits/kernel", "pre_logits/bias", "head/kernel", "head/bias", "classifier.weight")
    biases = {name.removesuffix("weight") + "bias" for name in used if name.endswith("weight")}
    patches = weights_format(reading.format).patches
    owner = reading.origin.get("patch_embed.proj.weight", ("",))[0].removesuffix(patches)
    for name in list(reading.dropped)[:1000]:
        inside = name.startswith((*layers, "patch_embed."))
        if patches and name.startswith(owner):
            inside = inside or not BEHIND.match(name.removeprefix(owner))
        near = difflib.get_close_matches(name, {*used, *biases, *optional, *foreign}, n=1, cutoff=0.85)
        if inside or near:
            like = f", which is named almost like {near[0]!r}" if near else " that nothing here computes with"
            raise UserError(f"{path}: there is a tensor {name!r}{like}; the model would not compute what it should")


def _own_metadata(path: Path, text: str) -> ModelConfig:
    """Files this program wrote say in their header what the tensors cannot."""
    try:
        return ModelConfig.from_json(json.loads(text))
    except (ValueError, RecursionError, AttributeError) as error:
        raise UserError(f"{path}: the header's model configuration cannot be read") from error


def _check_told(path: Path, reading: Reading, told: Told) -> None:
    """Give the model what was told and no tensor shows; for the rest, tensors and what was told must agree."""
    unseen = {name: told.get(name) for name in UNSEEN if name != "num_heads" and told.get(name) is not None}
    if reading.format != "bundle":
        reading.config = reading.config.with_(**unseen, **({"name": told.name} if told.whole else {}))
    for name, value in told.fields.items():
        if (mine := getattr(reading.config, name)) != value:
            raise UserError(f"{path}: the tensors say {name} {mine}, config.json or --model says {value}")
    if told.config is not None:
        for name in ("family", "width", "depth", "patch_size", "mlp_dim", "num_heads", "stages"):
            mine, theirs = getattr(reading.config, name), getattr(told.config, name)
            if mine != theirs:
                raise UserError(f"{path}: the tensors say {name} {mine}, the model {told.name or 'given'} has {theirs}")


def _set_preprocessing(found: Source, wanted: str | Preprocessing | None) -> None:
    config = found.reading.config
    if isinstance(wanted, Preprocessing):
        found.card.preprocessing = wanted
    elif wanted is not None:
        own = found.card.preprocessing or assumed(found.reading.format, config)[0]
        found.card.preprocessing = asked(wanted, config, own)
    elif found.card.preprocessing is None:
        found.card.preprocessing, found.card.assumed = assumed(found.reading.format, config)
        found.card.notes.append(found.card.assumed)


def _complaints(reading: Reading, state: Mapping[str, Tensor]) -> list[str]:
    notes = []
    if "head.weight" in state and not state["head.weight"].any():
        notes.append("WARNING: the head is all zeros: every class gets the same score until it is trained")
    if extra := [name for name in reading.state if name not in state]:
        notes.append(f"left out {len(extra)} tensors of a pre-training decoder ({extra[0]} ...)")
    if reading.dropped:
        listed = ", ".join(list(reading.dropped)[:3])
        notes.append(
            f"WARNING: {len(reading.dropped)} tensors are not used: {listed}" + " ..." * (len(reading.dropped) > 3)
        )
    if broken := [name for name, tensor in state.items() if not torch.isfinite(tensor).all()]:
        notes.append(f"WARNING: {len(broken)} tensors hold NaN or infinity, {broken[0]} the first")
    return notes
