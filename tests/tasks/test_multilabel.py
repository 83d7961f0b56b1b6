"""Labels: targets, loss, closed form, thresholds, numbers beside scikit-learn's, and answers."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.metrics import average_precision_score, f1_score, precision_score, recall_score

from vitrail.errors import UserError
from vitrail.tasks import Meaning, task
from vitrail.tasks.answers import AnswerOptions
from vitrail.tasks.base import FeatureSet, LossSettings
from vitrail.tasks.multilabel.closed_form import fitted_logits
from vitrail.tasks.multilabel.scores import average_precision, best_threshold, best_thresholds, sigmoid

LABELS = task("multilabel")


def measured(logits: np.ndarray, truths: np.ndarray, constants: dict | None = None, places: np.ndarray | None = None):
    names = tuple(f"label{index}" for index in range(logits.shape[1]))
    meter = LABELS.meter(Meaning(names, {}, constants or {}), places)
    ids = [f"{index}" for index in range(len(logits))]
    meter.add(ids, torch.from_numpy(truths), torch.from_numpy(logits.astype(np.float32)))
    return meter


@st.composite
def scored(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    """Logits with many ties, and truths: [samples, labels]."""
    shape = draw(st.tuples(st.integers(1, 30), st.integers(2, 5)))
    logits = draw(arrays.arrays(np.int64, shape, elements=st.integers(-3, 3))).astype(np.float32)
    if draw(st.booleans()):
        logits += np.random.Generator(np.random.PCG64(draw(st.integers(0, 99)))).normal(size=shape).astype(np.float32)
    return logits, draw(arrays.arrays(np.int8, shape, elements=st.integers(0, 1)))


@settings(deadline=None, max_examples=150)
@given(scored())
def test_map_and_f1_are_those_of_scikit_learn(found: tuple[np.ndarray, np.ndarray]) -> None:
    logits, truths = found
    result = measured(logits, truths).result()
    present = np.flatnonzero(truths.any(axis=0))
    said = sigmoid(logits) >= 0.5
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        each = [average_precision_score(truths[:, index], logits[:, index]) for index in present]
        micro = f1_score(truths, said, average="micro", zero_division=0)
        macro = f1_score(truths, said, average="macro", labels=present, zero_division=0) if len(present) else 0.0
        shares = {
            "precision": precision_score(truths, said, average=None, zero_division=0),
            "recall": recall_score(truths, said, average=None, zero_division=0),
            "f1": f1_score(truths, said, average=None, zero_division=0),
        }
    assert abs(result["map"] - (np.mean(each) if each else 0.0)) < 1e-12
    assert abs(result["f1"] - micro) < 1e-12
    assert abs(result["macro_f1"] - macro) < 1e-12
    for index, facts in enumerate(result["per_class"].values()):
        assert facts["n"] == truths[:, index].sum()
        for name, wanted in shares.items():
            assert abs(facts[name] - wanted[index]) < 1e-12
        ap = average_precision_score(truths[:, index], logits[:, index]) if facts["n"] else None
        assert facts["ap"] is None if ap is None else abs(facts["ap"] - ap) < 1e-12


@settings(deadline=None, max_examples=100)
@given(scored())
def test_a_threshold_has_the_highest_f1_there_is(found: tuple[np.ndarray, np.ndarray]) -> None:
    scores, truths = sigmoid(found[0][:, 0]), found[1][:, 0]
    chosen = best_threshold(scores, truths)
    if not truths.any():
        assert chosen == 0.5
        return
    tried = [f1_score(truths, scores >= each, zero_division=0) for each in np.unique(scores)]
    assert f1_score(truths, scores >= chosen, zero_division=0) == pytest.approx(max(tried), abs=1e-12)
    order = np.random.Generator(np.random.PCG64(0)).permutation(len(scores))
    assert best_threshold(scores[order], truths[order]) == chosen


def test_scores_are_exact_where_logits_are_large() -> None:
    logits = np.array([-800.0, -40.0, 0.0, 40.0, 800.0])
    assert sigmoid(logits).tolist() == pytest.approx([0.0, np.exp(-40.0), 0.5, 1.0, 1.0], abs=1e-30)
    # As scores 40 and 50 are both 1; as logits they are in order.
    assert measured(np.array([[40.0], [50.0]]), np.array([[0], [1]], np.int8)).result()["map"] == 1.0
    assert average_precision(np.array([1.0, 1.0]), np.array([0, 1])) == 0.5


def skewed(seed: int, count: int, labels: int = 8) -> tuple[np.ndarray, np.ndarray]:
    """Rare labels whose logits are calibrated: few of them ever reach 0.5."""
    generator = np.random.Generator(np.random.PCG64(seed))
    logits = generator.normal(-3.0, 1.3, size=(count, labels))
    return logits, (generator.random((count, labels)) < sigmoid(logits)).astype(np.int8)


def test_thresholds_found_on_validation_raise_f1_on_the_test() -> None:
    validation, test = skewed(1, 2000), skewed(2, 2000)
    constants = measured(*validation).constants()
    before, after = measured(*test).result(), measured(*test, constants).result()
    assert after["map"] == before["map"]
    assert after["f1"] > before["f1"] + 0.1
    assert after["macro_f1"] > before["macro_f1"] + 0.1
    assert [facts["threshold"] for facts in after["per_class"].values()] == constants["thresholds"]


def test_a_threshold_is_halfway_to_the_next_score_below() -> None:
    assert best_threshold(np.array([0.9, 0.7, 0.3, 0.1]), np.array([1, 1, 0, 0])) == pytest.approx(0.5)
    assert best_threshold(np.array([0.2, 0.1, 0.4]), np.array([0, 0, 1])) == pytest.approx(0.3)


def test_a_label_with_few_samples_takes_the_common_threshold() -> None:
    logits, truths = skewed(3, 500, labels=3)
    truths[:, 2] = 0
    truths[:4, 2] = 1
    scores = sigmoid(logits)
    found = best_thresholds(scores, truths)
    assert found[2] == best_threshold(scores.ravel(), truths.ravel())
    assert found[0] == best_threshold(scores[:, 0], truths[:, 0]) != found[2]


def test_labels_of_a_source_in_another_order_are_measured_by_name() -> None:
    logits, truths = skewed(4, 200, labels=4)
    whole = measured(logits, truths)
    places = np.array([2, 0])
    some = measured(logits, truths[:, places], places=places)
    assert list(some.result()["per_class"]) == ["label2", "label0"]
    for name, facts in some.result()["per_class"].items():
        assert facts == whole.result()["per_class"][name]
    found = some.constants()["thresholds"]
    assert found[1] == found[3] == 0.5
    assert found[2] == best_threshold(sigmoid(logits[:, 2].astype(np.float32)), truths[:, 2])


def test_parts_of_several_processes_are_measured_as_one() -> None:
    logits, truths = skewed(5, 60)
    whole = measured(logits, truths)
    ids = [str(index) for index in range(60)]
    parts = []
    for rank in range(3):
        part = LABELS.meter(whole.meaning)
        mine = slice(rank, None, 3)
        part.add(ids[mine], torch.from_numpy(truths[mine].copy()), torch.from_numpy(logits[mine].copy()))
        part.skipped = rank
        parts.append(part)
    merged = whole.of_all(parts, ids)
    assert [row[0] for row in merged.kept] == ids
    one, other = whole.result(), merged.result()
    assert other.pop("skipped") == 3
    assert other.pop("loss") == pytest.approx(one.pop("loss"))
    assert one.pop("skipped") == 0
    assert one == other


def test_samples_without_labels_are_refused_by_the_meter_and_by_name() -> None:
    with pytest.raises(UserError, match="1: its labels are not known"):
        measured(np.zeros((2, 2)), np.array([[0, 1], [-1, -1]], np.int8))


def test_targets_know_their_strata_text_and_order() -> None:
    target = LABELS.target
    targets = np.array([[1, 1, 0], [1, 0, 0], [0, 0, 0], [-1, -1, -1], [1, 0, 1]], np.int8)
    assert target.known(targets).tolist() == [True, True, True, False, True]
    assert target.strata(targets).tolist() == [1, 0, 3, -1, 2]
    names = ("b", "a", "c")
    assert [target.text(each, names) for each in targets] == ["a|b", "b", "|", "", "b|c"]
    moved = target.reordered(targets, np.array([1, 0, 2]))
    assert [target.text(each, ("a", "b", "c")) for each in moved] == ["a|b", "b", "|", "", "b|c"]
    assert not target.known(target.unknown(2)).any()
    assert target.counted(names) == "3 labels"
    for wrong, words in (((), "no labels"), (("a", "a"), "more than once"), (("a|b",), "stands between")):
        with pytest.raises(UserError, match=words):
            target.check_names("table.csv", wrong)


def test_names_that_move_round_take_their_labels_along() -> None:
    """Three places in a ring: a move there is no move back."""
    moved = LABELS.target.reordered(np.array([[1, 0, 0], [0, 1, 1]], np.int8), np.array([1, 2, 0]))
    assert moved.tolist() == [[0, 1, 0], [1, 0, 1]]


def loss_of(weights: torch.Tensor | None = None, smoothing: float = 0.0):
    return LABELS.head.loss(LossSettings("sigmoid", 3, weights, smoothing))


def test_the_loss_is_the_sum_over_labels_and_the_mean_over_samples() -> None:
    logits, targets = torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.zeros(4, 3).to(torch.int8)
    targets[0, 1] = targets[2, 2] = 1
    wanted = F.binary_cross_entropy_with_logits(logits, targets.float(), reduction="none").sum(dim=1)
    assert float(loss_of()(logits, targets, None)) == pytest.approx(float(wanted.mean()), rel=1e-6)
    targets[3] = -1
    assert float(loss_of()(logits, targets, None)) == pytest.approx(float(wanted[:3].sum() / 4), rel=1e-6)


def test_weights_are_those_of_positive_samples_mixed_and_smoothed_or_not() -> None:
    generator = torch.Generator().manual_seed(0)
    logits, weights = torch.randn(2, 3, generator=generator), torch.tensor([1.0, 4.0, 9.0])
    targets = torch.tensor([[1, 0, 1], [0, 1, 0]], dtype=torch.int8)
    wanted = F.binary_cross_entropy_with_logits(logits, targets.float(), pos_weight=weights, reduction="sum") / 2
    assert float(loss_of(weights)(logits, targets, None)) == pytest.approx(float(wanted), rel=1e-6)
    # A mixed picture costs what its parts cost, each with its share.
    soft = LABELS.head.soft_targets(targets, 3, 0.2)
    assert soft.tolist() == [pytest.approx([0.9, 0.1, 0.9]), pytest.approx([0.1, 0.9, 0.1])]
    loss = loss_of(weights, 0.2)
    same = logits[:1].expand(2, 3)
    parts = [float(loss(same[:1], targets[index : index + 1], soft[index : index + 1])) for index in (0, 1)]
    mixed = 0.3 * soft[:1] + 0.7 * soft[1:]
    assert float(loss(same[:1], targets[:1], mixed)) == pytest.approx(0.3 * parts[0] + 0.7 * parts[1], rel=1e-5)
    # Smoothing teaches absence at weight 1, whatever the label's weight.
    absent = torch.zeros(1, 3, dtype=torch.int8)
    smooth = LABELS.head.soft_targets(absent, 3, 0.2)
    plain = F.binary_cross_entropy_with_logits(same[:1], smooth, reduction="sum")
    assert float(loss(same[:1], absent, smooth)) == pytest.approx(float(plain), rel=1e-6)
    with pytest.raises(UserError, match="labels of every sample"):
        LABELS.head.soft_targets(torch.tensor([[-1, -1, -1]]), 3, 0.1)


def test_balanced_weights_make_both_answers_weigh_the_same() -> None:
    targets = np.array([[1, 0, 1]] + [[0, 0, 1]] * 3 + [[-1, -1, -1]], np.int8)
    assert LABELS.head.weights(targets, 3).tolist() == [3.0, 1.0, 1.0]
    line = LABELS.head.weights_line(np.array([3.0, 1.0, 1.0]), ("a", "b", "c"))
    assert "1 (b) to 3 (a)" in line


def test_the_measure_of_a_batch_is_the_f1_of_its_samples() -> None:
    outputs = torch.tensor([[1.0, -1.0], [1.0, 1.0], [-1.0, -1.0]])
    targets = torch.tensor([[1, 0], [1, 0], [0, 0]], dtype=torch.int8)
    assert loss_of().measures(outputs, targets)["sample_f1"] == pytest.approx(1 + 2 / 3 + 1)


def linear_data(count: int, seed: int) -> FeatureSet:
    """Features whose first three coordinates say the labels, of which the last is rare, with some noise."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(count, 12, generator=generator)
    noise = 0.5 * torch.randn(count, 3, generator=generator)
    return FeatureSet(features, (features[:, :3] + noise > torch.tensor([0.0, 0.8, 1.8])).to(torch.int8))


