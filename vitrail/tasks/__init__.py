"""Tasks: what a model has to tell about a picture. Each task is a folder with the same five files.

    target.py   how a right answer is stored, read, checked and compared       numpy
    head.py     how it is learned: loss, soft targets, head in closed form     torch
    meter.py    how good the answers are, every sample counted once            torch
    answer.py   from a model's output to what is shown and written             numpy
    page.py     the task's sections of the HTML reports                        numpy

`task("classification")` opens one. Nothing outside this package asks which task it is, and a task is found by the name
of its folder, so a new task is a new folder.
"""

from vitrail.tasks.base import Meaning
from vitrail.tasks.registry import DEFAULT, Task, task, task_names, written_format

__all__ = ["DEFAULT", "Meaning", "Task", "task", "task_names", "written_format"]
