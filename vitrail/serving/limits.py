"""Limits on what one request, and all of them together, may ask of the server."""

import math
import os
from dataclasses import dataclass, fields

from vitrail.data.decode_pool import DecodeLimits
from vitrail.data.file_formats import read_formats
from vitrail.errors import UserError

try:
    import resource
except ImportError:  # Windows has no such limits
    resource = None

SPARE_FILES = 16
"""File descriptors that are kept for other things than connections."""
DEFAULT_FORMATS = ("jpeg", "png", "webp", "gif")
"""What people photograph, draw and share with."""


@dataclass(frozen=True)
class Limits:
    """The limits of a server. `vitrail serve --help` lists those that can be changed there.

    They check themselves: a value that cannot be meant is a UserError that names the flag.
    """

    max_batch: int = 16
    """The most images that a model is given at once."""
    max_wait_ms: float = 2.0
    """Milliseconds that the first image of a batch waits for others."""
    max_queue: int = 64
    """The most images that may wait or be computed; requests with more are refused with 503."""
    max_images: int = 64
    """The most images in one request."""
    max_body_mb: float = 32.0
    """The largest body of a request, in megabytes of 2**20 bytes."""
    max_megapixels: float = 50.0
    """The most pixels of one image, in millions, by its header and before it is decoded. Phones of today take 50."""
    receive_seconds: float = 20.0
    """Seconds for the headers of a request to arrive, and then for its body."""
    deadline_seconds: float = 30.0
    """Seconds from the end of a request's body to its answer."""
    send_seconds: float = 30.0
    """Seconds for a client to make room for more of its answer."""
    stall_seconds: float = 20.0
    """Seconds for one batch, after which a model counts as not ready."""
    decode_seconds: float = 10.0
    """Seconds for decoding one image that is not plain, and for which one may wait for others before."""
    decode_mb: float = 1024.0
    """Megabytes of memory for decoding one image that is not plain."""
    formats: tuple[str, ...] = DEFAULT_FORMATS
    """The image formats that are read: what strangers send should reach as little code as possible."""
    drain_seconds: float = 10.0
    """Seconds after SIGTERM for the answers to what was accepted before."""
    max_connections: int = 512
    """The most connections at a time; more are refused with 503."""
    max_memory_mb: float = 256.0
    """Megabytes of all request bodies together, and again of all prepared images together."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name == "formats":
                continue
            least = 0 if field.name == "max_wait_ms" else 1 if isinstance(field.default, int) else 1e-3
            if not math.isfinite(value) or value < least:
                flag = f"--{field.name.replace('_', '-')}"
                raise UserError(f"{flag} {value:g}: must be a number of at least {least:g}")
        if self.max_queue < self.max_batch:
            raise UserError(f"--max-queue {self.max_queue}: must hold at least a batch (--max-batch {self.max_batch})")

    @property
    def max_body_bytes(self) -> int:
        """The largest body of a request, in bytes."""
        return round(self.max_body_mb * 2**20)

    @property
    def max_pixels(self) -> int:
        """The most pixels of one image."""
        return round(self.max_megapixels * 1e6)

    @property
    def max_memory_bytes(self) -> int:
        """The most bytes of all request bodies together."""
        return round(self.max_memory_mb * 2**20)

    @property
    def decoding(self) -> DecodeLimits:
        """The limits on decoding one image that is not plain, and the formats."""
        return DecodeLimits(self.decode_seconds, self.decode_mb, self.formats)

    def to_json(self) -> dict[str, object]:
        """Returns what `GET /model` says of the limits on one request."""
        return {
            "max_body_bytes": self.max_body_bytes,
            "max_pixels": self.max_pixels,
            "max_images": self.max_images,
            "formats": list(self.formats),
        }


def affordable_connections(wanted: int) -> int:
    """Returns how many connections the limit on open files (`ulimit -n`) leaves room for, at most `wanted`."""
    if resource is None:
        return wanted
    allowed, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if allowed == resource.RLIM_INFINITY:
        return wanted
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"  # noqa: PTH112
    return max(1, min(wanted, allowed - len(os.listdir(folder)) - SPARE_FILES))  # noqa: PTH208


def read_image_formats(given: str) -> tuple[str, ...]:
    """Returns the names in a list such as "jpeg,png" for the flag --formats: of image files, which .npy is not."""
    names = read_formats(given)
    if "npy" in names:
        raise UserError(f"--formats {given}: arrays (npy) are not served; send them to /v2/models/NAME/infer")
    return names
