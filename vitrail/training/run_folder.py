"""A run's folder: the configuration that it was begun with, and the list of images that could not be used."""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from vitrail.config import TrainConfig
from vitrail.config.self_supervision import SELF_SUPERVISED
from vitrail.data import Source
from vitrail.data.loader import Batch
from vitrail.data.value_range import resolved
from vitrail.errors import UserError, naming
from vitrail.io.documents import read_json, read_text
from vitrail.io.files import json_text, text_file, write_file, writing
from vitrail.tasks import task

CONFIG, QUARANTINE, LOCK = "config.json", "quarantine.txt", ".lock"
"""The names of these files."""
DIGEST = "sha256"
"""The key in `CONFIG` of the SHA-256 over all its other values."""
MAY_CHANGE = ("data.workers", "device", "parallel", "tensorboard", "log_every")
"""Fields that may be changed when a run is resumed: they change nothing in the result but rounding."""


def read_config(run: str | Path) -> TrainConfig:
    """Reads the configuration of a run; a UserError if the folder has none."""
    path = Path(run) / CONFIG
    if not path.is_file():
        raise UserError(f"{run}: has no {CONFIG}, so there is no run to go on with")
    document = _read_begun(Path(run))
    with naming(path):
        return TrainConfig.from_json(document["train"])


def exists(run: Path) -> bool:
    """Whether the folder is that of a run."""
    return (run / CONFIG).is_file()


def with_classes_of(run: Path, source: Source) -> Source:
    """Returns the source with its classes in the order that the run began with: earlier versions sorted numbers as
    text."""
    names: list[str] = _read_begun(run).get("classes", []) if exists(run) else []
    moved = names != list(source.classes) and sorted(names) == sorted(source.classes)
    return source.with_classes(names) if moved else source


class RunLock:
    """Keeps a run folder to one job: a second program that would train there is refused.

    The system releases the lock when the process that holds it ends, however it ends. Of several processes of one job
    the first one holds it. It is a context manager, which releases what was taken inside it.
    """

    def __init__(self, run: Path):
        """Makes a lock for the folder of a run, which need not exist yet; it is not taken."""
        self.run = run
        self._held: Any = None

    def take(self) -> None:
        """Takes the lock. Raises UserError if another process has it."""
        from filelock import FileLock, Timeout

        lock = FileLock(self.run / LOCK)
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise UserError(
                f"{self.run}: another process is training there; wait until it has ended, or choose another --out"
            ) from None
        except OSError as error:
            raise UserError(f"{self.run / LOCK}: cannot be written: {error.strerror or error}") from error
        self._held = lock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._held is not None:
            self._held.release()


def prepare_run(config: TrainConfig, source: Source, lock: RunLock, resume: bool) -> TrainConfig:
    """Makes the folder of a new run, or checks that a resumed run was begun with the same configuration and data.

    Args:
        config: the training.
        source: its data.
        lock: for the folder; it is taken.
        resume: whether the run exists and is to go on.

    Returns:
        The configuration with everything filled in that depends on the data.

    Raises:
        UserError: if the folder is in use, or the run was begun with other settings or other data.
    """
    run = lock.run
    if resume:
        lock.take()
    model = config.model.with_(num_classes=len(source.classes), task=source.task)
    if not config.self_supervised:
        model = task(source.task).head.adapted(model)
        config = task(source.task).target.fitted(config)
    config = _with_loss(config.with_(model=model))
    before = read_config(run) if resume else None
    config = _with_range(config, source, before)
    document = {"train": config.to_json(), "classes": list(source.classes), "fingerprint": source.fingerprint()}
    if before is not None:
        if changed := [name for name in _differences(before.to_json(), config.to_json()) if name not in MAY_CHANGE]:
            raise UserError(f"{run}: was begun with another --{changed[0].replace('_', '-')}; a resumed run keeps it")
        if _read_begun(run).get("fingerprint") != document["fingerprint"]:
            raise UserError(f"{run}: the data is not what it was when the run began; start a new run")
        return config
    _refuse_used(run)
    with writing(run):
        run.mkdir(parents=True, exist_ok=True)
    lock.take()
    _refuse_used(run)  # another run may have begun there meanwhile, and ended
    write_file(run / CONFIG, text_file(json_text({**document, DIGEST: _digest(document)})))
    return config


def _refuse_used(run: Path) -> None:
    """Raises UserError if a folder holds more than what a kill left of its first two files, which is nobody's."""
    if run.exists() and any(each.name != LOCK and not each.name.startswith(f".{CONFIG}.") for each in run.iterdir()):
        raise UserError(f"{run}: is in use already; choose another --out, or go on with it by --resume")


def _read_begun(run: Path) -> dict[str, Any]:
    """Reads what a run was begun with, as it was written then."""
    path = run / CONFIG
    document = read_json(path)
    names = document.get("classes", [])
    if not isinstance(document.get("train"), dict) or not isinstance(names, list) or not all(map(_is_text, names)):
        raise UserError(f"{path}: is not what a run begins with: it has no configuration, or no list of classes")
    if document.get(DIGEST, _digest(document)) != _digest(document):  # earlier versions wrote none
        raise UserError(
            f"{path}: was changed after the run began, which would go on as another: put back what it said, or start a "
            "new run with what it says now"
        )
    return document


def _digest(document: dict[str, Any]) -> str:
    """Computes the SHA-256 over the values of a configuration, however they are laid out in their file."""
    values = {name: value for name, value in document.items() if name != DIGEST}
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _with_loss(config: TrainConfig) -> TrainConfig:
    """Returns the configuration with a loss of its task: the task's first if the user chose none."""
    losses = task(config.model.task).head.losses_for(config.model)
    if config.self_supervised or config.objective in losses:
        return config
    if config.objective == TrainConfig.objective:
        return config.with_(objective=losses[0])
    known = ", ".join((*losses, *SELF_SUPERVISED))
    raise UserError(f"--objective {config.objective}: choose one of {known}")


def _with_range(config: TrainConfig, source: Source, before: TrainConfig | None) -> TrainConfig:
    """Returns the configuration with the range of values that --data.range asks for; a resumed run keeps the one it
    found."""
    data, own = config.data, config.preprocessing.range
    if before is not None and data.range is not None and data.range == before.data.range:
        limits = before.preprocessing.range
    else:
        limits = resolved(data.range, own, source.split("train"), data.max_pixels)
    return config.with_(preprocessing=replace(config.preprocessing, range=limits))


def _differences(before: dict[str, Any], now: dict[str, Any], prefix: str = "") -> list[str]:
    """Lists the dotted names of the fields that differ between two configurations."""
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
    """Lists the images that could not be used, with the reasons, in quarantine.txt. A resumed run adds to the list."""

    def __init__(self, run: Path, writes: bool = True):
        self.path, self.writes = run / QUARANTINE, writes
        lines = read_text(self.path).splitlines() if self.path.exists() else []
        self.bad = {name: reason for name, _, reason in (line.partition("\t") for line in lines)}

    def watch(self, loader: Iterable[Batch]) -> Iterator[Batch]:
        """Yields the loader's batches, and lists each bad sample as soon as it is met."""
        for batch in loader:
            if batch.bad:
                self.bad.update({each.id: each.reason for each in batch.bad})
                self.write()
            yield batch

    def write(self) -> None:
        """Writes the list, if this process writes at all."""
        if not self.writes:
            return
        text = "".join(f"{name}\t{reason}\n" for name, reason in sorted(self.bad.items()))
        write_file(self.path, text_file(text), overwrite=True)