@pytest.mark.parametrize("count", [8, 400])
def test_the_head_in_closed_form_gives_logits(count: int) -> None:
    train, test = linear_data(count, 0), linear_data(2000, 1)
    head = LABELS.head.solve(train, None, LossSettings("sigmoid", 3))
    outputs = head.outputs(test.features)
    result = measured(outputs.numpy(), test.targets.numpy()).result()
    chance = np.mean(test.targets.float().mean(dim=0).numpy())
    ideal = measured(test.features[:, :3].numpy(), test.targets.numpy()).result()["map"]
    assert result["map"] > (ideal - 0.1 if count == 400 else chance + 0.1)
    if count == 400:
        assert head.method.startswith("ridge in closed form")
        # Read as logits: no other scale and bias is much better on samples it has not seen.
        scale, bias = fitted_logits(outputs.double(), test.targets.double(), torch.ones(3).double())
        assert abs(scale - 1) < 0.15
        assert abs(bias) < 0.2
    assert LABELS.head.unsolvable("sigmoid") is None
    assert LABELS.head.unsolvable("mae") is not None


def test_weights_move_the_closed_form_towards_rare_labels() -> None:
    train = linear_data(400, 0)
    plain = LABELS.head.solve(train, None, LossSettings("sigmoid", 3))
    weights = torch.from_numpy(LABELS.head.weights(train.targets.numpy(), 3))
    balanced = LABELS.head.solve(train, None, LossSettings("sigmoid", 3, weights))
    recall = [float((head.outputs(train.features)[train.targets > 0] > 0).float().mean()) for head in (plain, balanced)]
    assert recall[1] > recall[0] + 0.05


