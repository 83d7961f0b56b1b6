"""Configures how a model is trained, as frozen dataclasses. A recipe is a function that returns a TrainConfig."""

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Annotated, Any, Literal

from vitrail.config.data import DataConfig, TransformConfig
from vitrail.config.fields import (
    Configuration,
    NotNegative,
    Positive,
    Share,
    SharePositive,
    Whole,
    pair,
)
from vitrail.config.model import ModelConfig
from vitrail.config.preprocessing import Preprocessing
from vitrail.config.self_supervision import SELF_SUPERVISED, DinoConfig, MaeConfig, MaskedPatchConfig
from vitrail.errors import UserError

Precision = Literal["float32", "bf16", "fp16"]
"""The precision of forward and backward passes."""
Freeze = Literal["nothing", "backbone"]
"""Which weights do not learn."""
FirstHead = Literal["zero", "closed_form"]
"""How the head begins."""
Parallel = Literal["ddp", "fsdp"]
"""How a training is distributed over processes."""
ClassWeights = Literal["none", "balanced"]
"""How much the samples of each class count."""


@dataclass(frozen=True)
class OptimizerConfig(Configuration):
    """The optimizer. Weight decay is decoupled, and not applied to biases, norms, tokens and positions."""

    name: Literal["adamw", "sgd"] = "adamw"
    """Optimizer: adamw, or sgd with momentum."""
    lr: Positive = 1e-3
    """Peak learning rate, for the whole batch."""
    weight_decay: NotNegative = 0.1
    """Weight decay: each step shrinks the weights by this times the learning rate."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW: decay of the running means of gradients and of their squares."""
    momentum: float = 0.9
    """SGD: momentum."""
    layer_decay: SharePositive = 1.0
    """Factor from the learning rate of a layer to that of the layer before it; 1: the same for all layers."""
    clip: NotNegative = 1.0
    """Largest norm of all gradients together; larger ones are scaled down to it. 0: no limit."""

    part = "optimizer"


@dataclass(frozen=True)
class ScheduleConfig(Configuration):
    """The learning rate over the steps: a linear warm-up to the peak, then a decay."""

    kind: Literal["cosine", "linear", "stable", "constant"] = "cosine"
    """Shape of the decay. cosine, linear: from the peak to final_lr over all steps; stable: at the peak until the last
    decay_fraction of the steps, then linearly down; constant: no decay."""
    warmup_steps: Annotated[int, Whole(0)] = 0
    """Steps in which the learning rate rises linearly from 0 to its peak."""
    final_lr: NotNegative = 0.0
    """Learning rate at the end of the decay."""
    decay_fraction: Share = 0.2
    """Share of the steps in which the learning rate decays, if kind is stable."""

    part = "schedule"


