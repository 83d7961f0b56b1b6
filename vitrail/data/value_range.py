"""The range of values in pictures with more than 8 bits a channel: measuring it on a sample of them, resolving
--data.range, and notes for the user if the range that is set does not fit."""

from dataclasses import dataclass
from functools import partial

import numpy as np

from vitrail.config.data import AUTO, Percentiles, parsed_range
from vitrail.data.bad_image import BadImage
from vitrail.data.bit_depth import deep_colour, is_deep, is_deep_colour
from vitrail.data.decode import MAX_PIXELS, ValueLimits, load_npy, open_header
from vitrail.data.decode_pool import BoundedDecoder
from vitrail.data.pillow_limit import allow_pixels
from vitrail.data.sources import Split
from vitrail.errors import UserError
from vitrail.random_stream import permutation

_SAMPLES = 128
"""The number of pictures that are measured."""
_VALUES = 4096
"""The number of values, about, that are taken from each of them."""
_LITTLE = 0.1
"""If the pictures use less than this fraction of the range, there is a note."""
_CLIPPED = 0.05
"""If more than this fraction of the values is outside the range, there is a note."""


@dataclass(frozen=True)
class RangeSample:
    """The stored values in a sample of a split's pictures."""

    n: int
    """The number of pictures measured that can be read."""
    deep: int
    """The number of these with more than 8 bits a channel."""
    values: np.ndarray
    """Stored values of those with more than 8 bits, some of each picture, float64 [values]."""
    whole: bool
    """True if all these pictures hold integers."""

    @property
    def type_limits(self) -> ValueLimits:
        """Returns the range from which such values are reduced to 8 bits; None if each picture is scaled by its own
        lowest and highest value."""
        if not len(self.values) or self.values.min() < 0:
            return None
        choices = (65535.0,) if self.whole else (1.0, 255.0)
        return next(((0.0, limit) for limit in choices if self.values.max() <= limit), None)

    def between(self, percentiles: Percentiles) -> tuple[float, float]:
        """Returns the stored values at two percentiles, or the lowest and highest of all if these are equal."""
        low = float(np.percentile(self.values, percentiles.low, method="lower"))
        high = float(np.percentile(self.values, percentiles.high, method="higher"))
        return (low, high) if low < high else (float(self.values.min()), float(self.values.max()))


def measure_range(split: Split, max_pixels: int = MAX_PIXELS, decoder: BoundedDecoder | None = None) -> RangeSample:
    """Measures a sample of a split, always the same one: spread over it, or its first samples if these must be
    downloaded.

    Pictures that cannot be read are left out; a split in memory has 8 bits and is not measured.
    """
    decoder = decoder or BoundedDecoder()
    found, n, whole = [np.empty(0)], 0, True
    order = np.arange(len(split)) if split.remote else permutation(len(split), "range")
    for index in () if split.in_memory else np.sort(order[:_SAMPLES]).tolist():
        try:
            values = decoder(partial(_some_stored, max_pixels=max_pixels), split.read(index))
        except BadImage:
            continue
        n += 1
        if values.size:
            whole = whole and not np.issubdtype(values.dtype, np.floating)
            found.append(values.astype(np.float64))
    return RangeSample(n, len(found) - 1, np.concatenate(found), whole)


def _some_stored(content: bytes | np.ndarray, max_pixels: int) -> np.ndarray:
    """Returns about `_VALUES` of a picture's stored values; an empty array for a picture of 8 bits a channel."""
    values = stored_values(content, max_pixels)
    if values is None:
        return np.empty(0)
    if not np.isfinite(values).all():
        raise BadImage("has values that are not finite")
    # The step is odd so that it does not take the same columns in every row.
    return values.reshape(-1)[:: values.size // _VALUES | 1]


def stored_values(content: bytes | np.ndarray, max_pixels: int = MAX_PIXELS) -> np.ndarray | None:
    """Reads the stored values of a picture with more than 8 bits a channel, not turned upright by EXIF data.

    Returns None for pictures of 8 bits. Raises BadImage if it cannot be decoded.
    """
    if not isinstance(content, np.ndarray) and content[:6] == b"\x93NUMPY":
        content = load_npy(content, max_pixels)
    if isinstance(content, np.ndarray):
        return content if is_deep(content) and np.issubdtype(content.dtype, np.number) else None
    try:
        with allow_pixels(max_pixels):  # Pillow compares with its limit while it decodes too
            image = open_header(content, max_pixels)
            if is_deep_colour(content):
                return deep_colour(content)
            return np.asarray(image) if is_deep(image) else None
    except BadImage:
        raise
    except Exception as error:  # as in `decode`: Pillow's readers raise nearly anything on bad bytes
        raise BadImage(f"cannot be decoded ({error})") from error


def resolved(asked: str | None, own: ValueLimits, split: Split, max_pixels: int = MAX_PIXELS) -> ValueLimits:
    """Resolves the value of --data.range to stored values.

    Args:
        asked: The flag's value: a range, percentiles of the training split, or None to take `own`.
        own: The range of the model's preprocessing.
        split: The training split.
        max_pixels: The largest picture that is decoded.

    Raises:
        UserError: If percentiles are asked for and the pictures have 8 bits or one value only.
    """
    if asked is None:
        return own
    wanted = parsed_range(asked)
    if not isinstance(wanted, Percentiles):
        return wanted
    measured = measure_range(split, max_pixels)
    if not measured.deep:
        raise UserError(
            f"--data.range {asked}: none of {measured.n} pictures of the training split that were looked at has more "
            "than 8 bits a channel, and 8 bits are always taken from 0 to 255; leave --data.range out"
        )
    low, high = measured.between(wanted)
    if low >= high:
        raise UserError(f"--data.range {asked}: all values of the training split that were looked at are {low:g}")
    return low, high


def range_notes(measured: RangeSample, limits: ValueLimits) -> list[str]:
    """Returns a note if the range does not fit the pictures: all have 8 bits, many values are outside, or the pictures
    use only a little of it. limits: the range that is set; None for that of the pictures' type."""
    if not measured.deep:
        if limits is None or not measured.n:
            return []
        about = f"the range {_span(limits)} is for pictures with more than 8 bits a channel"
        return [f"{about}; those looked at ({measured.n:,}) have 8, and are taken from 0 to 255"]
    low, high = used = measured.between(AUTO)
    full_range = limits or measured.type_limits
    if full_range is None:
        return []
    outside = float(((measured.values < full_range[0]) | (measured.values > full_range[1])).mean())
    if outside > _CLIPPED:
        about = f"{outside:.0%} of the stored values, {_span(used)}, lie outside of the range {_span(full_range)}"
        return [f"{about} and are clipped: --data.range sets another in training, --preprocessing range=LOW:HIGH later"]
    share = (min(high, full_range[1]) - max(low, full_range[0])) / (full_range[1] - full_range[0])
    if share >= _LITTLE:
        return []
    levels = "" if limits else f", and in 8 bits about {max(1, round(share * 256))} of 256 levels are left of it"
    about = f"the pictures use {_span(used)} of the range {_span(full_range)}, {share:.1%} of it{levels}"
    return [f"{about}: train with --data.range auto, or --data.range {low:g},{high:g}"]


def _span(limits: tuple[float, float]) -> str:
    return f"{limits[0]:g} to {limits[1]:g}"
