"""How much a weights file may ask for, told before memory is taken for it.

A few bytes can claim anything: a tensor of 17 GB that repeats one number, an archive that unpacks to a thousand times
its size, a million names. What a file asks for is bounded by what it is: by its own size, and by the largest model that
a configuration allows.
"""

from collections.abc import Collection
from pathlib import Path

from torch import Tensor

from vitrail.errors import UserError
from vitrail.io.free_memory import VARIABLE, free_machine_memory

MARGIN, FACTOR = 16 * 2**20, 100
"""A file may ask for so many bytes, and for so many times its own size beside them."""
MOST_TENSORS = 50_000
"""The deepest model there may be has 1000 layers of some 20 tensors; an average and a decoder can stand beside it."""
LONGEST_NAME, MOST_AXES = 500, 16
LARGEST_HEADER = 16 * 2**20
"""Bytes of the JSON in which a .safetensors file lists its tensors."""


def check_amount(path: Path, asked: int) -> None:
    """Refuses a file that asks for far more memory than it is large.

    Args:
        path: The file.
        asked: The bytes that its content would take.
    """
    size = path.stat().st_size
    if asked > MARGIN + FACTOR * size:
        raise UserError(
            f"{path}: is damaged or hostile: its {size:,} bytes ask for {asked:,} bytes of memory; refused unread. "
            "Fetch it again from where you trust it"
        )


def check_size(path: Path) -> None:
    """Refuses a file that is larger than the free memory, before any of it is read: it may be sparse, and its content
    take no room on the disk."""
    size, free = path.stat().st_size, free_machine_memory()
    if free is not None and size > free:
        raise UserError(
            f"{path}: has {size:,} bytes, and {free:,} bytes of memory are free: end other programs, or use a machine "
            f"with more memory ({VARIABLE} in the environment gives another amount)"
        )


def check_names(path: Path, names: Collection[str]) -> None:
    """Refuses a file with more tensors than any model has, or with names that are none."""
    if len(names) > MOST_TENSORS:
        raise UserError(f"{path}: lists {len(names):,} tensors, more than any model has; is it a model's weights?")
    for name in names:
        if len(name) > LONGEST_NAME:
            raise UserError(f"{path}: has a tensor whose name is {len(name):,} letters long; is it a model's weights?")


def check_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Refuses tensors that are no plain numbers, or that would take more memory than the file may ask for."""
    check_names(path, tensors)
    for name, each in tensors.items():
        if str(each.layout) != "torch.strided" or each.is_meta or each.is_quantized:
            raise UserError(f"{path}: {name} is not a plain tensor with numbers in it")
        if each.ndim > MOST_AXES:
            raise UserError(f"{path}: {name} has {each.ndim} dimensions; no part of a model has so many")
    # All are made float32; one that repeats its numbers is small until then.
    check_amount(path, sum(each.numel() * max(4, each.element_size()) for each in tensors.values()))
