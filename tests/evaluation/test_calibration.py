"""The expected calibration error: by hand, at the edges of bins, and against a plain computation."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitrail.tasks import Meaning
from vitrail.tasks.classification.calibration import BINS, calibration
from vitrail.tasks.classification.meter import Accuracy


def test_an_example_worked_by_hand():
    # Bins of a fifteenth: 0.95 and 0.99 are in the last, 0.5 in the eighth (7/15 to 8/15), 0.1 in the second.
    found = calibration(np.array([0.95, 0.99, 0.5, 0.5, 0.1]), np.array([True, False, True, False, False]))
    assert found.counts.tolist() == [0, 1, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 2]
    # Gaps: 2 of |0.5 - 0.97|, 2 of |0.5 - 0.5|, 1 of |0 - 0.1|.
    assert found.error == pytest.approx((2 * 0.47 + 2 * 0.0 + 1 * 0.1) / 5)


def test_an_edge_belongs_to_the_bin_below_it():
    assert calibration(np.array([0.0, 0.2, 1.0]), np.ones(3, bool), bins=5).counts.tolist() == [2, 0, 0, 0, 1]
    assert calibration(np.array([0.5, np.nextafter(0.5, 1)]), np.ones(2, bool), bins=2).counts.tolist() == [1, 1]


@given(st.lists(st.tuples(st.floats(0, 1), st.booleans()), min_size=1, max_size=60))
def test_it_is_what_a_plain_loop_gives(pairs):
    scores, right = np.array([score for score, _ in pairs]), np.array([hit for _, hit in pairs])
    total = 0.0
    for index in range(BINS):
        inside = [
            (score, hit) for score, hit in pairs
            if index < score * BINS <= index + 1 or (index == 0 and score == 0)
        ]  # fmt: skip
        if inside:
            mean, share = np.mean([score for score, _ in inside]), np.mean([hit for _, hit in inside])
            total += len(inside) / len(pairs) * abs(mean - share)
    found = calibration(scores, right)
    assert found.error == pytest.approx(total, abs=1e-12)
    assert found.counts.sum() == len(pairs)


def test_the_score_is_the_probability_of_the_answer():
    accuracy = Accuracy(Meaning(("a", "b")))
    logits = torch.tensor([[3.0, 0.0]] * 4)
    accuracy.add(list("wxyz"), torch.tensor([0, 0, 0, 1]), logits)
    sure = float(torch.sigmoid(torch.tensor(3.0)))
    assert accuracy.result()["ece"] == pytest.approx(abs(sure - 0.75), abs=1e-6)
    assert Accuracy(Meaning(("a", "b"))).result()["ece"] == 0