def test_the_closed_form_is_the_plain_ridge_but_for_one_scale_and_one_bias() -> None:
    train = linear_data(400, 0)
    head = LABELS.head.solve(train, None, LossSettings("sigmoid", 3))
    l2 = float(head.method.rpartition(" ")[2])
    x = (train.features.double() - train.features.double().mean(0)) / train.features.double().std(0, correction=0)
    signs = 2 * train.targets.double() - 1
    gram = x.T @ x + l2 * torch.eye(12, dtype=torch.float64)
    said = x @ torch.linalg.solve(gram, x.T @ signs) + signs.mean(0)
    outputs = head.outputs(train.features).double()
    scale = float(
        (outputs - outputs.mean()).flatten() @ (said - said.mean()).flatten() / (said - said.mean()).square().sum()
    )
    assert float((outputs - (scale * (said - said.mean()) + outputs.mean())).abs().max()) < 0.02 * scale


def test_useless_scores_keep_a_scale_above_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    truths = (torch.rand(200, 2, generator=generator) < 0.3).double()
    scale, bias = fitted_logits(1 - 2 * truths, truths, torch.ones(2).double())
    assert scale == 2.0**-10
    assert torch.sigmoid(torch.tensor(bias)).item() == pytest.approx(float(truths.mean()), abs=0.02)


