"""The interface of a task: a class each for its target.py, its head.py and its meter.py.

Targets are numpy arrays whose first axis counts the samples; each task chooses the other axes itself. Outputs are what
the model returns for a batch: [batch, ...]. The names of the outputs (class names, for example) are kept in order by
the source and the bundle.
"""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from vitrail.config import ModelConfig, TrainConfig
from vitrail.errors import UserError
from vitrail.masks_and_boxes import Frame
from vitrail.tasks.audits import Audit, CheckedPicture, CheckedSplit, StoredAnnotation

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Constants = Mapping[str, Any]
"""Values that a task finds in the training data and keeps with the model, as JSON: thresholds, means, standard
deviations."""


ReadColumns = tuple[tuple[str, ...], np.ndarray]
"""What was read from columns of a table: the names of the outputs, and the targets of the rows."""


class BadCell(Exception):
    """A cell of a table that cannot be read. Rows count from 0. The caller, who has the file, adds its name to the
    message."""

    def __init__(self, column: str, row: int, reason: str) -> None:
        super().__init__(reason)
        self.column, self.row, self.reason = column, row, reason


@dataclass(frozen=True)
class Meaning:
    """The names of a model's outputs, and what else is needed to understand them."""

    names: tuple[str, ...] = ()
    """The names of the outputs, in order; empty if they are not known."""
    descriptions: Mapping[str, str] = field(default_factory=dict)
    """What a name stands for, in words, for names that are codes such as WordNet ids."""
    constants: Constants = field(default_factory=dict)
    """What the task keeps with the model."""

    def named(self, index: int) -> tuple[str, str]:
        """Returns the name and the description of an output; its number stands for a name that is not known."""
        name = self.names[index] if self.names else str(index)
        return name, self.descriptions.get(name, "")


@dataclass(frozen=True)
class Annotation:
    """A right answer that lies in the pixels of its picture, such as a mask."""

    values: np.ndarray | None
    """The answer in the picture's own pixels, in the form of its task; None if it is not known."""
    frame: Frame
    """The map between the picture and the model's input."""


