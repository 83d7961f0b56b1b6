"""Classes that entries name: what must be known without torch stands in a list, and says which class does the work."""

import importlib
from typing import Any


def imported(package: str, entry: str) -> Any:
    """Imports the class that an entry names.

    Args:
        package: Where its file is: "vitrail.models".
        entry: The file and the class: "positions.Learned".
    """
    file, _, name = entry.rpartition(".")
    return getattr(importlib.import_module(f"{package}.{file}"), name)
