"""Which values pictures with more than 8 bits a channel use: measured on a sample, found for --data.range, told of."""

from dataclasses import dataclass

import numpy as np

from vitrail.config.data import AUTO, Percentiles, parsed_range
from vitrail.data.bad_image import BadImage
from vitrail.data.decode import MAX_PIXELS, Limits, load_npy, open_header
from vitrail.data.deep import deep_colour, is_deep, is_deep_colour
from vitrail.data.sources import Split
from vitrail.errors import UserError
from vitrail.random_stream import permutation

SAMPLES = 128
"""Pictures looked at, of each about so many values:"""
_VALUES = 4096
_LITTLE = 0.1
"""Share of the range below which its use is worth a note."""
_CLIPPED = 0.05
"""Share of the values outside of the range above which that is worth a note."""


@dataclass(frozen=True)
class Measured:
    """What a sample of a split's pictures holds."""

    n: int
    """Pictures looked at that can be read."""
    deep: int
    """How many of them have more than 8 bits a channel."""
    values: np.ndarray
    """Stored values of those, float64, some of each picture."""
    whole: bool
    """Whether all these are whole numbers."""

    @property
    def type_limits(self) -> Limits:
        """The range that their type is taken to have; None where each picture is scaled by its own values."""
        if not len(self.values) or self.values.min() < 0:
            return None
        choices = (65535.0,) if self.whole else (1.0, 255.0)
        return next(((0.0, limit) for limit in choices if self.values.max() <= limit), None)

    def between(self, percentiles: Percentiles) -> tuple[float, float]:
        """Two stored values: those at the percentiles, or the least and the greatest where the former are equal."""
        low = float(np.percentile(self.values, percentiles.low, method="lower"))
        high = float(np.percentile(self.values, percentiles.high, method="higher"))
        return (low, high) if low < high else (float(self.values.min()), float(self.values.max()))


def measure(split: Split, max_pixels: int = MAX_PIXELS) -> Measured:
    """Look at a sample of a split, always the same: spread over it, or its beginning where reading means fetching."""
    found, n, whole = [np.empty(0)], 0, True
    order = np.arange(len(split)) if split.remote else permutation(len(split), "range")
    for index in () if split.in_memory else np.sort(order[:SAMPLES]).tolist():
        try:
            values = stored(split.read(index), max_pixels)
            if values is not None and not np.isfinite(values).all():
                continue
        except BadImage:
            continue
        n += 1
        if values is not None and values.size:
            whole = whole and not np.issubdtype(values.dtype, np.floating)
            # An odd step does not fall on the same columns in every row.
            found.append(values.reshape(-1)[:: values.size // _VALUES | 1].astype(np.float64))
    return Measured(n, len(found) - 1, np.concatenate(found), whole)


def stored(content: bytes | np.ndarray, max_pixels: int = MAX_PIXELS) -> np.ndarray | None:
    """The values as they are in the file, not turned upright; None for pictures of 8 bits a channel."""
    if not isinstance(content, np.ndarray) and content[:6] == b"\x93NUMPY":
        content = load_npy(content, max_pixels)
    if isinstance(content, np.ndarray):
        return content if is_deep(content) and np.issubdtype(content.dtype, np.number) else None
    try:
        image = open_header(content, max_pixels)
        if is_deep_colour(content):
            return deep_colour(content)
        return np.asarray(image) if is_deep(image) else None
    except BadImage:
        raise
    except Exception as error:  # as in `decode`: Pillow's readers raise nearly anything on bad bytes
        raise BadImage(f"cannot be decoded ({error})") from error


def resolved(asked: str | None, own: Limits, split: Split, max_pixels: int = MAX_PIXELS) -> Limits:
    """The range that --data.range asks for, found in the training split by percentiles; None asks for `own`."""
    if asked is None:
        return own
    wanted = parsed_range(asked)
    if not isinstance(wanted, Percentiles):
        return wanted
    measured = measure(split, max_pixels)
    if not measured.deep:
        raise UserError(
            f"--data.range {asked}: none of {measured.n} pictures of the training split that were looked at has more "
            "than 8 bits a channel, and 8 bits are always taken from 0 to 255; leave --data.range out"
        )
    low, high = measured.between(wanted)
    if low >= high:
        raise UserError(f"--data.range {asked}: all values of the training split that were looked at are {low:g}")
    return low, high


def range_notes(measured: Measured, limits: Limits) -> list[str]:
    """What a person should know of the values and the range they are taken by; nothing where all is as it should be."""
    if not measured.deep:
        if limits is None or not measured.n:
            return []
        about = f"the range {_span(limits)} is for pictures with more than 8 bits a channel"
        return [f"{about}; those looked at ({measured.n:,}) have 8, and are taken from 0 to 255"]
    low, high = used = measured.between(AUTO)
    whole = limits or measured.type_limits
    if whole is None:
        return []
    outside = float(((measured.values < whole[0]) | (measured.values > whole[1])).mean())
    if outside > _CLIPPED:
        about = f"{outside:.0%} of the stored values, {_span(used)}, lie outside of the range {_span(whole)}"
        return [f"{about} and are clipped: --data.range sets another in training, --preprocessing range=LOW:HIGH later"]
    share = (min(high, whole[1]) - max(low, whole[0])) / (whole[1] - whole[0])
    if share >= _LITTLE:
        return []
    levels = "" if limits else f", and in 8 bits about {max(1, round(share * 256))} of 256 levels are left of it"
    about = f"the pictures use {_span(used)} of the range {_span(whole)}, {share:.1%} of it{levels}"
    return [f"{about}: train with --data.range auto, or --data.range {low:g},{high:g}"]


def _span(limits: tuple[float, float]) -> str:
    return f"{limits[0]:g} to {limits[1]:g}"
