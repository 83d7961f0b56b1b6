"""A run's folder: what it was begun with, and the images it could not use."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from vitrail.checkpoints.files import json_text, read_json, text_file, write_file
from vitrail.config import TrainConfig
from vitrail.data import Source
from vitrail.data.loader import Batch
from vitrail.errors import UserError

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


def prepare(config: TrainConfig, source: Source, run: Path, resume: bool) -> TrainConfig:
    """Make the run folder, or compare it with what is asked for; the configuration comes back resolved."""
    config = config.with_(model=config.model.with_(num_classes=len(source.classes)))
    document = {"train": config.to_json(), "classes": list(source.classes), "fingerprint": source.fingerprint()}
    if resume:
        before = read_config(run)
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


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in now.items():
        if isinstance(value, dict):
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
