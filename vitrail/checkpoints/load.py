"""Loading a model from any MODEL argument: its format, size and grid are recognised from the tensors."""

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoints import architectures, bundle, eomt, hub, huggingface, other_families, published, timm
from vitrail.checkpoints.declared_config import UNSEEN, Declared, read_model
from vitrail.checkpoints.files import SUFFIXES, Contents, WeightsFrom, read_tensors
from vitrail.checkpoints.formats import FORMATS, Beside, weights_format
from vitrail.checkpoints.labels import IMAGENET_NOTE, attach_imagenet, attach_labels
from vitrail.checkpoints.name_maps import Reading, Tensors
from vitrail.checkpoints.preprocessing import assumed, requested
from vitrail.config import ModelConfig, Preprocessing
from vitrail.errors import UserError, is_out_of_memory, naming
from vitrail.io.documents import parse_object, read_json
from vitrail.models.build import Model, build
from vitrail.models.card import Card
from vitrail.models.sizes import name_for

METADATA_KEY = "vitrail"
"""The key in the header of a .safetensors file under which this program writes the model's configuration."""
BEHIND = re.compile(
    r"\w*(head|proj|predictor|decoder|mask_token|prototype|classifier|logit|queue|loss|pooler|text|dino|ibot|student|"
    r"teacher|ema|momentum|optim|n_averaged|step|epoch)|fc\.|center$"
)
"""Matches names of tensors that are not part of the encoder: heads behind it, and what only training needs."""

MOST_COMPARED = 300
"""Kinds of names of tensors that are not used and that are compared with known ones, letter by letter."""


@dataclass
class OpenCheckpoint:
    """A checkpoint that has been read, before a model is built of it."""

    path: Path
    """The file or folder."""
    reading: Reading
    """The tensors by this program's names, and the configuration."""
    card: Card
    """The preprocessing, the class names, the origin and the notes."""
    tensors: Tensors
    """The tensors by their names in the file, for the parity report."""
    ours: bool = False
    """True if this program wrote the file. Such a file states all that is known, so missing class names are not
    guessed."""


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
    """Loads a model from a file, a folder or the Hugging Face hub, whatever its format.

    Args:
        source: A bundle or run folder, a weights file, a timm or Hugging Face folder, `hf:owner/name`, or the name of
            published weights ("Ti/16", "B/16@dino"; `vitrail models --weights` lists them). The last two are downloaded
            from the hub.
        model: What the source does not say about its model: a name ("B/16"), fields ("num_heads=16,pooling=average"),
            both, or a ModelConfig.
        image_size: Another resolution, in pixels or (rows, columns), to which the position embeddings are interpolated.
        num_classes: Another number of classes: the model gets a new head for them with all weights 0; 0 for no head.
        preprocessing: The preprocessing to use in place of the source's: a Preprocessing, or text as for the flag
            --preprocessing: a name, fields, or both ("imagenet,crop_fraction=0.875").
        labels: A file with the class names, one on each line or JSON.
        weights_from: "average" or "raw": which weights to take of a training checkpoint that has both; None takes the
            average.

    Returns:
        The model, in evaluation mode. `model.card` has its preprocessing, class names and origin; what had to be
        assumed about the source is in `model.card.notes`.

    Raises:
        UserError: If there is no such model, if it cannot be read, or if it is not one that this program can run.
    """
    found = open_checkpoint(source, model=model, preprocessing=preprocessing, labels=labels, weights_from=weights_from)
    return adapt(assemble(found.reading, found.card), num_classes, image_size)


def open_checkpoint(
    source: str | Path,
    *,
    model: str | ModelConfig | None = None,
    preprocessing: str | Preprocessing | None = None,
    labels: str | Path | None = None,
    weights_from: WeightsFrom | None = None,
) -> OpenCheckpoint:
    """Reads a checkpoint without building the model. Arguments and errors are those of `load`."""
    told = read_model(model)
    path = locate(source)
    if path.is_dir():
        found = _open_folder(path, told, weights_from)
    else:
        contents = read_tensors(path, weights_from)
        reading = _recognise(path, contents, told)
        found = OpenCheckpoint(path, reading, Card(), contents.tensors, ours=METADATA_KEY in contents.metadata)
    if fetched := hub.fetch_repository(source):
        fetched.describe(found.card)
    elif published.is_name(str(source)):
        found.card.notes.append(f"{source} is the file or folder of that name here, not the published weights")
    _set_preprocessing(found, preprocessing)
    if labels is not None:
        attach_labels(found.card, Path(labels), found.reading.config)
    elif not found.ours:
        attach_imagenet(found.card, found.reading.config)
    return found


