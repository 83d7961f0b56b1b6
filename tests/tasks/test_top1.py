"""The answer is the best class, of equal ones the earlier: for arrays and tensors, in evaluation and in prediction."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

import vitrail
from tests.conftest import toy
from vitrail.tasks.answers import PLAIN
from vitrail.tasks.base import Meaning
from vitrail.tasks.classification import top1
from vitrail.tasks.classification.answer import PART
from vitrail.tasks.classification.meter import Accuracy


@st.composite
def with_ties(draw) -> tuple[list[list[int]], list[int]]:
    """Scores of a few values only, and a true class for each row."""
    classes, rows = draw(st.integers(1, 12)), draw(st.integers(1, 6))
    row = st.lists(st.integers(-2, 2), min_size=classes, max_size=classes)
    truth = st.lists(st.integers(0, classes - 1), min_size=rows, max_size=rows)
    return draw(st.lists(row, min_size=rows, max_size=rows)), draw(truth)


@given(with_ties())
def test_ties_go_to_the_earlier_class_as_in_a_stable_sort(drawn):
    rows, truth = drawn
    order = [sorted(range(len(row)), key=lambda place, row=row: -row[place]) for row in rows]
    ranks = [each.index(own) for each, own in zip(order, truth, strict=True)]
    for kind in (np.float32, np.float64):
        scores, classes = np.array(rows, kind), np.array(truth)
        tensors = torch.from_numpy(scores), torch.from_numpy(classes)
        for given_scores, given_classes in ((scores, classes), tensors):
            assert top1.best(given_scores).tolist() == [each[0] for each in order]
            assert top1.right(given_scores, given_classes).tolist() == [each == 0 for each in ranks]
            assert top1.rank_of_true(given_scores, given_classes).tolist() == ranks
        assert [top1.ordered(each).tolist() for each in scores] == order
    names = tuple(f"class {place}" for place in range(len(rows[0])))
    meter = Accuracy(Meaning(names))
    meter.add([str(place) for place in range(len(rows))], torch.tensor(truth), torch.tensor(rows).float())
    answers = [PART.prediction(None, each.astype(np.float32), None, Meaning(names), PLAIN).label() for each in scores]
    assert [names[predicted] for _, _, predicted, _ in meter.kept] == answers, "evaluation says what prediction says"
    assert meter.top1 == sum(each == 0 for each in ranks) == np.trace(meter.confusion)
    assert meter.top5 == sum(each < 5 for each in ranks)


def test_a_sample_without_a_label_is_never_right():
    scores = np.array([[0.0, 1.0], [1.0, 0.0]])
    assert top1.right(scores, np.array([-1, 0])).tolist() == [False, True]


def test_evaluate_and_predict_agree_on_a_model_that_tells_nothing_apart(tmp_path):
    names = tuple(f"n{place:02d}" for place in range(40))
    model = toy(num_classes=len(names), depth=1)
    model.card.label_names = names
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    draw = np.random.default_rng(0)
    for name in names:
        (tmp_path / name).mkdir()
        Image.fromarray(draw.integers(0, 256, (32, 32, 3), dtype=np.uint8)).save(tmp_path / name / "0.png")
    answers = model.predict(tmp_path)
    assert {tuple(guess.label for guess in each.top) for each in answers} == {names[:5]}
    result = vitrail.evaluate(model, tmp_path).to_json()
    assert (result["n"], result["top1"], result["top5"]) == (40, pytest.approx(1 / 40), pytest.approx(5 / 40))
    assert {name for name, each in result["per_class"].items() if each["top1"]} == {names[0]}


def test_arrays_need_no_torch():
    program = """
import sys
import numpy as np
from vitrail.tasks.classification import top1
top1.best(np.eye(3)), top1.rank_of_true(np.eye(3), np.arange(3)), top1.ordered(np.arange(3.0))
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=300)
