"""The list of bugs to plant: TOML files beside this one, one for each folder of the package.

[[mutant]]
name = "attention is not scaled"               what is wrong
file = "vitrail/models/vit.py"
old = "..."                                    text that occurs exactly once in the file
new = "..."
tests = ["tests/models/test_vit.py::test_x"]   what pytest is to run
equivalent = "..."                             only where no test can notice: why
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
LISTS = Path(__file__).parent


@dataclass(frozen=True)
class Mutant:
    """A bug: in `file` the one occurrence of `old` becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    equivalent: str = ""
    """Why no test can notice it; empty for those that must be noticed."""

    @property
    def folder(self) -> str:
        """Which part of the package it is in."""
        parts = Path(self.file).parts
        return parts[1] if len(parts) > 2 else Path(self.file).stem

    def planted(self, text: str) -> str:
        """The file's text with the bug in it."""
        if text.count(self.old) != 1:
            raise ValueError(f"{self.name}: its old text occurs {text.count(self.old)} times in {self.file}")
        return text.replace(self.old, self.new)


def read_lists(folder: Path = LISTS) -> list[Mutant]:
    """Reads every list of the folder."""
    found = []
    for path in sorted(folder.glob("*.toml")):
        for entry in tomllib.loads(path.read_text(encoding="utf-8"))["mutant"]:
            found.append(Mutant(**{**entry, "tests": tuple(entry["tests"])}))
    return found
