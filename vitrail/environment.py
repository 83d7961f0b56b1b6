"""What this process runs on and how it was started: alone, or by torchrun as one of several. Without torch.

It also holds the settings of the whole process that only a program may make (the command, a decoding process), never
the library when it is imported.
"""

import contextlib
import importlib
import os
import platform
import sys
import warnings
from pathlib import Path
from types import ModuleType

OPENVINO_TELEMETRY = "openvino_telemetry"
"""A package beside OpenVINO that looks up an analytics host when OpenVINO is imported, and writes to ~/intel."""
ONNXRUNTIME_OPT_OUT = "ORT_DISABLE_TELEMETRY"
"""The variable that keeps ONNX Runtime (1.29 and later) from looking up such a host when it is first used."""


def is_distributed() -> bool:
    """Tells whether torchrun, or a launcher like it, has started other processes of the same job."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def rank() -> int:
    """Returns the number of this process among those of the job, counted from 0."""
    return int(os.environ.get("RANK", "0"))


def is_first() -> bool:
    """Tells whether this process is the one that writes files and prints."""
    return rank() == 0


def restart_count() -> int:
    """Returns how often torchrun has restarted this job because a process had died."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))


def available_processors() -> int:
    """Returns the number of processors that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_name() -> str:
    """Returns the processor's name, such as "AMD EPYC 7763 64-Core Processor"."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text("utf-8", "replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def silence_pillow() -> None:
    """Hides, in the whole process, Pillow's warnings of odd metadata and of pictures that are large but allowed.

    Programs call this as they start. Threads share the filters, so none could be set for one picture alone; and who
    imports the library decides about warnings themselves.
    """
    warnings.filterwarnings("ignore", r"Image size \(\d+ pixels\) exceeds limit", RuntimeWarning, r"PIL\.")
    warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")


def import_without_telemetry(name: str) -> ModuleType:
    """Imports a package, OpenVINO and ONNX Runtime so that they report to nobody.

    OpenVINO works without its telemetry package, so that one cannot be imported meanwhile; where it has been imported
    before, it stays as it is. ONNX Runtime is asked by its own variable, unless the person has set that one.
    """
    os.environ.setdefault(ONNXRUNTIME_OPT_OUT, "1")
    if OPENVINO_TELEMETRY in sys.modules:
        return importlib.import_module(name)
    sys.modules[OPENVINO_TELEMETRY] = None  # pyright: ignore[reportArgumentType]  so importing it raises ImportError
    try:
        return importlib.import_module(name)
    finally:
        del sys.modules[OPENVINO_TELEMETRY]
