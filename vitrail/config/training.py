"""How a model is trained, as frozen dataclasses. A recipe is a function that returns a TrainConfig."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, Self, get_args

from vitrail.config.data import DataConfig, TransformConfig
from vitrail.config.fields import check_fields, pair
from vitrail.config.model import ModelConfig
from vitrail.config.preprocessing import Preprocessing
from vitrail.config.self_supervision import SELF_SUPERVISED, DinoConfig, MaeConfig, MaskedPatchConfig
from vitrail.errors import UserError

Precision = Literal["float32", "bf16", "fp16"]
Freeze = Literal["nothing", "backbone"]
FirstHead = Literal["zero", "closed_form"]
Parallel = Literal["ddp", "fsdp"]
ClassWeights = Literal["none", "balanced"]


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
    objective: str = "softmax"
    """A loss of the task (of classes: softmax, sigmoid) learns from targets; the default stands for the task's first.
    masked_patch, mae and dino learn without them, and their model has no head."""
    class_weights: ClassWeights = "none"
    """How much a sample of each class counts in the loss. balanced: n / (K n_c) of the training split's n samples in K
    classes, so that every class counts alike; `best` is then chosen by the balanced accuracy."""
    masked_patch: MaskedPatchConfig = field(default_factory=MaskedPatchConfig)
    mae: MaeConfig = field(default_factory=MaeConfig)
    dino: DinoConfig = field(default_factory=DinoConfig)

    epochs: float | None = None
    """Passes over the training split. One of epochs and steps is given."""
    steps: int | None = None
    batch_size: int = 128
    """Images an optimizer step sees, all processes together."""
    accumulate: int = 1
    """Parts a batch is computed in, to save memory; the result is the same up to rounding."""
    ema: float = 0.0
    """Decay of the running average of the weights, which is then what is evaluated and kept; 0: none."""

    init_from: str = ""
    """Fine-tuning: the model to start from. The head is new, and positions are interpolated."""
    head: FirstHead = "zero"
    """What the head is before the first step. zero: as the paper has it; closed_form: solved on the features of the
    training images, and kept as the run's `probe`."""
    freeze: Freeze = "nothing"
    """backbone: only the head learns (a linear probe); with a head in closed form there is nothing left to train."""

    seed: int = 0
    device: str = "auto"
    """auto takes CUDA, then MPS, then the CPU."""
    parallel: Parallel = "ddp"
    """Over several processes: ddp has the whole model in each, fsdp a part of it. One process needs neither."""
    precision: Precision = "float32"
    compile: bool = False
    evaluate_every: int = 0
    """Steps between evaluations on the validation split; 0: ten times in the run."""
    patience: int = 0
    """Stop after so many evaluations in a row without a better one; 0: never. The schedule of the learning rate stays
    that of the whole run."""
    snapshot_every: int = 0
    """Steps between snapshots; 0: as often as evaluations. One is written at the end and on interruption anyway."""
    log_every: int = 10
    tensorboard: bool = False

    def __post_init__(self) -> None:
        _choice(self, "precision", get_args(Precision))
        _choice(self, "freeze", get_args(Freeze))
        _choice(self, "head", get_args(FirstHead))
        _choice(self, "parallel", get_args(Parallel))
        _choice(self, "class_weights", get_args(ClassWeights))
        for name in ("batch_size", "accumulate", "log_every"):
            _within(self, name, least=1)
        for name in ("evaluate_every", "patience", "snapshot_every"):
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
        if self.self_supervised:
            _check_self_supervised(self)

    @property
    def self_supervised(self) -> bool:
        return self.objective in SELF_SUPERVISED

    @property
    def local_size(self) -> tuple[int, int]:
        """Of dino's small crops: as asked for, else three sevenths of the picture in whole patches."""
        if self.dino.local_size is not None:
            return pair(self.dino.local_size)
        step = self.model.patch_pixels
        rows, columns = (max(step, round(side * 3 / 7 / step) * step) for side in self.model.rows_columns)
        return rows, columns

    def total_steps(self, samples: int) -> int:
        """Optimizer steps of the whole run, for a training split of `samples`."""
        if self.steps is not None:
            return int(self.steps)
        return max(1, round((self.epochs or 0) * samples / self.batch_size))

    def with_(self, **changes: Any) -> Self:
        check_fields(type(self), changes)
        return replace(self, **changes)

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "data": self.data.to_json(), "preprocessing": self.preprocessing.to_json()}

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


