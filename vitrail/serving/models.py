"""The models that are served: by name, loaded before the first request, each with its lanes and its health."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.checkpoints.published import asked_for
from vitrail.errors import UserError
from vitrail.inference.choose import Loading, open_engine
from vitrail.inference.engines import FEATURES, Engine
from vitrail.inference.predictor import default_workers
from vitrail.insight.position_similarity import has_positions
from vitrail.models.cost import cost
from vitrail.models.vit import ViT
from vitrail.serving.attention import AttentionRun
from vitrail.serving.batcher import Batcher, Lane
from vitrail.serving.images import Preparer
from vitrail.serving.limits import Limits
from vitrail.serving.metrics import Metrics
from vitrail.serving.refusals import Refusal

EXPORTED = (".onnx", ".xml")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SHOWN = 10
"""Labels in the description of a model, to show what kind they are."""


@dataclass
class Served:
    """A model that answers. `warm` and `failing` are what its health is made of."""

    name: str
    engine: Engine
    preparer: Preparer
    lanes: dict[str, Lane] = field(default_factory=dict)
    warm: bool = False
    failing: bool = False

    @property
    def network(self) -> ViT | None:
        """The model itself, where its attention can be looked at: PyTorch runs it, and it has attention."""
        model = getattr(self.engine, "model", None)
        return model if type(model) is ViT else None  # one with merged tokens has no grid any more

    @property
    def output(self) -> str:
        """The name of the output that answers are made of."""
        return self.engine.facts.output

    def lane(self, what: str) -> Lane:
        if what not in self.lanes:
            missing = {
                self.output: Refusal(404, "no_classes", f"the model {self.name!r} has no head, so it names no classes"),
                FEATURES: Refusal(404, "no_features", f"the model {self.name!r} was exported without its features"),
            }
            raise missing.get(what) or Refusal(
                404, "no_attention", f"the model {self.name!r} has no attention to look at, or its engine hides it"
            )
        return self.lanes[what]

    def describe(self) -> dict[str, Any]:
        facts, config = self.engine.facts, self.engine.facts.config
        vit = config.family == "vit"
        first = [facts.label(index) for index in range(min(_SHOWN, config.num_classes))]
        return {
            "name": self.name,
            "architecture": config.name or config.family,
            "image_size": list(facts.preprocessing.rows_columns),
            "channels": config.channels,
            "patch_pixels": config.patch_pixels if vit else None,
            "grid": list(config.grid) if vit else None,
            "depth": config.depth if vit else None,
            "num_heads": config.num_heads if vit else None,
            "num_classes": config.num_classes,
            "prefix_tokens": config.prefix_tokens if vit else 0,
            "class_token": vit and config.class_token,
            "parameters": cost(config).parameters,
            "features_width": facts.features_width,
            "labels_shown": [{"label": label, "description": words} for label, words in first],
            "engine": self.engine.name,
            "attention": "attention" in self.lanes,
            "positions": self.network is not None and has_positions(self.network),
        }


class Models:
    """All that are served, the first one for those who name none."""

    def __init__(self, engines: dict[str, Engine], limits: Limits, metrics: Metrics):
        assert engines
        self.served = {
            name: Served(name, engine, Preparer(engine.facts.preprocessing, limits.max_pixels))
            for name, engine in engines.items()
        }
        self.limits = limits
        for served in self.served.values():
            self._add_lanes(served, metrics)

    def __iter__(self) -> Iterator[Served]:
        return iter(self.served.values())

    def get(self, name: str | None) -> Served:
        if not name:
            return next(iter(self.served.values()))
        if name not in self.served:
            known = ", ".join(self.served)
            raise Refusal(404, "no_such_model", f"there is no model {name[:64]!r}; there are {known}")
        return self.served[name]

    def running(self) -> list[AbstractContextManager[None]]:
        return [served.engine.running() for served in self]

    def max_queue(self) -> int:
        """As many prepared images as the limits allow, in number and in memory."""
        largest = max(4 * int(np.prod(served.engine.facts.input_shape)) for served in self)
        return min(self.limits.max_queue, max(self.limits.max_batch, self.limits.max_memory_bytes // largest))

    def _add_lanes(self, served: Served, metrics: Metrics) -> None:
        def watch(what: str, decides: bool) -> Callable[[int, float, Exception | None], None]:
            sizes, seconds = metrics.batch_sizes.labels(served.name, what), metrics.compute.labels(served.name, what)

            def after(size: int, took: float, error: Exception | None) -> None:
                sizes.observe(size)
                seconds.inc(took)
                if decides:
                    served.failing = error is not None

            return after

        def add(what: str) -> None:
            def run(inputs: list[np.ndarray]) -> list[Any]:
                answers = served.engine.run(what, np.stack(inputs))
                return list(answers) if np.isfinite(answers).all() else _finite(answers)

            served.lanes[what] = Lane(
                f"{served.name}/{what}", served.preparer, run, self.limits.max_batch, after=watch(what, True)
            )

        if served.engine.facts.config.num_classes:
            add(served.output)
        add(FEATURES)
        if served.network is not None:
            run = AttentionRun(served.network)
            lane = Lane(
                f"{served.name}/attention", run.prepare(served.preparer), run, 1, after=watch("attention", False)
            )
            served.lanes["attention"] = lane

    async def warm_up(self, served: Served, batcher: Batcher) -> None:
        """A real pass of one image and of a full batch, by the threads that will compute; then it is ready."""
        image = np.zeros(served.engine.facts.input_shape, np.float32)
        for what, lane in list(served.lanes.items()):
            if what == "attention":
                continue
            for count in sorted({1, self.limits.max_batch}):
                answers = await batcher.submit(lane, [image] * count).future
                if refusals := [answer for answer in answers if isinstance(answer, Refusal)]:
                    if what == FEATURES and served.output in served.lanes:  # exported without: predictions still work
                        del served.lanes[what]
                        served.failing = False
                        break
                    raise refusals[0]
        served.warm, served.failing = True, False


def _finite(answers: np.ndarray) -> list[Any]:
    """Answers that are no numbers cannot be said in JSON, and mean nothing."""
    refusal = Refusal(422, "not_finite", "the model's answer to this input is not finite")
    return [row if np.isfinite(row).all() else refusal for row in answers]


def open_engines(
    given: Iterable[str],
    engine: str | None = None,
    *,
    workers: int | None = None,
    loading: Loading | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Engine]:
    """`NAME=MODEL` or `MODEL`, which is then called after its file or folder.

    Unless told otherwise PyTorch runs what it can, not what is fastest: only there attention can be looked at.
    """
    if workers is not None and workers < 1:
        raise UserError(f"--workers must be at least 1, not {workers}")
    count = default_workers(single=False) if workers is None else workers
    engines: dict[str, Engine] = {}
    for each in given:
        name, source = _name(each)
        if name in engines:
            raise UserError(f"{each}: two models would be called {name!r}; give them names: first=MODEL second=MODEL")
        exported = Path(source).suffix.lower() in EXPORTED
        chosen = engine or (None if exported else "torch")
        engines[name] = open_engine(source, chosen, workers=count, loading=loading, say=say)
    if not engines:
        raise UserError("give at least one MODEL to serve: Ti/16 or another name, a bundle, a run, a weights file")
    return engines


def _name(given: str) -> tuple[str, str]:
    name, sign, source = given.partition("=")
    if sign and source and _NAME.fullmatch(name) and not Path(given).exists():
        return name, source
    if asked_for(given):
        return re.sub(r"[^A-Za-z0-9._-]", "-", given)[:64], given
    last = Path(given) if given.startswith("hf:") else Path(given).resolve()
    stem = last.stem if last.is_file() else last.name
    if stem in ("bundle", "best"):  # of a run: the run has the name
        stem = last.parent.name
    return re.sub(r"[^A-Za-z0-9._-]", "-", stem)[:64] or "model", given
