"""Holds what `predict` and `embed` share: checks of their arguments, a bar while they work, a line when they are
done."""

from collections.abc import Container, Sequence
from pathlib import Path
from typing import Any

from vitrail.cli import emit_json, note
from vitrail.cli.bar import Bar, Total
from vitrail.data.decode import EXTENSIONS
from vitrail.errors import UserError
from vitrail.inference.jobs.job import JobProgress, JobResult, Observer


class Display(Observer):
    """Shows the progress of a job on stderr; `paths` are counted for the total, or None if they cannot be."""

    def __init__(self, paths: Sequence[str] | None = None) -> None:
        self.paths = paths
        self.bar = Bar(0)

    def say(self, text: str) -> None:
        """Prints the line to stderr."""
        note(text)

    def started(self, seen: Container[str], processes: int) -> None:
        """Shows the bar."""
        total = None if self.paths is None or processes > 1 else Total(self.paths, seen)
        self.bar = Bar(processes, total)

    def advanced(self, progress: JobProgress) -> None:
        """Moves the bar."""
        self.bar.update(progress)

    def ended(self) -> None:
        """Removes the bar."""
        self.bar.close()


def check_arguments(model: str, paths: Sequence[str]) -> None:
    """Raises a UserError if the first argument is pictures and not a model, or if there are no pictures."""
    first = Path(model)
    exported = first.suffix.lower() in (".onnx", ".xml", ".pt2")
    if not (first / "config.json").is_file() and not exported and first.exists():
        _check_order(first, model, paths)
    if not paths:
        raise UserError("give pictures: files, folders, globs, archives, or - for a list on stdin")


def _check_order(first: Path, model: str, paths: Sequence[str]) -> None:
    """Raises a UserError if the first argument is not a model, and says where the model is."""
    from vitrail.checkpoints.files import SUFFIXES  # imports torch, which an exported model does not need

    def is_model(path: Path) -> bool:
        """Tells whether a path holds weights or a bundle."""
        files = path.iterdir() if path.is_dir() else (path,)
        return any(file.name == "config.json" or file.suffix.lower() in SUFFIXES for file in files)

    if is_model(first):
        return
    if behind := next((path for path in paths if is_model(Path(path))), None):
        raise UserError(f"{behind} is a model and {model} is not: the MODEL comes first, then the pictures")
    if first.suffix.lower() in EXTENSIONS or (first.is_dir() and not paths):
        raise UserError(f"{model} is not a model: give a MODEL first, then the pictures: MODEL {model}")


def tell(result: JobResult, json: bool, **more: Any) -> None:
    """Says what was written, in a line or as JSON; `more` is added to the JSON."""
    if result.first and json:
        emit_json(
            {
                "out": str(result.path),
                "n": result.n,
                "errors": result.errors,
                "resumed": result.resumed,
                "engine": result.engine,
                "seconds": round(result.seconds, 3),
                "images_per_second": round(result.images_per_second, 2),
                **more,
            }
        )
    elif result.first:
        speed = f"{result.images_per_second:.1f} images/s ({result.engine})"
        note(f"{result.n} pictures, {result.errors} unreadable, {speed}: {result.path}")
    if not result.resumed:
        check_some(result.n, result.errors, result.first)


def check_some(n: int, errors: int, first: bool = True) -> None:
    """Raises a UserError if not one of the pictures could be read."""
    if n and errors == n:
        raise UserError("not one of the pictures could be read", said_by_another=not first)
