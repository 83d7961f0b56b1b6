"""Finds the tasks there are, which are the folders beside this file, and opens one by name."""

import importlib
import pkgutil
from functools import cache, cached_property
from typing import Any

from vitrail.config import ModelConfig
from vitrail.errors import UserError
from vitrail.tasks.answers import Answer
from vitrail.tasks.base import Head, Meter, Target
from vitrail.tasks.pages import Page

DEFAULT = ModelConfig.task
"""The task of a model or a source that names none, as files from before there were several tasks."""


class Task:
    """A task. Each of its five files is imported when it is first used, since two of them import torch."""

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def target(self) -> Target:
        """Opens target.py: reading and comparing right answers."""
        return self._open("target")

    @cached_property
    def head(self) -> Head:
        """Opens head.py, which imports torch: the loss and the head in closed form."""
        return self._open("head")

    @cached_property
    def meter(self) -> type[Meter]:
        """Opens meter.py, which imports torch, and returns its class: a meter is made for each measurement."""
        return self._open("meter")

    @cached_property
    def answer(self) -> Answer:
        """Opens answer.py: from outputs to answers."""
        return self._open("answer")

    @cached_property
    def page(self) -> type[Page]:
        """Opens page.py and returns its class: a page is made for each report."""
        return self._open("page")

    def _open(self, file: str) -> Any:
        return importlib.import_module(f"vitrail.tasks.{self.name}.{file}").PART


def written_format(name: str, newest: int) -> int:
    """Returns the number of the format in which a file of a model for this task is written.

    It is 1 for the default task, so that versions from before there were several tasks read the file, and `newest` for
    all others.
    """
    return 1 if name == DEFAULT else newest


def task_names() -> tuple[str, ...]:
    """Lists the names of all tasks, sorted."""
    package = importlib.import_module("vitrail.tasks")
    return tuple(sorted(each.name for each in pkgutil.iter_modules(package.__path__) if each.ispkg))


@cache
def task(name: str) -> Task:
    """Opens a task by name; a UserError lists the tasks there are if it is none of them."""
    if name not in task_names():
        raise UserError(f"there is no task {name!r}; there are {', '.join(task_names())}")
    return Task(name)
