"""Small runs over several processes, forked from this one so that imports are paid once.

    python -m tests.training.several_processes OUT

Each scenario trains into a folder of its own under OUT; what the processes said and how they ended is printed as JSON.
The processes find each other as torchrun's do, by the same variables of the environment.
"""

import gc
import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch._dynamo  # optimizers import it when they are made

from tests.training import unlabelled
from tests.training.killing import CONFIG
from vitrail.config import DataConfig, TrainConfig, TransformConfig
from vitrail.data.decode import BadImage
from vitrail.data.sources import base
from vitrail.errors import UserError
from vitrail.train import fit
from vitrail.training import run_folder, sharded  # noqa: F401  imported once for all
from vitrail.training.loop import Interrupted, Trainer
from vitrail.training.objectives.supervised import Supervised

# Without dropout and mixing, which draw other numbers in another number of processes.
EXACT = CONFIG.with_(
    model=CONFIG.model.with_(dropout=0.0, drop_path=0.0),
    transform=TransformConfig(crop="evaluation", flip=0.0, rotate=10, translate=0.1),
    data=DataConfig("digits", workers=0),
    steps=20,
    accumulate=1,
    evaluate_every=10,
    snapshot_every=4,
    log_every=1,
)


def nothing() -> None:
    pass


def start(config: TrainConfig, out: Path, count: int, before: Callable[[], None] = nothing) -> dict[str, Any]:
    """Train in `count` processes, or go on; `before` is called in each. What each said and its exit status."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out.parent.mkdir(parents=True, exist_ok=True)
    resume = (out / "config.json").exists()
    children = []
    for rank in range(count):
        said = out.parent / f"{out.name}.said-{rank}"
        pid = os.fork()
        if pid:
            children.append((pid, said))
            continue
        place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1"}
        os.environ.update({name: str(value) for name, value in place.items()}, MASTER_PORT=str(port))
        with said.open("w") as stream:
            os.dup2(stream.fileno(), 2)
        os._exit(child(config, out, resume, before))
    statuses = [os.waitpid(pid, 0)[1] for pid, _ in children]
    ended = [-os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status) for status in statuses]
    return {"ended": ended, "said": [said.read_text() for _, said in children]}


def child(config: TrainConfig, out: Path, resume: bool, before: Callable[[], None]) -> int:
    torch.set_num_threads(1)
    before()
    try:
        fit(config, out, resume, report=False)
    except UserError as error:
        print("" if error.said_by_another else error, file=sys.stderr, flush=True)
        return 2
    except Interrupted as interrupted:
        return interrupted.status
    except BaseException as error:
        print(type(error).__name__, error, file=sys.stderr, flush=True)
        return 1
    return 0


def rank() -> int:
    return int(os.environ["RANK"])


def at_step(step: int, action: Callable[[], Any], only: int | None = None) -> Callable[[], None]:
    """Do something just before a step, in one process or in all."""

    def install() -> None:
        original = Trainer.step

        def step_or_act(self: Trainer, *arguments: Any) -> Any:
            if self.progress.step == step and only in (None, rank()):
                action()
            return original(self, *arguments)

        Trainer.step = step_or_act  # pyright: ignore[reportAttributeAccessIssue]

    return install


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def lose_sight() -> None:
    """From now on the loss is not a number here."""
    original = Supervised.forward

    def blind(self: Supervised, model: Any, batch: Any) -> Any:
        losses = original(self, model, batch)
        losses.loss = losses.loss * float("nan")
        return losses

    Supervised.forward = blind


def go_bad() -> None:
    """From now on no sample can be read here but the first few."""
    original = base.ArrayReader.read

    def unreadable(self: base.ArrayReader, row: int) -> Any:
        if row > 40:
            raise BadImage("is gone")
        return original(self, row)

    base.ArrayReader.read = unreadable


def note_ids(out: Path, *also: Callable[[], None]) -> Callable[[], None]:
    """Write down which samples each step has seen, in order, in a file for each process."""

    def install() -> None:
        original = run_folder.Quarantine.watch

        def noted(self: Any, loader: Any) -> Any:
            for batch in original(self, loader):
                with (out.parent / f"{out.name}.ids-{rank()}").open("a") as stream:
                    stream.write(json.dumps([batch.position, batch.ids]) + "\n")
                yield batch

        run_folder.Quarantine.watch = noted
        for each in also:
            each()

    return install


def main(out: Path) -> None:
    torch.set_num_threads(1)
    gc.freeze()  # or each process walks over all that was imported, page by page, to find garbage
    found: dict[str, Any] = {}

    def go(name: str, config: TrainConfig, count: int, before: Callable[[], None] = nothing) -> None:
        found.setdefault(name, []).append(start(config, out / name, count, before))

    go("one", EXACT, 1, note_ids(out / "one"))
    go("ddp", EXACT, 2)
    go("four", EXACT, 4)
    go("fsdp", EXACT.with_(parallel="fsdp"), 2)
    half = EXACT.with_(precision="bf16", model=EXACT.model.with_(gradient_checkpointing=True))
    go("half-one", half, 1)
    go("half-fsdp", half.with_(parallel="fsdp"), 2)
    parts = EXACT.with_(accumulate=2, optimizer=CONFIG.optimizer.__class__("sgd", 0.1))
    go("parts-one", parts, 1)
    go("parts-ddp", parts, 2)
    go("parts-fsdp", parts.with_(parallel="fsdp", model=EXACT.model.with_(gradient_checkpointing=True)), 2)
    whole = CONFIG.with_(steps=20, log_every=1, evaluate_every=10, data=DataConfig("digits", workers=0))
    go("whole", whole, 2)
    go("killed", whole, 2, at_step(13, die, only=1))
    go("killed", whole, 2, at_step(18, die, only=0))
    go("killed", whole, 2)
    go("changing", EXACT, 2, note_ids(out / "changing", at_step(6, terminate, only=0)))
    go("changing", EXACT, 1, note_ids(out / "changing", at_step(13, terminate)))
    go("changing", EXACT.with_(parallel="fsdp"), 2, note_ids(out / "changing"))
    go("blind", EXACT, 2, at_step(10, lose_sight, only=1))
    go("terminated", EXACT, 2, at_step(9, terminate, only=1))
    go("bad", EXACT, 2, at_step(5, go_bad, only=1))
    go("uneven", EXACT.with_(batch_size=49), 2)
    for objective in unlabelled.OBJECTIVES:
        for parallel in ("ddp", "fsdp"):
            config = unlabelled.settings(objective, steps=6, evaluate_every=6, parallel=parallel)
            go(f"{objective}-{parallel}", config, 2)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
