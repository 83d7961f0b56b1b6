"""The models that are served: by name, loaded before the first request, each with its operations and its health."""

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.checkpoints.published import asked_for
from vitrail.data.decode_pool import BoundedDecoder, DecodePool
from vitrail.errors import UserError
from vitrail.inference.engine_selection import Loading, open_engine
from vitrail.inference.engines import FEATURES, Engine
from vitrail.inference.predictor import prediction_workers
from vitrail.insight.position_similarity import has_positions
from vitrail.masks_and_boxes import Frame
from vitrail.models.cost import cost
from vitrail.models.vit import ViT
from vitrail.serving.attention import AttentionRunner, position_similarity_document, read_class_token
from vitrail.serving.batcher import Batcher, Operation
from vitrail.serving.errors import ApiError
from vitrail.serving.images import FramedInput, Preparer
from vitrail.serving.limits import Limits
from vitrail.serving.metrics import Metrics
from vitrail.tasks import task

_EXPORTED = (".onnx", ".xml")
_NAME = re.compile(r"[A-Za-z0-9._-]{1,64}")
_SHOWN = 10
"""How many labels the description of a model holds, to show what kind they are."""


class ComputedOutput(NamedTuple):
    """The output that a model computed for one image."""

    values: np.ndarray
    """A row of the model's output."""
    frame: Frame | None
    """The map between the picture and the model's input; None for an input that was sent as it is."""


@dataclass
class ServedModel:
    """A model under the name by which requests ask for it, with its `operations` by name.

    It is healthy when it is `warm`, which is to say that it has answered once, and not `failing`: its last batch ended
    without an exception.
    """

    name: str
    engine: Engine
    preparer: Preparer
    operations: dict[str, Operation] = field(default_factory=dict)
    warm: bool = False
    failing: bool = False

    @property
    def network(self) -> ViT | None:
        """The PyTorch model, if its attention can be shown; None for other engines and other kinds of models."""
        model = getattr(self.engine, "model", None)
        return model if type(model) is ViT else None  # one with merged tokens has no grid any more

    @cached_property
    def position_similarity(self) -> dict[str, Any]:
        """The document of `GET /model/NAME/positions`, for a model with a `network`; computed at the first request."""
        assert self.network is not None
        return position_similarity_document(self.network)

    @property
    def output(self) -> str:
        """The name of the operation that predictions are made from, such as "logits"."""
        return self.engine.facts.output

    def operation(self, what: str) -> Operation:
        """Returns the operation of that name, or raises an ApiError 404 that says why the model has none."""
        if what not in self.operations:
            missing = {
                self.output: ApiError(
                    404, "no_classes", f"the model {self.name!r} has no head, so it names no classes"
                ),
                FEATURES: ApiError(404, "no_features", f"the model {self.name!r} was exported without its features"),
            }
            raise missing.get(what) or ApiError(
                404, "no_attention", f"the model {self.name!r} has no attention to look at, or its engine hides it"
            )
        return self.operations[what]

    def describe(self) -> dict[str, Any]:
        """Returns what `GET /model` tells about this model."""
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
            "class_token": vit and read_class_token(config),
            "parameters": cost(config).parameters,
            "features_width": facts.features_width,
            "labels_shown": [{"label": label, "description": words} for label, words in first],
            "engine": self.engine.name,
            "legend": task(config.task).answer.legend(facts.meaning, config.num_classes),
            "attention": "attention" in self.operations,
            "positions": self.network is not None and has_positions(self.network),
        }