def locate(source: str | Path) -> Path:
    """Finds the file or folder that a MODEL argument means. Of a run folder it is the bundle `best`, or else `bundle`.

    Models of the hub and published weights are downloaded; but a file or folder that has the name of published weights
    is taken first. Raises UserError if there is nothing of that name.
    """
    if fetched := hub.fetch_repository(source):
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
    """Builds the model and gives it the tensors and the card. The decoder of a masked autoencoder is left out.

    Raises UserError if a tensor is missing or has another shape than the model needs.
    """
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


def adapt(model: Model, num_classes: int | None, image_size: int | tuple[int, int] | None) -> Model:
    """Returns a loaded model with another number of classes and at another resolution, in evaluation mode.

    num_classes, image_size: as in `load`. The model itself is changed, or shares its weights with the result.
    """
    if num_classes is not None and num_classes != model.config.num_classes:
        model = with_fresh_head(model, num_classes)
    if image_size is not None:
        resize_model(model, image_size)
    return model.eval()


def with_fresh_head(model: Model, num_classes: int) -> Model:
    """Returns the same model with a new head for other classes and without the pre-training layer before the head.

    All weights of the new head are 0, as the paper begins fine-tuning. 0 classes gives a model without a head. Of a
    head of queries only the linear map to the classes is new.
    """
    config = model.config.with_(num_classes=num_classes, representation_size=0)
    fresh = build(config, "meta")
    old, new = model.state_dict(), "head.classes" if config.query_tokens and model.config.query_tokens else "head"
    state = {
        name: torch.zeros(tensor.shape) if name.startswith(new) else old[name]
        for name, tensor in fresh.state_dict().items()
    }
    fresh.load_state_dict(state, assign=True)
    card = model.card
    fresh.card = Card(preprocessing=card.preprocessing, provenance=card.provenance, assumed=card.assumed)
    head = f"the head is new: {num_classes} classes, all weights 0" if num_classes else "the head is left out"
    fresh.card.notes = [*(note for note in model.card.notes if note != IMAGENET_NOTE), head]
    return fresh.eval()


def resize_model(model: Model, image_size: int | tuple[int, int]) -> None:
    """Changes the resolution of a model in place: its position embeddings and its preprocessing."""
    model.resize(image_size)
    if model.card.preprocessing is not None:
        model.card.preprocessing = replace(model.card.preprocessing, image_size=image_size)


def _open_folder(folder: Path, told: Declared, weights_from: WeightsFrom | None) -> OpenCheckpoint:
    """Reads a bundle, or a timm or Hugging Face folder with its class names and preprocessing."""
    if bundle.is_bundle(folder):
        if weights_from:
            raise UserError(
                f"{folder}: a bundle holds one set of weights, so --weights-from has nothing to choose between"
            )
        reading, card = bundle.read_bundle(folder)
        _check_told(folder, reading, Declared(told.config, fields=told.fields))
        return OpenCheckpoint(folder, reading, card, reading.state, ours=True)
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
            card.notes += huggingface.notes_on_preprocessing(read_json(folder / "preprocessor_config.json"))
    if card.label_names and len(card.label_names) != reading.config.num_classes:
        count = len(card.label_names)
        card.notes.append(f"WARNING: {count} class names for {reading.config.num_classes} classes: left out")
        card.label_names, card.label_descriptions = (), {}
    return OpenCheckpoint(folder, reading, card, contents.tensors, ours=METADATA_KEY in contents.metadata)


def _facts(path: Path, read: Callable[[dict[str, Any]], Preprocessing | None]) -> Preprocessing | None:
    """Reads the preprocessing from a JSON file with `read`; None if there is no file."""
    try:
        return read(read_json(path)) if path.is_file() else None
    except (KeyError, TypeError, ValueError, ArithmeticError, AttributeError, IndexError) as error:
        raise UserError(f"{path}: the preprocessing cannot be read: {error}") from error


def _folder_tensors(folder: Path, weights_from: WeightsFrom | None) -> Contents:
    """Reads the tensors of a folder: of the parts in its index of safetensors, or of its only weights file."""
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


def _recognise(path: Path, contents: Contents, told: Declared, info: dict[str, Any] | None = None) -> Reading:
    """Reads the tensors in the first format that recognises their names, and checks them against what is known.

    told: what the user said; info: the content of the folder's config.json, if there is one.
    """
    tensors, user, info = contents.tensors, told, info or {}
    header = METADATA_KEY in contents.metadata and not info  # a config.json beside the weights overrides their header
    if header:
        told = Declared(_own_metadata(path, contents.metadata[METADATA_KEY]), whole=True)
    try:
        if not header:
            told = told.joined(_facts_beside(tensors, told, info), "config.json")
        reading = _read_format(tensors, told, "header" if header else "folder" if info else "nothing")
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except (IndexError, ValueError, TypeError, KeyError, AttributeError, RuntimeError, ArithmeticError) as error:
        if is_out_of_memory(error):
            raise
        raise UserError(f"{path}: the tensors' shapes make no model ({error})") from error
    _check_told(path, reading, told)
    if header:
        _check_told(path, reading, Declared(user.config, fields=user.fields))
    _refuse_misnamed(path, reading)
    reading.config = reading.config.with_(name=reading.config.name or name_for(reading.config))
    reading.notes = [*contents.notes, *reading.notes]
    return reading


