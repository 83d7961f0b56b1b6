"""READ FIRST: configuration -> data -> model -> objective -> loop -> run folder, joined in one place."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail.checkpoints import bundle
from vitrail.config import TrainConfig
from vitrail.models.device import choose_device
from vitrail.probe import PROBE
from vitrail.processes import joined, local_device
from vitrail.run import Company, Run
from vitrail.tasks import task
from vitrail.tasks.base import Constants, Meter


@dataclass
class Result:
    """What a run came to."""

    run: Path
    bundle: Path
    steps: int
    seconds: float
    images_per_second: float
    metrics: dict[str, Any]
    task: str

    def to_json(self) -> dict[str, Any]:
        values = {name: value for name, value in vars(self).items() if name != "task"}
        return {**values, "run": str(self.run), "bundle": str(self.bundle)}

    def summary(self) -> str:
        """The end of a run in a line."""
        found, meter = self.metrics, task(self.task).meter
        over = f"over {found['n']} images, {found['skipped']} skipped"
        if meter.headline[0] in found:
            return f"{found['split']} {meter.summary(found)} {over}{self._beside_the_probe(meter)}"
        near = f"; {found['knn_top1']:.2%} right by their nearest neighbours" if "knn_top1" in found else ""
        return f"{found['split']} loss {found['loss']:.4f} {over}{near}"

    def _beside_the_probe(self, meter: type[Meter]) -> str:
        if "probe" not in self.metrics:
            return ""
        if self.metrics["kept"] == PROBE:
            return " (the probe)" if not self.steps else ", by the probe: no step did better on validation"
        return f", fine-tuned; the probe {meter.words(self.metrics['probe'])}"


def fit(config: TrainConfig, out: str | Path, resume: bool = False, report: bool = True) -> Result:
    """Train as configured into the run folder `out`, or go on with the run that is there. Started by torchrun, all its
    processes take every step together; the first one writes and speaks. `report`: draw the pictures and the page."""
    device = local_device(choose_device(config.device))
    with joined(device) as processes:
        began = time.monotonic()
        run = Run.opened(config, Path(out), resume, Company(device, processes))
        probe = run.probed()
        trainer = run.trainer(probe)
        told = trainer.resume() if run.resumed else []
        with run.reporter(trainer) as reporter:
            for line in told:
                reporter.say(line)
            if probe and not any(record["kind"] == PROBE for record in reporter.records):
                reporter.record({"step": 0, "kind": PROBE, **probe})
            trainer.fit(reporter)
            if trainer.stopped_early:
                reporter.say(trainer.why_it_stopped())
            with trainer.finished() as last:
                run.save("bundle", last, {}, _last_constants(reporter.records))
                ended = run.measured(trainer, probe) if last.objective.labelled else run.ended(last)
            if trainer.stopped_early:
                ended.final["stopped"] = trainer.why_it_stopped()
            if processes.first:
                run.quarantine.write()
                if report:
                    run.report(reporter.records, ended)
        chosen = run.folder / ("best" if bundle.is_bundle(run.folder / "best") else "bundle")
        speed = sorted(record["images_per_second"] for record in reporter.records if record["kind"] == "train")
        seconds = trainer.earlier + time.monotonic() - began
        middle = speed[len(speed) // 2] if speed else 0.0
        return Result(run.folder, chosen, trainer.progress.step, seconds, middle, ended.final, run.config.model.task)


def _last_constants(records: list[dict[str, Any]]) -> Constants:
    """What the last validation has found; a resumed run reads it back with its records."""
    return next((record["constants"] for record in reversed(records) if "constants" in record), {})
