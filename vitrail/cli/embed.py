"""`vitrail embed MODEL PATH... --out FILE`: the features of pictures, for search and clustering."""

from pathlib import Path
from typing import Annotated, Literal

import tyro

from vitrail.cli import together
from vitrail.cli.predict import EngineName
from vitrail.cli.weights import Flags, Weights


def run(arguments: list[str]) -> None:
    together.run("embed", command, arguments)


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
    json: bool = False,
) -> None:
    """What the head sees of each picture: the features, for search and clustering.

    Args:
        model: A bundle, a run folder, a weights file, hf:owner/name, a name such as Ti/16 (vitrail models --weights),
            or an exported .onnx or .xml file.
        paths: Image files, folders, quoted globs, .tar and .zip archives; - reads a list from stdin.
        out: The file. .parquet has the columns id, path, embedding and error; .npy is an array with a row a picture
            (NaN where it cannot be read), beside it FILE.paths.csv; .csv has path, error and a column a feature.
        dtype: float16 halves the file.
        resume: Go on with --out: what it has is not done again.
        overwrite: Replace what is there.
        engine: What runs the model; auto measures for a second and remembers the fastest beside the model. By
            default what auto found before, else torch, or auto where many pictures are to come; of an exported file
            onnxruntime, or openvino for .xml.
        batch_size: Pictures at a time; by default about a thousand tokens, but at most 16.
        workers: Batches under way at once; one a processor, up to eight.
        device: For torch: auto, cpu, cuda, mps.
        processes: Share the pictures among so many processes of this machine; over several machines, start it by
            torchrun.
        json: Print one JSON document, a summary.
    """
    from vitrail.cli.jobs import Display, check_arguments, tell
    from vitrail.data.inputs import Pictures
    from vitrail.inference.choose import Loading
    from vitrail.inference.jobs.embeddings import EmbeddingRows
    from vitrail.inference.jobs.job import JobRequest, write
    from vitrail.inference.jobs.outputs import OutputFile

    with together.alike():
        output = OutputFile(out, EmbeddingRows.formats, resume, overwrite)
        loading = Loading(**weights.options(), device=device)
        check_arguments(model, paths)
    request = JobRequest(model, Pictures.of_arguments(paths), engine, loading, batch_size, workers)
    result = write(request, output, EmbeddingRows(dtype), Display(paths))
    tell(result, json, width=result.facts.features_width, dtype=dtype)
