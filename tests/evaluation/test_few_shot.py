"""The closed form is the solution; shots are balanced, seeded and nested; the rows say what they are over."""

import statistics

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from tests.conftest import pictures, toy
from vitrail.data.loader import Batch
from vitrail.evaluation import few_shot
from vitrail.evaluation.features import Features, extract
from vitrail.evaluation.few_shot import L2, draw_shots, evaluate_shots, short_classes
from vitrail.tasks import ridge
from vitrail.tasks.classification.closed_form import solve_classes

MORE_SAMPLES, MORE_FEATURES = (300, 20), (30, 200)


def material(samples: int, width: int, classes: int = 5, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    scales = torch.logspace(-2, 2, width)
    features = torch.randn(samples, width, generator=generator) * scales + 3
    features[:, 0] = 0.25  # a feature that says nothing has no spread to divide by
    return features, torch.randint(classes, (samples,), generator=generator)


def prepared(features: torch.Tensor, like: torch.Tensor | None = None) -> np.ndarray:
    """As the paper's authors do, in numpy: standardised, a constant of 100 appended."""
    own = (features if like is None else like).double().numpy()
    x = (features.double().numpy() - own.mean(axis=0)) / (own.std(axis=0) + 1e-5)
    return np.hstack([x, np.full((len(x), 1), 100.0)])


def targets(labels: torch.Tensor, classes: int) -> np.ndarray:
    return 2 * np.eye(classes)[labels.numpy()] - 1


@pytest.mark.parametrize("shape", [MORE_SAMPLES, MORE_FEATURES, (50, 49), (50, 50), (50, 51), (1, 8)])
@pytest.mark.parametrize("l2", [1024.0, 0.1])
def test_it_equals_a_direct_solve_of_the_regularised_system(shape, l2):
    features, labels = material(*shape)
    x, y = prepared(features), targets(labels, 5)
    direct = np.linalg.solve(x.T @ x + l2 * np.eye(x.shape[1]), x.T @ y)
    found = solve_classes(features, labels, 5, l2)
    np.testing.assert_allclose(found.weights.numpy(), direct, atol=1e-6, rtol=1e-6)
    queries, _ = material(40, shape[1], seed=1)
    np.testing.assert_allclose(found.scores(queries).numpy(), prepared(queries, features) @ direct, atol=1e-6)


@pytest.mark.parametrize("shape", [MORE_SAMPLES, MORE_FEATURES])
def test_it_agrees_with_scikit_learns_ridge(shape):
    features, labels = material(*shape)
    x, y = prepared(features), targets(labels, 5)
    theirs = Ridge(alpha=1024.0, fit_intercept=False, solver="svd").fit(x, y)
    found = solve_classes(features, labels, 5, L2)
    np.testing.assert_allclose(found.weights.numpy(), theirs.coef_.T, atol=1e-6, rtol=1e-6)
    queries, _ = material(200, shape[1], seed=1)
    answers = theirs.predict(prepared(queries, features)).argmax(axis=1)
    assert found.scores(queries).argmax(dim=1).tolist() == answers.tolist()


@pytest.mark.parametrize("shape", [MORE_SAMPLES, MORE_FEATURES])
def test_parts_of_rows_change_nothing(shape, monkeypatch):
    features, labels = material(*shape)
    whole = solve_classes(features, labels, 5, L2)
    monkeypatch.setattr(ridge, "_ROWS", 7)
    parts = solve_classes(features, labels, 5, L2)
    torch.testing.assert_close(parts.weights, whole.weights, atol=1e-10, rtol=1e-10)
    torch.testing.assert_close(parts.scores(features), whole.scores(features), atol=1e-9, rtol=1e-9)


def test_the_constants_are_the_papers():
    assert (few_shot.L2, ridge.BIAS, ridge.EPSILON) == (1024.0, 100.0, 1e-5)
    assert (few_shot.SHOTS, few_shot.SEEDS) == ((1, 5, 10, 25), 3)


def test_shots_are_balanced_nested_and_depend_on_the_seed_alone():
    labels = torch.tensor([0, 1, 2, 3] * 30)[torch.randperm(120, generator=torch.Generator().manual_seed(0))]
    for seed in range(3):
        for shots in (1, 5, 25):
            chosen = draw_shots(labels, shots, seed)
            assert labels[chosen].bincount().tolist() == [shots] * 4
            assert len(chosen.unique()) == len(chosen)
            assert torch.equal(chosen, draw_shots(labels, shots, seed))
            assert set(draw_shots(labels, shots - 1, seed).tolist() if shots > 1 else []) <= set(chosen.tolist())
    assert len({tuple(draw_shots(labels, 5, seed).tolist()) for seed in range(10)}) == 10
    # Over many seeds every sample has its turn.
    times = torch.zeros(120)
    for seed in range(600):
        times[draw_shots(labels, 5, seed)] += 1
    assert times.min() > 60
    assert times.max() < 145  # 100 expected, with a standard deviation of 9


def test_a_class_with_fewer_images_than_shots_gives_what_it_has():
    labels = torch.tensor([0] * 10 + [1] * 3 + [3] * 5)
    assert labels[draw_shots(labels, 5, 0)].bincount().tolist() == [5, 3, 0, 5]
    assert short_classes(labels, 5, 5) == {1: 3, 2: 0, 4: 0}
    assert short_classes(labels, 1, 4) == {2: 0}


def split(count: int, seed: int) -> Features:
    """Four classes that lie apart, with some overlap."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % 4
    centres = torch.eye(4).repeat(1, 3)
    values = centres[labels] + 0.5 * torch.randn(count, 12, generator=generator)
    return Features([str(index) for index in range(count)], values, labels, skipped=2)


def test_rows_are_what_the_methods_reach_on_the_shots():
    train, test = split(200, 0), split(100, 1)
    rows = list(evaluate_shots(train, test, 4, shots=(1, 25, "all"), methods=("ridge", "knn", "probe"), seeds=3))
    assert [(row.shots, row.method, len(row.accuracies)) for row in rows] == [
        (shots, method, 1 if shots == "all" else 3)
        for shots in (1, 25, "all") for method in ("ridge", "knn", "probe")
    ]  # fmt: skip
    by_hand = []
    for seed in range(3):
        chosen = draw_shots(train.targets, 25, seed)
        answers = solve_classes(train.values[chosen], train.targets[chosen], 4, L2).scores(test.values).argmax(dim=1)
        by_hand.append(float((answers == test.targets).double().mean()))
    row = rows[3].to_json()
    assert {"shots", "method", "mean", "std", "seeds"} <= set(row)
    assert row["accuracies"] == by_hand
    assert row["mean"] == pytest.approx(statistics.fmean(by_hand))
    assert row["std"] == pytest.approx(np.std(by_hand, ddof=1))
    assert (row["n"], row["skipped"], row["seeds"]) == (100, 2, 3)
    for index in range(3):
        assert rows[index].mean < rows[3 + index].mean, "more shots are better"
    assert rows[-1].std == 0
    again = list(evaluate_shots(train, test, 4, shots=(1, 25, "all"), methods=("ridge", "knn", "probe"), seeds=3))
    assert again == rows


def test_features_are_of_a_model_in_evaluation_mode():
    model = toy(dropout=0.5).train()
    images = pictures(model, batch=5)
    batches = [Batch(images[:3], torch.arange(3), list("abc")), Batch(images[3:], torch.arange(2), list("de"))]
    found = extract(model, batches, torch.device("cpu"))
    assert model.training, "it is left as it was"
    with torch.no_grad():
        torch.testing.assert_close(found.values, model.eval().features(images), atol=1e-6, rtol=1e-6)
    assert (found.ids, found.targets.tolist()) == (list("abcde"), [0, 1, 2, 0, 1])
