"""The head in closed form: leaving one out is just that, the scale is the best one, the better head is taken."""

import pytest
import torch
import torch.nn.functional as F

from vitrail.evaluation.features import Features, join_features
from vitrail.tasks import ridge
from vitrail.tasks.base import FeatureSet, Solved
from vitrail.tasks.classification.closed_form import (
    fitted_scale,
    leave_one_out_scores,
    logistic_head,
    ridge_head,
    signs,
    solve_classes,
    solve_head,
)


def some(count: int, width: int, classes: int = 3, seed: int = 0, apart: float = 1.0) -> Features:
    """Clouds of points, one a class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    centres = apart * torch.randn(classes, width, generator=torch.Generator().manual_seed(99))
    values = centres[labels] + torch.randn(count, width, generator=generator)
    return Features([f"{seed}/{index}" for index in range(count)], values, labels, 0)


@pytest.mark.parametrize("width", [5, 60])
def test_leave_one_out_is_training_without_each_sample_in_turn(width):
    data = some(24, width)
    mean, std = ridge.moments(data.values)
    x, y = ridge.standardised(data.values, mean, std), signs(data.targets, 3)
    for l2, scores, labels in leave_one_out_scores(data.values, data.targets, 3, strengths=(0.1, 10.0)):
        assert torch.equal(labels, data.targets)
        for out in range(len(data)):
            kept = torch.arange(len(data)) != out
            others = x[kept].T @ x[kept] + l2 * torch.eye(x.shape[1], dtype=x.dtype)
            weights = torch.linalg.solve(others, x[kept].T @ y[kept])
            assert torch.allclose(scores[out], x[out] @ weights, atol=1e-8)


def test_of_many_samples_some_are_left_out(monkeypatch):
    data = some(200, 4)
    (every,) = leave_one_out_scores(data.values, data.targets, 3, strengths=(1.0,))
    monkeypatch.setattr(ridge, "JUDGED", 50)
    (few,) = leave_one_out_scores(data.values, data.targets, 3, strengths=(1.0,))
    assert (len(every[1]), len(few[1])) == (200, 50)
    found = {tuple(row) for row in every[1].round(decimals=9).tolist()}
    assert all(tuple(row) in found for row in few[1].round(decimals=9).tolist())


def test_the_scale_is_the_one_of_the_lowest_cross_entropy():
    scores = torch.randn(5000, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = torch.distributions.Categorical(logits=3.7 * scores).sample()
    found = fitted_scale(scores, labels)
    losses = {factor: float(F.cross_entropy(found * factor * scores, labels)) for factor in (0.95, 1.0, 1.05)}
    assert min(losses, key=lambda factor: losses[factor]) == 1.0
    assert found == pytest.approx(3.7, rel=0.05)


def test_scores_without_a_mistake_ask_for_a_finite_scale():
    labels = torch.arange(40) % 2
    scores = signs(labels, 2)
    right = (fitted_scale(scores, labels) * scores).softmax(dim=1)[torch.arange(40), labels]
    assert float(right.min()) == pytest.approx(1 - 1 / 42, abs=1e-6)


def test_the_heads_logits_are_the_scaled_scores_of_the_ridge():
    data, other = some(90, 8), some(30, 8, seed=1)
    head = ridge_head(data.values, data.targets, 3)
    l2 = float(head.method.rpartition(" ")[2])
    scores = solve_classes(data.values, data.targets, 3, l2).scores(other.values)
    ratio = head.outputs(other.values).double() / scores
    assert torch.allclose(ratio, ratio.mean().expand_as(ratio), rtol=1e-4)


def test_its_probabilities_are_about_as_often_right_as_they_say():
    data, other = some(300, 8, apart=0.5), some(600, 8, seed=1, apart=0.5)
    head = ridge_head(data.values, data.targets, 3)
    best = head.outputs(other.values).softmax(dim=1).max(dim=1)
    right = float((best.indices == other.targets).double().mean())
    assert 0.6 < right < 0.95
    assert float(best.values.mean()) == pytest.approx(right, abs=0.05)


def as_set(data: Features) -> FeatureSet:
    return FeatureSet(data.values, data.targets)


def accuracy(head: Solved, data: Features) -> float:
    return float((head.outputs(data.values).argmax(dim=1) == data.targets).double().mean())


def line(count: int, seed: int) -> Features:
    """Three classes in a row: least squares never says the middle one, logistic regression does."""
    labels = torch.arange(count) % 3
    noise = torch.randn(count, 2, generator=torch.Generator().manual_seed(seed)) * 0.2
    values = noise + torch.stack([labels - 1.0, torch.zeros(count)], dim=1)
    return Features([str(index) for index in range(count)], values, labels, 0)


def test_logistic_regression_is_taken_where_it_does_better_on_held_out_samples():
    train, held_out = line(300, 0), line(90, 1)
    ridge = ridge_head(train.values, train.targets, 3)
    logistic = logistic_head(train.values, train.targets, 3)
    assert accuracy(ridge, held_out) < 0.9 < accuracy(logistic, held_out)
    assert solve_head(as_set(train), as_set(held_out), 3).method == logistic.method
    assert solve_head(as_set(train), None, 3).method == ridge.method


def test_of_equal_accuracies_the_head_of_the_lower_loss_is_taken():
    train, held_out = some(60, 6, 2, apart=4.0), some(40, 6, 2, seed=1, apart=4.0)
    heads = ridge_head(train.values, train.targets, 2), logistic_head(train.values, train.targets, 2)
    assert [accuracy(head, held_out) for head in heads] == [1.0, 1.0]
    losses = [float(F.cross_entropy(head.outputs(held_out.values), held_out.targets)) for head in heads]
    assert solve_head(as_set(train), as_set(held_out), 2).method == heads[losses.index(min(losses))].method


def test_parts_of_several_processes_are_joined_in_the_splits_order():
    whole = some(7, 3)
    parts = [whole.where(torch.arange(rank, 7, 2)) for rank in range(2)]
    empty = Features([], torch.empty(0, 0), torch.empty(0, dtype=torch.int64), 2)
    found = join_features([empty, *parts], whole.ids)
    assert (found.ids, found.skipped) == (whole.ids, 2)
    assert torch.equal(found.values, whole.values)
    assert torch.equal(found.targets, whole.targets)
