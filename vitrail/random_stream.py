"""Random numbers that are a pure function of a key.

The augmentation of a sample must not depend on the thread that does it, on the order of the samples, or on an
interruption before it. So no random state is kept anywhere: the numbers for a sample come from hashing (seed, epoch,
repeat, sample id). A hash is cheaper here than seeding a numpy Generator (1 microsecond against 20), and its stream is
the same on every machine and under every version of numpy.
"""

import hashlib
import math
import struct

import numpy as np

_EIGHT = struct.Struct("<8Q")  # the 64 bytes of one hash, as eight integers


class RandomStream:
    """A stream of random numbers that is determined by a key as in `RandomStream("sample", seed, epoch, repeat, id)`.

    Equal keys give equal streams. The last part of the key may be any text; the other parts must not contain a slash.
    """

    def __init__(self, *key: int | str) -> None:
        self._key = "/".join(map(str, key)).encode("utf-8", "surrogateescape")
        self._block = 0
        self._ready: list[int] = []

    def raw(self) -> int:
        """Returns the next 64 random bits as an integer from 0 to 2**64 - 1."""
        if not self._ready:
            # The counter is the salt, not part of the key, so that no key with one counter equals another key with
            # another counter.
            salt = self._block.to_bytes(8, "little")
            digest = hashlib.blake2b(self._key, digest_size=64, salt=salt, person=b"vitrail draws").digest()
            self._ready = list(_EIGHT.unpack(digest))
            self._block += 1
        return self._ready.pop()

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """Returns a number from `low` (included) to `high` (excluded). Always consumes one number of the stream, even
        where the bounds are equal."""
        return low + (high - low) * ((self.raw() >> 11) * 2.0**-53)

    def log_uniform(self, low: float, high: float) -> float:
        """Returns a number from `low` to `high` whose logarithm is uniform; both bounds are positive."""
        return math.exp(self.uniform(math.log(low), math.log(high)))

    def integer(self, below: int) -> int:
        """Returns an integer from 0 to `below` - 1, each equally likely.

        Scaling 64 bits favours some integers; that bias is under 2**-32 for every `below` that occurs here.
        """
        return (self.raw() * below) >> 64

    def chance(self, probability: float) -> bool:
        """Returns True with the given probability; always consumes one number of the stream."""
        return self.uniform() < probability

    def normal(self) -> float:
        """Returns a number from the normal distribution of mean 0 and standard deviation 1 (Box-Muller)."""
        radius = math.sqrt(-2.0 * math.log(1.0 - self.uniform()))
        return radius * math.cos(2.0 * math.pi * self.uniform())

    def bytes(self, count: int) -> bytes:
        """Returns `count` random bytes, for noise over a whole image; consumes one number of the stream."""
        return hashlib.shake_256(self._key + self.raw().to_bytes(8, "little")).digest(count)

    def generator(self) -> np.random.Generator:
        """Returns a numpy Generator seeded from this stream, for distributions such as Beta that this class lacks."""
        return np.random.Generator(np.random.Philox(key=self.raw() | self.raw() << 64))


def permutation(count: int, *key: int | str) -> np.ndarray:
    """Returns the integers 0 to `count` - 1, int64 [count], in a random order that depends only on the key.

    It sorts the raw output of the bit generator, which numpy promises never to change; the order that
    `Generator.permutation` gives may change between versions of numpy.
    """
    raw = np.random.Philox(key=RandomStream(*key).raw()).random_raw(count)
    return np.argsort(np.asarray(raw, dtype=np.uint64), kind="stable")
