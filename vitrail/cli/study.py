"""`vitrail study NAME --out DIR`: a sweep of trainings, with a table, a picture and what follows from them."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitrail.cli import emit_json, note
from vitrail.errors import UserError

if TYPE_CHECKING:
    from vitrail.studies.study import Outcome, Study


def command(
    name: Annotated[str, tyro.conf.Positional] = "",
    *,
    out: Path | None = None,
    data: str | None = None,
    quick: bool = False,
    seeds: int | None = None,
    results: Path | None = None,
    jobs: int | None = None,
    model: str = "",
    tasks: tuple[str, ...] = (),
    steps: int | None = None,
    batch_size: int | None = None,
    image_size: int | None = None,
    json: bool = False,
) -> None:
    """Run one of the paper's studies at a scale that fits this machine. Without a name: the list of them.

    A study that was stopped goes on where it was when it is started again; what is done is not done again.

    Args:
        name: data-size, compute, positions, pooling, shape, self-supervised or vtab.
        out: The study's folder (default: studies/NAME).
        data: The data set; without it the embedded mnist5k. The full versions are meant for Fashion-MNIST or CIFAR-10.
        quick: A smaller version, under ten minutes on two cores.
        seeds: Trainings of each kind (default 3, quick 2).
        results: Train nothing: draw the conclusion again from a kept table, a study's results.csv.
        jobs: Trainings at a time, each with its share of the processors (default: one a processor).
        model: Of vtab: the model to start from.
        tasks: Of vtab: the data sets, each a folder or another source with a test split.
        steps: Of vtab: fine-tuning steps (default: the paper's 2,500).
        batch_size: Of vtab: images a step (default: the paper's 512).
        image_size: Of vtab: pixels (default: the paper's 384).
        json: Print one JSON document.
    """
    from vitrail.studies.catalogue import NAMES, describe, kept_study, study
    from vitrail.studies.runner import Stopped, run
    from vitrail.studies.study import read_table

    if not name:
        if json:
            emit_json([{"name": each, "about": describe(each)} for each in NAMES])
        else:
            width = max(map(len, NAMES))
            print("\n".join(f"{each:<{width}}  {describe(each)}" for each in NAMES))
        return
    sizes = {"--steps": steps, "--batch-size": batch_size, "--image-size": image_size}
    for flag, value in {"--seeds": seeds, "--jobs": jobs, **sizes}.items():
        if value is not None and value < 1:
            raise UserError(f"{flag} must be at least 1, not {value}")
    if results is not None:
        if name == "vtab" or out or data or seeds:
            raise UserError("--results reads a kept table of a study of the paper: without --out, --data or --seeds")
        _show(kept_study(name, quick), read_table(results), str(results), json)
        return
    if name == "vtab":
        from vitrail.studies.vtab import vtab

        if data or quick:
            raise UserError(
                "--data and --quick are not vtab's: its data sets are --tasks, and --steps makes it shorter"
            )

        chosen = vtab(model, tasks, seeds or 3, steps, batch_size, image_size)
    elif model or tasks or any(value is not None for value in sizes.values()):
        raise UserError(f"--model, --tasks, --steps, --batch-size and --image-size belong to vtab, not to {name}")
    else:
        chosen = study(name, data, quick, seeds)
    folder = out or Path("studies") / chosen.name
    note(f"{chosen.title}: {len(chosen.rows)} trainings into {folder}")
    try:
        outcome = run(chosen, folder, jobs or os.cpu_count() or 1, note)
    except Stopped as stopped:
        note(f"{stopped}: what is done is kept; the same command goes on")
        sys.exit(stopped.status)
    _show(chosen, outcome, str(folder), json)
    if outcome.results and not json:
        print(f"\nreport: {folder / 'report.html'}")
    if outcome.failed:
        note(f"{len(outcome.failed)} of {len(chosen.rows)} trainings failed; the same command tries them again")
        sys.exit(2)


def _show(study: "Study", outcome: "Outcome", out: str, json: bool) -> None:
    """The points, what was compared, and the conclusion."""
    from vitrail.studies.comparison import compare
    from vitrail.studies.study import comparison_table, conclusion, summary

    sentences = conclusion(study, outcome)
    if json:
        emit_json(
            {
                "study": study.name,
                "out": out,
                "points": [
                    {**each.factors, "mean": each.mean, "std": each.spread, "seeds": each.seeds, "n": each.n}
                    for each in outcome.points()
                ],
                "comparisons": [
                    {"compared": name, **each.to_json()} for name, each in compare(study.contrasts(outcome)).items()
                ],
                "conclusion": sentences,
                "failed": outcome.failed,
            }
        )
        return
    for heads, lines in (summary(outcome), comparison_table(study, outcome)):
        if lines:
            widths = [max(len(row[index]) for row in [heads, *lines]) for index in range(len(heads))]
            for row in [heads, *lines]:
                print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
            print()
    print("\n".join(sentences))
