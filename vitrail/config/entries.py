"""Imports classes that are named in lists, which say without torch what each class can do."""

import importlib
from typing import Any


def imported(package: str, entry: str) -> Any:
    """Imports the class that an entry names.

    Args:
        package: the package that its file is in, such as "vitrail.models".
        entry: the file and the class, such as "positions.Learned".
    """
    file, _, name = entry.rpartition(".")
    return getattr(importlib.import_module(f"{package}.{file}"), name)