MEANING = Meaning(("cat", "dog", "n1"), {"n1": "a bird"}, {"thresholds": [0.2, 0.9, 0.5]})
OUTPUT = np.array([-1.0, 2.0, 1.0], np.float32)


def test_answers_are_the_labels_that_reach_their_thresholds() -> None:
    said = LABELS.answer.prediction("a.jpg", OUTPUT, None, MEANING, AnswerOptions())
    assert [(each["label"], each["description"]) for each in said.to_json()["labels"]] == [
        ("n1", "a bird"),
        ("cat", ""),
    ]
    assert said.to_json()["labels"][0]["score"] == pytest.approx(1 / (1 + np.exp(-1.0)))
    same = LABELS.answer.prediction("a.jpg", OUTPUT, None, MEANING, AnswerOptions(threshold=0.85))
    assert [each["label"] for each in same.to_json()["labels"]] == ["dog"]
    assert LABELS.answer.prediction("a.jpg", None, "broken", MEANING, AnswerOptions()).to_json() == {
        "path": "a.jpg",
        "labels": [],
        "error": "broken",
    }
    with pytest.raises(UserError, match="--threshold 2"):
        LABELS.answer.check(AnswerOptions(threshold=2), MEANING)
    with pytest.raises(UserError, match="one class"):
        LABELS.answer.folders(MEANING, 3)
    with pytest.raises(UserError, match="2 thresholds for 3 labels"):
        LABELS.answer.prediction(
            "a.jpg", OUTPUT, None, Meaning(MEANING.names, {}, {"thresholds": [0, 1]}), AnswerOptions()
        )