class Target(ABC):
    """Stores, reads, checks and compares right answers. Without torch."""

    precedence: ClassVar[int] = 100
    """The order in which tasks try to read the columns of a table: the lowest number tries first."""
    single_class: ClassVar[bool] = False
    """Whether each sample has one class or none, as `labels` returns it."""
    plural: ClassVar[str] = "classes"
    """What the names of the outputs are names of, in the plural."""
    contents: ClassVar[str] = "labels"
    """What a target consists of, in the plural, for reports."""
    in_pixels: ClassVar[bool] = False
    """Whether right answers lie in the pixels of pictures, as masks and boxes do. They are then read one by one beside
    the pictures (`Split.annotation`), and `Split.targets` tells which samples have one."""

    @abstractmethod
    def unknown(self, count: int) -> np.ndarray:
        """Makes the targets of `count` samples whose right answers are not known."""

    @abstractmethod
    def known(self, targets: np.ndarray) -> np.ndarray:
        """Returns which samples have a target among `targets`, one a sample: bool [samples]."""

    @abstractmethod
    def strata(self, targets: np.ndarray) -> np.ndarray:
        """Assigns each sample to a group by its target among `targets`, int64 [samples]. A data set is split so that
        each group has its share in each split."""

    @abstractmethod
    def text(self, target: np.ndarray, names: Sequence[str]) -> str:
        """Writes one target as text that is equal for equal targets, whatever the order of the names; "" if it is not
        known."""

    def reordered(self, targets: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Renumbers targets for another order of the names: output i becomes output `places[i]`.

        Here targets have a column for each name, [samples, names]; a task with other targets overrides this.

        Args:
            targets: the targets in the old order.
            places: int64 [names].
        """
        moved = np.empty_like(targets)
        moved[:, places] = targets
        return moved

    @abstractmethod
    def check_names(self, where: str, names: Sequence[str]) -> None:
        """Raises a UserError, which begins with `where`, if a model cannot learn these names."""

    def from_columns(self, columns: Mapping[str, Sequence[str]], requested: bool = False) -> ReadColumns | None:
        """Reads targets from columns of a table.

        Args:
            columns: column name -> cells as text, "" for an empty cell.
            requested: whether the user has named this task with --task. If not, only columns that leave no doubt are
                read.

        Returns:
            The names of the outputs and the targets of the rows; None if the columns belong to another task.

        Raises:
            BadCell: for a cell that cannot be read, in a column whose other cells can.
        """
        return None

    def from_folders(self, folders: Sequence[Sequence[int]], names: Sequence[str]) -> np.ndarray | None:
        """Makes targets from class folders.

        Args:
            folders: for each picture the indices, among `names`, of the folders that it lies in.
            names: the names of the folders.

        Returns:
            The targets; None if a picture of this task cannot lie in several folders.
        """
        return None

    def audit(self, splits: Mapping[str, CheckedSplit], names: Sequence[str]) -> Audit:
        """Checks the targets of a data set. splits: them, by the name of their split. names: of what is answered."""
        return Audit()

    def examined(self, annotation: StoredAnnotation) -> Any:
        """Reduces `annotation`, a right answer in pixels, to the few facts of it that `audit` needs, since there is no
        room in memory for all answers. It is called from several threads."""
        raise NotImplementedError

    def checked_pages(self, pictures: Sequence[CheckedPicture], names: Sequence[str]) -> list[str]:
        """Builds HTML sections that show pictures with their right answers.

        Args:
            pictures: the samples that `Audit.samples` named and that can be read, in its order.
            names: the names of what is answered.
        """
        return []

    def stored(self, target: np.ndarray) -> Any:
        """Returns one target as JSON for the index of a sharded data set: short, and without rounding."""
        raise NotImplementedError

    def restored(self, stored: Sequence[Any], outputs: int) -> np.ndarray:
        """Makes targets from what `stored` returned for each sample. outputs: the number of names.

        Raises:
            ValueError: if `stored` cannot have returned it.
        """
        raise NotImplementedError

    def encoded(self, annotation: np.ndarray, names: Sequence[str]) -> tuple[str, bytes]:
        """Encodes a right answer in pixels as a file beside its picture, without loss.

        Args:
            annotation: the answer, in the form of this task.
            names: the names of what is answered.

        Returns:
            The ending of the file's name, and its bytes.
        """
        raise NotImplementedError

    def document(self, target: np.ndarray, names: Sequence[str]) -> dict[str, Any]:
        """Returns one target as JSON with names in place of numbers, for other programs that read shards."""
        raise NotImplementedError

    def collate(self, targets: np.ndarray) -> np.ndarray:
        """Joins the targets of a batch's samples into one array, which becomes a tensor."""
        return targets

    def moved(self, annotation: np.ndarray | None, frame: Frame) -> np.ndarray:
        """Moves a right answer in pixels as its picture was moved; all samples of a batch give the same shape.

        Args:
            annotation: the answer in the picture's own pixels; None if it is not known.
            frame: the map from the picture to the model's input.

        Returns:
            The answer in the pixels of the model's input.

        Raises:
            ValueError: if it does not fit the picture, with a predicate: "its mask has ...".
        """
        raise NotImplementedError

    def fitted(self, config: TrainConfig) -> TrainConfig:
        """Returns `config`, the configuration of a training, with what these targets need whatever its recipe says."""
        return config

    def finetuning(self, config: TrainConfig, samples: int) -> TrainConfig:
        """Returns the settings of fine-tuning that suit this task, where the user names no recipe.

        Args:
            config: the settings that suit most tasks.
            samples: the number of training samples.
        """
        return config

    def renumbered(self, annotation: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Renumbers the classes of `annotation`, a right answer in pixels: class i becomes class `places[i]`."""
        raise NotImplementedError

    def constants(self, targets: np.ndarray) -> dict[str, Any]:
        """Finds what has to be kept with a model that learns these targets."""
        return {}

    def labels(self, targets: np.ndarray) -> np.ndarray:
        """Returns the one class of each sample by `targets`, int64 [samples], -1 for none; raises a UserError if
        samples are not of one class."""
        raise UserError(
            "this data does not give each picture one class, which is what is needed here: give a folder of class "
            "folders, or another source of classes"
        )

    def counted(self, names: Sequence[str]) -> str:
        """Writes how many names there are, for the user: "10 classes"."""
        return f"{len(names)} {self.plural}"

    def fewer(self, names: Sequence[str], known: Sequence[str]) -> str:
        """Writes what it means that the data has only `names` of `known`, the names that the model answers with."""
        count = f"{len(names):,} of the model's {len(known):,} {self.plural}"
        return f"the data has {count}: it may still answer with any of them"


@dataclass(frozen=True)
class LossSettings:
    """The settings that a task makes a loss from."""

    kind: str
    """One of the task's `Head.losses`."""
    outputs: int
    """The number of the model's outputs."""
    weights: "Tensor | None" = None
    """How much the samples of each output count, as `Head.weights` returns them: [outputs]. None: all alike."""
    smoothing: float = 0.0
    """The label smoothing that soft targets were made with, from 0 to 1."""
    constants: Constants = field(default_factory=dict)
    """What the task keeps with the model."""


@dataclass(frozen=True)
class Solved:
    """A linear head that was computed in closed form rather than trained step by step."""

    weight: "Tensor"  # float32 [outputs, width]
    bias: "Tensor"  # float32 [outputs]
    method: str
    """How it was computed, in words for the user."""

    def outputs(self, features: "Tensor") -> "Tensor":
        """Maps features [samples, width] to outputs [samples, outputs]."""
        from torch.nn.functional import linear

        return linear(features, self.weight, self.bias)


@dataclass(frozen=True)
class FeatureSet:
    """Features of samples, and the targets of the same samples as a batch has them."""

    features: "Tensor"  # float32 [samples, width], or [samples, patches, width] for a head that reads every patch
    targets: "Tensor"  # [samples, ...]


@dataclass(frozen=True)
class Examples:
    """Parts of pictures, such as patches, that have one class each."""

    features: "Tensor"  # float32 [examples, width]
    labels: "Tensor"  # int64 [examples]
    owners: "Tensor"  # int64 [examples], the picture that each is a part of


class Loss(ABC):
    """A task's loss. It is called with outputs, targets and, if pictures were mixed or labels smoothed, soft
    targets."""

    @abstractmethod
    def __call__(self, outputs: Any, targets: "Tensor", soft: "Tensor | None") -> "Tensor":
        """Computes the mean loss over the batch.

        Args:
            outputs: what `outputs` returned; for most losses [batch, outputs].
            targets: the right answers, [batch, ...].
            soft: the targets as `Head.soft_targets` makes them, mixed; None if the loss is to use `targets`.
        """

    def begin(self, share: float) -> None:
        """Prepares for a step. share: the part of the training that is over, from 0 to 1."""
        return

    def outputs(self, model: Any, images: "Tensor") -> Any:
        """Computes what this loss needs of a model for images [batch, channels, rows, columns]: its outputs, in single
        precision."""
        return model(images).float()

    @abstractmethod
    def measures(self, outputs: Any, targets: "Tensor") -> dict[str, float]:
        """Computes other numbers worth seeing of a training batch, by name, each summed over the samples."""

    def to(self, device: "torch.device") -> None:
        """Moves the tensors that the loss holds to a device; most losses hold none."""
        return


class Head(ABC):
    """Makes the losses that a task is learned by, and heads in closed form."""

    losses: ClassVar[tuple[str, ...]]
    """The names of the losses; the first is the default."""

    def losses_for(self, model: ModelConfig) -> tuple[str, ...]:
        """Returns the names of the losses by which this model can learn; the first is the default."""
        return self.losses

    def adapted(self, model: ModelConfig) -> ModelConfig:
        """Returns a model's configuration with what this task's head needs of it; a UserError if it cannot have that.

        Here the head reads one vector of each picture; a task whose head reads something else overrides this.
        """
        if model.pooling != "patches":
            return model
        return model.with_(head="linear", pooling="class" if model.class_token else "average")

    @abstractmethod
    def loss(self, settings: LossSettings) -> Loss:
        """Makes the loss of a training. settings: its kind, and what was found in the training data."""

    @abstractmethod
    def soft_targets(self, targets: "Tensor", outputs: int, smoothing: float) -> "Tensor":
        """Turns targets into float [batch, outputs], which mixup, cutmix and label smoothing can blend."""

    def constants(self, kind: str) -> dict[str, Any]:
        """Returns what has to be kept with a model trained by a loss of this `kind`, besides what `Target.constants`
        found."""
        return {}

    def weights(self, targets: Any, outputs: int) -> np.ndarray:
        """Computes how much the samples of each output count so that rare outputs count as much as common ones.

        Args:
            targets: the targets of the training samples; for answers in pixels, an iterable of annotations.
            outputs: the number of the model's outputs.

        Returns:
            float64 [outputs].
        """
        raise UserError("--class-weights balanced is for classes, which this data does not have: leave it out")

    def weights_line(self, weights: np.ndarray, names: Sequence[str]) -> str:
        """Writes the weights, one for each of `names`, in a line for the user."""
        raise NotImplementedError

    def solve(self, train: FeatureSet, held_out: FeatureSet | None, settings: LossSettings) -> Solved:
        """Computes a head in closed form from the features of a frozen model.

        Args:
            train: the samples that it is computed from.
            held_out: other samples, which choose between several methods; None if there are none.
            settings: the loss that the head is to be good for.
        """
        raise NotImplementedError

    def examples(self, found: FeatureSet) -> Examples | None:
        """Returns parts of pictures by which their features can be judged; None if whole pictures are judged, by their
        strata. found: the features and targets of the pictures."""
        return None

    def unsolvable(self, kind: str) -> str | None:
        """Returns why a loss of this `kind` has no head in closed form, or None if it has one."""
        return f"objective {kind} has no head in closed form"


class Meter(ABC):
    """Measures how good a model's answers are: add every batch, then read the result. It also writes results in
    words."""

    headline: ClassVar[tuple[str, ...]]
    """The keys of a result that sum it up, besides n, skipped and loss."""
    chosen_by: ClassVar[tuple[str, ...]]
    """The keys of `headline` that `score` and `about` read."""
    adds_up: ClassVar[bool] = False
    """Whether `score` is a function of counts that add up over the samples. Then `tally` gives the counts of one
    sample, and those of many tell how surely the score of a changed model is known."""
    score_name: ClassVar[str] = ""
    """What `tally_score` is called, for tasks with such counts: "mIoU"."""

    @abstractmethod
    def __init__(self, meaning: Meaning, places: np.ndarray | None = None) -> None:
        """Makes an empty meter.

        Args:
            meaning: what the model's outputs stand for.
            places: for each name of the source the index of the model's output, int64 [names]; None if both have the
                same names in the same order.
        """
        self.meaning, self.places = meaning, places
        self.n = self.skipped = 0
        self.kept: list[Any] = []
        """One row for each sample, in order; the first entry of a row is the sample's id."""

    @abstractmethod
    def add(self, ids: list[str], targets: "Tensor", outputs: "Tensor", annotations: Sequence[Annotation] = ()) -> None:
        """Counts a batch.

        Args:
            ids: the ids of the samples.
            targets: the right answers as a batch has them, [batch, ...].
            outputs: what the model returned, [batch, outputs, ...].
            annotations: the right answers in the pictures' own pixels, for tasks whose answers lie in pixels.
        """

    @abstractmethod
    def merge(self, parts: Sequence[Any], ids: Sequence[str]) -> None:
        """Takes over what several processes measured of one split, as if this meter had measured all of it.

        Args:
            parts: the meters of the processes.
            ids: the ids of all samples of the split, in order.
        """

    @abstractmethod
    def result(self) -> dict[str, Any]:
        """Returns n (samples measured), skipped (samples that could not be read), loss, and the task's own numbers.
        Shares are fractions of 1."""

    @classmethod
    @abstractmethod
    def score(cls, result: Mapping[str, Any], balanced: bool = False) -> float:
        """Returns the number that the best model is chosen by: the higher, the better.

        Args:
            result: what `result` returned.
            balanced: whether every class is to count alike, however many samples it has.
        """

    @classmethod
    @abstractmethod
    def words(cls, result: Mapping[str, Any]) -> str:
        """Writes a result in a few words: "96.10%"."""

    @classmethod
    @abstractmethod
    def about(cls, result: Mapping[str, Any], split: str) -> str:
        """Writes a result with the split that it was measured on: "96.10% of 153 val images right"."""

    @classmethod
    @abstractmethod
    def summary(cls, result: Mapping[str, Any]) -> str:
        """Writes a result in a few words that name the number: "accuracy 96.10%"."""

    @classmethod
    @abstractmethod
    def lines(cls, result: Mapping[str, Any], names: Mapping[str, str]) -> list[str]:
        """Writes a result in full, line by line. names: what to call each output, by its name."""

    def tally(self, output: np.ndarray, annotation: Annotation) -> np.ndarray:
        """Counts one sample, for tasks whose counts add up: int64 of a shape that is the same for all samples.

        Args:
            output: what the model returned for it, without the batch axis.
            annotation: its right answer, which is known.
        """
        raise NotImplementedError

    def tally_score(self, counts: np.ndarray) -> float:
        """Returns the score, a fraction of 1, of counts as `tally` makes them, or of their sum over samples."""
        raise NotImplementedError

    def mean_change(self, before: np.ndarray, after: np.ndarray) -> float:
        """Returns how much the probabilities in two models' outputs for one sample, `before` and `after`, differ, from
        0 to 1: the largest change of a class, the mean over the places in the sample."""
        raise NotImplementedError

    def constants(self) -> dict[str, Any]:
        """Finds, from the validation samples that were added, what the model's answers depend on, such as
        thresholds."""
        return {}

    def of_all(self, parts: "Sequence[Meter]", ids: Sequence[str]) -> "Meter":
        """Merges `parts`, the meters of several processes, into a new one, with rows in the order of `ids`."""
        whole = type(self)(self.meaning, self.places)
        whole.merge(parts, ids)
        return whole


def sorted_classes(names: Iterable[str]) -> tuple[str, ...]:
    """Sorts class names: by value if all of them are whole numbers (1, 2, ... 10), else as text."""
    names = list(names)
    numbered = all(name.isascii() and name.isdigit() for name in names)
    return tuple(sorted(names, key=lambda name: (int(name) if numbered else 0, name)))


def first_repeated(names: Sequence[str]) -> str | None:
    """Returns the first name that occurs more than once; None if there is none."""
    return next((name for name, count in Counter(names).items() if count > 1), None)


def in_order(rows: list[Any], ids: Sequence[str]) -> list[Any]:
    """Sorts rows, each beginning with a sample's id, into the order of `ids`."""
    place = {name: index for index, name in enumerate(ids)}
    return sorted(rows, key=lambda row: place[row[0]])


def refuse_not_finite(ids: Sequence[str], outputs: "Tensor") -> None:
    """Raises a UserError that names the first sample whose outputs [batch, ...] are not all finite."""
    finite = outputs.isfinite().flatten(1).all(dim=1)
    if not bool(finite.all()):
        raise UserError(
            f"{ids[int((~finite).nonzero()[0])]}: the model's outputs are not numbers (nan or infinite), so there "
            "is nothing to score; its weights are broken, or too large for their precision"
        )
