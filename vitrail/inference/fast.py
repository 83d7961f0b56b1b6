"""The fastest model within a given loss: int8, merged tokens and engines, searched together.

`search` knows no files and no engines. It is told how to find a candidate's accuracy and the speeds of some, and asks
as little as it can: accuracy falls as more tokens are merged, so the most that may be merged is found by halving, first
in PyTorch, where a merged model costs nothing to make, then in 8 bits, from there downwards. Only what stays within
the loss is timed. `Workshop` is what answers for a real model and a real set of images.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from vitrail.errors import UserError
from vitrail.inference.engines import Engine, Name
from vitrail.inference.speed import interleave, ratio


@dataclass(frozen=True)
class Candidate:
    """One way to run a model."""

    engine: Name
    merge_tokens: int = 0
    """Patches merged in each layer."""
    int8: bool = False

    def __str__(self) -> str:
        parts = [self.engine, *(["int8"] if self.int8 else [])]
        return ", ".join([*parts, *([f"{self.merge_tokens} patches merged a layer"] if self.merge_tokens else [])])


PLAIN = Candidate("torch")
"""What all others are compared with."""


@dataclass(frozen=True)
class Trial:
    """What was found out about a candidate."""

    candidate: Candidate
    top1: float
    """A fraction of 1."""
    speedup: float | None = None
    """Times as fast as the plain model; None where accuracy ruled it out before it was timed."""


@dataclass(frozen=True)
class Outcome:
    chosen: Trial
    plain: Trial
    trials: tuple[Trial, ...]

    @property
    def drop(self) -> float:
        """Points of a hundred."""
        return 100 * (self.plain.top1 - self.chosen.top1)


class Judge(Protocol):
    def accuracy(self, candidate: Candidate) -> float:
        """Top-1 on the check set, a fraction of 1."""
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
    """The fastest on `engines` that loses at most `max_drop` points, merging up to `most` patches a layer.

    int8 is for ONNX Runtime alone. The winner's own accuracy is measured before it is believed: engines round
    differently, and where one falls below the line the next fastest is asked.
    """
    known: dict[Candidate, float] = {}

    def top1(candidate: Candidate) -> float:
        if candidate not in known:
            known[candidate] = judge.accuracy(candidate)
            say(f"{candidate}: top-1 {known[candidate]:.2%}")
        return known[candidate]

    def within(candidate: Candidate) -> bool:
        return 100 * (top1(PLAIN) - top1(candidate)) <= max_drop + 1e-9

    merges = largest(lambda r: within(Candidate("torch", r)), most)
    fitting = [Candidate(engine, r) for engine in engines for r in dict.fromkeys((0, merges))]
    if int8 and "onnxruntime" in engines and within(eight := Candidate("onnxruntime", 0, int8=True)):
        r = largest(lambda r: within(Candidate("onnxruntime", r, int8=True)), merges)
        fitting += [eight, *([Candidate("onnxruntime", r, int8=True)] if r else [])]
    speedups = judge.speedups(fitting)
    for chosen in sorted(fitting, key=lambda candidate: -speedups[candidate]):
        say(f"{chosen}: {speedups[chosen]:.2f} x")
        if within(chosen):
            trials = tuple(Trial(each, top1, speedups.get(each)) for each, top1 in known.items())
            plain = Trial(PLAIN, top1(PLAIN), 1.0)
            return Outcome(Trial(chosen, top1(chosen), speedups[chosen]), plain, trials)
    raise UserError(f"nothing on {', '.join(engines)} stays within --max-drop {max_drop:g}")


def largest(fits: Callable[[int], bool], most: int) -> int:
    """The largest number from 0 to `most` that fits, 0 unasked; where a number fits, smaller ones are taken to."""
    low, high = 0, most
    if most and fits(most):
        return most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


Batches = Callable[[], Iterable[tuple[np.ndarray, np.ndarray]]]
"""Each call goes through the check set once: images, float32 [batch, channels, rows, columns] as the model wants them,
and labels, [batch] by the model's numbers."""


class Workshop:
    """Makes candidates of a model in `folder`, and judges them on a check set."""

    def __init__(self, model: Any, folder: Path, batches: Batches, batch_size: int = 8, opset: int = 20) -> None:
        self.model, self.folder, self.batches = model, folder, batches
        self.batch_size, self.opset = batch_size, opset
        self._engines: dict[Candidate, Engine] = {}

    def accuracy(self, candidate: Candidate) -> float:
        engine, right, n = self.engine(candidate), 0, 0
        with engine.running():
            for images, labels in self.batches():
                right += int((engine.logits(images).argmax(axis=1) == labels).sum())
                n += len(images)
        if not n:
            raise UserError("--fast needs images to check accuracy on: not one could be read")
        return right / n

    def speedups(self, candidates: Sequence[Candidate], rounds: int = 7) -> dict[Candidate, float]:
        wanted = list(dict.fromkeys([PLAIN, *candidates]))
        engines = {str(each): self.engine(each) for each in wanted}
        images = np.zeros((self.batch_size, *engines[str(PLAIN)].facts.input_shape), np.float32)
        with ExitStack() as stack:
            for engine in engines.values():
                stack.enter_context(engine.running())
            times = interleave({name: partial(engine.logits, images) for name, engine in engines.items()}, rounds)
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


def check_batches(model: Any, data: str, *, split: str | None = None, batch_size: int = 8) -> Batches:
    """A check set as `Workshop` takes it."""
    from vitrail.inference.checking import check_set

    loader, places = check_set(model.card.label_names, model.card.preprocessing, data, split, batch_size)

    def batches() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for batch in loader:
            if len(batch):
                yield batch.images.numpy(), places[batch.labels.numpy()]

    return batches
