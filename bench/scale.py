"""How training goes with the number of processes: measured with 1 and 2 of them here, simulated up to 256.

    python bench/scale.py [--quick] [--out FOLDER] [--rounds 3] [--steps 60]

What is measured, each process with one thread: steps of `vitrail train` and of `vitrail train --processes 2`, gloo's
all-reduce of as many bytes as the model has gradients, and how fast a thread decodes and crops photos. From one process
and the all-reduce the speed of two is predicted; both are printed. What the simulation assumes:

- A step on b images takes a process `fixed + b * each` seconds; both are measured, from two sizes of batch.
- Every step is as long as that of the slowest process. Times vary by a factor exp(spread * normal), drawn by a seed;
  the spread is that of the steps of one process.
- Gradients are added up by a ring of n: 2 (n - 1) / n * bytes / bandwidth, and 2 (n - 1) times the latency.
- Of that, `overlap` times the backward pass (two thirds of b * each) is hidden. On processors it is 0, since gloo needs
  the very core that computes; on accelerators 1.
- Six words a step are told to all (is the loss finite, was there a signal ...), each 2 log2 n times the latency.
- Loaders work ahead with so many threads a process, each as fast as measured: a step is no shorter than they take.
- Each process has a core, or an accelerator, and a line to the network of its own. Two processes of one machine share
  its memory and caches, so the prediction for two is an upper bound.
"""

import argparse
import io
import json
import math
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.models.cost import cost
from vitrail.models.sizes import config_for

RECIPE, BATCH = "mnist5k", 128
COUNTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WORDS = 6
SEED = 0
IN_MEMORY = 1e9
"""Images a second of a loader that has nothing to decode: more than anyone waits for."""
WARM_UP = 5
"""Steps that are not counted."""


@dataclass(frozen=True)
class Worker:
    """A process, and what connects it to the others."""

    fixed: float
    """Seconds of a step, however many images."""
    each: float
    """Seconds an image."""
    gradients: int
    """Bytes that are added up in every step."""
    bandwidth: float
    latency: float
    overlap: float
    spread: float
    loader: float
    """Images a second that its loader prepares."""

    def all_reduce(self, count: int) -> float:
        if count == 1:
            return 0.0
        return 2 * (count - 1) / count * self.gradients / self.bandwidth + 2 * (count - 1) * self.latency

    def words(self, count: int) -> float:
        return WORDS * 2 * math.ceil(math.log2(count)) * self.latency


@dataclass(frozen=True)
class Step:
    """What a step of `count` processes comes to, in seconds."""

    count: int
    batch: int
    """Images of each process."""
    compute: float
    slowest: float
    """More than `compute`, for the wait for the slowest."""
    exposed: float
    """What is left of the all-reduce, and the words."""
    loading: float
    step: float

    @property
    def images_per_second(self) -> float:
        return self.count * self.batch / self.step


def simulate(worker: Worker, count: int, batch: int, told: float | None = None, steps: int = 2000) -> Step:
    """`told`: seconds of all that travels in a step, where it was measured."""
    compute = worker.fixed + batch * worker.each
    draws = np.random.default_rng([SEED, count]).normal(-(worker.spread**2) / 2, worker.spread, (steps, count))
    slowest = compute if count == 1 else compute * float(np.exp(draws).max(axis=1).mean())
    hidden = worker.overlap * batch * worker.each * 2 / 3
    exposed = max(0.0, worker.all_reduce(count) - hidden) + worker.words(count) if told is None else told
    loading = batch / worker.loader
    return Step(count, batch, compute, slowest, exposed, loading, max(slowest + exposed, loading))


def sweep(worker: Worker, batch: int, shared: bool) -> list[Step]:
    """Up to 256 processes: that share a batch, or have one each."""
    counts = [count for count in COUNTS if not shared or count <= batch]
    return [simulate(worker, count, batch // count if shared else batch) for count in counts]


def huge(loader: float) -> Worker:
    """H/14 of the paper's largest pre-training on assumed accelerators: 1e14 FLOPs a second sustained, 100 GB a second
    and 10 microseconds to the next, as fast links between machines have it, and sixteen loader threads for each."""
    config = config_for("H/14", num_classes=18_291)
    one = cost(config)
    return Worker(0.002, one.training_flops / 1e14, 4 * one.parameters, 100e9, 10e-6, 1.0, 0.02, 16 * loader)


# What is measured here.


def train(out: Path, processes: int, batch: int, steps: int) -> list[float]:
    """Seconds of every step but the first few."""
    arguments = ["train", RECIPE, "--out", out, "--batch-size", batch, "--steps", steps, "--log-every", 1]
    arguments += ["--evaluate-every", steps, "--data.workers", 0, "--json"]
    arguments += ["--processes", processes] if processes > 1 else []
    command = [sys.executable, "-m", "vitrail", *map(str, arguments)]
    result = subprocess.run(command, env=one_thread(), capture_output=True, text=True)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)}\n{result.stderr}")
    records = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [batch / each["images_per_second"] for each in records if each["kind"] == "train"][WARM_UP:]