class ServedModels:
    """All models of a server, by name; requests that name none get the first.

    Args:
        engines: What runs each model, by its name.
        limits: The server's limits: the size of batches, of the queue and of images.
        metrics: Where sizes and times of batches are counted.
        pool: The processes that decode images that are not plain.
    """

    def __init__(self, engines: dict[str, Engine], limits: Limits, metrics: Metrics, pool: DecodePool):
        assert engines
        decoder = BoundedDecoder(limits.decoding, pool)
        self.served = {
            name: ServedModel(name, engine, Preparer(engine.facts.preprocessing, limits.max_pixels, decoder))
            for name, engine in engines.items()
        }
        self.limits = limits
        for served in self.served.values():
            self._add_operations(served, metrics)

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self.served.values())

    def get(self, name: str | None) -> ServedModel:
        """Returns the model of that name, the first one for None or "", or raises an ApiError 404."""
        if not name:
            return next(iter(self.served.values()))
        if name not in self.served:
            known = ", ".join(self.served)
            raise ApiError(404, "no_such_model", f"there is no model {name[:64]!r}; there are {known}")
        return self.served[name]

    def running(self) -> list[AbstractContextManager[None]]:
        """Returns a context for each model, inside which its engine may run."""
        return [served.engine.running() for served in self]

    def max_queue(self) -> int:
        """Returns how many images may be pending: `Limits.max_queue`, or fewer where these would not fit in memory."""
        largest = max(4 * int(np.prod(served.engine.facts.input_shape)) for served in self)
        return min(self.limits.max_queue, max(self.limits.max_batch, self.limits.max_memory_bytes // largest))

    def _add_operations(self, served: ServedModel, metrics: Metrics) -> None:
        def watch(what: str, decides: bool) -> Callable[[int, float, Exception | None], None]:
            sizes, seconds = metrics.batch_sizes.labels(served.name, what), metrics.compute.labels(served.name, what)

            def after(size: int, took: float, error: Exception | None) -> None:
                sizes.observe(size)
                seconds.inc(took)
                if decides:
                    served.failing = error is not None

            return after

        def add(what: str) -> None:
            def run(inputs: list[FramedInput]) -> list[Any]:
                answers = served.engine.run(what, np.stack([each.image for each in inputs]))
                rows = list(answers) if np.isfinite(answers).all() else _finite(answers)
                return [
                    row if isinstance(row, ApiError) else ComputedOutput(row, each.frame)
                    for row, each in zip(rows, inputs, strict=True)
                ]

            served.operations[what] = Operation(
                f"{served.name}/{what}",
                served.preparer,
                run,
                self.limits.max_batch,
                is_apart=served.preparer.is_apart,
                after=watch(what, True),
            )

        if served.engine.facts.config.num_classes:
            add(served.output)
        add(FEATURES)
        if served.network is not None:
            run = AttentionRunner(served.network)
            operation = Operation(
                f"{served.name}/attention",
                run.prepare(served.preparer),
                run,
                1,
                is_apart=lambda given: served.preparer.is_apart(given[0]),
                after=watch("attention", False),
            )
            served.operations["attention"] = operation

    async def warm_up(self, served: ServedModel, batcher: Batcher) -> None:
        """Runs one image and a full batch through every operation, in the threads that will compute; then it is ready.

        It raises the ApiError of an operation that failed.
        """
        image = np.zeros(served.engine.facts.input_shape, np.float32)
        for what, operation in list(served.operations.items()):
            if what == "attention":
                continue
            for count in sorted({1, self.limits.max_batch}):
                answers = await batcher.submit(operation, [image] * count).future
                if errors := [answer for answer in answers if isinstance(answer, ApiError)]:
                    if (
                        what == FEATURES and served.output in served.operations
                    ):  # exported without: predictions still work
                        del served.operations[what]
                        served.failing = False
                        break
                    raise errors[0]
        served.warm, served.failing = True, False


def _finite(answers: np.ndarray) -> list[Any]:
    """Replaces rows that hold NaN or infinity, which JSON cannot express and which mean nothing, by an ApiError."""
    error = ApiError(422, "not_finite", "the model's answer to this input is not finite")
    return [row if np.isfinite(row).all() else error for row in answers]


def open_engines(
    given: Iterable[str],
    engine: str | None = None,
    *,
    workers: int | None = None,
    loading: Loading | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, Engine]:
    """Opens the models to serve and returns their engines by name.

    Args:
        given: `NAME=MODEL`, or `MODEL`, which is then named after its file or folder.
        engine: The engine's name. By default PyTorch runs all but exported files, even where another engine would be
            faster: attention can only be shown with PyTorch.
        workers: Batches that are computed at once, by default as many as `default_workers` says.
        loading: What the files cannot say about themselves.
        say: Called with one line about each thing that a person may want to know.
    """
    if workers is not None and workers < 1:
        raise UserError(f"--workers must be at least 1, not {workers}")
    count = prediction_workers(single=False) if workers is None else workers
    engines: dict[str, Engine] = {}
    for each in given:
        name, source = _name(each)
        if name in engines:
            raise UserError(f"{each}: two models would be called {name!r}; give them names: first=MODEL second=MODEL")
        exported = Path(source).suffix.lower() in _EXPORTED
        chosen = engine or (None if exported else "torch")
        engines[name] = open_engine(source, chosen, workers=count, loading=loading, say=say)
    if not engines:
        raise UserError("give at least one MODEL to serve: Ti/16 or another name, a bundle, a run, a weights file")
    return engines


def _name(given: str) -> tuple[str, str]:
    """Splits `NAME=MODEL` into name and model, or derives a name from MODEL."""
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
