"""Searches the fastest model within a given loss of accuracy: int8, merged tokens and engines together.

`search` knows no files and no engines: a `Judge` tells it what a candidate loses and how fast some are. A candidate is
kept if the upper bound of its loss (`accuracy_drop`) is within the limit. Many are tried on the same pictures, and the
luckiest of many would promise too much; so they are tried in a fixed order, from none merged upwards, and the first
that fails ends its row (fixed-sequence testing: the order is not chosen by the data, so all bounds before the first
failure hold together). There are at most two such rows, float and 8 bits, and each is judged at half the risk. Speed
chooses among what is kept; it says nothing of accuracy, so it costs no confidence. `Workshop` is the judge for a real
model and a real set of images.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vitrail.errors import UserError
from vitrail.inference.accuracy_drop import Drop, estimate_drop
from vitrail.inference.checking import refusal_of_drop
from vitrail.inference.engines import Engine, Name
from vitrail.inference.speed import interleave, ratio
from vitrail.io.progress import working


@dataclass(frozen=True)
class Candidate:
    """One way to run a model."""

    engine: Name
    merge_tokens: int = 0
    """Patches merged in each layer."""
    int8: bool = False

    def __str__(self) -> str:
        parts = [self.engine, *(["int8"] if self.int8 else [])]
        patches = "1 patch" if self.merge_tokens == 1 else f"{self.merge_tokens} patches"
        return ", ".join([*parts, *([f"{patches} merged a layer"] if self.merge_tokens else [])])


PLAIN = Candidate("torch")
"""What all others are compared with."""


@dataclass(frozen=True)
class Trial:
    """What was found out about a candidate."""

    candidate: Candidate
    drop: Drop
    speedup: float | None = None
    """Times as fast as the plain model; None where accuracy ruled it out before it was timed."""


@dataclass(frozen=True)
class Outcome:
    chosen: Trial
    trials: tuple[Trial, ...]
    """All that were judged, in their order."""


class Judge(Protocol):
    def drop(self, candidate: Candidate, tests: int) -> Drop:
        """Estimates what a candidate loses beside PLAIN; `tests` bounds are to hold together."""
        ...

    def speedups(self, candidates: Sequence[Candidate]) -> Mapping[Candidate, float]:
        """Times as fast as PLAIN, all of them taking turns."""
        ...


def search(
    judge: Judge,
    *,
    engines: Sequence[Name],
    most: int,
    max_drop: float,
    int8: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> Outcome:
    """Finds the fastest on `engines` whose loss is at most `max_drop` points with 95 % confidence.

    Args:
        judge: Tells losses and speeds.
        engines: What the model may run on; int8 is for ONNX Runtime alone.
        most: Patches that may be merged in a layer.
        max_drop: Points of top-1 that may be lost.
        int8: Whether 8 bits are tried.
        say: Is told each result in a line.
    """
    unmerged = [Candidate(engine) for engine in engines]
    speeds = judge.speedups(unmerged) if len(unmerged) > 1 else {unmerged[0]: 1.0}
    rows = [max(unmerged, key=lambda each: speeds[each])]
    if int8 and "onnxruntime" in engines:
        rows.append(Candidate("onnxruntime", int8=True))
    trials: list[Trial] = []

    def kept(candidate: Candidate) -> bool:
        trials.append(Trial(candidate, drop := judge.drop(candidate, len(rows))))
        say(f"{candidate}: {drop.sentence()}")
        return drop.within(max_drop)

    finalists: list[Candidate] = []
    for row in rows:
        passed = list(takewhile(kept, (replace(row, merge_tokens=r) for r in merge_steps(most))))
        finalists += dict.fromkeys(passed[:1] + passed[-1:])
    if not finalists:
        raise refusal_of_drop(min((trial.drop for trial in trials), key=lambda drop: drop.bound), max_drop)
    speeds = judge.speedups(finalists)
    for each in finalists:
        say(f"{each}: {speeds[each]:.2f} x")
    fastest = max(finalists, key=lambda each: speeds[each])
    timed = tuple(replace(trial, speedup=speeds.get(trial.candidate)) for trial in trials)
    return Outcome(next(trial for trial in timed if trial.candidate == fastest), timed)


def merge_steps(most: int) -> list[int]:
    """Lists the numbers of patches to try: each up to 4, then every second, and `most`."""
    return sorted({*range(min(most, 4) + 1), *range(4, most + 1, 2), most})


Pictures = Iterable[tuple[np.ndarray, np.ndarray]]
"""What models are compared on, as `checking.CheckSet` gives it; gone through once for each candidate."""


class Workshop:
    """Makes candidates of a model in `folder`, and judges them on a check set."""

    def __init__(self, model: Any, folder: Path, pictures: Pictures, batch_size: int = 8, opset: int = 20) -> None:
        self.model, self.folder, self.pictures = model, folder, pictures
        self.batch_size, self.opset = batch_size, opset
        self._engines: dict[Candidate, Engine] = {}
        self._plain: tuple[np.ndarray, np.ndarray] | None = None

    def drop(self, candidate: Candidate, tests: int) -> Drop:
        if self._plain is None:
            self._plain = self.logits(PLAIN)
            if not len(self._plain[0]):
                raise UserError("--fast needs images to check accuracy on: not one could be read")
        before, labels = self._plain
        return estimate_drop(before, self.logits(candidate)[0], labels, tests=tests)

    def logits(self, candidate: Candidate) -> tuple[np.ndarray, np.ndarray]:
        """Gives the logits [pictures, classes] of a candidate on all pictures, and their labels."""
        engine = self.engine(candidate)
        with engine.running():
            pairs = [(engine.outputs(images), labels) for images, labels in self.pictures]
        if not pairs:
            return np.empty((0, 0)), np.empty(0, int)
        return np.concatenate([each for each, _ in pairs]), np.concatenate([each for _, each in pairs])

    def speedups(self, candidates: Sequence[Candidate], rounds: int = 7) -> dict[Candidate, float]:
        wanted = list(dict.fromkeys([PLAIN, *candidates]))
        engines = {str(each): self.engine(each) for each in wanted}
        images = np.zeros((self.batch_size, *engines[str(PLAIN)].facts.input_shape), np.float32)
        with ExitStack() as stack:
            for engine in engines.values():
                stack.enter_context(engine.running())
            stack.enter_context(working("timing"))
            times = interleave({name: partial(engine.outputs, images) for name, engine in engines.items()}, rounds)
        return {each: ratio(times[str(each)], times[str(PLAIN)]).ratio for each in wanted}

    def engine(self, candidate: Candidate) -> Engine:
        if candidate not in self._engines:
            self._engines[candidate] = self._make(candidate)
        return self._engines[candidate]

    def file(self, candidate: Candidate) -> Path:
        """The .onnx file of a candidate, made where it is not there yet."""
        from vitrail.inference.export import export
        from vitrail.inference.quantize import dynamic

        path = self.folder / f"r{candidate.merge_tokens}{'-int8' if candidate.int8 else ''}.onnx"
        if path.exists():
            return path
        if candidate.int8:
            return dynamic(self.file(Candidate("onnxruntime", candidate.merge_tokens)), path)
        changes = {"merge_tokens": candidate.merge_tokens} if candidate.merge_tokens else {}
        return export(self._module(candidate), path, opset=self.opset, changes=changes).files[0]

    def _module(self, candidate: Candidate) -> Any:
        from vitrail.inference.merging import merged

        return merged(self.model, candidate.merge_tokens) if candidate.merge_tokens else self.model

    def _make(self, candidate: Candidate) -> Engine:
        if candidate.engine == "torch":
            from vitrail.inference.engines.torch import TorchEngine

            return TorchEngine(self._module(candidate))
        if candidate.engine == "openvino":
            from vitrail.inference.engines.openvino import OpenVinoEngine

            return OpenVinoEngine(self.file(candidate))
        from vitrail.inference.engines.onnxruntime import OnnxEngine

        return OnnxEngine(self.file(candidate))


def most_merged(config: Any) -> int:
    """Patches that each layer can merge with one left at the end; 0 for models that cannot merge."""
    from vitrail.inference.merging import refusal

    rows, columns = config.grid if config.family == "vit" else (1, 1)
    return 0 if refusal(config) else (rows * columns - 1) // config.depth
