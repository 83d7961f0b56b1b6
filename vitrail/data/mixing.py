"""Mixup and CutMix: what is done to the pictures of a whole batch, and to their soft targets."""

import torch

from vitrail.config import TransformConfig
from vitrail.random_stream import Draws, permutation


def needs_soft_targets(config: TransformConfig) -> bool:
    """Whether targets as they are cannot say what a batch should give."""
    return bool(config.mixup or config.cutmix or config.label_smoothing)


def mix(
    images: torch.Tensor, targets: torch.Tensor, config: TransformConfig, *key: int | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every image with another of the batch; all random numbers come from the key.

    images [batch, channels, rows, columns] and targets [batch, outputs]; neither is changed in place.
    """
    draws = Draws("mix", *key)
    mixed, use_cutmix = draws.chance(config.mix_probability), draws.chance(0.5)
    if not (config.mixup or config.cutmix) or not mixed or len(images) < 2:
        return images, targets
    use_cutmix = bool(config.cutmix) and (use_cutmix or not config.mixup)
    alpha = config.cutmix if use_cutmix else config.mixup
    keep = float(draws.generator().beta(alpha, alpha))
    partners = torch.from_numpy(permutation(len(images), "partners", *key)).to(images.device)
    if use_cutmix:
        top, bottom, left, right = cut_box(images.shape[-2], images.shape[-1], keep, draws)
        images, others = images.clone(), images
        images[:, :, top:bottom, left:right] = others[partners, :, top:bottom, left:right]
        # The cut is clipped at the border, so its true area decides.
        keep = 1 - (bottom - top) * (right - left) / (images.shape[-2] * images.shape[-1])
    else:
        images = keep * images + (1 - keep) * images[partners]
    return images, keep * targets + (1 - keep) * targets[partners]


def cut_box(rows: int, columns: int, keep: float, draws: Draws) -> tuple[int, int, int, int]:
    """top, bottom, left, right of a rectangle with 1 - keep of the area, around a random point."""
    side = (1 - keep) ** 0.5
    height, width = int(rows * side), int(columns * side)
    middle_row, middle_column = draws.integer(rows), draws.integer(columns)
    top, left = middle_row - height // 2, middle_column - width // 2
    return max(top, 0), min(top + height, rows), max(left, 0), min(left + width, columns)
