"""Configures where samples come from, and how pictures are changed at random in training."""

from dataclasses import dataclass
from typing import Annotated, Literal

from vitrail.config.fields import Configuration, NotNegative, Rising, Share, ShareBelowOne, Whole, Within
from vitrail.config.preprocessing import Resample, rising
from vitrail.errors import UserError

TrainCrop = Literal["inception", "pad", "evaluation"]
"""How a training picture is cropped."""
EraseFill = Literal["noise", "mean"]
"""What random erasing puts in place of what it erases."""
Shuffle = Literal["auto", "global", "shards"]
"""How the training samples are shuffled."""


def fraction(value: float | str, name: str) -> float:
    """Reads a share given as 0.01 or as 1%; a UserError, which calls it `name`, if it is not from 0 to 1."""
    try:
        if isinstance(value, str) and value.strip().endswith("%"):
            share = float(value.strip()[:-1]) / 100
        else:
            share = float(value)
    except (TypeError, ValueError):
        raise UserError(f"{name} must be a share such as 0.01 or 1%, not {value!r}") from None
    if not 0 <= share <= 1:
        raise UserError(f"{name} must be between 0 and 1 (or 0% and 100%), not {value!r}")
    return share


@dataclass(frozen=True)
class DataConfig(Configuration):
    """The data: where samples come from and how they are read."""

    source: str = "mnist5k"
    """The data: digits, mnist5k, shapes, a folder of class folders, a folder of images with masks, a .csv or .parquet
    table of image files, a folder or glob of .tar shards, .parquet files, COCO JSON or its folder, a folder of idx or
    CIFAR files, hf:owner/name, or the URL of shards or parquet files (s3://, gs://, hf://, file://)."""
    split_seed: int = 0
    """Seed of the random splits into train, val and test, for data that is not split already."""
    val_fraction: Annotated[float, fraction] = 0.1
    """Share of the training samples set aside for validation if the data has no val split; 0: none."""
    test_fraction: Annotated[float, fraction] = 0.1
    """Share of all samples set aside for the test if the data has no splits at all; 0: none."""
    train_size: Annotated[int, Whole(1)] | None = None
    """Train on this many samples only, chosen by split_seed, with every class in its proportion; None: on all."""
    val_size: Annotated[int, Whole(0)] | None = None
    """Validate on this many samples only, chosen like those of train_size; 0: on none, even if the data has a val
    split; None: on all."""
    task: str | None = None
    """What a model is to answer, such as classification or regression, for data that can be read as more than one task;
    None: decided by the data."""
    ignore: tuple[Annotated[int, Whole(0, 65535)], ...] = ()
    """Ids in masks that are neither learned nor measured, such as 3; 255 is one of them unless a classes file names
    it."""
    max_bad: Annotated[float | str, fraction] = 0.01
    """Largest share of unreadable images (0.01 or 1%) before training stops."""
    workers: Annotated[int, Whole(0)] | None = None
    """Threads that read and augment pictures; 0: the training loop reads them itself; None: chosen for the machine."""
    shuffle: Shuffle = "auto"
    """Order of the training samples. global: any sample may follow any other; shards: the shards in a new order each
    epoch and their samples shuffled in blocks, so that only a few shards are read at a time; auto: shards if they are
    fetched from elsewhere, else global."""
    shuffle_buffer: Annotated[int, Whole(1)] = 10_000
    """Samples in a block that is shuffled at a time, if shuffle is shards."""
    max_pixels: Annotated[int, Whole(1)] = 178_956_970
    """Largest picture, in pixels, that is decoded. Larger ones are refused by their header: a small file can claim a
    picture that fills the memory."""
    range: str | None = None
    """Which stored values are black and white, for pictures with more than 8 bits a channel. dtype: the ends of their
    type, 0 and 65535 for 16 bits, reduced to 8 bits; LOW,HIGH: these two values, kept as floats; auto: percentiles 0.1
    and 99.9 of a sample of the training split; LOW%,HIGH%: other percentiles. None: the range of the model that is
    fine-tuned, else dtype. The values are written to the run's config.json and to the bundle."""

    part = "data"
    left_out = ("range", "task", "ignore")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.range is not None:
            parsed_range(self.range)
        if self.val_fraction + self.test_fraction >= 1:
            raise UserError(
                f"val_fraction {self.val_fraction:g} and test_fraction {self.test_fraction:g} leave nothing to train on"
            )

    @property
    def max_bad_fraction(self) -> float:
        """Returns `max_bad` as a fraction of 1."""
        return float(self.max_bad)


