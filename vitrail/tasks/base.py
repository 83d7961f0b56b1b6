"""The one interface of every task, a class for each of its five files.

Targets are numpy arrays whose first axis is the samples; what stands behind it is the task's own affair. Outputs are
what the model gives for a batch: [batch, ...]. The names of the outputs (classes, say) are in the source and the
bundle, in order.
"""

import importlib
import pkgutil
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vitrail.config import ModelConfig
from vitrail.errors import UserError

if TYPE_CHECKING:
    import pyarrow
    import torch
    from torch import Tensor

DEFAULT = ModelConfig.task
"""The task of a model or a source that names none: the only one there was."""
Constants = Mapping[str, Any]
"""What a task has found in the data and keeps with the model, as JSON: thresholds, means and deviations."""


ReadColumns = tuple[tuple[str, ...], np.ndarray]
"""What columns of a table say: the names of the outputs, and the targets of the rows."""


class BadCell(Exception):
    """A cell of a table that cannot be read; the row counts from 0. Whoever has the file says which it is."""

    def __init__(self, column: str, row: int, reason: str) -> None:
        super().__init__(reason)
        self.column, self.row, self.reason = column, row, reason


@dataclass(frozen=True)
class Meaning:
    """What the outputs of a model mean."""

    names: tuple[str, ...] = ()
    """Of the outputs, in order; empty where nobody has named them."""
    descriptions: Mapping[str, str] = field(default_factory=dict)
    """Words for names that are codes."""
    constants: Constants = field(default_factory=dict)

    def named(self, index: int) -> tuple[str, str]:
        """Gives an output's name and description; its number where it has no name."""
        name = self.names[index] if self.names else str(index)
        return name, self.descriptions.get(name, "")


@dataclass(frozen=True)
class Audit:
    """What a check of a data set says of its targets."""

    balance: dict[str, dict[str, int]] = field(default_factory=dict)
    """How many samples of each split have each name; empty where the names are not had or lacked."""
    findings: dict[str, Any] = field(default_factory=dict)
    """Keys of check.json that are the task's own."""
    lines: list[tuple[str, str]] = field(default_factory=list)
    """What a terminal shows of it: (what, the finding)."""
    tables: list[tuple[str, str, tuple[str, ...], list[tuple[str, ...]]]] = field(default_factory=list)
    """What the page shows of it: (title, what it is about, heads, rows)."""


@dataclass(frozen=True)
class Audited:
    """A split to be checked: ids and targets of its samples."""

    ids: Sequence[str]
    targets: np.ndarray


