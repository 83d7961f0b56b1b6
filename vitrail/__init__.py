"""Vitrail: the Vision Transformer as finished software.

    model = vitrail.create("B/16", num_classes=10, image_size=384)
    model = vitrail.load("Ti/16")             # published weights; a bundle, a run, a weights file, hf:owner/name
    vitrail.save(model, "my-bundle")
    model.predict("photo.jpg")                # also a list of paths, bytes, Pillow images, arrays, tensors
    vitrail.evaluate(model, "photos")         # how good it is; also few_shot and cross_validate
    model.preprocess("photo.jpg")             # the tensor that model(...) takes
    vitrail.export(model, "model.onnx")

`import vitrail` is instant: torch is imported when the first of these is used.
"""

import importlib
from typing import TYPE_CHECKING, Any

from vitrail.version import __version__

if TYPE_CHECKING:
    from vitrail import inspect
    from vitrail.assessment import EvaluationSettings, cross_validate, evaluate, few_shot
    from vitrail.checkpoints.bundle import save
    from vitrail.checkpoints.convert import convert
    from vitrail.checkpoints.load import load
    from vitrail.config import ModelConfig, Preprocessing, TrainConfig
    from vitrail.data.inputs import Prepared
    from vitrail.errors import UserError
    from vitrail.inference.api import embed, predict, preprocess
    from vitrail.inference.export import export
    from vitrail.models.attention import Recorder
    from vitrail.models.build import create
    from vitrail.models.cost import cost, plan
    from vitrail.recipes import recipe
    from vitrail.train import fit
    from vitrail.transfer import finetune

_HOMES = {
    "create": "vitrail.models.build",
    "load": "vitrail.checkpoints.load",
    "save": "vitrail.checkpoints.bundle",
    "convert": "vitrail.checkpoints.convert",
    "cost": "vitrail.models.cost",
    "plan": "vitrail.models.cost",
    "Recorder": "vitrail.models.attention",
    "predict": "vitrail.inference.api",
    "embed": "vitrail.inference.api",
    "preprocess": "vitrail.inference.api",
    "Prepared": "vitrail.data.inputs",
    "export": "vitrail.inference.export",
    "evaluate": "vitrail.assessment",
    "few_shot": "vitrail.assessment",
    "cross_validate": "vitrail.assessment",
    "EvaluationSettings": "vitrail.assessment",
    "fit": "vitrail.train",
    "finetune": "vitrail.transfer",
    "recipe": "vitrail.recipes",
    "TrainConfig": "vitrail.config",
    "ModelConfig": "vitrail.config",
    "Preprocessing": "vitrail.config",
    "UserError": "vitrail.errors",
}

__all__ = [
    "EvaluationSettings",
    "ModelConfig",
    "Prepared",
    "Preprocessing",
    "Recorder",
    "TrainConfig",
    "UserError",
    "__version__",
    "convert",
    "cost",
    "create",
    "cross_validate",
    "embed",
    "evaluate",
    "export",
    "few_shot",
    "finetune",
    "fit",
    "inspect",
    "load",
    "plan",
    "predict",
    "preprocess",
    "recipe",
    "save",
]


def __getattr__(name: str) -> Any:
    if name == "inspect":  # a module of functions, where the others are functions themselves
        return importlib.import_module("vitrail.inspect")
    if name not in _HOMES:
        raise AttributeError(f"module 'vitrail' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
