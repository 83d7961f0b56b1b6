"""Running a checkpoint in timm, transformers or torchvision, if installed, to check a conversion against them."""

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoints import timm as timm_names
from vitrail.checkpoints.name_maps import Tensors
from vitrail.config import ModelConfig
from vitrail.environment import import_without_telemetry
from vitrail.errors import UserError
from vitrail.tasks.queries import dense_scores


class PeerMissing(Exception):
    """Raised if a library cannot run a checkpoint; the message says why in a few words."""


def outputs(format: str, path: Path, tensors: Tensors, config: ModelConfig, images: Tensor) -> Tensor:  # noqa: A002
    """Computes logits with the library of the format: (batch, classes), or features of a model without a head.

    Args:
        format: The name of the format.
        path: The file or folder, which transformers reads itself.
        tensors: The tensors by their names in the file.
        config: The configuration of the model.
        images: (batch, channels, rows, columns).

    Raises:
        PeerMissing: If the library is not installed or cannot run the model.
    """
    ask: dict[str, Callable[..., Tensor]] = {
        "timm": _timm,
        "huggingface": _transformers,
        "torchvision": _torchvision,
    }
    if format not in ask:
        why = {"google": "the official JAX code is not a package", "bundle": "vitrail itself wrote it"}
        raise PeerMissing(why.get(format, f"no library is known that reads {format}"))
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            return ask[format](path, tensors, config, images)
        except PeerMissing:
            raise
        except Exception as error:  # a peer that fails is a finding to report, not a reason to stop
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise PeerMissing(f"{format} cannot run it ({reason})") from error


def import_peer(name: str) -> Any:
    """Imports a library. Raises PeerMissing if it is not installed or does not import here."""
    _declare_operators()  # timm and transformers import torchvision if it is installed
    try:
        return import_without_telemetry(name)
    except ImportError as error:
        raise PeerMissing(f"{name} is not installed") from error
    except (RuntimeError, AttributeError, OSError) as error:
        raise PeerMissing(f"{name} does not import here ({str(error).splitlines()[0]})") from error


_DECLARED: list[torch.library.Library] = []
"""Keeps the declaration alive: the operators go with this object."""


def _declare_operators() -> None:
    """Declares two operators that a torchvision built for CUDA expects, so that it imports beside a torch for CPU."""
    if _DECLARED or "+cpu" not in torch.__version__:
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _DECLARED.append(library)


def _timm(path: Path, tensors: Tensors, config: ModelConfig, images: Tensor) -> Tensor:
    timm = import_peer("timm")
    try:
        architecture, arguments = timm_names.describe_model(config)
    except UserError as error:
        raise PeerMissing(str(error)) from error
    model = timm.create_model(architecture, num_classes=config.num_classes, **arguments)
    wanted = {rule.foreign[0] for rule in timm_names.rules(config)}
    model.load_state_dict({name: tensor for name, tensor in tensors.items() if name in wanted})
    return model.eval()(images)


def _transformers(path: Path, tensors: Tensors, config: ModelConfig, images: Tensor) -> Tensor:
    transformers = import_peer("transformers")
    if not (path / "config.json").is_file():
        raise PeerMissing("there is no config.json beside the weights")
    settings = transformers.AutoConfig.from_pretrained(path, local_files_only=True)
    quiet = transformers.logging
    level = quiet.get_verbosity()
    quiet.set_verbosity_error()
    quiet.disable_progress_bar()
    try:
        if settings.model_type == "vit_mae":
            # With no patch masked and the patches in order, the encoder of a masked autoencoder is an ordinary ViT.
            settings.mask_ratio = 0.0
            model = transformers.ViTMAEModel.from_pretrained(path, config=settings, local_files_only=True).eval()
            rows, columns = config.grid
            noise = torch.arange(rows * columns).expand(len(images), -1)
            return model(images, noise=noise).last_hidden_state[:, 0]
        if settings.model_type == "eomt":
            model = transformers.EomtForUniversalSegmentation.from_pretrained(path, local_files_only=True).eval()
            result = model(images)
            return dense_scores((result.class_queries_logits, result.masks_queries_logits))
        if config.num_classes:
            model = transformers.ViTForImageClassification.from_pretrained(path, local_files_only=True).eval()
            return model(images).logits
        model = transformers.ViTModel.from_pretrained(path, local_files_only=True).eval()
        result = model(images)
        return result.pooler_output if config.representation_size else result.last_hidden_state[:, 0]
    finally:
        quiet.set_verbosity(level)


def torchvision_model(config: ModelConfig) -> Any:
    """Returns torchvision's module of the same size, with random weights."""
    return import_peer("torchvision").models.VisionTransformer(
        image_size=config.rows_columns[0],
        patch_size=config.patch_size,
        num_layers=config.depth,
        num_heads=config.num_heads,
        hidden_dim=config.width,
        mlp_dim=config.mlp_dim,
        num_classes=config.num_classes,
        representation_size=config.representation_size or None,
    )


def _torchvision(path: Path, tensors: Tensors, config: ModelConfig, images: Tensor) -> Tensor:
    model = torchvision_model(config)
    renamed = {
        name.replace(".mlp.linear_1.", ".mlp.0.").replace(".mlp.linear_2.", ".mlp.3."): tensor
        for name, tensor in tensors.items()
    }
    model.load_state_dict(renamed)
    return model.eval()(images)
