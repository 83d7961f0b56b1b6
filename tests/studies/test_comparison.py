"""Two points are told apart where chance does not explain it: seldom wrongly with two or three seeds, and always where
the difference is large."""

import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from vitrail.cli import main
from vitrail.errors import UserError
from vitrail.studies.catalogue import kept_study, study
from vitrail.studies.comparison import (
    ABOVE,
    ALIKE,
    BELOW,
    LEVEL,
    UNTOLD,
    Contrast,
    Point,
    compare,
    normal,
    student_t,
    verdict,
)
from vitrail.studies.study import RowResult, StudyOutcome, conclusion, read_table, results_csv

KEPT = Path(__file__).parents[2] / "docs" / "studies"
TRIALS = 2000


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 9, 30, 101])
@pytest.mark.parametrize("level", [0.5, 0.05, 0.05 / 28, 1e-5])
def test_quantiles_are_scipys(level, freedom):
    assert student_t(level, freedom) == pytest.approx(stats.t.isf(level / 2, freedom), rel=1e-9)
    assert normal(level) == pytest.approx(stats.norm.isf(level / 2), rel=1e-9)


def told(one, other, n: int) -> bool:
    contrast = Contrast.between(Point.of({}, list(one), n), Point.of({}, list(other), n))
    return compare({"": contrast})[""].word in (ABOVE, BELOW)


def rate(seeds: tuple[int, int], spreads: tuple[float, float], n: int, difference: float = 0.0) -> float:
    """How often two kinds of model are told apart, of which one is better by `difference`. The test images are easier
    or harder for a kind by chance, for all its seeds alike, and for each kind on its own, which is the worst case."""
    draws, found = np.random.default_rng(0), 0
    for _ in range(TRIALS):
        one, other = (
            0.8 + math.sqrt(0.8 * 0.2 / n) * draws.normal() + spread * draws.normal(size=count)
            for spread, count in zip(spreads, seeds, strict=True)
        )
        found += told(one + difference, other, n)
    return found / TRIALS


@pytest.mark.parametrize("seeds", [(2, 2), (3, 3), (2, 3), (3, 2), (5, 5)], ids=str)
@pytest.mark.parametrize("spreads", [(0.004, 0.004), (0.0004, 0.01), (0.01, 0.0004), (0.0, 0.0001)], ids=str)
def test_a_false_alarm_is_no_more_frequent_than_promised(seeds, spreads):
    for n in (500, 1_000_000):
        chance = math.sqrt(LEVEL * (1 - LEVEL) / TRIALS)
        assert rate(seeds, spreads, n) <= LEVEL + 3 * chance


def test_the_larger_spread_was_no_measure():
    """What was used before: with two seeds it tells a third of equal ones apart, with three a fifth."""
    draws = np.random.default_rng(0)
    for seeds, expected in ((2, 0.34), (3, 0.21)):
        values = draws.normal(size=(20_000, 2, seeds))
        means, spreads = values.mean(axis=2), values.std(axis=2, ddof=1)
        alarms = (np.abs(means[:, 0] - means[:, 1]) > spreads.max(axis=1)).mean()
        assert alarms == pytest.approx(expected, abs=0.02)


def test_large_differences_are_told():
    assert rate((3, 3), (0.004, 0.004), 10_000, difference=0.05) > 0.95
    assert rate((2, 2), (0.004, 0.004), 10_000, difference=0.2) > 0.95
    assert rate((5, 5), (0.004, 0.004), 10_000, difference=0.025) > 0.95


def test_seeds_that_agree_do_not_make_a_small_test_set_large():
    one, other = Point({}, 0.92, 0.0001, 3, 500), Point({}, 0.90, 0.0001, 3, 500)
    assert compare({"": Contrast.between(one, other)})[""].word == UNTOLD, "0.90 of 500 is known to 1.3 points"
    many = Contrast.between(*(Point({}, each.mean, each.spread, 3, 50_000) for each in (one, other)))
    assert compare({"": many})[""].word == ABOVE
    sure = Contrast.between(Point({}, 1.0, 0.0, 3, 20), Point({}, 0.95, 0.0, 3, 20))
    assert compare({"": sure})[""].word == UNTOLD, "all of 20 right is not certain to be right"


def test_over_the_comparisons_of_a_study_false_alarms_stay_as_rare():
    """Eight equal points, every two compared, as in the study of pooling: 28 comparisons, three seeds of each."""
    draws, alarms, trials = np.random.default_rng(1), 0, 400
    spreads = np.array([0.001, 0.02, 0.002, 0.005, 0.001, 0.004, 0.005, 0.01])
    for _ in range(trials):
        points = [Point.of({}, list(0.8 + spread * draws.normal(size=3)), 10**8) for spread in spreads]
        pairs = {str(place): Contrast.between(*pair) for place, pair in enumerate(itertools.combinations(points, 2))}
        alarms += any(each.word in (ABOVE, BELOW) for each in compare(pairs).values())
    assert alarms / trials <= LEVEL + 3 * math.sqrt(LEVEL * (1 - LEVEL) / trials)


