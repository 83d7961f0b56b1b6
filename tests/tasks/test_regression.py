"""Numbers a picture: their scale, losses, closed form, errors, answers, pages, and a model that learns them."""

import io
import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.linear_model import Ridge
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from tests.tasks import bars
from vitrail.data.sources.splits import stratified_split
from vitrail.errors import UserError
from vitrail.tasks import Meaning, task, task_names
from vitrail.tasks.answers import AnswerOptions
from vitrail.tasks.base import FeatureSet, LossSettings
from vitrail.tasks.regression.head import STRENGTHS_OF_NUMBERS
from vitrail.tasks.regression.meter import Errors
from vitrail.tasks.regression.page import NumberPage
from vitrail.tasks.regression.scale import TargetScale
from vitrail.tasks.ridge import BIAS, EPSILON

REGRESSION = task("regression")
TARGET, HEAD, ANSWER = REGRESSION.target, REGRESSION.head, REGRESSION.answer
CONSTANTS = {"mean": [10.0, -2.0], "std": [4.0, 0.5], "loss": "huber"}
MEANING = Meaning(bars.NAMES, {}, CONSTANTS)


def fitted(values: np.ndarray, said: np.ndarray, kind: str = "l2") -> Errors:
    """Counts answers that are given in the user's units."""
    meaning = Meaning(tuple(f"n{place}" for place in range(values.shape[1])), {}, {"loss": kind})
    meter = Errors(meaning)
    meter.add([f"s{row}" for row in range(len(values))], torch.from_numpy(values), torch.from_numpy(said))
    return meter


# ---- targets ----


def test_the_task_is_found_by_its_folder():
    assert "regression" in task_names()


def test_a_sample_is_known_when_all_its_numbers_are():
    targets = np.array([[1.0, 2.0], [np.nan, 2.0], [1.0, np.inf], [np.nan, np.nan]])
    assert TARGET.known(targets).tolist() == [True, False, False, False]
    assert not TARGET.known(TARGET.unknown(3)).any()
    assert TARGET.text(targets[3], bars.NAMES) == ""


def test_texts_and_moved_columns_agree_whatever_the_order_of_the_names():
    targets = np.array([[1.5, -2.0], [3.0, 4.0]])
    moved = TARGET.reordered(targets, np.array([1, 0]))
    assert moved.tolist() == [[-2.0, 1.5], [4.0, 3.0]]
    assert TARGET.text(targets[0], ("a", "b")) == TARGET.text(moved[0], ("b", "a")) == "a 1.5, b -2.0"
    assert TARGET.text(targets[0], ("a", "b")) != TARGET.text(moved[0], ("a", "b"))


def test_numbers_that_move_round_keep_their_names():
    """Three places in a ring: a move there is no move back."""
    moved = REGRESSION.target.reordered(np.array([[1.0, 2.0, 3.0]]), np.array([1, 2, 0]))
    assert moved.tolist() == [[3.0, 1.0, 2.0]]


def test_strata_are_tenths_of_the_first_number():
    values = np.random.default_rng(0).permutation(1000).astype(float)
    strata = TARGET.strata(values[:, None])
    assert np.bincount(strata).tolist() == [100] * 10
    assert all(values[strata == low].max() < values[strata == low + 1].min() for low in range(9))
    order = np.random.default_rng(1).permutation(1000)
    assert (TARGET.strata(values[order, None]) == strata[order]).all()


@pytest.mark.parametrize("count", [1, 3, 7, 12, 30])
def test_strata_of_few_samples_leave_some_to_spare(count):
    values = np.append(np.arange(count, dtype=float), np.nan)[:, None]
    strata = TARGET.strata(values)
    assert strata[-1] == -1
    parts = stratified_split([f"{i:02d}" for i in range(count)], strata[:-1], {"val": 0.2}, 0)
    assert len(parts["val"]) == (round(0.2 * count) if count > 1 else 0)


def test_equal_numbers_share_a_stratum():
    values = np.repeat([5.0, 6.0], [95, 5])[:, None]
    strata = TARGET.strata(values)
    assert len(set(strata[:95])) == 1
    assert strata[0] < strata[99]


def test_constants_are_mean_and_deviation_and_a_constant_number_has_a_deviation_of_one():
    values = np.random.default_rng(0).normal((3, 0.1), (2, 0), (50, 2))
    values[:, 1] = 0.1
    found = TARGET.constants(values)
    np.testing.assert_allclose(found["mean"], [values[:, 0].mean(), 0.1], rtol=1e-15)
    np.testing.assert_allclose(found["std"], [values[:, 0].std(), 1.0], rtol=1e-15)
    assert found["mean"][1] == 0.1
    json.dumps(found)


