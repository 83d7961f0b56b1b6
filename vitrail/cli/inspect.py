"""`vitrail inspect MODEL [IMAGE...] --out DIR`: the paper's figures of any model, as one page."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import tyro

from vitrail.cli import emit_json, note
from vitrail.cli.weights import Flags, NamedWeights


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
    """Look inside a model: filters, positions, how far its heads look, and what its answers rest on.

    Writes report.html (one page, no network needed), numbers.json and PNG files to a folder that is new, empty, or
    holds an earlier report. Without images, a few of the data the model was trained on are taken, where that can still
    be opened; else filters and positions are shown, and attention on drawings of our own.

    Args:
        model: A bundle, a run folder, a weights file, hf:owner/name, or a name such as Ti/16 (vitrail models
            --weights).
        images: Image files, folders, globs or archives. Six are shown with maps of their own; distances are over all.
        out: The folder to write.
        label: The class that gradient rollout and occlusion explain; by default what the model says each image is.
        limit: Look at no more images than this, evenly spread over those given.
        occlusion_images: How many images get an occlusion map, at a run of the model for every patch; by default as
            many, and as fine, as take about a minute.
        merge_tokens: In the view of token merging, how many patches each layer merges; by default half of them in
            all, 0 leaves the view out.
        device: auto, cpu, cuda, mps.
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
    from vitrail.insight import words

    for line in numbers["notes"]:
        print(f"note: {line}")
    said = [words.filters(numbers), words.distance(numbers), words.maps(numbers), words.features(numbers)]
    if numbers["position_similarity"]:
        said.insert(1, words.positions(numbers))
    for each in said:
        print(each.says)
    print(f"report: {out / REPORT}")


@contextmanager
def _progress() -> Iterator[Callable[[str, int, int], None]]:
    """A bar a part of the work, where someone is looking."""
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
            if what not in tasks:
                tasks[what] = bar.add_task(what, total=total)
            bar.advance(tasks[what], done)

        yield advance
