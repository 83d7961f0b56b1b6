"""How this process was started: alone, or by torchrun beside others. Told by the environment, without torch."""

import os


def started_together() -> bool:
    """Whether torchrun, or another launcher of its kind, has started more than this process."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def rank() -> int:
    """Which of the processes this is, counted from 0."""
    return int(os.environ.get("RANK", "0"))


def is_first() -> bool:
    """Whether this process is the one that writes and speaks."""
    return rank() == 0


def starts() -> int:
    """How often torchrun has started this job again because a process had died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def available_processors() -> int:
    """Those that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
