"""What a report says of a model's answers: shares, intervals, the order of mistakes, and names that are only names."""

import io
import math
import re

import numpy as np
import pytest
from PIL import Image

from vitrail.drawing.page import cards, section, table
from vitrail.drawing.plots import tiled
from vitrail.drawing.results import interval, percent
from vitrail.tasks.classification import figures, page
from vitrail.tasks.classification.figures import SamplePrediction
from vitrail.tasks.classification.page import confused_pairs


def test_confused_pairs_are_the_commonest_mistakes_with_their_share_of_the_true_class():
    counts = np.array([[5, 3, 2], [3, 1, 0], [9, 0, 1]])
    assert confused_pairs(counts) == [(2, 0, 9, 0.9), (1, 0, 3, 0.75), (0, 1, 3, 0.3), (0, 2, 2, 0.2)]
    assert confused_pairs(counts, most=1) == [(2, 0, 9, 0.9)]
    assert confused_pairs(np.diag([3, 4])) == []


def test_the_picture_of_the_confusion_is_by_shares_of_each_true_class():
    """Of a class with three times the samples, the same shares are the same colours."""
    counts = np.random.default_rng(0).integers(1, 9, (21, 21))
    names, more = [str(number) for number in range(21)], counts.copy()
    more[4] *= 3
    assert figures.confusion(more, names) == figures.confusion(counts, names)
    more[4, 5] *= 3
    assert figures.confusion(more, names) != figures.confusion(counts, names)


def test_of_many_classes_a_single_mistake_is_not_averaged_away():
    shares = np.zeros((1200, 1200))
    shares[700, 901] = 1.0
    pooled = figures._pool(shares)
    assert len(pooled) <= 500
    assert pooled.max() == 1.0
    assert np.argwhere(pooled).tolist() == [[700 // 3, 901 // 3]]


def test_percentages_tell_nearly_all_from_all():
    shown = [percent(share) for share in (0.0, 0.1234, 0.994, 0.9951, 0.9996, 1.0)]
    assert shown == ["0.0%", "12.3%", "99.4%", "99.51%", "99.96%", "100.0%"]


@pytest.mark.parametrize(("right", "n"), [(0, 10), (7, 10), (10, 10), (480, 500), (1, 3)])
def test_the_interval_is_wilsons_of_95_percent(right, n):
    """The shares p at which |p - right/n| is 1.96 standard errors of p itself."""
    for bound in interval(right / n, n):
        if 0 < bound < 1:
            assert abs(bound - right / n) == pytest.approx(1.96 * math.sqrt(bound * (1 - bound) / n))
    low, high = interval(right / n, n)
    assert 0 <= low <= right / n <= high <= 1
    assert high - low > 0


def sample(name: str, label: str, predicted: str, score: float) -> SamplePrediction:
    return SamplePrediction(name, np.zeros((8, 8, 1), np.uint8), label, predicted, score)


def test_mistakes_are_shown_with_the_surest_first_and_each_once():
    samples = [
        sample("low", "a", "b", 0.4),
        sample("right", "a", "a", 0.99),
        sample("high", "b", "a", 0.9),
        sample("low", "a", "b", 0.4),
    ]
    shown = page.mistakes_section(samples)
    assert re.findall(r'title="(\w+)"', shown) == ["high", "low"]
    assert "None among the 1 samples" in page.mistakes_section([samples[1]])


def test_of_many_classes_the_hardest_come_first():
    counts = np.zeros((30, 30), dtype=np.int64)
    counts[range(30), range(30)] = range(30)
    counts[range(30), [29] * 30] += range(30, 0, -1)
    shown = page.classes_section(counts, [f"class{number}" for number in range(30)])
    assert re.findall(r"class\d+", shown)[:3] == ["class0", "class1", "class2"]
    assert "The other 10 classes" in shown
    counts = np.array([[3, 1], [0, 0]])
    from_counts = page.classes_section(counts, ["a", "b"])
    assert "75.0%" in from_counts
    assert "<td>b</td>" not in from_counts, "a class without samples has no accuracy"


def test_pictures_are_laid_row_by_row():
    def png(colour: str) -> bytes:
        stream = io.BytesIO()
        Image.new("RGB", (2, 3), colour).save(stream, "PNG")
        return stream.getvalue()

    whole = Image.open(io.BytesIO(tiled([png(each) for each in ("red", "lime", "blue")])))
    assert whole.size == (4, 6)
    found = [whole.getpixel(place) for place in ((0, 0), (2, 0), (0, 3), (2, 3))]
    assert found == [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)]


def test_names_are_text_and_never_markup():
    name = "<script>alert('1')</script>\u202e"
    for shown in (table([name], [[name]]), section(name, "inner", name), cards([(name, name, "")])):
        assert "<script>" not in shown
        assert "&lt;script&gt;" in shown
        assert "\u202e" not in shown