@dataclass(frozen=True)
class TransformConfig(Configuration):
    """Random changes to pictures in training. The defaults are the paper's: Inception crop and mirror images."""

    crop: TrainCrop = "inception"
    """How a training picture is cropped. inception: a random part of it, resized; pad: resized, then shifted at random
    by up to padding pixels; evaluation: as in evaluation, nothing random."""
    area: Annotated[tuple[float, float], Rising(1)] = (0.05, 1.0)
    """Smallest and largest share of the picture's area in an inception crop."""
    aspect: Annotated[tuple[float, float], Rising()] = (3 / 4, 4 / 3)
    """Smallest and largest width / height of an inception crop."""
    padding: Annotated[int, Whole(0)] = 4
    """Pixels added on each side before a crop of the image size is cut out at random, if crop is pad."""
    resample: Resample = "bicubic"
    """Interpolation when training pictures are resized."""
    flip: Share = 0.5
    """Probability of mirroring a picture left to right."""
    vertical_flip: Share = 0.0
    """Probability of mirroring a picture top to bottom."""

    rotate: NotNegative = 0.0
    """Largest random rotation, in degrees, either way."""
    translate: ShareBelowOne = 0.0
    """Largest random shift, as a share of the picture's size along each axis."""
    scale: ShareBelowOne = 0.0
    """Random change of size, by a factor from 1 - scale to 1 + scale."""
    fill: Annotated[int, Whole(0, 255)] = 0
    """Pixel value, 0 to 255, where padding, rotation, shift or scaling leave no picture."""

    randaugment_layers: Annotated[int, Whole(0)] = 0
    """RandAugment: number of operations applied to each picture, 0 for none; timm's rand-m9-mstd0.5-inc1 has 2."""
    randaugment_magnitude: Annotated[float, Within(0, 10)] = 9.0
    """RandAugment: strength of the operations, 0 to 10."""
    randaugment_std: NotNegative = 0.5
    """RandAugment: standard deviation of the strength."""
    randaugment_probability: Share = 0.5
    """RandAugment: probability that a chosen operation is applied."""
    colour_jitter: ShareBelowOne = 0.0
    """Random change of brightness, contrast and saturation, each by a factor from 1 - jitter to 1 + jitter; 0: none."""

    erase: Share = 0.0
    """Random erasing: probability that a rectangle of a picture is replaced."""
    erase_area: Annotated[tuple[float, float], Rising(1)] = (0.02, 1 / 3)
    """Random erasing: smallest and largest share of the picture's area that is replaced."""
    erase_fill: EraseFill = "noise"
    """Random erasing: what replaces the rectangle, random noise or the mean colour."""

    mixup: NotNegative = 0.0
    """Mixup: alpha of the distribution Beta(alpha, alpha) that mixing weights are drawn from; 0: no mixup."""
    cutmix: NotNegative = 0.0
    """CutMix: alpha of the distribution Beta(alpha, alpha) that shares of the area are drawn from; 0: no CutMix. With
    both mixup and CutMix, each batch gets one of them."""
    mix_probability: Share = 1.0
    """Probability that a batch is mixed at all, by mixup or CutMix."""
    label_smoothing: ShareBelowOne = 0.0
    """Label smoothing: share of each target that is spread over all classes."""
    repeats: Annotated[int, Whole(1)] = 1
    """Repeated augmentation: how many differently augmented copies of each sample a batch has."""

    part = "transform"


@dataclass(frozen=True)
class Percentiles:
    """A range to be found in the data: its ends are the pixel values below which these percentages of all pixels
    lie."""

    low: float
    high: float


AUTO = Percentiles(0.1, 99.9)
"""The percentiles that `--data.range auto` stands for."""


def parsed_range(text: str) -> tuple[float, float] | Percentiles | None:
    """Reads the text of `DataConfig.range`.

    Returns:
        None for dtype; two values; or the percentiles that are to be found in the data.

    Raises:
        UserError: if it is none of these.
    """
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