def test_answers_as_cells_lines_and_a_schema() -> None:
    columns = LABELS.answer.columns(MEANING, AnswerOptions())
    row = columns.row(LABELS.answer.prediction("a.jpg", OUTPUT, None, MEANING, AnswerOptions()))
    assert columns.names == ["path", "labels", "scores", "error"]
    assert columns.cells(row) == ["a.jpg", "n1|cat", "0.731059|0.268941", ""]
    assert columns.document(row)["labels"][0]["score"] == 0.731059
    assert columns.schema().names == ["path", "labels", "error"]
    assert [line.split()[0] for line in columns.lines(row)] == ["73.1%", "26.9%"]
    nothing = columns.row(LABELS.answer.prediction("a.jpg", OUTPUT, None, MEANING, AnswerOptions(threshold=0.99)))
    assert columns.lines(nothing) == ["no label is likely enough"]
    assert columns.cells(nothing) == ["a.jpg", "", "", ""]
    assert set(LABELS.answer.schema()) == {"labels"}


def test_the_page_shows_numbers_labels_and_samples() -> None:
    logits, truths = skewed(6, 40, labels=3)
    meter = measured(logits, truths, {"thresholds": [0.1, 0.1, 0.1]})
    chosen = LABELS.page.chosen(meter)
    assert chosen[:2] == ["0", "1"]
    pixels = [np.zeros((8, 8, 3), np.uint8)] * len(chosen)
    page = LABELS.page(meter, ("<one>", "two", "three"), pixels)
    result = {"split": "test", **meter.result()}
    headline = page.headline(result)
    assert headline.cards[0][1] == "mean average precision on 40 test samples"
    sections = "".join(page.evaluation())
    assert "&lt;one&gt;" in sections
    assert "<one>" not in sections
    assert set(page.pictures()) == set(page.files)
    lines = page.table().splitlines()
    assert lines[0] == "id,labels,predicted,right,score label0,score label1,score label2"
    assert len(lines) == 41
    assert LABELS.page.best([{"map": 0.5, "step": 3}, {"map": 0.7, "step": 5}]) == [
        "Best on validation: mAP 70.0% at step 5."
    ]
    said = meter.lines(result, {name: name for name in meter.labels})
    assert said[0].startswith(f"mAP {result['map']:.2%}")
    assert meter.words(result) in meter.about(result, "test")
