"""`vitrail predict MODEL PATH...`: says what pictures show, from one photo to millions."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitrail.cli import note
from vitrail.cli.decode_flags import Decoding
from vitrail.cli.model_flags import Flags, NamedWeights
from vitrail.cli.processes import report_once, run_command
from vitrail.environment import is_distributed
from vitrail.errors import UserError

EngineName = Literal["auto", "torch", "onnxruntime", "openvino"]


def run(arguments: list[str]) -> None:
    """Runs the command with these arguments, in several processes if they ask for it."""
    run_command("predict", command, with_tile_size(arguments))


def with_tile_size(arguments: list[str]) -> list[str]:
    """Gives --tiles without a number the word "auto", which argument parsers need after a flag that takes a value."""
    result: list[str] = []
    for place, each in enumerate(arguments):
        result.append(each)
        following = arguments[place + 1] if place + 1 < len(arguments) else ""
        if each == "--tiles" and following != "auto" and not following.lstrip("-").isdigit():
            result.append("auto")
    return result


def command(
    model: Annotated[str, tyro.conf.Positional],
    paths: Annotated[tuple[str, ...], tyro.conf.Positional],
    *,
    top: int = 5,
    threshold: float | None = None,
    sort_into: Path | None = None,
    link: bool = False,
    masks: Path | None = None,
    overlay: Path | None = None,
    tiles: Literal["auto"] | int | None = None,
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    engine: EngineName | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    device: str = "auto",
    processes: int | None = None,
    weights: Annotated[NamedWeights, Flags] = NamedWeights(),
    decoding: Annotated[Decoding, Flags] = Decoding(),
    json: bool = False,
) -> None:
    """Says what pictures show, as the model was trained to: the most likely classes, the labels above their thresholds,
    or numbers. Pictures are prepared as in the model's evaluation.

    Without --out the answers are printed; with it, a row for each picture is written as answers come. A picture that
    cannot be read gets a row that says why, and the job continues.

    Args:
        model: The model: a bundle, a run folder, a weights file, hf:owner/name, a name such as Ti/16 (vitrail models
            --weights lists them), or an exported .onnx or .xml file.
        paths: The pictures: image files, folders, quoted globs, .tar and .zip archives; - reads a list of paths from
            stdin.
        top: The number of classes to show for each picture.
        threshold: The score, such as 0.6, below which a picture's best class does not count: it gets the label
            "unknown" and keeps its classes. For a model of several labels: the score from which on each label counts,
            instead of the model's own thresholds.
        sort_into: A folder: every picture is copied into the folder of its class in it, or into "unknown".
        masks: A folder, for models that give the class of each pixel: the mask of every picture is written into it as a
            PNG whose pixels are the numbers of the classes, 255 for none.
        overlay: A folder, for models whose answers lie in the picture: every picture is written into it with its answer
            drawn over it.
        tiles: For models that give the class of each pixel: cut every picture into overlapping tiles at its own
            resolution, and blend their scores. A number is the longer side of a tile in pixels; without one, tiles are
            as large as the model's input.
        link: Make symbolic links instead of copies with --sort-into; members of archives are still written out.
        out: The .csv, .jsonl or .parquet file to write.
        resume: Continue the file at --out: pictures that have a row are not done again.
        overwrite: Replace the output if it exists.
        engine: The program that runs the model. auto measures for a second which is fastest and remembers it beside the
            model. Without this flag: the engine that auto found before, else torch, or auto if there are many pictures;
            for an exported file onnxruntime, or openvino for .xml.
        batch_size: The number of pictures computed at a time; by default about a thousand tokens, but at most 16
            pictures.
        workers: The number of batches in progress at once; by default one for each processor, up to eight.
        device: Where torch computes: auto, cpu, cuda or mps.
        processes: The number of processes on this machine that share the pictures, with --out; for several machines
            start the command by torchrun.
        json: Print one JSON document: a list of rows, or with --out a summary.
    """
    from vitrail.cli.jobs import Display, check_arguments, check_some, tell
    from vitrail.data.inputs import Pictures
    from vitrail.inference.engine_selection import Loading
    from vitrail.inference.jobs.answer_files import AnswerFiles
    from vitrail.inference.jobs.job import JobRequest, write_job
    from vitrail.inference.jobs.outputs import OutputFile
    from vitrail.inference.jobs.predictions import PredictionRows
    from vitrail.inference.jobs.printed import print_rows
    from vitrail.inference.jobs.sorting import Sorting, check_sorting_folder
    from vitrail.tasks import answers
    from vitrail.tasks.answers import AnswerOptions

    with report_once():
        output = None if out is None else OutputFile(out, PredictionRows.formats, resume, overwrite)
        if output is None and is_distributed():
            raise UserError("several processes need --out FILE: each writes its part beside it")
        answers.check_threshold(threshold)
        sorting = None if sort_into is None else Sorting(sort_into, link, note)
        files = AnswerFiles(masks, overlay, decoding.limits()) if masks or overlay else None
        if files is not None:
            files.check(resume)
        if files is not None and sorting is not None:
            raise UserError(
                "--sort-into is for classes, and --masks and --overlay for answers in the picture: give one"
            )
        rows = PredictionRows(AnswerOptions(top, threshold), sorting, files)
        if link and sort_into is None:
            raise UserError("--link goes with --sort-into DIR: the folder to put links into")
        if sort_into is not None:
            check_sorting_folder(sort_into, paths)
        loading = Loading(**weights.options(), device=device)
        cut: int = True if tiles == "auto" else False if tiles is None else tiles
        limits = decoding.limits()
        check_arguments(model, paths)
    request = JobRequest(model, Pictures.of_arguments(paths), engine, loading, batch_size, workers, limits, cut)
    if output is not None:
        return tell(write_job(request, output, rows, Display(paths)), json)
    done = print_rows(request, rows, sys.stdout, json, Display())
    return check_some(done.n, done.errors)
