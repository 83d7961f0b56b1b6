"""Two checkouts of this project against each other: forward pass, training, predict and serve, interleaved, as ratios.

    git worktree add /tmp/before COMMIT
    python bench/versions.py /tmp/before . [--starts 6] [--rounds 5] [--least 0.98] [--only forward predict]

Each version works in a process of its own; the two take turns, and the first of a round is now one, now the other.
Where a process happens to lie in memory makes it a few percent faster or slower for as long as it lives, so both are
started anew several times (--starts). A ratio is the time of the first checkout over that of the second: above 1 the
second is faster.
"""

import argparse
import contextlib
import http.client
import io
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CLIENTS, REQUESTS = 8, 160
PHOTOS = 64


def forward(folder: Path) -> Callable[[], object]:
    import torch

    import vitrail

    torch.manual_seed(0)
    model, images = vitrail.create("Ti/16").eval(), torch.randn(16, 3, 224, 224)

    def run() -> None:
        with torch.inference_mode():
            for _ in range(4):
                model(images)

    return run


def training(folder: Path) -> Callable[[], object]:
    from vitrail.config import DataConfig, OptimizerConfig, TrainConfig
    from vitrail.models.sizes import config_for
    from vitrail.train import fit

    model = config_for("Ti/16", image_size=32, patch_size=4, num_classes=10)
    config = TrainConfig(
        model=model, data=DataConfig("digits"), steps=8, batch_size=32, optimizer=OptimizerConfig(lr=1e-4)
    )
    runs = iter(range(10**6))
    return lambda: fit(config, folder / f"run-{os.getpid()}-{next(runs)}")


def predict(folder: Path) -> Callable[[], object]:
    import vitrail

    return lambda: vitrail.predict(folder / "model", folder / "photos")


def serve(folder: Path) -> Callable[[], object]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "vitrail", "serve", str(folder / "model"), "--port", str(port)]
    subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    bodies = [path.read_bytes() for path in sorted((folder / "photos").iterdir())]

    def ready() -> bool:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/v2/health/ready")
            return connection.getresponse().status == 200
        except OSError:
            return False

    while not ready():
        time.sleep(0.2)

    def client(number: int) -> int:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        for place in range(number, REQUESTS, CLIENTS):
            connection.request("POST", "/predict", bodies[place % len(bodies)], {"Content-Type": "image/jpeg"})
            answer = connection.getresponse()
            answer.read()
            if answer.status != 200:
                raise RuntimeError(f"status {answer.status}")
        return number

    def run() -> None:
        with ThreadPoolExecutor(CLIENTS) as clients:
            assert len(list(clients.map(client, range(CLIENTS)))) == CLIENTS

    return run


WORK = {"forward": forward, "training": training, "predict": predict, "serve": serve}


def work(name: str, folder: Path) -> None:
    """Does a round for each line of stdin, and answers with its seconds."""
    said = os.fdopen(os.dup(1), "w")
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run = WORK[name](folder)
        run()
        print("ready", file=said, flush=True)
        for _ in sys.stdin:
            start = time.perf_counter()
            run()
            print(time.perf_counter() - start, file=said, flush=True)


class Version:
    """A checkout at work, in a process group of its own so that what it started ends with it."""

    def __init__(self, checkout: Path, name: str, folder: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
        command = [sys.executable, str(Path(__file__).resolve()), "--work", name, str(folder)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=folder, start_new_session=True
        )
        assert self._answer() == "ready\n"

    def _answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def seconds(self) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self._answer())

    def stop(self) -> None:
        os.killpg(self.process.pid, 9)
        self.process.wait()


def compare(name: str, checkouts: list[Path], starts: int, rounds: int, folder: Path) -> dict[str, object]:
    ratios = []
    for start in range(starts):
        order = (0, 1) if start % 2 else (1, 0)
        versions = {place: Version(checkouts[place], name, folder) for place in order}
        try:
            for turn in range(rounds):
                times = {place: versions[place].seconds() for place in ((0, 1) if turn % 2 else (1, 0))}
                ratios.append(times[0] / times[1])
        finally:
            for each in versions.values():
                each.stop()
    low, _, high = statistics.quantiles(ratios, n=4)
    return {"what": name, "ratio": round(statistics.median(ratios), 3), "spread": [round(low, 3), round(high, 3)]}


def prepare(folder: Path, checkout: Path) -> None:
    """Writes a model, by the older checkout so that both can read it, and photos."""
    import numpy as np
    from PIL import Image

    random = np.random.default_rng(0)
    (folder / "photos").mkdir()
    for number in range(PHOTOS):
        small = Image.fromarray(random.integers(0, 256, (48, 64, 3), dtype=np.uint8))
        small.resize((640, 480), Image.Resampling.BICUBIC).save(folder / "photos" / f"{number:03d}.jpg", quality=90)
    program = "import vitrail; vitrail.save(vitrail.create('Ti/16'), 'model')"
    environment = {**os.environ, "PYTHONPATH": str(checkout.resolve())}
    subprocess.run([sys.executable, "-c", program], cwd=folder, env=environment, check=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", type=Path, nargs=2)
    parser.add_argument("--starts", type=int, default=6, help="how often both versions get new processes")
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each pair of processes")
    parser.add_argument("--least", type=float, help="exit 1 if a ratio is below this")
    parser.add_argument("--only", nargs="+", choices=list(WORK), default=list(WORK))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder), options.checkouts[0])
        print(f"{os.cpu_count()} cores; median of {options.starts} x {options.rounds} interleaved rounds [middle half]")
        for name in options.only:
            row = compare(name, options.checkouts, options.starts, options.rounds, Path(folder))
            rows.append(row)
            print(f"{name:<9} {row['ratio']} {row['spread']}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")
    if options.least and any(row["ratio"] < options.least for row in rows):
        raise SystemExit(f"a ratio is below {options.least}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
