"""Mixup, CutMix and label smoothing: what is done to a whole batch, and the soft targets that come of it."""

import torch

from vitrail.config import TransformConfig
from vitrail.data.draws import Draws, permutation


def needs_targets(config: TransformConfig) -> bool:
    """Whether labels alone cannot say what a batch should give."""
    return bool(config.mixup or config.cutmix or config.label_smoothing)


def soft_targets(labels: torch.Tensor, num_classes: int, smoothing: float) -> torch.Tensor:
    """[batch] -> [batch, num_classes]: 1 - smoothing on the label, the rest spread over all classes alike."""
    targets = torch.full((len(labels), num_classes), smoothing / num_classes, device=labels.device)
    targets.scatter_(1, labels[:, None], 1 - smoothing + smoothing / num_classes)
    return targets


def mix(
    images: torch.Tensor, targets: torch.Tensor, config: TransformConfig, *key: int | str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Every image with another of the batch; all random numbers come from the key.

    images [batch, channels, rows, columns] and targets [batch, num_classes]; neither is changed in place.
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
