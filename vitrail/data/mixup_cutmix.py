"""Mixup and CutMix: mixing each picture of a batch, and its target, with another one of the batch."""

import torch

from vitrail.config import TransformConfig
from vitrail.random_stream import RandomStream, permutation


def needs_soft_targets(config: TransformConfig) -> bool:
    """Tells whether mixing or label smoothing make soft targets [batch, outputs] of the classes [batch]."""
    return bool(config.mixup or config.cutmix or config.label_smoothing)


def mix(
    images: torch.Tensor, targets: torch.Tensor, config: TransformConfig, *key: int | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Mixes every image and its target with another one of the batch, by Mixup or CutMix.

    Args:
        images: float32 [batch, channels, rows, columns]; not changed in place.
        targets: Soft targets [batch, outputs]; not changed in place.
        config: The probabilities and strengths.
        key: The key of the random numbers, by which the result is determined.

    Returns:
        The images and the targets.
    """
    draws = RandomStream("mix", *key)
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
        # The rectangle may be clipped at the border, so the weights are by its true area.
        keep = 1 - (bottom - top) * (right - left) / (images.shape[-2] * images.shape[-1])
    else:
        images = keep * images + (1 - keep) * images[partners]
    return images, keep * targets + (1 - keep) * targets[partners]


def cut_box(rows: int, columns: int, keep: float, draws: RandomStream) -> tuple[int, int, int, int]:
    """Draws (top, bottom, left, right) of a rectangle around a random point, clipped at the border.

    keep: the fraction of the picture's area that is outside the rectangle, unless it is clipped.
    """
    side = (1 - keep) ** 0.5
    height, width = int(rows * side), int(columns * side)
    middle_row, middle_column = draws.integer(rows), draws.integer(columns)
    top, left = middle_row - height // 2, middle_column - width // 2
    return max(top, 0), min(top + height, rows), max(left, 0), min(left + width, columns)
