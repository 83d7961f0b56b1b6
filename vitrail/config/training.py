"""How a model is trained, as frozen dataclasses. A recipe is a function that returns a TrainConfig."""

from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, Self, get_args

from vitrail.config.data import DataConfig, TransformConfig
from vitrail.config.fields import check_fields
from vitrail.config.model import ModelConfig
from vitrail.config.preprocessing import Preprocessing
from vitrail.errors import UserError

Objective = Literal["softmax", "sigmoid"]
Precision = Literal["float32", "bf16", "fp16"]
Freeze = Literal["nothing", "backbone"]


@dataclass(frozen=True)
class OptimizerConfig:
    """Weight decay is decoupled, and not applied to biases, norms, tokens and positions."""

    name: Literal["adamw", "sgd"] = "adamw"
    lr: float = 1e-3
    """The peak learning rate, for the whole batch."""
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.999)
    momentum: float = 0.9
    """Of SGD."""
    layer_decay: float = 1.0
    """Each layer learns this much slower than the one after it; 1: all alike."""
    clip: float = 1.0
    """Gradients are scaled down to this global norm; 0: never."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))
        _choice(self, "name", ("adamw", "sgd"))
        _within(self, "lr", least=0, above=True)
        _within(self, "weight_decay", least=0)
        _within(self, "clip", least=0)
        _within(self, "layer_decay", least=0, most=1, above=True)


@dataclass(frozen=True)
class ScheduleConfig:
    """Linear warm-up to the peak, then down."""

    kind: Literal["cosine", "linear", "stable", "constant"] = "cosine"
    """stable: at the peak until the last `decay_fraction` of the steps, then linearly down."""
    warmup_steps: int = 0
    final_lr: float = 0.0
    """Where the decay ends."""
    decay_fraction: float = 0.2
    """Of `stable`: the share of the steps that decay."""

    def __post_init__(self) -> None:
        _choice(self, "kind", ("cosine", "linear", "stable", "constant"))
        _within(self, "warmup_steps", least=0)
        _within(self, "final_lr", least=0)
        _within(self, "decay_fraction", least=0, most=1)


@dataclass(frozen=True)
class TrainConfig:
    """Everything a run depends on. With the same data, seed and number of threads it ends in the same weights."""

    recipe: str = ""
    """The recipe it began as; for people only."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """num_classes is taken from the data."""
    data: DataConfig = field(default_factory=DataConfig)
    transform: TransformConfig = field(default_factory=TransformConfig)
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    """For evaluation, and what goes into the bundle; its image_size follows the model's."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    objective: Objective = "softmax"

    epochs: float | None = None
    """Passes over the training split. One of epochs and steps is given."""
    steps: int | None = None
    batch_size: int = 128
    """Images an optimizer step sees."""
    accumulate: int = 1
    """Parts a batch is computed in, to save memory; the result is the same up to rounding."""
    ema: float = 0.0
    """Decay of the running average of the weights, which is then what is evaluated and kept; 0: none."""

    init_from: str = ""
    """Fine-tuning: the model to start from. The head is new, and positions are interpolated."""
    freeze: Freeze = "nothing"
    """backbone: only the head learns (a linear probe)."""

    seed: int = 0
    device: str = "auto"
    """auto takes CUDA, then MPS, then the CPU."""
    precision: Precision = "float32"
    compile: bool = False
    evaluate_every: int = 0
    """Steps between evaluations on the validation split; 0: ten times in the run."""
    snapshot_every: int = 0
    """Steps between snapshots; 0: as often as evaluations. One is written at the end and on interruption anyway."""
    log_every: int = 10
    tensorboard: bool = False

    def __post_init__(self) -> None:
        _choice(self, "objective", get_args(Objective))
        _choice(self, "precision", get_args(Precision))
        _choice(self, "freeze", get_args(Freeze))
        for name in ("batch_size", "accumulate", "log_every"):
            _within(self, name, least=1)
        for name in ("evaluate_every", "snapshot_every"):
            _within(self, name, least=0)
        _within(self, "ema", least=0, most=1)
        if (self.epochs is None) == (self.steps is None):
            raise UserError("give one of epochs and steps" + (", not both" if self.steps is not None else ""))
        for name in ("epochs", "steps"):
            if getattr(self, name) is not None:
                _within(self, name, least=0, above=True)
        if self.batch_size % self.accumulate:
            raise UserError(f"a batch of {self.batch_size} cannot be computed in {self.accumulate} equal parts")
        if self.preprocessing.rows_columns != self.model.rows_columns:
            object.__setattr__(self, "preprocessing", replace(self.preprocessing, image_size=self.model.image_size))
        if len(self.preprocessing.mean) != self.model.channels:
            raise UserError(
                f"preprocessing has {len(self.preprocessing.mean)} means, the model {self.model.channels} channels"
            )

    def total_steps(self, samples: int) -> int:
        """Optimizer steps of the whole run, for a training split of `samples`."""
        if self.steps is not None:
            return int(self.steps)
        return max(1, round((self.epochs or 0) * samples / self.batch_size))

    def with_(self, **changes: Any) -> Self:
        check_fields(type(self), changes)
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        check_fields(cls, values)
        built = dict(values)
        for each in fields(cls):
            if each.name in built and isinstance(each.type, type) and is_dataclass(each.type):
                check_fields(each.type, built[each.name])
                built[each.name] = each.type(**built[each.name])
        try:
            return cls(**built)
        except (TypeError, ValueError) as error:
            raise UserError(f"the training configuration cannot be read: {error}") from error


def _choice(config: Any, name: str, allowed: tuple[str, ...]) -> None:
    if getattr(config, name) not in allowed:
        raise UserError(f"{name} is {getattr(config, name)!r}; choose one of {', '.join(allowed)}")


def _within(config: Any, name: str, least: float, most: float | None = None, above: bool = False) -> None:
    value = getattr(config, name)
    right = isinstance(value, (int, float)) and (value > least if above else value >= least)
    if not right or (most is not None and value > most):
        bound = f"above {least}" if above else f"at least {least}"
        raise UserError(f"{name} must be {bound}{'' if most is None else f' and at most {most}'}, not {value!r}")
