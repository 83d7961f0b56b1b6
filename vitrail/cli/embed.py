"""`vitrail embed MODEL PATH... --out FILE.parquet`: the features of pictures, for search and clustering."""

from pathlib import Path
from typing import Annotated, Any, Literal

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
    """What the head sees of each picture, as a parquet file with the columns id, path, embedding and error.

    Args:
        model: A bundle, a run folder, a weights file, hf:owner/name, or an exported .onnx or .xml file.
        paths: Image files, folders, quoted globs, .tar and .zip archives; - reads a list from stdin.
        out: The .parquet file.
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
    from vitrail.cli.streaming import Output, Work, tell, write
    from vitrail.inference.choose import Loading
    from vitrail.inference.outputs import check_out, open_embeddings

    with together.alike():
        check_out(out, (".parquet",))
    work = Work(model, paths, engine, Loading(**weights.options(), device=device), batch_size, workers)

    def rows(job: Any, inputs: Any) -> Any:
        for batch in job.predictor.embeddings(inputs):
            yield [{"path": each.path, "embedding": each.vector, "error": each.error} for each in batch]

    def opened(job: Any, path: Path, *, resume: bool, overwrite: bool) -> Any:
        width = job.predictor.engine.facts.features_width
        return open_embeddings(path, width, dtype, resume=resume, overwrite=overwrite)

    job, done = write(work, Output(out, resume, overwrite, opened, rows))
    tell(job, done, out, json, width=job.predictor.engine.facts.features_width, dtype=dtype)
