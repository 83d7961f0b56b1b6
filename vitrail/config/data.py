"""Where samples come from, and what is done to a picture before a model sees it in training."""

from dataclasses import asdict, dataclass
from typing import Any, Literal, Self, get_args

from vitrail.config.fields import check_fields
from vitrail.config.preprocessing import Resample, rising
from vitrail.errors import UserError

TrainCrop = Literal["inception", "pad", "evaluation"]
EraseFill = Literal["noise", "mean"]
Shuffle = Literal["auto", "global", "shards"]


@dataclass(frozen=True)
class DataConfig:
    """Where samples come from and how they are read."""

    source: str = "mnist5k"
    """digits, mnist5k, a folder of class folders, a .csv or .parquet table of image files, a folder or glob of .tar
    shards, .parquet files, COCO JSON or its folder, a folder of idx or CIFAR files, hf:owner/name, or the URL of shards
    or parquet files (s3://, gs://, hf://, file://)."""
    split_seed: int = 0
    """Seeds the split of a source that has none of its own."""
    val_fraction: float = 0.1
    """Share set aside for validation where the source has no val split; 0: none."""
    test_fraction: float = 0.1
    """Share set aside for the test where the source has no splits at all; 0: none."""
    train_size: int | None = None
    """Train on so many samples only, every class in its proportion, chosen by `split_seed`; None: on all."""
    val_size: int | None = None
    """Validate on so many samples only, chosen alike; 0: on none, even where the source has a val split."""
    task: str | None = None
    """What the data is taken to answer, where it could be more than one thing; None: told by the data."""
    max_bad: float | str = 0.01
    """Largest share of unreadable images (0.01 or 1%) before training stops."""
    workers: int | None = None
    """Threads that read and augment; 0: none beside the loop, None: chosen for the machine."""
    shuffle: Shuffle = "auto"
    """global: any sample anywhere; shards: the shards in a new order each epoch, then their samples by blocks, so that
    only a few shards are read at a time; auto: shards where they have to be fetched, else global."""
    shuffle_buffer: int = 10_000
    """Samples in such a block."""
    max_pixels: int = 178_956_970
    """Larger images are refused by their header: a small file can claim a picture that fills the memory."""
    range: str | None = None
    """Which stored values of pictures with more than 8 bits a channel are black and white. dtype: those of their type,
    0 to 65535 for 16 bits, reduced to 8 bits; LOW,HIGH: these two, kept as floats; auto: by percentiles of a sample of
    the training split, the same as 0.1%,99.9%; others are given likewise. None: the range of the model that is
    fine-tuned, else dtype. What is found is in the run's config.json and in the bundle."""

    def __post_init__(self) -> None:
        if self.range is not None:
            parsed_range(self.range)
        object.__setattr__(self, "max_bad", fraction(self.max_bad, "max_bad"))
        for name in ("val_fraction", "test_fraction"):
            object.__setattr__(self, name, fraction(getattr(self, name), name))
        if self.val_fraction + self.test_fraction >= 1:
            raise UserError(
                f"val_fraction {self.val_fraction:g} and test_fraction {self.test_fraction:g} leave nothing to train on"
            )
        for name, least in (("train_size", 1), ("val_size", 0)):
            if getattr(self, name) is not None and getattr(self, name) < least:
                raise UserError(f"{name} must be at least {least}, not {getattr(self, name)}")
        if self.workers is not None and self.workers < 0:
            raise UserError(f"workers must be at least 0, not {self.workers}")
        if self.shuffle not in get_args(Shuffle):
            raise UserError(f"shuffle is {self.shuffle!r}; choose one of {', '.join(get_args(Shuffle))}")
        if self.shuffle_buffer < 1:
            raise UserError(f"shuffle_buffer must be at least 1, not {self.shuffle_buffer}")
        if self.max_pixels < 1:
            raise UserError(f"max_pixels must be at least 1, not {self.max_pixels}")

    @property
    def max_bad_fraction(self) -> float:
        return float(self.max_bad)

    def to_json(self) -> dict[str, Any]:
        """As a dict; range and task only where they were asked for, so that files without are as they always were."""
        values = asdict(self)
        return {name: value for name, value in values.items() if name not in ("range", "task") or value is not None}

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return _from_json(cls, values)