def _facts_beside(tensors: Tensors, told: Declared, info: dict[str, Any]) -> dict[str, Any]:
    """Reads the fields of ModelConfig that a timm or Hugging Face config.json states.

    Raises UserError if the config.json or the tensors are those of a family that this program does not run.
    """
    facts: dict[str, Any] = {}
    if "architecture" in info:
        facts = architectures.timm_fields(info, told.named)
    elif "model_type" in info:
        other_families.refuse_by_type(info, told.named)
        facts = huggingface.huggingface_fields(info, tensors)
    if not eomt.has_queries(tensors):  # its LayerScale has the names of DINOv2's
        other_families.refuse_by_tensors(tensors)
    return facts


def _read_format(tensors: Tensors, told: Declared, beside: Beside) -> Reading:
    """Reads tensors in the first format that recognises them. Raises UserError if none does."""
    for known in map(weights_format, FORMATS):
        if known.recognises(tensors):
            return known.read(tensors, told, beside)
    raise UserError(
        f"not a ViT, hybrid or BiT checkpoint that is known; its tensors begin {', '.join(list(tensors)[:4])}"
    )


def _refuse_misnamed(path: Path, reading: Reading) -> None:
    """Raises UserError if a tensor that was not used shows that the model computes something which ours would not.

    Such a tensor is inside a layer; or beside the layers, unless its name is one of a head or of training (`BEHIND`);
    or has almost the name of a tensor that is used. Other unused tensors are only reported.
    """
    used = {name for names in reading.origin.values() for name in names}
    layers = {match[0] for name in used if (match := re.match(r".*?\d+[./]", name))}
    optional = ("cls_token", "dist_token", "reg_token", "pos_embed", "head.weight", "head.bias", "fc_norm.weight")
    foreign = ("cls", "pre_logits/kernel", "pre_logits/bias", "head/kernel", "head/bias", "classifier.weight")
    biases = {name.removesuffix("weight") + "bias" for name in used if name.endswith("weight")}
    patches = weights_format(reading.format).patches
    owner = reading.origin.get("patch_embed.proj.weight", ("",))[0].removesuffix(patches)
    # Layers have the same names but for their numbers, so one of each is enough to compare with.
    known = {_unnumbered(name): name for name in sorted({*used, *biases, *optional, *foreign}, reverse=True)}
    compared: dict[str, list[str]] = {}
    for name in reading.dropped:
        inside = name.startswith((*layers, "patch_embed."))
        if patches and name.startswith(owner):
            inside = inside or not BEHIND.match(name.removeprefix(owner))
        kind = _unnumbered(name)
        if kind not in compared:
            few = len(compared) < MOST_COMPARED
            compared[kind] = difflib.get_close_matches(kind, known, n=1, cutoff=0.85) if few else []
        near = compared[kind]
        if inside or near:
            almost = f", which is named almost like {known[near[0]]!r}" if near else ""
            like = almost or ", which this program's model does not have"
            raise UserError(f"{path}: there is a tensor {name!r}{like}; without it the results would be wrong")


def _unnumbered(name: str) -> str:
    return re.sub(r"\d+", "0", name)


def _own_metadata(path: Path, text: str) -> ModelConfig:
    """Reads the model's configuration from the header of a file that this program wrote."""
    with naming(f"{path}: its header"):
        return ModelConfig.from_json(parse_object(text, "the model configuration"))


def _check_told(path: Path, reading: Reading, told: Declared) -> None:
    """Sets the fields that no tensor shows to what is known of them, and compares all other known fields with what the
    tensors show. Raises UserError if they differ."""
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


def _set_preprocessing(found: OpenCheckpoint, wanted: str | Preprocessing | None) -> None:
    """Sets the preprocessing on the card: the wanted one, else the checkpoint's own, else one that is assumed, with a
    note that says so."""
    config = found.reading.config
    if isinstance(wanted, Preprocessing):
        found.card.preprocessing = wanted
    elif wanted is not None:
        own = found.card.preprocessing or assumed(found.reading.format, config)[0]
        found.card.preprocessing = requested(wanted, config, own)
    elif found.card.preprocessing is None:
        found.card.preprocessing, found.card.assumed = assumed(found.reading.format, config)
        found.card.notes.append(found.card.assumed)


def _complaints(reading: Reading, state: Mapping[str, Tensor]) -> list[str]:
    """Returns notes on what looks wrong: a head of zeros, tensors that are not used, values that are not finite.

    state: the tensors that the model got.
    """
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