class Target(ABC):
    """What a right answer is. Without torch."""

    precedence: ClassVar[int] = 100
    """Which task's reading of a table's columns is tried first: the lower, the sooner."""
    single_class: ClassVar[bool] = False
    """Whether each sample has one class, or none, as `labels` gives it."""
    plural: ClassVar[str] = "classes"
    """What the names are names of."""
    contents: ClassVar[str] = "labels"
    """What the target of a sample is made of, in reports."""

    @abstractmethod
    def unknown(self, count: int) -> np.ndarray:
        """Makes the targets of so many samples that have none."""

    @abstractmethod
    def known(self, targets: np.ndarray) -> np.ndarray:
        """Tells which samples have a target: bool [samples]."""

    @abstractmethod
    def strata(self, targets: np.ndarray) -> np.ndarray:
        """Gives each sample a number, int64 [samples]; splits are cut so that each number keeps its share."""

    @abstractmethod
    def text(self, target: np.ndarray, names: Sequence[str]) -> str:
        """Writes one target so that it can be compared, whatever the order of the names; "" for none."""

    @abstractmethod
    def reordered(self, targets: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Translates targets to names in another order: the name at i stands at places[i] now, an int64 array."""

    @abstractmethod
    def check_names(self, where: str, names: Sequence[str]) -> None:
        """Refuses, with a UserError, names that cannot be learned."""

    def from_columns(self, columns: Mapping[str, Sequence[str]], asked: bool = False) -> ReadColumns | None:
        """Reads the columns of a table, name -> cells as text, "" for an empty one; None where they are another task's.

        asked: whether the person has named this task; else only columns that leave no doubt are taken. A cell that
        cannot be read among others that can is a BadCell.
        """
        return None

    def from_folders(self, folders: Sequence[Sequence[int]], names: Sequence[str]) -> np.ndarray | None:
        """Makes targets of the class folders that each picture lies in, by their places among the names; None where a
        picture cannot lie in several."""
        return None

    def audit(self, splits: Mapping[str, Audited], names: Sequence[str]) -> Audit:
        """Checks the targets of a data set, split by split."""
        return Audit()

    def stored(self, target: np.ndarray) -> Any:
        """Gives one target as JSON for the index of shards: short, and exact."""
        raise NotImplementedError

    def restored(self, stored: Sequence[Any], outputs: int) -> np.ndarray:
        """Makes targets of what `stored` gave; a ValueError where it cannot have been that. outputs: how many names
        there are."""
        raise NotImplementedError

    def document(self, target: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """Writes one target as JSON by name, for other programs that read shards."""
        raise NotImplementedError

    def collate(self, targets: np.ndarray) -> np.ndarray:
        """Makes the array of a batch, which becomes a tensor, of the targets of its samples."""
        return targets

    def constants(self, targets: np.ndarray) -> dict[str, Any]:
        """Finds what has to be kept with a model that learns these targets."""
        return {}

    def labels(self, targets: np.ndarray) -> np.ndarray:
        """Gives the one class of every sample, int64, -1 for none; a UserError where that is not what is asked."""
        raise UserError(
            "this data does not give each picture one class, which is what is needed here: give a folder of class "
            "folders, or another source of classes"
        )

    def counted(self, names: Sequence[str]) -> str:
        """Counts the names for the person: "10 classes"."""
        return f"{len(names)} {self.plural}"

    def fewer(self, names: Sequence[str], known: Sequence[str]) -> str:
        """Says what it means that data has only some of the names that a model knows."""
        count = f"{len(names):,} of the model's {len(known):,} {self.plural}"
        return f"the data has {count}: it may still answer with any of them"


@dataclass(frozen=True)
class LossSettings:
    """What a loss is made of."""

    kind: str
    """One of the task's losses."""
    outputs: int
    weights: "Tensor | None" = None
    """How much each output's samples count, as `Head.weights` gives them; None: all alike."""
    smoothing: float = 0.0
    """What soft targets have been smoothed by."""
    constants: Constants = field(default_factory=dict)


@dataclass(frozen=True)
class Solved:
    """A linear map from features to outputs that was solved, not trained."""

    weight: "Tensor"  # float32 [outputs, width]
    bias: "Tensor"  # float32 [outputs]
    method: str
    """How it was found, in words."""

    def outputs(self, features: "Tensor") -> "Tensor":
        """Maps features [samples, width] to outputs [samples, outputs]."""
        from torch.nn.functional import linear

        return linear(features, self.weight, self.bias)


@dataclass(frozen=True)
class FeatureSet:
    """Features of samples, and their targets as a batch has them."""

    features: "Tensor"  # float32 [samples, width]
    targets: "Tensor"  # [samples, ...]


class Loss(ABC):
    """A task's loss: called with outputs, targets and, where pictures were mixed, soft targets."""

    @abstractmethod
    def __call__(self, outputs: "Tensor", targets: "Tensor", soft: "Tensor | None") -> "Tensor":
        """Computes the mean over the batch, to be minimised."""

    @abstractmethod
    def measures(self, outputs: "Tensor", targets: "Tensor") -> dict[str, float]:
        """Computes what else is worth seeing of a training batch, by name, as sums over its samples."""

    def to(self, device: "torch.device") -> None:
        """Moves what the loss keeps to where the outputs are; most keep nothing."""
        return


class Head(ABC):
    """What is learned."""

    losses: ClassVar[tuple[str, ...]]
    """Their names; the first one is taken where none is asked for."""

    @abstractmethod
    def loss(self, settings: LossSettings) -> Loss:
        """Makes the loss of a training."""

    @abstractmethod
    def soft_targets(self, targets: "Tensor", outputs: int, smoothing: float) -> "Tensor":
        """Turns targets into float [batch, outputs], which can be mixed: mixup, cutmix, smoothing."""

    def constants(self, kind: str) -> dict[str, Any]:
        """Gives what has to be kept with a model that was trained by a loss, besides what its target found."""
        return {}

    def weights(self, targets: np.ndarray, outputs: int) -> np.ndarray:
        """Computes float64 [outputs], so that rare ones count as much as common ones, from the training targets."""
        raise UserError("--class-weights balanced is for classes, which this data does not have: leave it out")

    def weights_line(self, weights: np.ndarray, names: Sequence[str]) -> str:
        """Tells the person what the weights are."""
        raise NotImplementedError

    def solve(self, train: FeatureSet, held_out: FeatureSet | None, settings: LossSettings) -> Solved:
        """Solves a head in closed form on the features of a frozen model; held-out samples choose between methods."""
        raise NotImplementedError

    def unsolvable(self, kind: str) -> str | None:
        """Tells why there is no head in closed form for a loss, or None where there is one."""
        return f"objective {kind} has no head in closed form"


class Meter(ABC):
    """Sums over samples: add batches, then read the result. What is said of results of its kind is here too.

    meaning: of the model's outputs. places: the model's output for each name of the source, int64, where the two lists
    of names differ; None where they are the same.
    """

    headline: ClassVar[tuple[str, ...]]
    """The keys that stand for a result, besides n, skipped and loss."""
    chosen_by: ClassVar[tuple[str, ...]]
    """Those of them that `score` and `about` read."""

    @abstractmethod
    def __init__(self, meaning: Meaning, places: np.ndarray | None = None) -> None:
        self.meaning, self.places = meaning, places
        self.n = self.skipped = 0
        self.kept: list[Any] = []
        """A row for every sample, in order; the first of a row is the sample's id."""

    @abstractmethod
    def add(self, ids: list[str], targets: "Tensor", outputs: "Tensor") -> None:
        """Counts a batch."""

    @abstractmethod
    def merge(self, parts: Sequence[Any], ids: Sequence[str]) -> None:
        """Takes over what several processes measured of one split, as if one had; `ids` are the split's, in order."""

    @abstractmethod
    def result(self) -> dict[str, Any]:
        """Gives n, skipped, loss and the task's own numbers; shares are fractions of 1."""

    @classmethod
    @abstractmethod
    def score(cls, result: Mapping[str, Any], balanced: bool = False) -> float:
        """Gives the number to choose models by: the higher the better."""

    @classmethod
    @abstractmethod
    def words(cls, result: Mapping[str, Any]) -> str:
        """Says a result in few words: "96.10%"."""

    @classmethod
    @abstractmethod
    def about(cls, result: Mapping[str, Any], split: str) -> str:
        """Says a result with what it was measured on: "96.10% of 153 val images right"."""

    @classmethod
    @abstractmethod
    def summary(cls, result: Mapping[str, Any]) -> str:
        """Says a result in few words that name the number: "accuracy 96.10%"."""

    @classmethod
    @abstractmethod
    def lines(cls, result: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
        """Says a result in full, a line each; `names` has the words for the names of the outputs."""

    def constants(self) -> dict[str, Any]:
        """Finds what a model's answers should be given by, on the validation samples that were added."""
        return {}

    def of_all(self, parts: "Sequence[Meter]", ids: Sequence[str]) -> "Meter":
        """Merges into a new meter, with rows in the order of `ids`."""
        whole = type(self)(self.meaning, self.places)
        whole.merge(parts, ids)
        return whole


def sorted_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Class names sorted: as numbers where all of them are (1, 2, ... 10), else as text."""
    names = list(names)
    numbered = all(name.isascii() and name.isdigit() for name in names)
    return tuple(sorted(names, key=lambda name: (int(name) if numbered else 0, name)))


def in_order(rows: list[Any], ids: Sequence[str]) -> list[Any]:
    """Sorts rows by the place of their id, the first of each, among all ids."""
    place = {name: index for index, name in enumerate(ids)}
    return sorted(rows, key=lambda row: place[row[0]])


def refuse_not_finite(ids: Sequence[str], outputs: "Tensor") -> None:
    """Ends in a UserError that names the first sample whose outputs [batch, ...] are not all numbers."""
    finite = outputs.isfinite().flatten(1).all(dim=1)
    if not bool(finite.all()):
        raise UserError(
            f"{ids[int((~finite).nonzero()[0])]}: the model's outputs are not numbers (nan or infinite), so there "
            "is nothing to score; its weights are broken, or too large for their precision"
        )


@dataclass(frozen=True)
class Headline:
    """The first lines of a report."""

    cards: list[tuple[str, str, str]]
    """(a number, what it is, a CSS class or "")."""
    lines: list[str]
    """Sentences below them."""


class Page(ABC):
    """What reports show of a meter's numbers, as HTML, PNG and CSV.

    names: what to call the outputs. samples: pixels of `chosen` samples, uint8 [rows, columns, channels], in order.
    """

    @abstractmethod
    def __init__(self, meter: Any, names: Sequence[str], samples: Sequence[np.ndarray] = ()) -> None: ...

    @staticmethod
    @abstractmethod
    def chosen(meter: Any) -> list[str]:
        """Chooses the samples to show, by id: a fair choice, then the worst."""

    @abstractmethod
    def headline(self, result: Mapping[str, Any], brief: bool = False) -> Headline:
        """Gives the first lines, but for loss and skipped samples; `result` has the `split` it was measured on."""

    @abstractmethod
    def training(self) -> list[str]:
        """Gives the sections of a training's report."""

    @abstractmethod
    def evaluation(self) -> list[str]:
        """Gives the sections of an evaluation's report."""

    curves: ClassVar[Mapping[str, tuple[str, tuple[tuple[str, str], ...]]]]
    """Panels of a run's curves: title -> (what stands along the axis, the (kind of record, key) of each line). An axis
    that ends in % shows fractions of 1 so."""
    files: ClassVar[tuple[str, ...]]
    """The names of all pictures there may be beside a page."""

    @abstractmethod
    def pictures(self, brief: bool = False) -> dict[str, bytes]:
        """Draws the files that lie beside the page, PNG by name; `brief`: those of a training's report."""

    @abstractmethod
    def table(self) -> str:
        """Writes predictions.csv: a row for every sample that was measured."""

    @classmethod
    def best(cls, records: Sequence[Mapping[str, Any]]) -> list[str]:
        """Says which validation of a run was the best; a record is a result with its `step`."""
        return []


UNKNOWN = "unknown"
"""The answer where nothing is likely enough."""
Row = dict[str, Any]
"""What is told of one picture: `path`, `error` (None where it could be read), and the task's answer."""


@dataclass(frozen=True)
class Asked:
    """What is asked of answers."""

    top: int = 5
    """So many of the best, where a task ranks its answers."""
    threshold: float | None = None
    """The score from which an answer counts; None: the task's own."""


PLAIN = Asked()
"""What is asked where nobody says otherwise."""


def check_threshold(threshold: float | None) -> None:
    """Refuses what no score can be."""
    if threshold is not None and not 0 <= threshold <= 1:
        raise UserError(f"--threshold {threshold:g}: scores go from 0 to 1; give a number such as 0.6")


def object_schema(properties: dict[str, Any]) -> dict[str, Any]:
    """Makes the JSON schema of an object that has all of these properties."""
    return {"type": "object", "properties": properties, "required": list(properties)}


class Prediction(ABC):
    """The answer to one picture, or why there is none."""

    path: str | None
    """None for a picture that came from memory."""
    error: str | None

    @abstractmethod
    def to_json(self) -> Row:
        """Returns path, error and the answer as JSON."""


class Columns(ABC):
    """How predictions become rows, and rows become lines of a table. Writers know no task, only these."""

    @property
    @abstractmethod
    def names(self) -> Sequence[str]:
        """The header of a .csv file; the first is `path`."""

    @property
    @abstractmethod
    def given(self) -> str:
        """What gives these columns and no others, such as "--top 5": for a file that has others."""

    @abstractmethod
    def row(self, prediction: Any) -> Row:
        """Returns the row of one picture."""

    @abstractmethod
    def cells(self, row: Row) -> list[str]:
        """Returns the row as text, a cell for each of `names`."""

    @abstractmethod
    def document(self, row: Row) -> Row:
        """Returns the row as JSON gives it."""

    @abstractmethod
    def schema(self) -> "pyarrow.Schema":
        """Returns the columns of a .parquet file, `path` among them."""

    @abstractmethod
    def lines(self, row: Row) -> list[str]:
        """Returns what a terminal shows of the answer below the path, safe to print."""


class Answer(ABC):
    """From the model's output to what is told. Without torch."""

    output: ClassVar[str]
    """The name of the model's output in an exported file."""

    @abstractmethod
    def check(self, asked: Asked, meaning: Meaning) -> None:
        """Refuses, with a UserError, what cannot be asked of such a model."""

    @abstractmethod
    def prediction(
        self, path: str | None, output: np.ndarray | None, error: str | None, meaning: Meaning, asked: Asked
    ) -> Prediction:
        """Makes the answer to one picture of the model's output for it; `output` is None where there is an error."""

    @abstractmethod
    def columns(self, meaning: Meaning, asked: Asked) -> Columns:
        """Returns how the answers of a model are written."""

    @abstractmethod
    def schema(self) -> dict[str, Any]:
        """Returns JSON schemas, by key, of what `to_json` has besides path and error: for the server's description."""

    def folders(self, meaning: Meaning, outputs: int) -> list[str]:
        """Names the folders that pictures may be sorted into by their answers."""
        raise UserError("--sort-into is for models that give each picture one class; this one does not")

    def folder(self, prediction: Any, asked: Asked) -> str | None:
        """Chooses the folder of one picture; None where it has no answer."""
        raise NotImplementedError


class Task:
    """A task by its folder's name. Each of its files is imported when it is first asked for."""

    def __init__(self, name: str) -> None:
        self.name = name

    @cached_property
    def target(self) -> Target:
        """Opens target.py."""
        return self._open("target")

    @cached_property
    def head(self) -> Head:
        """Opens head.py, which imports torch."""
        return self._open("head")

    @cached_property
    def meter(self) -> type[Meter]:
        """Opens meter.py, which imports torch."""
        return self._open("meter")

    @cached_property
    def answer(self) -> Answer:
        """Opens answer.py."""
        return self._open("answer")

    @cached_property
    def page(self) -> type[Page]:
        """Opens page.py."""
        return self._open("page")

    def _open(self, file: str) -> Any:
        return importlib.import_module(f"vitrail.tasks.{self.name}.{file}").PART


def task_names() -> tuple[str, ...]:
    """Lists the tasks there are: the folders beside this file."""
    package = importlib.import_module("vitrail.tasks")
    return tuple(sorted(each.name for each in pkgutil.iter_modules(package.__path__) if each.ispkg))


@cache
def task(name: str) -> Task:
    """Opens a task by name."""
    if name not in task_names():
        raise UserError(f"there is no task {name!r}; there are {', '.join(task_names())}")
    return Task(name)
