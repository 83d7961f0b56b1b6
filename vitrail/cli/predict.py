"""`vitrail predict MODEL PATH...`: what is in pictures, from one photo to millions."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from vitrail.cli import note, together
from vitrail.cli.weights import Flags, NamedWeights
from vitrail.errors import UserError

EngineName = Literal["auto", "torch", "onnxruntime", "openvino"]


def run(arguments: list[str]) -> None:
    together.run("predict", command, arguments)


def command(
    model: Annotated[str, tyro.conf.Positional],
    paths: Annotated[tuple[str, ...], tyro.conf.Positional],
    *,
    top: int = 5,
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
    """The most likely classes of pictures, prepared as the model's evaluation prepares them.

    Without --out, a table; with it, a row a picture, written as they come. A picture that cannot be read gets a row
    that says why, and the job goes on.

    Args:
        model: A bundle, a run folder, a weights file, hf:owner/name, or an exported .onnx or .xml file.
        paths: Image files, folders, quoted globs, .tar and .zip archives; - reads a list from stdin.
        top: Classes a picture.
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
    from vitrail.cli.streaming import Output, Work, check_some, open_job, show, tell, write
    from vitrail.inference.choose import Loading
    from vitrail.inference.outputs import JsonArray, check_out, open_predictions
    from vitrail.launched import started_together

    with together.alike():
        if out is not None:
            check_out(out)
        elif started_together():
            raise UserError("several processes need --out FILE: each writes its part beside it")
        if top < 1:
            raise UserError(f"--top must be at least 1, not {top}")
    loading = Loading(**weights.options(), device=device)
    work = Work(model, paths, engine, loading, batch_size, workers)

    def rows(job: Any, inputs: Any) -> Any:
        return ([each.to_json() for each in batch] for batch in job.predictor.predictions(inputs, top))

    def opened(job: Any, path: Path, *, resume: bool, overwrite: bool) -> Any:
        return open_predictions(path, top, resume=resume, overwrite=overwrite)

    if out is not None:
        return tell(*write(work, Output(out, resume, overwrite, opened, rows)), out, json)
    job = open_job(work, note)
    return check_some(show(JsonArray(sys.stdout) if json else Table(sys.stdout), rows(job, job.inputs)))


class Table:
    """Rows for a person: a picture's classes with a bar each."""

    def __init__(self, stream: Any) -> None:
        from vitrail.inference.outputs import Seen

        self.stream = stream
        self.seen, self.count = Seen(), 0

    def write(self, rows: Sequence[dict[str, Any]]) -> None:
        from vitrail.drawing.page import visible

        for row in rows:
            print(visible(row["path"]), file=self.stream)
            if row["error"]:
                print(f"  {visible(row['error'])}", file=self.stream)
            width = max((len(visible(guess["label"])) for guess in row["top"]), default=0)
            for guess in row["top"]:
                bar = "█" * round(20 * guess["score"])
                words = f"{visible(guess['label']):<{width}}  {visible(guess['description'])}".rstrip()
                print(f"  {guess['score']:>6.1%}  {bar:<20}  {words}", file=self.stream)
        self.stream.flush()

    def close(self, finished: bool) -> None:
        pass
