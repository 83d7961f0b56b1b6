"""The colour operations of RandAugment and of colour jitter, on float32 [rows, columns, channels] from 0 to 1.

Pillow has them for 8 bits only. These follow its definitions but do not round. Three channels are treated together as
colour; of any other number, each channel is treated by itself. Results are from 0 to 1 too.
"""

import numpy as np

_GREY = np.array([0.299, 0.587, 0.114], np.float32)
"""The weights of red, green and blue in grey."""


def brightness(pixels: np.ndarray, factor: float) -> np.ndarray:
    """Multiplies the values by `factor`."""
    return _blend(np.zeros_like(pixels), pixels, factor)


def contrast(pixels: np.ndarray, factor: float) -> np.ndarray:
    """Moves the values away from their mean (`factor` above 1) or towards it (below 1)."""
    if pixels.shape[2] == 3:
        mean = np.full(3, (pixels @ _GREY).mean())
    else:
        mean = pixels.mean(axis=(0, 1))
    return _blend(np.broadcast_to(mean.astype(np.float32), pixels.shape), pixels, factor)


def saturation(pixels: np.ndarray, factor: float) -> np.ndarray:
    """Moves colours away from grey (`factor` above 1) or towards it (below 1); pictures without colour stay as they
    are."""
    if pixels.shape[2] != 3:
        return pixels
    return _blend(np.repeat((pixels @ _GREY)[:, :, None], 3, axis=2), pixels, factor)


def sharpness(pixels: np.ndarray, factor: float) -> np.ndarray:
    """Moves the values away from a copy smoothed over 3 x 3 pixels (`factor` above 1) or towards it (below 1).

    The outermost pixels stay as they are.
    """
    smooth = pixels.copy()
    rows, columns = pixels.shape[:2]
    if rows > 2 and columns > 2:
        window = sum(
            pixels[down : rows - 2 + down, right : columns - 2 + right] for down in range(3) for right in range(3)
        )
        smooth[1:-1, 1:-1] = (window + 4 * pixels[1:-1, 1:-1]) / np.float32(13)
    return _blend(smooth, pixels, factor)


def autocontrast(pixels: np.ndarray) -> np.ndarray:
    """Stretches each channel so that its lowest value becomes 0 and its highest 1."""
    low, high = pixels.min(axis=(0, 1)), pixels.max(axis=(0, 1))
    flat = high <= low
    return np.where(flat, pixels, (pixels - low) / np.where(flat, np.float32(1), high - low)).astype(np.float32)


def equalize(pixels: np.ndarray) -> np.ndarray:
    """Equalises the histogram of each channel: a value becomes the fraction of pixels below it, scaled to 0 to 1.

    A channel with a single value stays as it is.
    """
    result = pixels.copy()
    for channel in range(pixels.shape[2]):
        _, ranks, counts = np.unique(pixels[:, :, channel], return_inverse=True, return_counts=True)
        if len(counts) > 1:
            below = np.cumsum(counts) - counts
            result[:, :, channel] = (below / below[-1])[ranks].reshape(pixels.shape[:2])
    return result


def invert(pixels: np.ndarray) -> np.ndarray:
    """Exchanges black and white."""
    return 1 - pixels


def posterize(pixels: np.ndarray, bits: int) -> np.ndarray:
    """Reduces the values to 2 ** `bits` levels; 8 bits leave them as they are."""
    if bits == 8:
        return pixels
    step = np.float32(2 ** (8 - bits) / 255)
    # A value from an 8-bit picture lies exactly on the edge of a step: 1e-4 keeps rounding from moving it below.
    return (np.floor(pixels / step + np.float32(1e-4)) * step).clip(0.0, 1.0)


def solarize(pixels: np.ndarray, threshold: int) -> np.ndarray:
    """Inverts the values from `threshold` on, given in levels of 256."""
    return np.where(pixels < threshold / 255 - 1e-6, pixels, 1 - pixels)


def solarize_add(pixels: np.ndarray, added: int) -> np.ndarray:
    """Adds `added`, in levels of 256, to the values in the darker half of the range."""
    return np.where(pixels < 128 / 255 - 1e-6, np.minimum(pixels + np.float32(added / 255), 1), pixels)


def _blend(first: np.ndarray, second: np.ndarray, factor: float) -> np.ndarray:
    """Interpolates between two pictures, or beyond them: `factor` 0 gives the first, 1 the second."""
    return (first + np.float32(factor) * (second - first)).clip(0.0, 1.0)
