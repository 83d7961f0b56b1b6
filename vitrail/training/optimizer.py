"""AdamW and SGD with momentum: which parameters decay, how fast each layer learns, and the average of the weights."""

import re
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.config import ModelConfig, OptimizerConfig
from vitrail.training.distributed import gather_whole
from vitrail.training.learner import PREFIX, Learner

_TOKENS = ("cls_token", "dist_token", "reg_token", "mask_token")
"""The beginnings of the names of learned tokens."""


def decays(name: str, parameter: Tensor, config: ModelConfig) -> bool:
    """Whether weight decay is applied to a parameter: to matrices and kernels, not to biases, norms, LayerScale and
    tokens, and to positions only if their kind says so."""
    kind = config.position_kind
    if name in kind.tensors(config):
        return kind.decays
    return parameter.ndim > 1 and not name.removeprefix(PREFIX).startswith((*_TOKENS, "head.queries"))


def layer_of(name: str, config: ModelConfig) -> int:
    """Returns the layer that a parameter belongs to: 0 for the embedding, 1 ... depth for the blocks, depth + 1 for
    what follows."""
    if match := re.match(r"blocks\.(\d+)\.", name):
        return 1 + int(match[1])
    if config.family == "resnet":
        stage = re.match(r"stages\.(\d+)\.", name)
        return 1 + int(stage[1]) if stage else 0 if name.startswith("stem.") else 1 + len(config.stages or ())
    embedding = name.startswith(("patch_embed", *_TOKENS)) or name in config.position_kind.tensors(config)
    return 0 if embedding else config.depth + 1


def build_optimizer(
    learner: nn.Module | Learner, config: ModelConfig, settings: OptimizerConfig
) -> torch.optim.Optimizer:
    """Makes the optimizer. There is one parameter group for each pair of weight decay and `lr_scale`, which multiplies
    the learning rate. Parameters of the objective count as following the last block."""
    last = config.depth + 1 if config.family == "vit" else 1 + len(config.stages or ())
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in learner.named_parameters():
        if parameter.requires_grad:
            decay = settings.weight_decay if decays(name, parameter, config) else 0.0
            scale = settings.layer_decay ** (last - layer_of(name, config))
            groups.setdefault((decay, scale), []).append(parameter)
    described = [
        {"params": parameters, "weight_decay": decay, "lr_scale": scale}
        for (decay, scale), parameters in groups.items()
    ]
    device = next(iter(learner.parameters())).device.type
    if settings.name == "adamw":
        return torch.optim.AdamW(described, lr=settings.lr, betas=settings.betas, fused=device in ("cpu", "cuda"))
    return DecoupledSGD(described, lr=settings.lr, momentum=settings.momentum)


class DecoupledSGD(torch.optim.SGD):
    """SGD whose weight decay shrinks the weights directly, as AdamW's does, and is not added to the gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Shrinks the weights by weight decay, then takes a step of SGD."""
        decays = [group["weight_decay"] for group in self.param_groups]
        for group, decay in zip(self.param_groups, decays, strict=True):
            if decay:
                torch._foreach_mul_(group["params"], 1 - group["lr"] * decay)  # pyright: ignore[reportPrivateImportUsage]
            group["weight_decay"] = 0.0
        result = super().step(closure)
        for group, decay in zip(self.param_groups, decays, strict=True):
            group["weight_decay"] = decay
        return result


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Sets the learning rate of every group to `rate` times the group's `lr_scale`."""
    for group in optimizer.param_groups:
        group["lr"] = rate * group["lr_scale"]


class Average:
    """A running average of the weights. It begins as a copy of them, and in the first steps forgets faster than `decay`
    says."""

    def __init__(self, learner: nn.Module | Learner, decay: float):
        self.decay = decay
        self.weights = {name: tensor.detach().clone() for name, tensor in learner.state_dict().items()}

    @torch.no_grad()
    def update(self, learner: nn.Module | Learner, step: int) -> None:
        """Adds the weights after optimizer step number `step`, counted from 1, to the average."""
        share = 1 - min(self.decay, (1 + step) / (10 + step))
        now = learner.state_dict()
        averages, weights = list(self.weights.values()), [now[name] for name in self.weights]
        torch._foreach_lerp_(averages, weights, share)  # pyright: ignore[reportPrivateImportUsage]


def clip(parameters: Iterable[nn.Parameter], limit: float) -> Tensor:
    """Scales gradients down so that their norm is at most `limit` (0: no limit), and returns the norm they had."""
    return gather_whole(nn.utils.clip_grad_norm_(parameters, limit or float("inf")))
