"""`vitrail inspect MODEL [IMAGE...] --out DIR`: shows the paper's figures of any model, as one page."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import tyro

from vitrail.cli import emit_json, note
from vitrail.cli.model_flags import Flags, NamedWeights


def command(
    model: Annotated[str, tyro.conf.Positional],
    images: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[IMAGE ...]")] = (),
    *,
    out: Path,
    label: Annotated[str | None, tyro.conf.arg(name="class")] = None,
    limit: int = 128,
    occlusion_images: int | None = None,
    merge_tokens: int | None = None,
    device: str = "auto",
    weights: Annotated[NamedWeights, Flags] = NamedWeights(),
    json: bool = False,
) -> None:
    """Looks inside a model: its filters, its positions, how far its heads look, and what its answers depend on.

    Writes report.html (one page that needs no network), numbers.json and PNG files to a folder that is new, empty, or
    holds an earlier report. Without images, a few of the data that the model was trained on are taken, if that can
    still be opened; else attention is shown on drawings made by the program.

    Args:
        model: The model: a bundle, a run folder, a weights file, hf:owner/name, or a name such as Ti/16 (vitrail models
            --weights lists them).
        images: The images: files, folders, globs or archives. Six of them are shown with maps of their own; distances
            are over all.
        out: The folder to write.
        label: The class that gradient rollout and occlusion explain; by default the class that the model predicts for
            each image.
        limit: The largest number of images; of more, evenly spread ones are taken.
        occlusion_images: The number of images that get an occlusion map, each of which runs the model for every patch;
            by default as many, and as fine ones, as take about a minute.
        merge_tokens: The number of patches that each layer merges in the view of token merging; by default half of all
            patches are merged over all layers; 0 leaves the view out.
        device: Where torch computes: auto, cpu, cuda or mps.
        json: Print the numbers as one JSON document.
    """
    from vitrail.checkpoints.load import load
    from vitrail.checkpoints.published import asked_for
    from vitrail.errors import UserError
    from vitrail.insight.report import NUMBERS, REPORT
    from vitrail.inspect import report
    from vitrail.io.progress import working
    from vitrail.models.device import choose_device

    if limit < 1:
        raise UserError(f"--limit must be at least 1, not {limit}")
    if occlusion_images is not None and occlusion_images < 0:
        raise UserError(f"--occlusion-images must be at least 0, not {occlusion_images}")
    where = choose_device(device)
    with working("loading the model"):
        loaded = load(model, **weights.options()).to(where)
    for line in loaded.card.notes:
        note(line)
    with _progress() as progress:
        numbers = report(
            loaded,
            list(images) if images else None,
            out,
            title=f"Inside {model if asked_for(model) else Path(model).resolve().name}",
            label=label,
            limit=limit,
            occlusion_images=occlusion_images,
            merge_tokens=merge_tokens,
            progress=progress,
        )
    if json:
        emit_json({"report": str(out / REPORT), "numbers": str(out / NUMBERS), **numbers})
        return
    from vitrail.insight import captions

    for line in numbers["notes"]:
        print(f"note: {line}")
    found = [captions.filters(numbers), captions.distance(numbers), captions.maps(numbers), captions.features(numbers)]
    if numbers["position_similarity"]:
        found.insert(1, captions.positions(numbers))
    for each in found:
        print(each.says)
    print(f"report: {out / REPORT}")


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """Shows a bar for each part of the work on a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        SpinnerColumn,
        TaskID,
        TextColumn,
        TimeRemainingColumn,
    )

    named = SpinnerColumn(), TextColumn("{task.description}")
    columns = (*named, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    tasks: dict[str, TaskID] = {}
    with Progress(*columns, console=Console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:

        def advance(what: str, done: int, total: int) -> None:
            """Moves the bar of one part of the work."""
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.advance(tasks[what], done)

        yield advance