def one_thread() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def measured_all_reduce(sizes: Sequence[int]) -> dict[int, float]:
    """Seconds of gloo's all-reduce between two processes, by the number of bytes."""
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [*torchrun, __file__, "--all-reduce", *map(str, sizes)]
    result = subprocess.run(command, env=one_thread(), capture_output=True, text=True, check=True)
    return {int(size): seconds for size, seconds in json.loads(result.stdout).items()}


def all_reduce(sizes: Sequence[int]) -> None:
    """One of the two processes."""
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    found = {}
    for size in sizes:
        tensor = torch.ones(size // 4)
        times = []
        for _ in range(40):
            dist.barrier()
            began = time.perf_counter()
            dist.all_reduce(tensor)
            times.append(time.perf_counter() - began)
            tensor.fill_(1.0)
        found[size] = statistics.median(times[5:])
    if dist.get_rank() == 0:
        print(json.dumps(found))
    dist.destroy_process_group()


def decode_rate(seconds: float) -> float:
    """Images a second: photos of 500 x 375 pixels, decoded, cropped at random and resized to 224, by one thread."""
    from PIL import Image

    from vitrail.config import Preprocessing, TransformConfig
    from vitrail.data.transforms import TrainingTransform
    from vitrail.random_stream import RandomStream

    generator = np.random.default_rng(SEED)
    photos = []
    for _ in range(8):
        small = Image.fromarray(generator.integers(0, 256, (24, 32, 3), dtype=np.uint8))
        stream = io.BytesIO()
        small.resize((500, 375), Image.Resampling.BICUBIC).save(stream, "JPEG", quality=95)
        photos.append(stream.getvalue())
    transform = TrainingTransform(TransformConfig(), Preprocessing(224))
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        transform(photos[done % len(photos)], RandomStream("bench", done))
        done += 1
    return done / (time.perf_counter() - began)


@dataclass(frozen=True)
class Measured:
    """Medians over the rounds; seconds of a step."""

    one: float
    half: float
    """One process with half of the batch."""
    two: float
    """Two processes that share the batch."""
    spread: float
    rounds: list[list[float]]
    """Images a second with one process and with two, by round."""
    gradients: int
    all_reduce: dict[int, float]
    decode: float

    @property
    def told(self) -> float:
        """Seconds of all that travels in a step between two."""
        return self.all_reduce[self.gradients] + WORDS * self.all_reduce[min(self.all_reduce)]

    def worker(self) -> Worker:
        """A process of this machine, with a network of 10 Gbit/s and 50 microseconds in place of its own memory."""
        each = max(0.0, (self.one - self.half) / (BATCH - BATCH // 2))
        fixed = max(0.0, self.one - each * BATCH)
        return Worker(fixed, each, self.gradients, 1.25e9, 50e-6, 0.0, self.spread, IN_MEMORY)


def measure(rounds: int, steps: int, seconds: float) -> Measured:
    from vitrail.recipes import recipe

    gradients = 4 * cost(recipe(RECIPE).model).parameters
    times: dict[str, list[list[float]]] = {"one": [], "half": [], "two": []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(rounds):
            for name, processes, batch in (("one", 1, BATCH), ("half", 1, BATCH // 2), ("two", 2, BATCH)):
                times[name].append(train(Path(folder) / f"{name}-{turn}", processes, batch, steps))
    medians = {name: [statistics.median(each) for each in found] for name, found in times.items()}
    logarithms = [math.log(each / statistics.median(found)) for found in times["one"] for each in found]
    return Measured(
        **{name: statistics.median(each) for name, each in medians.items()},
        # By the middle half of the steps: one that the machine held up says little of the others.
        spread=(np.quantile(logarithms, 0.75) - np.quantile(logarithms, 0.25)) / 1.349,
        rounds=[[BATCH / one, BATCH / two] for one, two in zip(medians["one"], medians["two"], strict=True)],
        gradients=gradients,
        all_reduce=measured_all_reduce([1024, gradients, 1 << 24]),
        decode=decode_rate(seconds),
    )


# What is shown.


def table(title: str, steps: Sequence[Step]) -> None:
    print(f"\n{title}")
    print("processes  images each  compute ms  +slowest ms  +exposed ms  loading ms  images/s  efficiency")
    for each in steps:
        share = each.images_per_second / (each.count * steps[0].images_per_second)
        numbers = (each.compute, each.slowest - each.compute, each.exposed, each.loading)
        milliseconds = "  ".join(
            f"{1000 * value:>{width}.2f}" for value, width in zip(numbers, (10, 11, 11, 10), strict=True)
        )
        print(f"{each.count:>9}  {each.batch:>11}  {milliseconds}  {each.images_per_second:>8.0f}  {share:>9.1%}")


def draw(curves: dict[str, list[Step]], ratio: float, theme: Any) -> bytes:
    """Times as fast as one process, against their number; the measured ratio of two is the ring."""
    from vitrail.drawing.plots import blank_figure, dress, png

    figure = blank_figure(7.2, 4.8, theme, layout="constrained")
    axes = figure.add_subplot()
    dress(axes, theme)
    axes.plot(COUNTS, COUNTS, color=theme.soft, linewidth=1, linestyle=":", label="n times as fast")
    for (name, steps), colour, mark in zip(curves.items(), (theme.train, theme.val, theme.ink), "os^", strict=True):
        times = [each.images_per_second / steps[0].images_per_second for each in steps]
        axes.plot([each.count for each in steps], times, color=colour, marker=mark, markersize=5, label=name)
    axes.plot(2, ratio, "o", markersize=12, markerfacecolor="none", color=theme.train, label="measured here")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    ticks = [str(count) for count in COUNTS]
    axes.set_xticks(COUNTS, ticks)
    axes.set_yticks(COUNTS, ticks)
    axes.set_xlabel("processes", color=theme.soft)
    axes.set_ylabel("times as fast as one", color=theme.soft)
    axes.legend(frameon=False, labelcolor=theme.ink)
    return png(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="one round of few steps: whether it runs, not how fast")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, help="a folder for scale.json, scale.png and scale-dark.png")
    parser.add_argument("--all-reduce", type=int, nargs="*", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.all_reduce:
        return all_reduce(options.all_reduce)
    rounds, steps, seconds = (1, 25, 0.5) if options.quick else (options.rounds, options.steps, 5.0)
    found = measure(rounds, steps, seconds)
    worker = found.worker()
    alone = simulate(worker, 1, BATCH)
    predicted = simulate(worker, 2, BATCH // 2, told=found.told)
    ratio, expected = found.one / found.two, predicted.images_per_second / alone.images_per_second
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"{machine}; {RECIPE}, batch {BATCH}, one thread a process, median of {rounds} rounds of {steps} steps")
    print(f"1 process    {BATCH / found.one:8.0f} images/s   step {1000 * found.one:.2f} ms, spread {found.spread:.1%}")
    print(f"2 processes  {BATCH / found.two:8.0f} images/s   {ratio:.2f} times as fast")
    print(f"predicted    {predicted.images_per_second:8.0f} images/s   {expected:.2f} times as fast")
    print(f"measured / predicted {ratio / expected:.2f}")
    sizes = ", ".join(f"{size:,} bytes {1000 * each:.3f} ms" for size, each in found.all_reduce.items())
    print(f"gloo all-reduce between 2: {sizes}")
    print(f"decoding and cropping photos: {found.decode:.0f} images/s a thread")
    curves = {
        f"{RECIPE}: a batch of {BATCH} shared": sweep(worker, BATCH, shared=True),
        f"{RECIPE}: a batch of {BATCH} each": sweep(worker, BATCH, shared=False),
        "H/14, batch 4,096 shared, on assumed accelerators": sweep(huge(found.decode), 4096, shared=True),
    }
    for title, each in curves.items():
        table(title, each)
    if options.out:
        from vitrail.drawing.plots import DARK, LIGHT

        options.out.mkdir(parents=True, exist_ok=True)
        document = {
            "machine": machine,
            "measured": asdict(found),
            "images_per_second": {
                "1": BATCH / found.one,
                "2": BATCH / found.two,
                "2 predicted": predicted.images_per_second,
            },
            "assumed": {
                "processes here": asdict(worker),
                "accelerators": asdict(huge(found.decode)),
            },
            "simulated": {
                name: [{**asdict(each), "images_per_second": each.images_per_second} for each in curve]
                for name, curve in curves.items()
            },
        }
        (options.out / "scale.json").write_text(json.dumps(document, indent=2) + "\n")
        (options.out / "scale.png").write_bytes(draw(curves, ratio, LIGHT))
        (options.out / "scale-dark.png").write_bytes(draw(curves, ratio, DARK))
    return None


if __name__ == "__main__":
    main()
