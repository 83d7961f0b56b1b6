"""`vitrail study NAME --out DIR`: repeats a study of the paper: many trainings, a table, a picture and a conclusion."""

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from vitrail.cli import emit_json, note
from vitrail.errors import UserError

if TYPE_CHECKING:
    from vitrail.studies.study import Study, StudyOutcome


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
    """Runs one of the paper's studies at a scale that fits this machine. Without a name: lists the studies.

    A study that was stopped continues when the same command is started again; trainings that are done are not repeated.

    Args:
        name: The study: data-size, compute, positions, pooling, shape, self-supervised or vtab.
        out: The study's folder (default: studies/NAME).
        data: The data set; by default the embedded mnist5k. The full versions are meant for Fashion-MNIST or CIFAR-10.
        quick: Run a smaller version that takes less than ten minutes on two cores.
        seeds: The number of trainings of each kind, with different seeds (default: 3, with --quick 2).
        results: Train nothing, but draw the conclusion again from a study's results.csv.
        jobs: The number of trainings that run at the same time and share the processors (default: one for each
            processor).
        model: The model to start from (vtab only).
        tasks: The data sets, each a folder or another source with a test split (vtab only).
        steps: The number of fine-tuning steps (vtab only; default: the paper's 2,500).
        batch_size: The number of images a step (vtab only; default: the paper's 512).
        image_size: The image size in pixels (vtab only; default: the paper's 384).
        json: Print one JSON document.
    """
    from vitrail.studies.catalogue import STUDY_NAMES, describe_study, kept_study, study
    from vitrail.studies.runner import Stopped, run_study
    from vitrail.studies.study import read_table

    if not name:
        if json:
            emit_json([{"name": each, "about": describe_study(each)} for each in STUDY_NAMES])
        else:
            width = max(map(len, STUDY_NAMES))
            print("\n".join(f"{each:<{width}}  {describe_study(each)}" for each in STUDY_NAMES))
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
        outcome = run_study(chosen, folder, jobs or os.cpu_count() or 1, note)
    except Stopped as stopped:
        note(f"{stopped}: what is done is kept; the same command goes on")
        sys.exit(stopped.status)
    _show(chosen, outcome, str(folder), json)
    if outcome.results and not json:
        print(f"\nreport: {folder / 'report.html'}")
    if outcome.failed:
        note(f"{len(outcome.failed)} of {len(chosen.rows)} trainings failed; the same command tries them again")
        sys.exit(2)


def _show(study: "Study", outcome: "StudyOutcome", out: str, json: bool) -> None:
    """Prints the points, the comparisons and the conclusion."""
    from vitrail.studies.comparison import compare
    from vitrail.studies.study import comparison_table, conclusion, points_summary

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
    for heads, lines in (points_summary(outcome), comparison_table(study, outcome)):
        if lines:
            widths = [max(len(row[index]) for row in [heads, *lines]) for index in range(len(heads))]
            for row in [heads, *lines]:
                print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
            print()
    print("\n".join(sentences))
