"""`vitrail predict MODEL PATH...`: what is in pictures, from one photo to millions."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitrail.cli import note, together
from vitrail.cli.weights import Flags, NamedWeights
from vitrail.errors import UserError
from vitrail.launched import started_together

EngineName = Literal["auto", "torch", "onnxruntime", "openvino"]


def run(arguments: list[str]) -> None:
    together.run("predict", command, arguments)


def command(
    model: Annotated[str, tyro.conf.Positional],
    paths: Annotated[tuple[str, ...], tyro.conf.Positional],
    *,
    top: int = 5,
    threshold: float | None = None,
    sort_into: Path | None = None,
    link: bool = False,
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    engine: EngineName | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    device: str = "auto",
    processes: int | None = None,
    weights: Annotated[NamedWeights, Flags] = NamedWeights(),
    json: bool = False,
) -> None:
    """Answer pictures, prepared as the model's evaluation prepares them: the most likely classes, the labels above
    their thresholds, or numbers, as the model was trained.

    Without --out, a table; with it, a row a picture, written as they come. A picture that cannot be read gets a row
    that says why, and the job goes on.

    Args:
        model: A bundle, a run folder, a weights file, hf:owner/name, a name such as Ti/16 (vitrail models --weights),
            or an exported .onnx or .xml file.
        paths: Image files, folders, quoted globs, .tar and .zip archives; - reads a list from stdin.
        top: Classes a picture.
        threshold: A picture whose best score is below it, such as 0.6, gets the label "unknown"; its classes are kept.
            Of a model of labels: the score from which each counts, in place of its own thresholds.
        sort_into: A folder: copy every picture into the folder of its class in it, or into "unknown".
        link: With --sort-into, symbolic links in place of copies; members of archives are written out all the same.
        out: A .csv, .jsonl or .parquet file.
        resume: Go on with --out: what it has is not done again.
        overwrite: Replace what is there.
        engine: What runs the model; auto measures for a second and remembers the fastest beside the model. By
            default what auto found before, else torch, or auto where many pictures are to come; of an exported file
            onnxruntime, or openvino for .xml.
        batch_size: Pictures at a time; by default about a thousand tokens, but at most 16.
        workers: Batches under way at once; one a processor, up to eight.
        device: For torch: auto, cpu, cuda, mps.
        processes: Share the pictures among so many processes of this machine, with --out; over several machines,
            start it by torchrun.
        json: Print one JSON document: a list of rows, or with --out a summary.
    """
    from vitrail.cli.jobs import Display, check_arguments, check_some, tell
    from vitrail.data.inputs import Pictures
    from vitrail.inference.choose import Loading
    from vitrail.inference.jobs.job import JobRequest, write
    from vitrail.inference.jobs.outputs import OutputFile
    from vitrail.inference.jobs.predictions import PredictionRows
    from vitrail.inference.jobs.printed import print_rows
    from vitrail.inference.jobs.sorting import Sorting, check_folder
    from vitrail.tasks import base
    from vitrail.tasks.base import Asked

    with together.alike():
        output = None if out is None else OutputFile(out, PredictionRows.formats, resume, overwrite)
        if output is None and started_together():
            raise UserError("several processes need --out FILE: each writes its part beside it")
        base.check_threshold(threshold)
        rows = PredictionRows(Asked(top, threshold), None if sort_into is None else Sorting(sort_into, link, note))
        if link and sort_into is None:
            raise UserError("--link goes with --sort-into DIR: the folder to put links into")
        if sort_into is not None:
            check_folder(sort_into, paths)
        loading = Loading(**weights.options(), device=device)
        check_arguments(model, paths)
    request = JobRequest(model, Pictures.of_arguments(paths), engine, loading, batch_size, workers)
    if output is not None:
        return tell(write(request, output, rows, Display(paths)), json)
    done = print_rows(request, rows, sys.stdout, json, Display())
    return check_some(done.n, done.errors)
