"""The colour operations of RandAugment and colour jitter on float32 [rows, columns, channels] from 0 to 1.

Pillow has them for 8 bits only. These follow its definitions, less the rounding: three channels are colour and treated
together, any other number each by itself. Every result is within 0 to 1 again.
"""

import numpy as np

_GREY = np.array([0.299, 0.587, 0.114], np.float32)


def brightness(pixels: np.ndarray, factor: float) -> np.ndarray:
    return _blend(np.zeros_like(pixels), pixels, factor)


def contrast(pixels: np.ndarray, factor: float) -> np.ndarray:
    """Away from the mean, or towards it."""
    if pixels.shape[2] == 3:
        mean = np.full(3, (pixels @ _GREY).mean())
    else:
        mean = pixels.mean(axis=(0, 1))
    return _blend(np.broadcast_to(mean.astype(np.float32), pixels.shape), pixels, factor)


def saturation(pixels: np.ndarray, factor: float) -> np.ndarray:
    """Away from grey, or towards it; what is not colour stays as it is."""
    if pixels.shape[2] != 3:
        return pixels
    return _blend(np.repeat((pixels @ _GREY)[:, :, None], 3, axis=2), pixels, factor)


def sharpness(pixels: np.ndarray, factor: float) -> np.ndarray:
    """Away from the picture smoothed by a window of 3 x 3, or towards it; the outermost pixels stay."""
    smooth = pixels.copy()
    rows, columns = pixels.shape[:2]
    if rows > 2 and columns > 2:
        window = sum(
            pixels[down : rows - 2 + down, right : columns - 2 + right] for down in range(3) for right in range(3)
        )
        smooth[1:-1, 1:-1] = (window + 4 * pixels[1:-1, 1:-1]) / np.float32(13)
    return _blend(smooth, pixels, factor)


def autocontrast(pixels: np.ndarray) -> np.ndarray:
    """Each channel stretched from its least value to its greatest."""
    low, high = pixels.min(axis=(0, 1)), pixels.max(axis=(0, 1))
    flat = high <= low
    return np.where(flat, pixels, (pixels - low) / np.where(flat, np.float32(1), high - low)).astype(np.float32)


def equalize(pixels: np.ndarray) -> np.ndarray:
    """Each channel's values spread by their ranks; one of a single value stays."""
    result = pixels.copy()
    for channel in range(pixels.shape[2]):
        _, places, counts = np.unique(pixels[:, :, channel], return_inverse=True, return_counts=True)
        if len(counts) > 1:
            below = np.cumsum(counts) - counts
            result[:, :, channel] = (below / below[-1])[places].reshape(pixels.shape[:2])
    return result


def invert(pixels: np.ndarray) -> np.ndarray:
    return 1 - pixels


def posterize(pixels: np.ndarray, bits: int) -> np.ndarray:
    """As many levels as `bits` have; 8 leaves all that there are."""
    if bits == 8:
        return pixels
    step = np.float32(2 ** (8 - bits) / 255)
    # A value of 8 bits is a step's edge itself, and must not fall below it by rounding.
    return (np.floor(pixels / step + np.float32(1e-4)) * step).clip(0.0, 1.0)


def solarize(pixels: np.ndarray, threshold: int) -> np.ndarray:
    """Inverted from the threshold, of 256, on."""
    return np.where(pixels < threshold / 255 - 1e-6, pixels, 1 - pixels)


def solarize_add(pixels: np.ndarray, added: int) -> np.ndarray:
    """The darker half made brighter."""
    return np.where(pixels < 128 / 255 - 1e-6, np.minimum(pixels + np.float32(added / 255), 1), pixels)


def _blend(first: np.ndarray, second: np.ndarray, factor: float) -> np.ndarray:
    return (first + np.float32(factor) * (second - first)).clip(0.0, 1.0)
