"""The learning rate of a step: a pure function, so that resuming needs no state."""

import math

from vitrail.config import OptimizerConfig, ScheduleConfig


def learning_rate(step: int, total: int, optimizer: OptimizerConfig, schedule: ScheduleConfig) -> float:
    """Of step 0 ... total - 1. Warm-up rises linearly and reaches the peak at its last step."""
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
