"""Chooses the device that a model runs on."""

import torch

from vitrail.errors import UserError


def choose_device(name: str) -> torch.device:
    """Returns a device by name; "auto" takes CUDA if there is any, else MPS, else the CPU. A UserError if there is no
    such one."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UserError(f"--device {name}: there is none here ({str(error).splitlines()[0]})") from error
    return device
