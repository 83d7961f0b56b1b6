"""READ FIRST. Training as a whole: configuration -> data -> model -> objective -> loop -> run folder."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.checkpoints import bundle
from vitrail.checkpoints.starting_model import StartingModel
from vitrail.config import TrainConfig
from vitrail.models.device import choose_device
from vitrail.probe import PROBE
from vitrail.process_group import local_device, open_process_group
from vitrail.run import Placement, Run
from vitrail.run_evaluation import RunEvaluation
from vitrail.tasks import task
from vitrail.tasks.base import Constants, Meter
from vitrail.training.run_folder import RunLock


@dataclass
class TrainResult:
    """The result of a training."""

    run: Path
    """The run's folder."""
    bundle: Path
    """The folder of the model to use: the best on validation, or else the last."""
    steps: int
    """Optimizer steps done."""
    seconds: float
    """Seconds of work, before and after interruptions."""
    images_per_second: float
    """The median speed of training."""
    metrics: dict[str, Any]
    """The numbers that were measured at the end, and the `split` they were measured on."""
    task: str
    """The model's task."""

    def to_json(self) -> dict[str, Any]:
        """Returns the document that `vitrail train --json` prints."""
        values = {name: value for name, value in vars(self).items() if name != "task"}
        return {**values, "run": str(self.run), "bundle": str(self.bundle)}

    def summary(self) -> str:
        """Writes the result in a line."""
        found, meter = self.metrics, task(self.task).meter
        over = f"over {found['n']} images, {found['skipped']} skipped"
        if meter.headline[0] in found:
            return f"{found['split']} {meter.summary(found)} {over}{self._beside_the_probe(meter)}"
        near = f"; {found['knn_top1']:.2%} right by their nearest neighbours" if "knn_top1" in found else ""
        return f"{found['split']} loss {found['loss']:.4f} {over}{near}"

    def _beside_the_probe(self, meter: type[Meter]) -> str:
        """Writes whether fine-tuning or the head in closed form was kept, if there was one."""
        if "probe" not in self.metrics:
            return ""
        if self.metrics["kept"] == PROBE:
            return " (the probe)" if not self.steps else ", by the probe: no step did better on validation"
        return f", fine-tuned; the probe {meter.words(self.metrics['probe'])}"


def fit(
    config: TrainConfig,
    out: str | Path,
    resume: bool = False,
    report: bool = True,
    start: StartingModel | None = None,
) -> TrainResult:
    """Trains a model, or resumes a training that was interrupted.

    Started by torchrun, all its processes take every step together; the first one writes and prints.

    Args:
        config: what to train and how, such as `vitrail.recipe("mnist5k")`.
        out: the run's folder. It must be new, unless the run is resumed.
        resume: whether the run in `out` exists and is to go on.
        report: whether to draw pictures and write report.html.
        start: the model of `config.init_from`, if it has been loaded already; None loads it.

    Returns:
        The run's folder, the folder of the model, and the numbers that were measured at the end.

    Raises:
        UserError: if the data cannot be learned from, the folder is in use, or memory is too small.
    """
    device = local_device(choose_device(config.device))
    with open_process_group(device) as processes, RunLock(Path(out)) as lock:
        began = time.monotonic()
        run = Run.opened(config, lock, resume, Placement(device, processes), start)
        probe = run.probed()
        evaluation = RunEvaluation(run)
        trainer = run.trainer(probe, evaluation.evaluate)
        notes = trainer.resume() if run.resumed else []
        with run.reporter(trainer) as reporter:
            for line in notes:
                reporter.say(line)
            if probe and not any(record["kind"] == PROBE for record in reporter.records):
                reporter.record({"step": 0, "kind": PROBE, **probe})
            trainer.fit(reporter)
            if trainer.stopped_early:
                reporter.say(trainer.why_it_stopped())
            processes.run_on_first(reporter.check_folder)
            with trainer.finished() as last:
                run.save("bundle", last, {}, _last_constants(reporter.records))
                ended = evaluation.measured(trainer, probe) if last.objective.labelled else evaluation.ended(last)
            if trainer.stopped_early:
                ended.final["stopped"] = trainer.why_it_stopped()
            if processes.first:
                run.quarantine.write()
                if report:
                    evaluation.report(reporter.records, ended)
        chosen = run.folder / ("best" if bundle.is_bundle(run.folder / "best") else "bundle")
        speed = sorted(record["images_per_second"] for record in reporter.records if record["kind"] == "train")
        seconds = trainer.earlier + time.monotonic() - began
        middle = speed[len(speed) // 2] if speed else 0.0
        return TrainResult(
            run.folder, chosen, trainer.progress.step, seconds, middle, ended.final, run.config.model.task
        )


def _last_constants(records: list[dict[str, Any]]) -> Constants:
    """Returns what the last validation has found that the model's answers depend on. A resumed run reads it back from
    its records."""
    return next((record["constants"] for record in reversed(records) if "constants" in record), {})
