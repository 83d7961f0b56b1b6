"""Random numbers that are a pure function of a key.

Augmentation must not depend on which thread does it, in what order, or after which interruption, so there is no
random state anywhere: the numbers for a sample come from hashing (seed, epoch, repeat, sample id). A hash is
cheaper here than seeding a numpy Generator (1 microsecond against 20), and its stream is the same on every
machine and under every version of numpy.
"""

import hashlib
import math
import struct

import numpy as np

_EIGHT = struct.Struct("<8Q")


class Draws:
    """The stream of random numbers that belongs to a key, for example `Draws("sample", seed, epoch, repeat, id)`.

    The last part of the key may be any text; the others must not contain a slash.
    """

    def __init__(self, *key: int | str) -> None:
        self._key = "/".join(map(str, key)).encode("utf-8", "surrogateescape")
        self._block = 0
        self._ready: list[int] = []

    def raw(self) -> int:
        """64 random bits."""
        if not self._ready:
            # The counter goes in as salt, so that keys are never confused with counters.
            salt = self._block.to_bytes(8, "little")
            digest = hashlib.blake2b(self._key, digest_size=64, salt=salt, person=b"vitrail draws").digest()
            self._ready = list(_EIGHT.unpack(digest))
            self._block += 1
        return self._ready.pop()

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """At least `low`, below `high`; always consumes one number, whatever the bounds."""
        return low + (high - low) * ((self.raw() >> 11) * 2.0**-53)

    def log_uniform(self, low: float, high: float) -> float:
        return math.exp(self.uniform(math.log(low), math.log(high)))

    def integer(self, below: int) -> int:
        """0 to below - 1. The bias of the multiplication is under 2 ** -32 for every size that occurs."""
        return (self.raw() * below) >> 64

    def chance(self, probability: float) -> bool:
        return self.uniform() < probability

    def normal(self) -> float:
        """Mean 0, standard deviation 1 (Box and Muller)."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return radius * math.cos(2.0 * math.pi * self.uniform())

    def bytes(self, count: int) -> bytes:
        """Many random bytes at once, for noise."""
        return hashlib.shake_256(self._key + self.raw().to_bytes(8, "little")).digest(count)

    def generator(self) -> np.random.Generator:
        """A numpy Generator for distributions we do not write ourselves, such as Beta."""
        return np.random.Generator(np.random.Philox(key=self.raw() | self.raw() << 64))


def permutation(count: int, *key: int | str) -> np.ndarray:
    """0 to count - 1 in an order that depends only on the key; a bit generator's raw stream is fixed for good."""
    raw = np.random.Philox(key=Draws(*key).raw()).random_raw(count)
    return np.argsort(np.asarray(raw, dtype=np.uint64), kind="stable")
