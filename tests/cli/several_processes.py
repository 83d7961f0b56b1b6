"""Commands by several processes, forked from this one so that imports are paid once.

    python -m tests.cli.several_processes OUT

The processes find their place as torchrun's do, by the same variables of the environment. A scenario is a list of
commands, done one after the other by the same processes; how each ended and what it said is printed as JSON.
"""

import contextlib
import functools
import io
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from PIL import Image

import vitrail
import vitrail.cli
import vitrail.inference.engines.torch
from tests.conftest import toy
from vitrail import assessment
from vitrail.cli import embed, evaluate, predict
from vitrail.cli import main as vitrail_main
from vitrail.config import Preprocessing
from vitrail.errors import UserError
from vitrail.inference.jobs import parquet
from vitrail.inference.jobs.process_files import ProcessFile

MOST = 33
BROKEN = 5
"""Of so many pictures the last is no picture."""
ALIKE = ("--batch-size", "1", "--workers", "1", "--engine", "torch")
"""Another placement in a batch may change the last bit of a score."""


Command = Sequence[Any] | Callable[[], None]
"""Words as they are typed; or, where there are hundreds, what they come to once they are read."""


def nothing() -> None:
    pass


def go(commands: Sequence[Command], count: int, before: Callable[[], None] = nothing) -> list[list[Any]]:
    """Each command by `count` processes; `before` is called once in each. For each command the (status, stdout,
    stderr) of every process; what a process did not come to is None."""
    store_pid, port = store_server()
    pipes, children = [], []
    for rank in range(count):
        reader, writer = os.pipe()
        pid = os.fork()
        if not pid:
            os.close(reader)
            place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count}
            os.environ.update({name: str(value) for name, value in place.items()})
            store = dist.TCPStore("127.0.0.1", port, is_master=False)
            before()
            with os.fdopen(writer, "w") as stream:
                for number, command in enumerate(commands):
                    own = dist.PrefixStore(str(number), store), rank, count
                    dist.rendezvous = lambda *_, own=own, **__: iter([own])
                    stream.write(json.dumps(outcome(command)) + "\n")
                    stream.flush()
            os._exit(0)
        os.close(writer)
        pipes.append(os.fdopen(reader))
        children.append(pid)
    told = []
    for pipe in pipes:
        with pipe:
            told.append([json.loads(line) for line in pipe])
    os.kill(store_pid, signal.SIGKILL)
    for pid in (*children, store_pid):
        os.waitpid(pid, 0)
    return [[each[place] if place < len(each) else None for each in told] for place in range(len(commands))]


