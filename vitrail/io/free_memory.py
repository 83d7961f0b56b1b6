"""How much memory the machine, or the container that this process runs in, has left."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from vitrail.io.sizes import byte_count

VARIABLE = "VITRAIL_MEMORY"
"""The environment variable that gives the free memory, in place of what the system reports."""


def free_machine_memory(system: Path = Path("/proc"), groups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Returns the bytes that can still be used; None if that is not known.

    It is the least of what is available on the machine and what control groups (containers) leave, or what
    VITRAIL_MEMORY in the environment says.

    Args:
        system: The folder in which the kernel describes the machine and this process.
        groups: The folder in which it describes control groups.
    """
    if given := os.environ.get(VARIABLE):
        return byte_count(given, VARIABLE)
    return min([*_of_machine(system), *_of_groups(system, groups)], default=None)


def _of_machine(system: Path) -> Iterator[int]:
    """Yields the available memory of the machine in bytes, if the kernel reports it."""
    with suppress(OSError, ValueError, IndexError):
        for line in (system / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                yield 1024 * int(line.split()[1])


def _of_groups(system: Path, groups: Path) -> Iterator[int]:
    """Yields the bytes that are left to the control group of this process and to each group above it. Cached files
    count as free."""
    with suppress(OSError):
        for line in (system / "self" / "cgroup").read_text().splitlines():
            _, kinds, name = line.split(":", 2)
            if kinds == "":
                root, files = groups, ("memory.max", "memory.current", ("inactive_file ", "active_file "))
            elif "memory" in kinds.split(","):
                root = groups / "memory"
                files = "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file ", "total_active_file ")
            else:
                continue
            group = root / name.strip("/")
            for each in (group, *group.parents):
                if each.is_relative_to(root):
                    yield from _left(each, *files)


def _left(group: Path, limit: str, used: str, cached: tuple[str, ...]) -> Iterator[int]:
    """Yields the bytes that are left to a control group. limit, used: names of its files; cached: lines of memory.stat
    to add up."""
    with suppress(OSError, ValueError):  # a group without a limit lacks the file, or has "max" in it
        most, now = int((group / limit).read_text()), int((group / used).read_text())
        lines = (group / "memory.stat").read_text().splitlines()
        yield max(0, most - now + sum(int(line.split()[1]) for line in lines if line.startswith(cached)))
