"""The field's own libraries, where they are installed: what a conversion is checked against."""

import importlib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitrail.checkpoints import timm as timm_names
from vitrail.checkpoints.rules import Tensors
from vitrail.config import ModelConfig
from vitrail.errors import UserError


class PeerMissing(Exception):
    """Why a library cannot be asked, in a few words."""


def outputs(format: str, path: Path, tensors: Tensors, config: ModelConfig, images: Tensor) -> Tensor:  # noqa: A002
    """Logits (features of a model without a head) of `images` by the format's own library."""
    ask: dict[str, Callable[..., Tensor]] = {
        "timm": _timm,
        "huggingface": _transformers,
        "torchvision": _torchvision,
    }
    if format not in ask:
        why = {"google": "the official JAX code is not a package", "bundle": "vitrail itself wrote it"}
        raise PeerMissing(why.get(format, f"no library here is asked about {format}"))
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
    """A peer's module. A torchvision built for CUDA beside a CPU torch lacks two operators; declared, it imports."""
    _declare_operators()  # timm and transformers import torchvision where it is there
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise PeerMissing(f"{name} is not installed") from error
    except (RuntimeError, AttributeError, OSError) as error:
        raise PeerMissing(f"{name} does not import here ({str(error).splitlines()[0]})") from error


_DECLARED: list[torch.library.Library] = []


def _declare_operators() -> None:
    if _DECLARED or "+cpu" not in torch.__version__:
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _DECLARED.append(library)


def _timm(path: Path, tensors: Tensors, config: ModelConfig, images: Tensor) -> Tensor:
    timm = import_peer("timm")
    try:
        architecture, arguments = timm_names.describe(config)
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
            # With nothing masked and the patches in order an autoencoder's encoder is an ordinary ViT.
            settings.mask_ratio = 0.0
            model = transformers.ViTMAEModel.from_pretrained(path, config=settings, local_files_only=True).eval()
            rows, columns = config.grid
            noise = torch.arange(rows * columns).expand(len(images), -1)
            return model(images, noise=noise).last_hidden_state[:, 0]
        if config.num_classes:
            model = transformers.ViTForImageClassification.from_pretrained(path, local_files_only=True).eval()
            return model(images).logits
        model = transformers.ViTModel.from_pretrained(path, local_files_only=True).eval()
        result = model(images)
        return result.pooler_output if config.representation_size else result.last_hidden_state[:, 0]
    finally:
        quiet.set_verbosity(level)


def torchvision_model(config: ModelConfig) -> Any:
    """torchvision's module of the same sizes, its weights yet to be loaded."""
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