def store_server() -> tuple[int, int]:
    """Starts a process that holds the store where the others meet, and returns its number and the store's port.

    One store serves all commands: opening one for each takes longer than the commands. It is not in this process: its
    thread looks up the names of those who connect, and a process forked meanwhile would wait for the resolver's lock
    for good.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if not pid:
        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        os.write(writer, f"{store.port}\n".encode())
        while True:
            signal.pause()
    os.close(writer)
    with os.fdopen(reader) as stream:
        return pid, int(stream.readline())


def outcome(command: Command) -> tuple[int, str, str]:
    out, err = io.StringIO(), io.StringIO()
    status = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            command() if callable(command) else vitrail_main([str(each) for each in command])
        except SystemExit as end:
            status = int(end.code or 0)
        except BaseException:
            traceback.print_exc()
            status = 1
    return status, out.getvalue(), err.getvalue()


def die_after(rows: int, only: int | None = None) -> Callable[[], None]:
    """A process is killed when it has written so many rows: a certain one, or each that comes to it."""

    def install() -> None:
        parquet._PART_ROWS = 2
        original = ProcessFile.write

        def write(self: ProcessFile, new: Any) -> None:
            original(self, new)
            if only in (None, int(os.environ["RANK"])) and self.rows - self.count >= rows:
                os.kill(os.getpid(), signal.SIGKILL)

        ProcessFile.write = write

    return install


def refuse_in_second() -> None:
    """The disk of the second process is full."""
    if os.environ["RANK"] == "1":
        ProcessFile.write = lambda *_: (_ for _ in ()).throw(UserError("there is no room left"))


def lose_the_second(folder: Path) -> Callable[[], None]:
    """The second process cannot read what it measures."""

    def install() -> None:
        def measure(*_: Any) -> Any:
            raise UserError(f"{folder} is on fire")

        if os.environ["RANK"] == "1":
            assessment.measure = measure

    return install


def fill(folder: Path, count: int) -> Path:
    """Pictures named by their place, one in five unreadable."""
    folder.mkdir(parents=True)
    generator = np.random.default_rng(count)
    for place in range(count):
        path = folder / f"{place:03d}.png"
        Image.fromarray(generator.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(path)
        if place % BROKEN == BROKEN - 1:
            path.write_bytes(b"broken")
    return folder


def ending(count: int) -> str:
    """Of predictions of so many pictures: each format has its turn."""
    return "csv" if count % 2 else "jsonl"


def labelled(folder: Path, count: int) -> Path:
    """A data set with `count` pictures to test on."""
    for name in ("a", "b"):
        fill(folder / "train" / name, 1)
    for place, path in enumerate(sorted(fill(folder / "all", count).iterdir())):
        chosen = folder / "test" / "ab"[place % 2]
        chosen.mkdir(parents=True, exist_ok=True)
        path.rename(chosen / path.name)
    (folder / "all").rmdir()
    return folder


def model(folder: Path) -> Path:
    made = toy(depth=1, width=16, mlp_dim=16, image_size=16, num_classes=2)
    made.card.preprocessing = Preprocessing(16)
    made.card.label_names = ("a", "b")
    vitrail.save(made, folder)
    return folder


def main(out: Path) -> None:
    torch.set_num_threads(1)
    vitrail.cli.SECONDS_TO_BE_ENDED = 0.0  # no launcher is here to end a process
    bundle = model(out / "model")
    # Once before the processes are forked: what commands import when they run need not be imported by each of them.
    data, photos = labelled(out / "data", 3), fill(out / "photos", 2)
    outcome(("evaluate", bundle, "--data", data, "--split", "test", "--out", out / "warm"))
    outcome(("predict", bundle, photos, "--out", out / "warm.parquet", *ALIKE))
    found: dict[str, Any] = {}

    every = {
        count: (labelled(out / f"data-{count}", count), fill(out / f"photos-{count}", count))
        for count in range(1, MOST + 1)
    }
    for processes in (1, 2):
        commands = []
        for count, (data, photos) in every.items():
            place = f"{count}-by-{processes}"
            options: dict[str, Any] = {"batch_size": 1, "workers": 1, "json": True}
            pictures, torch_only = (str(bundle), (str(photos),)), {"engine": "torch", **options}
            commands += [
                functools.partial(evaluate.command, str(bundle), data=str(data), split="test", **options),
                functools.partial(predict.command, *pictures, out=out / f"{place}.{ending(count)}", **torch_only),
                functools.partial(embed.command, *pictures, out=out / f"{place}.parquet", **torch_only),
            ]
        found[f"every-{processes}"] = go(commands, processes)

    photos, data = every[MOST][1], every[MOST][0]
    predicting, embedding = ("predict", bundle, photos, *ALIKE), ("embed", bundle, photos, *ALIKE)

    def resumed(name: str, command: Sequence[Any], counts: Sequence[int]) -> None:
        """Killed in one process after the other, then gone on with by other numbers of them."""
        command = (*command, "--out", out / name, "--resume", "--json")
        found[name] = [go([command], 2, die_after(4, only=1)), go([command], counts[0], die_after(3))]
        found[name].append(go([command], counts[1]))

    resumed("same.csv", predicting, (2, 2))
    resumed("other.csv", predicting, (3, 1))
    resumed("same.parquet", embedding, (2, 2))
    resumed("other.parquet", embedding, (1, 4))

    whole = out / "whole"
    found["report"] = go([("evaluate", bundle, "--data", data, "--split", "test", "--out", whole)], 2)
    found["fails"] = go([("evaluate", bundle, "--data", data, "--split", "test")], 2, lose_the_second(data))
    found["full"] = go([(*predicting, "--out", out / "full.csv")], 2, refuse_in_second)
    refused = [
        ("predict", bundle, photos),
        ("predict", bundle, "-", "--out", out / "listed.csv"),
        ("predict", bundle, out / "gone", "--out", out / "gone.csv"),
        ("predict", bundle, photos, "--out", out / "33-by-2.csv"),
        ("predict", bundle, photos, "--out", out / "x.txt"),
        ("evaluate", bundle, "--data", data, "--split", "dev"),
        ("evaluate", out / "gone", "--data", data),
        ("predict", bundle, photos, "--out", out / "y.csv", "--processes", "2"),
    ]
    found["refused"] = go(refused, 2)
    print(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