@dataclass(frozen=True)
class TrainConfig(Configuration):
    """Everything that a training depends on. With the same data, seed and number of threads it ends in the same
    weights."""

    recipe: str = ""
    """Name of the recipe that the other fields were taken from. It is for people only: nothing depends on it."""
    model: ModelConfig = field(default_factory=ModelConfig)
    """The model. Its num_classes is taken from the data."""
    data: DataConfig = field(default_factory=DataConfig)
    """Where samples come from."""
    transform: TransformConfig = field(default_factory=TransformConfig)
    """How training pictures are changed at random."""
    preprocessing: Preprocessing = field(default_factory=Preprocessing)
    """How pictures are prepared for evaluation; it is kept in the bundle. Its image_size follows the model's."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """How weights are updated."""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """The learning rate over the steps."""
    objective: str = "softmax"
    """What is learned. From targets: a loss of the task, such as softmax or sigmoid for classes; softmax stands for the
    first loss of any other task. Without targets, with a model that has no head: masked_patch, mae or dino."""
    class_weights: ClassWeights = "none"
    """How much a sample of each class counts in the loss. none: all alike; balanced: n / (K n_c), for n training
    samples in K classes with n_c in class c, so that every class counts alike. The best model is then chosen by
    balanced accuracy."""
    masked_patch: MaskedPatchConfig = field(default_factory=MaskedPatchConfig)
    """Settings of the objective masked_patch."""
    mae: MaeConfig = field(default_factory=MaeConfig)
    """Settings of the objective mae."""
    dino: DinoConfig = field(default_factory=DinoConfig)
    """Settings of the objective dino."""

    epochs: Positive | None = None
    """Passes over the training split. Give epochs or steps, not both."""
    steps: Annotated[int, Whole(1)] | None = None
    """Optimizer steps of the whole training. Give epochs or steps, not both."""
    batch_size: Annotated[int, Whole(1)] = 128
    """Images in an optimizer step, all processes together."""
    accumulate: Annotated[int, Whole(1)] = 1
    """Parts that a batch is computed in, one after the other, to save memory; the result is the same up to rounding."""
    ema: Share = 0.0
    """Decay of a running average of the weights, which is then evaluated and kept in place of the weights; 0: no
    average."""

    init_from: str = ""
    """Fine-tuning: the model to start from. Its head is replaced, and its positions are interpolated."""
    head: FirstHead = "zero"
    """How the head begins. zero: at 0, as in the paper (a head of queries: at random); closed_form: computed from the
    features of the training images, and also kept as the run's `probe`."""
    freeze: Freeze = "nothing"
    """What does not learn. nothing: all weights learn; backbone: only the head learns (a linear probe), and with a head
    in closed form there is nothing left to train."""

    seed: int = 0
    """Seed of the order of the samples, of augmentation, dropout and initial weights."""
    device: str = "auto"
    """Where the model is trained: cpu, cuda or mps; auto takes CUDA if there is any, else MPS, else the CPU."""
    parallel: Parallel = "ddp"
    """How several processes share the work. ddp: each holds the whole model; fsdp: each holds a part of it."""
    precision: Precision = "float32"
    """Precision of forward and backward passes; the weights themselves stay in float32."""
    compile: bool = False
    """Whether the model is compiled by torch.compile: a slower start, then faster steps."""
    evaluate_every: Annotated[int, Whole(0)] = 0
    """Steps between evaluations on the validation split; 0: ten evaluations in the whole training."""
    patience: Annotated[int, Whole(0)] = 0
    """Evaluations in a row without a better one after which training stops; 0: it does not stop early. The learning
    rate follows the schedule of the whole training all the same."""
    snapshot_every: Annotated[int, Whole(0)] = 0
    """Steps between snapshots, from which a run can be resumed; 0: as often as evaluations. One is written at the end
    and on interruption in any case."""
    log_every: Annotated[int, Whole(1)] = 10
    """Steps between records of the training loss in metrics.jsonl."""
    tensorboard: bool = False
    """Whether metrics are also written for TensorBoard."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.epochs is None) == (self.steps is None):
            raise UserError("give one of epochs and steps" + (", not both" if self.steps is not None else ""))
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
        """Whether the objective learns without targets."""
        return self.objective in SELF_SUPERVISED

    @property
    def local_size(self) -> tuple[int, int]:
        """Returns rows and columns of dino's small crops: as set, or else three sevenths of the picture in whole
        patches."""
        if self.dino.local_size is not None:
            return pair(self.dino.local_size)
        step = self.model.patch_pixels
        rows, columns = (max(step, round(side * 3 / 7 / step) * step) for side in self.model.rows_columns)
        return rows, columns

    def total_steps(self, samples: int) -> int:
        """Returns the optimizer steps of the whole training on `samples` training samples."""
        if self.steps is not None:
            return int(self.steps)
        return max(1, round((self.epochs or 0) * samples / self.batch_size))

    def to_json(self) -> dict[str, Any]:
        """Returns all fields as a dict; the model's with its task, which a run has always named."""
        kept = {*self.model.to_json(), "task"}
        return {**super().to_json(), "model": {name: each for name, each in asdict(self.model).items() if name in kept}}


def scaled_warmup(config: TrainConfig, planned: TrainConfig, samples: Callable[[], int]) -> TrainConfig:
    """Shortens the warm-up of a training that has fewer steps than planned, in proportion.

    Args:
        config: the training; its warm-up is the planned one.
        planned: the training as the recipe has it.
        samples: counts the training split; called only if that is needed.
    """
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
    """Raises a UserError for settings that do not go with a self-supervised objective, before any data is read."""
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
