"""Random numbers are a pure function of their key, well spread, and the same for ever."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from vitrail.random_stream import RandomStream, permutation


def test_a_key_gives_the_same_numbers_for_ever():
    draws = RandomStream("sample", 0, 3, 0, "train/000123")
    assert [draws.raw() for _ in range(2)] == [7880795749653200816, 7449889127122645324]
    assert permutation(8, "order", 0, 0).tolist() == [4, 2, 1, 3, 6, 7, 0, 5]


@given(st.text(), st.text())
def test_other_keys_give_other_numbers(one, other):
    same = RandomStream("sample", 0, one).raw() == RandomStream("sample", 0, other).raw()
    assert same == (one == other)


def test_uniform_normal_and_integer_are_what_they_say():
    draws = RandomStream("statistics")
    uniform = np.array([draws.uniform(2, 4) for _ in range(20_000)])
    assert uniform.min() >= 2
    assert uniform.max() < 4
    assert abs(uniform.mean() - 3) < 0.02
    normal = np.array([draws.normal() for _ in range(20_000)])
    assert abs(normal.mean()) < 0.03
    assert abs(normal.std() - 1) < 0.03
    counts = np.bincount([draws.integer(7) for _ in range(21_000)], minlength=7)
    assert counts.min() > 2750
    assert counts.max() < 3250
    assert len(counts) == 7
    noise = np.frombuffer(draws.bytes(100_000), np.uint8)
    assert abs(noise.mean() - 127.5) < 1
    assert abs(sum(draws.chance(0.3) for _ in range(20_000)) / 20_000 - 0.3) < 0.02


@given(st.integers(0, 300), st.integers(0, 10))
def test_a_permutation_has_everything_once(count, seed):
    assert sorted(permutation(count, "order", seed, 0).tolist()) == list(range(count))


def test_permutations_of_other_epochs_differ():
    orders = {tuple(permutation(50, "order", 0, epoch).tolist()) for epoch in range(20)}
    assert len(orders) == 20