@given(st.lists(st.floats(-1e9, 1e9), min_size=2, max_size=20))
def test_standardised_numbers_come_back(numbers):
    values = np.array(numbers)[:, None]
    scale = TargetScale.of(TARGET.constants(values), 1)
    np.testing.assert_allclose(scale.restored(scale.standardised(values)), values, rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize(
    ("names", "sentence"),
    [((), "no numbers to learn"), (("a", "a"), "two columns of numbers called 'a'"), (("path",), "called 'path'")],
)
def test_names_that_cannot_be_answered_by_are_refused(names, sentence):
    with pytest.raises(UserError, match=sentence):
        TARGET.check_names("photos.csv", names)


def test_columns_of_a_table_become_targets_with_gaps():
    found = TARGET.from_columns({"age": ["31", " 4e1", ""], "size": ["-1.5", "", "nan"]})
    assert found is not None
    assert found[0] == ("age", "size")
    np.testing.assert_array_equal(found[1], [[31, -1.5], [40, np.nan], [np.nan, np.nan]])


@pytest.mark.parametrize("cells", [["1", "two"], ["1_000", "2"], ["", " "], ["nan", ""]])
def test_columns_that_hold_no_numbers_are_not_taken(cells):
    assert TARGET.from_columns({"good": ["1", "2"], "other": cells}) is None
    assert TARGET.from_columns({}) is None


def test_numbers_are_counted_and_have_no_class():
    assert TARGET.counted(bars.NAMES) == "2 numbers a picture (angle, length)"
    assert TARGET.counted(("age",)) == "1 number a picture (age)"
    with pytest.raises(UserError, match="one class"):
        TARGET.labels(np.zeros((2, 1)))


# ---- learning ----


@pytest.mark.parametrize(
    ("kind", "wanted"),
    # Standardised, the targets are 0.5 and 3: outputs of 0 are off by these, in four numbers of which two are right.
    [("huber", (0.125 + 2.5) / 4), ("l1", 3.5 / 4), ("l2", 9.25 / 4)],
)
def test_losses_by_hand(kind, wanted):
    loss = HEAD.loss(LossSettings(kind, 2, constants=CONSTANTS))
    targets = torch.tensor([[12.0, -2.0], [10.0, -0.5]], dtype=torch.float64)
    assert float(loss(torch.zeros(2, 2), targets, None)) == pytest.approx(wanted, rel=1e-7)
    assert loss.measures(torch.zeros(2, 2), targets) == {"mae": (2.0 + 1.5) / 2}
    meter = Errors(replace(MEANING, constants={**CONSTANTS, "loss": kind}))
    meter.add(["a", "b"], targets, torch.zeros(2, 2))
    assert meter.result()["loss"] == pytest.approx(wanted, rel=1e-7)


def test_the_measure_of_a_batch_is_in_the_users_units():
    """Two samples of two numbers whose deviations are 10 and 2: answers of zero are the means, 5 and 1."""
    settings = LossSettings("l1", 2, constants={"mean": [5.0, 1.0], "std": [10.0, 2.0]})
    targets = torch.tensor([[15.0, 1.0], [5.0, 5.0]], dtype=torch.float64)
    measured = REGRESSION.head.loss(settings).measures(torch.zeros(2, 2), targets)
    assert measured == {"mae": pytest.approx(10 / 2 + 4 / 2)}


def test_the_first_loss_is_huber_and_all_have_a_closed_form():
    assert HEAD.losses == ("huber", "l1", "l2")
    assert [HEAD.unsolvable(kind) for kind in HEAD.losses] == [None] * 3


def test_large_numbers_that_differ_little_are_not_rounded_away():
    constants = {"mean": [1.7e9], "std": [10.0]}
    loss = HEAD.loss(LossSettings("l1", 1, constants=constants))
    targets = torch.tensor([[1.7e9 + 5]], dtype=torch.float64)
    assert float(loss(torch.tensor([[0.5]]), targets, None)) == 0


def test_mixed_targets_are_mixed_standardised():
    loss = HEAD.loss(LossSettings("l1", 2, constants=CONSTANTS))
    targets = torch.tensor([[12.0, -2.0], [6.0, -0.5]], dtype=torch.float64)
    soft = HEAD.soft_targets(targets, 2, 0.0)
    mixed = 0.25 * soft + 0.75 * soft[[1, 0]]
    wanted = [[0.25 * 0.5 - 0.75, 0.75 * 3], [-0.25 + 0.75 * 0.5, 0.25 * 3]]
    assert float(loss(torch.tensor(wanted), targets, mixed)) == 0
    with pytest.raises(UserError, match="label-smoothing is for classes"):
        HEAD.soft_targets(targets, 2, 0.1)
    with pytest.raises(UserError, match="class-weights"):
        HEAD.weights(targets.numpy(), 2)


@pytest.mark.parametrize("samples", [60, 12])
def test_the_closed_form_is_scikit_learns_ridge(samples):
    """Of standardised features with the constant as one of them, which is what ours regularises."""
    draw = np.random.default_rng(samples)
    features = draw.normal(3, 2, (samples, 20))
    targets = features[:, :2] @ [[2.0, 0.0], [1.0, -3.0]] + draw.normal(50, 0.5, (samples, 2))
    constants = TARGET.constants(targets)
    given = FeatureSet(torch.from_numpy(features).float(), torch.from_numpy(targets))
    found = HEAD.solve(given, None, LossSettings("huber", 2, constants=constants))
    strength = float(found.method.rpartition(" ")[2])
    assert strength in [pytest.approx(each * samples, rel=1e-5) for each in STRENGTHS_OF_NUMBERS]
    plain = given.features.double().numpy()
    x = np.append((plain - plain.mean(axis=0)) / (plain.std(axis=0) + EPSILON), np.full((samples, 1), BIAS), axis=1)
    wanted = TargetScale.of(constants, 2).standardised(targets)
    theirs = {each: Ridge(each * samples, fit_intercept=False) for each in STRENGTHS_OF_NUMBERS}

    def left_out(ridge: Ridge) -> float:
        rows = range(samples)
        said = [ridge.fit(np.delete(x, row, 0), np.delete(wanted, row, 0)).predict(x[[row]])[0] for row in rows]
        return float(np.square(np.array(said) - wanted).mean())

    best = min(STRENGTHS_OF_NUMBERS, key=lambda each: left_out(theirs[each]))
    assert strength == pytest.approx(best * samples, rel=1e-5)
    expected = theirs[best].fit(x, wanted).predict(x)
    np.testing.assert_allclose(found.outputs(given.features).numpy(), expected, atol=2e-5)


# ---- measuring ----

_NUMBERS = st.integers(1, 3).flatmap(
    lambda columns: st.lists(
        st.lists(st.floats(-1e4, 1e4).map(lambda value: round(value, 3)), min_size=2 * columns, max_size=2 * columns),
        min_size=2,
        max_size=30,
    )
)


@settings(deadline=None)
@given(_NUMBERS)
def test_errors_are_scikit_learns(rows):
    table = np.array(rows)
    # Answers are single precision, whatever they are answers to.
    true, said = table[:, ::2].copy(), table[:, 1::2].astype(np.float32)
    result = fitted(true, said).result()
    for name, ours in (("mae", mean_absolute_error), ("rmse", root_mean_squared_error), ("r2", r2_score)):
        each = ours(true, said.astype(float), multioutput="raw_values")
        assert result[name] == pytest.approx(each.mean(), rel=1e-12, abs=1e-12)
        assert [facts[name] for facts in result["per_class"].values()] == pytest.approx(each, rel=1e-12, abs=1e-12)
    assert result["n"] == len(rows)


@pytest.mark.parametrize(("said", "wanted"), [([3.0, 3.0, 3.0], 1.0), ([3.0, 3.0, 4.0], 0.0)])
def test_r2_of_constant_targets_is_scikit_learns(said, wanted):
    true = np.full((3, 1), 3.0)
    answers = np.array(said, dtype=np.float32)[:, None]
    assert fitted(true, answers).result()["r2"] == wanted == r2_score(true, answers)


def test_one_sample_and_none_have_no_r2():
    one = fitted(np.array([[3.0]]), np.array([[5.0]], dtype=np.float32))
    assert one.result()["r2"] is None
    assert one.result()["mae"] == 2
    assert "R2 unknown" in one.words(one.result())
    empty = Errors(MEANING).result()
    assert (empty["n"], empty["r2"], empty["loss"]) == (0, None, 0)


def test_the_score_is_the_loss_negated():
    better, worse = ({"loss": loss, "r2": 0.0} for loss in (0.1, 0.2))
    assert Errors.score(better) > Errors.score(worse)


def test_parts_of_several_processes_give_the_same_bits():
    draw = np.random.default_rng(0)
    true, said = draw.normal(size=(23, 2)) * [1e6, 1], draw.normal(size=(23, 2)).astype(np.float32)
    ids = [f"s{row}" for row in range(23)]
    whole, parts = Errors(MEANING), [Errors(MEANING) for _ in range(3)]
    whole.add(ids, torch.from_numpy(true), torch.from_numpy(said))
    for rank, part in enumerate(parts):
        part.skipped = rank
        part.add(ids[rank::3], torch.from_numpy(true[rank::3]), torch.from_numpy(said[rank::3]))
    merged = whole.of_all(parts, ids)
    assert merged.kept == whole.kept
    assert merged.result() == {**whole.result(), "skipped": 3}


def test_data_with_some_of_the_numbers_in_another_order_is_measured_on_these():
    meter = Errors(Meaning(("a", "b", "c"), {}, {"mean": [0, 1, 2], "std": [1, 2, 4]}), np.array([2, 0]))
    outputs = torch.tensor([[1.0, 100.0, 0.5], [2.0, 100.0, 1.0]])
    meter.add(["x", "y"], torch.tensor([[4.0, 1.0], [6.0, 5.0]], dtype=torch.float64), outputs)
    result = meter.result()
    assert list(result["per_class"]) == ["c", "a"]
    assert [facts["mae"] for facts in result["per_class"].values()] == [0, 1.5]
    assert NumberPage(meter, ("A", "B", "C")).names == ["C", "A"]


def test_what_cannot_be_measured_is_named():
    meter = Errors(MEANING)
    with pytest.raises(UserError, match=r"b.png: lacks a number"):
        meter.add(["a.png", "b.png"], torch.tensor([[1.0, 2.0], [np.nan, 1.0]]), torch.zeros(2, 2))
    with pytest.raises(UserError, match=r"a.png: the model's outputs are not numbers"):
        meter.add(["a.png"], torch.zeros(1, 2), torch.full((1, 2), math.nan))


# ---- answers ----


def test_answers_are_in_the_users_units_in_every_form():
    said = ANSWER.prediction("a.png", np.array([0.5, -2.0], np.float32), None, MEANING, AnswerOptions())
    assert said.to_json() == {"path": "a.png", "values": {"angle": 12.0, "length": -3.0}, "error": None}
    columns = ANSWER.columns(MEANING, AnswerOptions())
    row = columns.row(said)
    assert columns.names == ["path", "angle", "length", "error"]
    assert columns.cells(row) == ["a.png", "12.000000", "-3.0000000", ""]
    assert columns.lines(row) == ["angle    12.00", "length  -3.000"]
    assert columns.document({**row, "values": {"angle": 1.23456789, "length": 0.0}})["values"]["angle"] == 1.234568
    bad = columns.row(ANSWER.prediction("b.png", None, "is broken", MEANING, AnswerOptions()))
    assert columns.cells(bad) == ["b.png", "", "", "is broken"]
    assert columns.lines(bad) == []


def test_what_is_for_classes_is_refused():
    with pytest.raises(UserError, match="--threshold is for scores"):
        ANSWER.check(AnswerOptions(threshold=0.5), MEANING)
    with pytest.raises(UserError, match="--sort-into"):
        ANSWER.folders(MEANING, 2)


# ---- the page ----


def test_the_page_draws_all_numbers_and_shows_the_worst():
    draw = np.random.default_rng(0)
    true = draw.normal(size=(40, 2)) * [4.0, 0.5] + [10.0, -2.0]
    outputs = ((true - [10.0, -2.0]) / [4.0, 0.5]).astype(np.float32)
    outputs[17, 1] += 5
    meter, ids = Errors(MEANING), [f"s{row}" for row in range(40)]
    meter.add(ids, torch.from_numpy(true), torch.from_numpy(outputs))
    chosen = NumberPage.chosen(meter)
    assert chosen[24] == "s17"
    pixels = [np.zeros((8, 8, 1), np.uint8)] * len(chosen)
    page = NumberPage(meter, ("angle", "<i>length"), pixels)
    assert set(page.pictures()) == set(page.files)
    wide = Image.open(io.BytesIO(page.pictures(brief=True)["scatter.png"])).width
    assert wide == pytest.approx(2 * 4.6 * 144, abs=2)
    sections = "".join(page.evaluation())
    assert "Furthest off" in sections
    assert "&lt;i&gt;length" in sections
    assert "<i>length" not in sections
    assert f"true: {true[17, 0]:.2f}" in sections.partition("Furthest off")[2]
    assert "prefers-color-scheme: dark" in sections
    first, *rows = page.table().splitlines()
    assert first == "id,angle true,angle predicted,length true,length predicted,loss"
    assert len(rows) == 40
    assert rows[17].startswith(f"s17,{true[17, 0]:.10g},")
