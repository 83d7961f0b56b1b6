"""How much one request, and all of them together, may ask of the server."""

import math
from dataclasses import dataclass, fields

from vitrail.errors import UserError


@dataclass(frozen=True)
class Limits:
    """Every number that keeps the server up; `vitrail serve --help` lists those that can be changed."""

    max_batch: int = 16
    """Images that are run at once."""
    max_wait_ms: float = 2.0
    """How long the first image of a batch waits for others."""
    max_queue: int = 64
    """Images that may wait or be worked on; more are refused with 503."""
    max_images: int = 64
    """Images in one request."""
    max_body_mb: float = 32.0
    max_megapixels: float = 50.0
    """Of one image, by its header, before anything is decoded. Phones of today take 50."""
    receive_seconds: float = 20.0
    """From a connection's first byte to the end of the headers, and from there to the end of the body."""
    deadline_seconds: float = 30.0
    """From the end of a request's body to its answer."""
    send_seconds: float = 30.0
    """For a client to make room for more of its answer."""
    stall_seconds: float = 20.0
    """A model that takes longer for one batch is not ready."""
    drain_seconds: float = 10.0
    """After SIGTERM, for what was accepted."""
    max_connections: int = 512
    max_memory_mb: float = 256.0
    """Of all request bodies together, and of all prepared images together."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            least = 0 if field.name == "max_wait_ms" else 1 if isinstance(field.default, int) else 1e-3
            if not math.isfinite(value) or value < least:
                flag = f"--{field.name.replace('_', '-')}"
                raise UserError(f"{flag} {value:g}: must be a number of at least {least:g}")
        if self.max_queue < self.max_batch:
            raise UserError(f"--max-queue {self.max_queue}: must hold at least a batch (--max-batch {self.max_batch})")

    @property
    def max_body_bytes(self) -> int:
        return round(self.max_body_mb * 2**20)

    @property
    def max_pixels(self) -> int:
        return round(self.max_megapixels * 1e6)

    @property
    def max_memory_bytes(self) -> int:
        return round(self.max_memory_mb * 2**20)

    def to_json(self, formats: tuple[str, ...]) -> dict[str, object]:
        return {
            "max_body_bytes": self.max_body_bytes,
            "max_pixels": self.max_pixels,
            "max_images": self.max_images,
            "formats": [each.lower() for each in formats],
        }
