"""Computes the learning rate of a step. It is a pure function, so resuming needs no state."""

import math

from vitrail.config import OptimizerConfig, ScheduleConfig


def learning_rate(step: int, total: int, optimizer: OptimizerConfig, schedule: ScheduleConfig) -> float:
    """Computes the learning rate of a step, which counts from 0 to `total` - 1. The last step of the warm-up has the
    peak rate."""
    peak, end, warmup = optimizer.lr, schedule.final_lr, min(schedule.warmup_steps, total)
    if step < warmup:
        return peak * (step + 1) / warmup
    if schedule.kind == "constant":
        return peak
    start = warmup
    if schedule.kind == "stable":
        start = max(warmup, total - round(schedule.decay_fraction * total))
        if step < start:
            return peak
    progress = (step - start) / max(1, total - start)
    if schedule.kind == "cosine":
        return end + (peak - end) * 0.5 * (1 + math.cos(math.pi * progress))
    return peak + (end - peak) * progress