def scaled_warmup(config: TrainConfig, planned: TrainConfig, samples: Callable[[], int]) -> TrainConfig:
    """The configuration with its warm-up in proportion, where it takes fewer steps than was planned. `samples` counts
    the training split, where that has to be known."""
    warmup = config.schedule.warmup_steps
    if not warmup:
        return config
    if config.steps is not None and planned.steps is not None:
        share = config.steps / planned.steps
    elif config.epochs is not None and planned.epochs is not None:
        share = config.epochs / planned.epochs
    else:
        count = samples()
        share = config.total_steps(count) / planned.total_steps(count)
    return config.with_(schedule=replace(config.schedule, warmup_steps=round(warmup * min(1.0, share))))


def _check_self_supervised(config: TrainConfig) -> None:
    """What does not go together is refused here, before any data is read."""
    name, model, transform = config.objective, config.model, config.transform
    if model.num_classes:
        object.__setattr__(config, "model", model.with_(num_classes=0, representation_size=0, head_bias=0.0))
    if model.family != "vit":
        raise UserError(f"objective {name} needs a Vision Transformer, not a {model.family}")
    if transform.mixup or transform.cutmix or transform.label_smoothing:
        raise UserError(f"mixup, cutmix and label smoothing are for labels, which objective {name} does not use")
    if config.class_weights != "none":
        raise UserError(f"class_weights are for labels, which objective {name} does not use")
    if config.freeze != "nothing":
        raise UserError(f"freeze {config.freeze} leaves objective {name} nothing to learn: there is no head")
    if config.compile:
        raise UserError(f"compile goes with objectives that learn from targets, not with {name}")
    if name == "dino":
        if config.ema:
            raise UserError("objective dino keeps an average of its own, the teacher: ema must be 0")
        try:
            model.grid_for(config.local_size)
        except UserError as error:
            raise UserError(f"dino: local_size: {error}") from None
        small, large = config.local_size, model.rows_columns
        if small[0] > large[0] or small[1] > large[1]:
            raise UserError(
                f"dino: local_size {small[0]} x {small[1]} is larger than the pictures, {large[0]} x {large[1]}: leave "
                "--dino.local-size out, or choose a smaller one"
            )
    if not SELF_SUPERVISED[name].hides_patches:
        return
    if model.stages is not None:
        raise UserError(f"objective {name} hides patches of pixels, and the stem of a hybrid sees beyond a patch")
    if model.patch_dropout:
        raise UserError(f"objective {name} chooses the patches itself: patch_dropout must be 0")
    inside = model.position_kind.in_attention or model.positions_at != "stem"
    if name == "mae" and (model.attention == "axial" or inside):
        raise UserError(
            "objective mae gives the encoder some of the patches: it needs full attention, and positions that are "
            "added once, at the stem"
        )
    if model.grid == (1, 1):
        raise UserError(
            f"objective {name} hides some patches and shows the others, and here a picture is a single one: choose a "
            "smaller --model.patch-size"
        )
    if name == "masked_patch" and config.masked_patch.target != "pixels" and model.channels > 4:
        raise UserError(
            f"masked_patch target {config.masked_patch.target}: {model.channels} channels of 3 bits are too many "
            "classes; choose target pixels"
        )
    if name == "masked_patch" and config.masked_patch.target == "small" and model.patch_size < 4:
        raise UserError(f"masked_patch target small: a patch of {model.patch_size} pixels cannot be shrunk to 4 x 4")


def _choice(config: Any, name: str, allowed: tuple[str, ...]) -> None:
    if getattr(config, name) not in allowed:
        raise UserError(f"{name} is {getattr(config, name)!r}; choose one of {', '.join(allowed)}")


def _within(config: Any, name: str, least: float, most: float | None = None, above: bool = False) -> None:
    value = getattr(config, name)
    right = isinstance(value, (int, float)) and (value > least if above else value >= least)
    if not right or (most is not None and value > most):
        bound = f"above {least}" if above else f"at least {least}"
        raise UserError(f"{name} must be {bound}{'' if most is None else f' and at most {most}'}, not {value!r}")
