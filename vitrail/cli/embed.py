"""`vitrail embed MODEL PATH... --out FILE`: computes the features of pictures, for search and clustering."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitrail.cli.decode_flags import Decoding
from vitrail.cli.model_flags import Flags, Weights
from vitrail.cli.predict import EngineName
from vitrail.cli.processes import report_once, run_command


def run(arguments: list[str]) -> None:
    """Runs the command with these arguments, in several processes if they ask for it."""
    run_command("embed", command, arguments)


def command(
    model: Annotated[str, tyro.conf.Positional],
    paths: Annotated[tuple[str, ...], tyro.conf.Positional],
    *,
    out: Path,
    dtype: Literal["float16", "float32"] = "float32",
    resume: bool = False,
    overwrite: bool = False,
    engine: EngineName | None = None,
    batch_size: int | None = None,
    workers: int | None = None,
    device: str = "auto",
    processes: int | None = None,
    weights: Annotated[Weights, Flags] = Weights(),
    decoding: Annotated[Decoding, Flags] = Decoding(),
    json: bool = False,
) -> None:
    """Computes the features of pictures, for search and clustering: what the model's head is given.

    Args:
        model: The model: a bundle, a run folder, a weights file, hf:owner/name, a name such as Ti/16 (vitrail models
            --weights lists them), or an exported .onnx or .xml file.
        paths: The pictures: image files, folders, quoted globs, .tar and .zip archives; - reads a list of paths from
            stdin.
        out: The file to write. .parquet has the columns id, path, embedding and error. .npy is an array with a row for
            each picture (NaN if it cannot be read), with FILE.paths.csv beside it. .csv has path, error and a column
            for each feature.
        dtype: The precision of the numbers in the file; float16 halves its size.
        resume: Continue the file at --out: pictures that have a row are not done again.
        overwrite: Replace the output if it exists.
        engine: The program that runs the model. auto measures for a second which is fastest and remembers it beside the
            model. Without this flag: the engine that auto found before, else torch, or auto if there are many pictures;
            for an exported file onnxruntime, or openvino for .xml.
        batch_size: The number of pictures computed at a time; by default about a thousand tokens, but at most 16
            pictures.
        workers: The number of batches in progress at once; by default one for each processor, up to eight.
        device: Where torch computes: auto, cpu, cuda or mps.
        processes: The number of processes on this machine that share the pictures; for several machines start the
            command by torchrun.
        json: Print a summary as one JSON document.
    """
    from vitrail.cli.jobs import Display, check_arguments, tell
    from vitrail.data.inputs import Pictures
    from vitrail.inference.engine_selection import Loading
    from vitrail.inference.jobs.embeddings import EmbeddingRows
    from vitrail.inference.jobs.job import JobRequest, write_job
    from vitrail.inference.jobs.outputs import OutputFile

    with report_once():
        output = OutputFile(out, EmbeddingRows.formats, resume, overwrite)
        loading = Loading(**weights.options(), device=device)
        limits = decoding.limits()
        check_arguments(model, paths)
    request = JobRequest(model, Pictures.of_arguments(paths), engine, loading, batch_size, workers, limits)
    result = write_job(request, output, EmbeddingRows(dtype), Display(paths))
    tell(result, json, width=result.facts.features_width, dtype=dtype)
