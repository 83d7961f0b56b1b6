"""A run's folder: what it was begun with, and the images it could not use."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitrail.config import TrainConfig
from vitrail.config.self_supervision import SELF_SUPERVISED
from vitrail.data import Source
from vitrail.data.loader import Batch
from vitrail.data.ranges import resolved
from vitrail.errors import UserError
from vitrail.io.files import json_text, read_json, text_file, write_file
from vitrail.tasks import task

CONFIG, QUARANTINE = "config.json", "quarantine.txt"
MAY_CHANGE = ("data.workers", "device", "parallel", "tensorboard", "log_every")
"""Fields that a resumed run may change: they do not change what it computes, but for rounding."""


def read_config(run: str | Path) -> TrainConfig:
    """The configuration of a run that exists."""
    path = Path(run) / CONFIG
    if not path.is_file():
        raise UserError(f"{run}: has no {CONFIG}, so there is no run to go on with")
    return TrainConfig.from_json(read_json(path)["train"])


def exists(run: Path) -> bool:
    return (run / CONFIG).is_file()


def with_classes_of(run: Path, source: Source) -> Source:
    """The source with its classes in the order that the run began with: earlier versions sorted numbers as text."""
    names: list[str] = read_json(run / CONFIG).get("classes", []) if exists(run) else []
    moved = names != list(source.classes) and sorted(names) == sorted(source.classes)
    return source.with_classes(names) if moved else source


def prepare(config: TrainConfig, source: Source, run: Path, resume: bool) -> TrainConfig:
    """Make the run folder, or compare it with what is asked for; the configuration comes back resolved."""
    config = config.with_(model=config.model.with_(num_classes=len(source.classes), task=source.task))
    config = _with_loss(config)
    before = read_config(run) if resume else None
    config = _with_range(config, source, before)
    document = {"train": config.to_json(), "classes": list(source.classes), "fingerprint": source.fingerprint()}
    if before is not None:
        if changed := [name for name in _differences(before.to_json(), config.to_json()) if name not in MAY_CHANGE]:
            raise UserError(f"{run}: was begun with another --{changed[0].replace('_', '-')}; a resumed run keeps it")
        if read_json(run / CONFIG).get("fingerprint") != document["fingerprint"]:
            raise UserError(f"{run}: the data is not what it was when the run began; start a new run")
        return config
    # What a kill left of this very file is nobody's.
    if run.exists() and any(not each.name.startswith(f".{CONFIG}.") for each in run.iterdir()):
        raise UserError(f"{run}: is in use already; choose another --out, or go on with it by --resume")
    write_file(run / CONFIG, text_file(json_text(document)))
    return config


def _with_loss(config: TrainConfig) -> TrainConfig:
    """The configuration with a loss of its task: the first where none was asked for."""
    losses = task(config.model.task).head.losses
    if config.self_supervised or config.objective in losses:
        return config
    if config.objective == TrainConfig.objective:
        return config.with_(objective=losses[0])
    known = ", ".join((*losses, *SELF_SUPERVISED))
    raise UserError(f"--objective {config.objective}: choose one of {known}")


def _with_range(config: TrainConfig, source: Source, before: TrainConfig | None) -> TrainConfig:
    """The configuration with the range of values that --data.range asks for; a resumed run keeps what was found."""
    data, own = config.data, config.preprocessing.range
    if before is not None and data.range is not None and data.range == before.data.range:
        limits = before.preprocessing.range
    else:
        limits = resolved(data.range, own, source.split("train"), data.max_pixels)
    return config.with_(preprocessing=replace(config.preprocessing, range=limits))


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in {**before, **now}.items():
        if name not in now:
            found.append(prefix + name)
        elif isinstance(value, dict):
            found += _differences(before.get(name, {}), value, f"{prefix}{name}.")
        elif _plain(before.get(name)) != _plain(value):
            found.append(prefix + name)
    return found


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


class Quarantine:
    """The images that could not be used, by name and reason, in quarantine.txt; a resumed run adds to the list."""

    def __init__(self, run: Path, writes: bool = True):
        self.path, self.writes = run / QUARANTINE, writes
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        self.bad = {name: reason for name, _, reason in (line.partition("\t") for line in lines)}

    def watch(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """The loader's batches; each bad sample is listed as soon as it is met."""
        for batch in loader:
            if batch.bad:
                self.bad.update({each.id: each.reason for each in batch.bad})
                self.write()
            yield batch

    def write(self) -> None:
        if not self.writes:
            return
        text = "".join(f"{name}\t{reason}\n" for name, reason in sorted(self.bad.items()))
        write_file(self.path, text_file(text), overwrite=True)