@dataclass(frozen=True)
class TransformConfig:
    """What happens to a picture in training. The defaults are the paper's: Inception crop and flip."""

    crop: TrainCrop = "inception"
    """inception: a random part, resized; pad: resized, then shifted by up to `padding` pixels; evaluation: the crop
    that evaluation makes, nothing random."""
    area: tuple[float, float] = (0.05, 1.0)
    """Inception crop: least and most of the picture's area."""
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    """Inception crop: least and most of width / height."""
    padding: int = 4
    """pad: pixels of `fill` on each side before a crop of the image size is cut out at random."""
    resample: Resample = "bicubic"
    flip: float = 0.5
    """Probability of a mirror image, left to right."""
    vertical_flip: float = 0.0

    rotate: float = 0.0
    """Small affine: up to so many degrees either way."""
    translate: float = 0.0
    """Small affine: up to this share of the size, along each axis."""
    scale: float = 0.0
    """Small affine: size changed by a factor from 1 - scale to 1 + scale."""
    fill: int = 0
    """The value, 0 to 255, of what padding and the small affine uncover."""

    randaugment_layers: int = 0
    """RandAugment: operations a picture, 0 for none; rand-m9-mstd0.5-inc1 has 2."""
    randaugment_magnitude: float = 9.0
    """RandAugment: strength, 0 to 10."""
    randaugment_std: float = 0.5
    """RandAugment: standard deviation of the strength."""
    randaugment_probability: float = 0.5
    """RandAugment: probability that a chosen operation is applied."""
    colour_jitter: float = 0.0
    """Brightness, contrast and saturation each changed by a factor from 1 - jitter to 1 + jitter."""

    erase: float = 0.0
    """Random erasing: its probability."""
    erase_area: tuple[float, float] = (0.02, 1 / 3)
    erase_fill: EraseFill = "noise"

    mixup: float = 0.0
    """Mixup's alpha: weights come from Beta(alpha, alpha); 0: none."""
    cutmix: float = 0.0
    """CutMix's alpha; 0: none. With mixup too, each batch gets one of them."""
    mix_probability: float = 1.0
    """Probability that a batch is mixed at all."""
    label_smoothing: float = 0.0
    repeats: int = 1
    """Repeated augmentation: so many differently augmented copies of a sample follow each other in a batch."""

    def __post_init__(self) -> None:
        for name, choices in (
            ("crop", get_args(TrainCrop)),
            ("erase_fill", get_args(EraseFill)),
            ("resample", get_args(Resample)),
        ):
            if getattr(self, name) not in choices:
                raise UserError(f"transform: {name} is {getattr(self, name)!r}; choose one of {', '.join(choices)}")
        for name in ("area", "aspect", "erase_area"):
            low, high = (float(value) for value in getattr(self, name))
            if not 0 < low <= high or (name != "aspect" and high > 1):
                raise UserError(f"transform: {name} must be two numbers, rising, above 0, not {low:g} {high:g}")
            object.__setattr__(self, name, (low, high))
        for name in ("flip", "vertical_flip", "erase", "mix_probability", "randaugment_probability"):
            if not 0 <= getattr(self, name) <= 1:
                raise UserError(f"transform: {name} is a probability, 0 to 1, not {getattr(self, name)}")
        for name in ("translate", "scale", "label_smoothing", "colour_jitter"):
            if not 0 <= getattr(self, name) < 1:
                raise UserError(f"transform: {name} must be at least 0 and below 1, not {getattr(self, name)}")
        for name in ("padding", "rotate", "randaugment_layers", "randaugment_std", "mixup", "cutmix"):
            if getattr(self, name) < 0:
                raise UserError(f"transform: {name} must be at least 0, not {getattr(self, name)}")
        if not 0 <= self.randaugment_magnitude <= 10:
            raise UserError(f"transform: randaugment_magnitude must be 0 to 10, not {self.randaugment_magnitude}")
        if not 0 <= self.fill <= 255:
            raise UserError(f"transform: fill must be 0 to 255, not {self.fill}")
        if self.repeats < 1:
            raise UserError(f"transform: repeats must be at least 1, not {self.repeats}")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        return _from_json(cls, values)


@dataclass(frozen=True)
class Percentiles:
    """A range to be found in the data: the values below which these percentages of the pixels lie."""

    low: float
    high: float


AUTO = Percentiles(0.1, 99.9)


def parsed_range(text: str) -> tuple[float, float] | Percentiles | None:
    """What --data.range asks for: None for dtype, two values, or percentiles to be found in the data."""
    if text in ("dtype", "auto"):
        return AUTO if text == "auto" else None
    parts = [part.strip() for part in text.split(",")]
    shares = [part.endswith("%") for part in parts]
    try:
        numbers = [float(part.removesuffix("%")) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) != 2 or shares[0] != shares[1]:
        raise UserError(
            f"--data.range {text}: give dtype, auto, two values such as 0,4095, or two percentiles such as 1%,99%"
        )
    low, high = rising(numbers, f"--data.range {text}:")
    if not shares[0]:
        return low, high
    if low < 0 or high > 100:
        raise UserError(f"--data.range {text}: percentiles are from 0% to 100%")
    return Percentiles(low, high)


def fraction(value: float | str, name: str) -> float:
    """A share given as 0.01 or as 1%."""
    try:
        if isinstance(value, str) and value.strip().endswith("%"):
            share = float(value.strip()[:-1]) / 100
        else:
            share = float(value)
    except ValueError:
        raise UserError(f"{name} must be a share such as 0.01 or 1%, not {value!r}") from None
    if not 0 <= share <= 1:
        raise UserError(f"{name} must be between 0 and 1 (or 0% and 100%), not {value!r}")
    return share


def _from_json(kind: Any, values: dict[str, Any]) -> Any:
    check_fields(kind, values)
    try:
        return kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()})
    except (TypeError, ValueError) as error:
        raise UserError(f"the {kind.__name__} cannot be read: {error}") from error