def test_comparisons_are_corrected_by_holms_method():
    """As many are told apart as Holm's method tells by the p-values, here of the seeds alone, and in its order."""
    draws = np.random.default_rng(2)
    for _ in range(20):
        seeds = 3
        means, n = draws.uniform(0, 0.02, size=6), 10**12
        points = [Point.of({}, list(0.5 + mean + 0.001 * draws.normal(size=seeds)), n) for mean in means]
        contrasts = {str(place): Contrast.between(one, points[0]) for place, one in enumerate(points[1:])}
        chances = {}
        for name, contrast in contrasts.items():
            (_, one), (_, other) = contrast.terms
            error = math.sqrt(((one.spread or 0) ** 2 + (other.spread or 0) ** 2) / seeds)
            chances[name] = 2 * stats.t.sf(abs(contrast.difference) / error, seeds - 1)
        rejected: set[str] = set()
        for place, name in enumerate(sorted(chances, key=lambda each: chances[each])):
            if chances[name] > LEVEL / (len(chances) - place):
                break
            rejected.add(name)
        found = compare(contrasts)
        assert list(found) == list(contrasts)
        assert {name for name, each in found.items() if each.word in (ABOVE, BELOW)} == rejected
        for name, each in found.items():
            assert each.low is not None
            assert each.high is not None
            assert (each.low > 0 or each.high < 0) == (name in rejected), "the interval says the same"


def test_words():
    low, high = Point({}, 0.5, 0.001, 3, 10**6), Point({}, 0.6, 0.001, 3, 10**6)
    assert compare({"": Contrast.between(high, low)})[""].word == ABOVE
    assert compare({"": Contrast.between(low, high)})[""].word == BELOW
    assert compare({"": Contrast.between(low, low)})[""].word == ALIKE
    alone = compare({"": Contrast.between(high, Point({}, 0.1, None, 1, 10**6))})[""]
    assert (alone.word, alone.low, alone.high) == (UNTOLD, None, None), "one seed says nothing of chance"
    assert "no interval" in alone.points
    assert verdict(ABOVE, ABOVE, ABOVE) == "holds"
    assert verdict(ABOVE, ABOVE, UNTOLD) == "cannot be told"
    assert verdict(ABOVE, UNTOLD, BELOW) == "does not hold"
    assert verdict(ALIKE, ALIKE, ABOVE) == "does not hold"


def test_a_table_of_results_is_concluded_from_as_the_study_itself_was(tmp_path):
    chosen = study("data-size")
    made = StudyOutcome(
        tuple(
            RowResult(row.factors, row.config.seed, 0.5 + 0.01 * place / len(chosen.rows), 1.0, 500, 9, 1.5, 7, 0.1)
            for place, row in enumerate(chosen.rows)
        )
    )
    (tmp_path / "results.csv").write_text(results_csv(made))
    again = read_table(tmp_path / "results.csv")
    assert again == made
    assert conclusion(kept_study("data-size"), again) == conclusion(chosen, made)


def test_the_page_says_what_its_kept_numbers_say(capsys):
    """Every interval on the page of studies is one that the kept tables give."""
    page = (KEPT.parent / "studies.md").read_text(encoding="utf-8")
    for name in ("data-size", "positions", "pooling", "self-supervised"):
        main(["study", name, "--results", str(KEPT / f"{name}.csv")])
        printed = capsys.readouterr().out
        for point in read_table(KEPT / f"{name}.csv").points():
            assert f"{100 * point.mean:.2f} %" in page
        section = page[page.rindex(f"vitrail study {name} --results") :].partition("\n### ")[0]
        shown = re.findall(r"[-+]\d+\.\d points \[[-+]\d+\.\d, [-+]\d+\.\d\]", section.replace("\n  ", " "))
        assert shown
        assert [each for each in shown if each not in printed] == []


@pytest.mark.parametrize(("content", "words"), [
    ("a,b\n1,2\n", "is no table of results"),
    ("", "is no table of results"),
    ("model,top1,spread,seeds,n\nViT,high,0.1,3,500\n", "line 2: has something else where a number should be"),
    ("model,top1,spread,seeds,n\nViT,76,0.1,3,500\n", "line 2: top1 must be a fraction of 1"),
], ids=str)  # fmt: skip
def test_what_is_no_table_is_refused(tmp_path, content, words):
    (tmp_path / "t.csv").write_text(content)
    with pytest.raises(UserError, match=words):
        read_table(tmp_path / "t.csv")
    with pytest.raises(UserError, match=r"nowhere\.csv: cannot be read"):
        read_table(tmp_path / "nowhere.csv")
