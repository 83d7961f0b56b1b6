"""What a model is asked: one folder a task, the same five files in each. `task("classification")` opens one.

    target.py   what a right answer is, and what may be done to many of them      numpy
    head.py     what is learned: the loss, soft targets, the head in closed form  torch
    meter.py    how good the answers are, every sample counted once               torch
    answer.py   from the model's output to what is told, shown and written        numpy
    page.py     its part of the reports                                           numpy

Nothing outside this folder asks which task it is. A task is found by its folder's name: a new one is a new folder.
"""

from vitrail.tasks.base import DEFAULT, Meaning, Task, task, task_names

__all__ = ["DEFAULT", "Meaning", "Task", "task", "task_names"]
