"""Searches the fastest model within a given loss of accuracy, over int8, merged tokens and engines together.

`search` knows no files and no engines: a `Judge` says what a candidate loses and how fast candidates are. A candidate
is accepted if the upper bound of its loss (`accuracy_drop`) is within the limit. Many candidates are tried on the same
pictures, and the best of many by chance would promise too much. So they are tried in a fixed order, from no merged
tokens upwards, and the first that fails ends its series (fixed-sequence testing: the order does not depend on the data,
so all bounds before the first failure hold together). There are at most two series, float and 8 bits, and each is
tested at half the risk. Speed chooses among the accepted candidates; it says nothing of accuracy, so it costs no
confidence. `Workshop` is the judge for a real model and a real set of images.
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
from vitrail.inference.compare import refusal_of_drop
from vitrail.inference.engines import Engine, Name
from vitrail.inference.speed import interleave, ratio
from vitrail.io.progress import working


@dataclass(frozen=True)
class Candidate:
    """One way to run a model: an engine, a number of merged tokens, and whether in 8 bits."""

    engine: Name
    merge_tokens: int = 0
    """The number of patches that each layer merges."""
    int8: bool = False

    def __str__(self) -> str:
        parts = [self.engine, *(["int8"] if self.int8 else [])]
        patches = "1 patch" if self.merge_tokens == 1 else f"{self.merge_tokens} patches"
        return ", ".join([*parts, *([f"{patches} merged a layer"] if self.merge_tokens else [])])


PLAIN_CANDIDATE = Candidate("torch")
"""The plain model in torch, which all candidates are compared with."""


@dataclass(frozen=True)
class Trial:
    """A candidate and what was measured of it."""

    candidate: Candidate
    drop: Drop
    speedup: float | None = None
    """How many times as fast as the plain model it is; None if its loss was too large, so that it was not timed."""


@dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    chosen: Trial
    """The fastest of those accepted."""
    trials: tuple[Trial, ...]
    """All candidates that were tested, in their order."""


class Judge(Protocol):
    """Measures candidates for `search`."""

    def drop(self, candidate: Candidate, tests: int) -> Drop:
        """Estimates what a candidate loses compared with PLAIN; `tests` bounds are to hold together."""
        ...

    def speedups(self, candidates: Sequence[Candidate]) -> Mapping[Candidate, float]:
        """Measures how many times as fast as PLAIN each candidate is; all take turns."""
        ...


def search(
    judge: Judge,
    *,
    engines: Sequence[Name],
    most: int,
    max_drop: float,
    int8: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> SearchResult:
    """Finds the fastest candidate whose loss is at most `max_drop` points with 95 % confidence.

    Args:
        judge: Measures losses and speeds.
        engines: What the model may run on; int8 is tried on ONNX Runtime only.
        most: The largest number of patches that a layer may merge.
        max_drop: The largest loss of top-1, in percentage points.
        int8: Whether to try 8 bits.
        say: Is called with each result in a line.

    Raises:
        UserError: No candidate can promise so small a loss.
    """
    unmerged = [Candidate(engine) for engine in engines]
    speeds = judge.speedups(unmerged) if len(unmerged) > 1 else {unmerged[0]: 1.0}
    series = [max(unmerged, key=lambda each: speeds[each])]
    if int8 and "onnxruntime" in engines:
        series.append(Candidate("onnxruntime", int8=True))
    trials: list[Trial] = []

    def kept(candidate: Candidate) -> bool:
        """Estimates the loss of a candidate, notes it, and tells whether it is within the limit."""
        trials.append(Trial(candidate, drop := judge.drop(candidate, len(series))))
        say(f"{candidate}: {drop.sentence()}")
        return drop.within(max_drop)

    finalists: list[Candidate] = []
    for first in series:
        passed = list(takewhile(kept, (replace(first, merge_tokens=r) for r in merge_steps(most))))
        finalists += dict.fromkeys(passed[:1] + passed[-1:])
    if not finalists:
        raise refusal_of_drop(min((trial.drop for trial in trials), key=lambda drop: drop.bound), max_drop)
    speeds = judge.speedups(finalists)
    for each in finalists:
        say(f"{each}: {speeds[each]:.2f} x")
    fastest = max(finalists, key=lambda each: speeds[each])
    timed = tuple(replace(trial, speedup=speeds.get(trial.candidate)) for trial in trials)
    return SearchResult(next(trial for trial in timed if trial.candidate == fastest), timed)


def merge_steps(most: int) -> list[int]:
    """Lists the numbers of merged patches to try: each up to 4, then every second, and `most`."""
    return sorted({*range(min(most, 4) + 1), *range(4, most + 1, 2), most})


LabelledBatches = Iterable[tuple[np.ndarray, np.ndarray]]
"""Batches of (images, labels) to compare models on, as `compare.CheckSet` gives them; gone through once for each
candidate."""


class Workshop:
    """The judge of candidates of a real model, on a set of pictures.

    Args:
        model: The model to run in other ways.
        folder: Where exported files are put.
        pictures: What losses are measured on.
        batch_size: The batch size at which speed is measured.
        opset: The version of ONNX's operators.
    """

    def __init__(
        self, model: Any, folder: Path, pictures: LabelledBatches, batch_size: int = 8, opset: int = 20
    ) -> None:
        self.model, self.folder, self.pictures = model, folder, pictures
        self.batch_size, self.opset = batch_size, opset
        self._engines: dict[Candidate, Engine] = {}
        self._plain: tuple[np.ndarray, np.ndarray] | None = None

    def drop(self, candidate: Candidate, tests: int) -> Drop:
        """Estimates what a candidate loses; the plain model's logits are computed once."""
        if self._plain is None:
            self._plain = self.logits(PLAIN_CANDIDATE)
            if not len(self._plain[0]):
                raise UserError("--fast needs images to check accuracy on: not one could be read")
        before, labels = self._plain
        return estimate_drop(before, self.logits(candidate)[0], labels, tests=tests)

    def logits(self, candidate: Candidate) -> tuple[np.ndarray, np.ndarray]:
        """Computes the logits [pictures, classes] of a candidate on all pictures, and returns them with the labels."""
        engine = self.engine(candidate)
        with engine.running():
            pairs = [(engine.outputs(images), labels) for images, labels in self.pictures]
        if not pairs:
            return np.empty((0, 0)), np.empty(0, int)
        return np.concatenate([each for each, _ in pairs]), np.concatenate([each for _, each in pairs])

    def speedups(self, candidates: Sequence[Candidate], rounds: int = 7) -> dict[Candidate, float]:
        """Measures how many times as fast as PLAIN each candidate is, as the median of `rounds`."""
        wanted = list(dict.fromkeys([PLAIN_CANDIDATE, *candidates]))
        engines = {str(each): self.engine(each) for each in wanted}
        images = np.zeros((self.batch_size, *engines[str(PLAIN_CANDIDATE)].facts.input_shape), np.float32)
        with ExitStack() as stack:
            for engine in engines.values():
                stack.enter_context(engine.running())
            stack.enter_context(working("timing"))
            times = interleave({name: partial(engine.outputs, images) for name, engine in engines.items()}, rounds)
        return {each: ratio(times[str(each)], times[str(PLAIN_CANDIDATE)]).ratio for each in wanted}

    def engine(self, candidate: Candidate) -> Engine:
        """Returns the engine of a candidate, made when it is first needed."""
        if candidate not in self._engines:
            self._engines[candidate] = self._make(candidate)
        return self._engines[candidate]

    def file(self, candidate: Candidate) -> Path:
        """Returns the .onnx file of a candidate, made when it is first needed."""
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
        """Returns the model with the candidate's number of merged patches."""
        from vitrail.inference.token_merging import merged

        return merged(self.model, candidate.merge_tokens) if candidate.merge_tokens else self.model

    def _make(self, candidate: Candidate) -> Engine:
        """Opens the candidate's engine."""
        if candidate.engine == "torch":
            from vitrail.inference.engines.torch import TorchEngine

            return TorchEngine(self._module(candidate))
        if candidate.engine == "openvino":
            from vitrail.inference.engines.openvino import OpenVinoEngine

            return OpenVinoEngine(self.file(candidate))
        from vitrail.inference.engines.onnxruntime import OnnxEngine

        return OnnxEngine(self.file(candidate))


def most_merged(config: Any) -> int:
    """Returns how many patches each layer can merge so that one is left at the end; 0 for models that cannot merge."""
    from vitrail.inference.token_merging import refusal

    rows, columns = config.grid if config.family == "vit" else (1, 1)
    return 0 if refusal(config) else (rows * columns - 1) // config.depth
