"""Runs one row of a study in a process of its own: `python -m vitrail.studies.worker ROWFOLDER`."""

import fcntl
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

from vitrail.config import TrainConfig
from vitrail.errors import UserError
from vitrail.io.documents import read_json
from vitrail.models.cost import cost
from vitrail.studies.study import ERROR, RESULT, ROW, write_json
from vitrail.train import fit
from vitrail.training.interruption import Interrupted
from vitrail.training.run_folder import CONFIG
from vitrail.transfer import finetuned_config


def work(folder: Path) -> None:
    """Trains or resumes the row, writes its result, and deletes the snapshots."""
    document = read_json(folder / ROW)
    config = TrainConfig.from_json(document["config"])
    if document["start"]:
        config = finetuned_config(config, str(folder.parent / document["start"] / "run"))
    run = folder / "run"
    ended = fit(config, run, resume=(run / CONFIG).is_file(), report=False)  # the study has its own report
    spent = cost(config.model)
    metrics = ended.metrics
    result = {
        "seed": config.seed,
        "top1": metrics.get("top1", 0.0),
        "loss": metrics["loss"],
        "n": metrics["n"],
        "steps": ended.steps,
        "seconds": round(ended.seconds, 1),
        "parameters": spent.parameters,
        "gmacs": round(spent.macs / 1e9, 6),
    }
    write_json(folder / RESULT, {"digest": document["digest"], "result": result, "config": asdict(config)})
    shutil.rmtree(run / "snapshots", ignore_errors=True)
    (folder / ERROR).unlink(missing_ok=True)


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Waits until no other process works on the row: a killed study leaves its rows running, and may be started again
    meanwhile."""
    with (folder / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main() -> None:
    """Runs the row in the folder that is given as the argument; a UserError is written to the folder."""
    folder = Path(sys.argv[1])
    try:
        with alone(folder):
            if not (folder / RESULT).is_file():
                work(folder)
    except Interrupted as interrupted:
        sys.exit(interrupted.status)
    except UserError as error:
        (folder / ERROR).write_text(f"{error}\n", encoding="utf-8")
        sys.exit(2)


if __name__ == "__main__":
    main()
