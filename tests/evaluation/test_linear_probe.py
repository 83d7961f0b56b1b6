"""The trained probe is the minimum that scikit-learn finds; its strength is chosen on held-out samples, and seeded."""

import pytest
import torch
from sklearn.linear_model import LogisticRegression

from vitrail.tasks.classification import logistic
from vitrail.tasks.classification.logistic import DEFAULT_STRENGTH, GRID, held_out, train


def material(samples: int, width: int, noise: float, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(samples) % 4
    centres = torch.randn(4, width, generator=torch.Generator().manual_seed(9))
    return centres[labels] + noise * torch.randn(samples, width, generator=generator), labels


@pytest.mark.parametrize("l2", [1.0, 0.01])
@pytest.mark.parametrize(("samples", "width"), [(200, 12), (40, 60)])
def test_it_is_scikit_learns_minimum(samples, width, l2):
    features, labels = material(samples, width, noise=2.0)
    probe = train(features, labels, 4, l2=l2)
    x = ((features.double() - probe.mean) / probe.std).numpy()
    theirs = LogisticRegression(C=1 / (l2 * samples), tol=1e-10, max_iter=10_000).fit(x, labels.numpy())
    queries, _ = material(100, width, noise=2.0, seed=1)
    own = probe.logits(queries).softmax(dim=1)
    peer = torch.from_numpy(theirs.predict_proba(((queries.double() - probe.mean) / probe.std).numpy()))
    torch.testing.assert_close(own, peer, atol=1e-4, rtol=0)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_written_gradient_is_autograds_and_parts_change_nothing(weighted, monkeypatch):
    features, labels = material(50, 6, noise=1.0)
    generator = torch.Generator().manual_seed(3)
    variables = torch.randn(7, 4, dtype=torch.float64, generator=generator).requires_grad_(True)
    x = features.double()
    logits = x @ variables[:-1] + variables[-1]
    weights = torch.tensor([0.5, 3.0, 1.0, 2.0] if weighted else [1.0] * 4, dtype=torch.float64)
    each = torch.nn.functional.cross_entropy(logits, labels, reduction="none") * weights[labels]
    loss = each.mean() + 0.3 / 2 * variables[:-1].square().sum()
    (expected,) = torch.autograd.grad(loss, variables)
    for held in (1 << 22, 4 * 7, 1):
        monkeypatch.setattr(logistic, "_LOGITS", held)
        with torch.no_grad():
            value, gradient = logistic._objective(x, labels, variables, weights, 0.3)
        torch.testing.assert_close(value, loss.detach())
        torch.testing.assert_close(gradient, expected)


def test_a_fifth_of_every_class_is_held_out_and_never_its_only_sample():
    labels = torch.tensor([0] * 20 + [1] * 2 + [2] + [3] * 7)
    out = held_out(labels, seed=0)
    assert [int(out[labels == label].sum()) for label in range(4)] == [4, 1, 0, 1]
    assert torch.equal(out, held_out(labels, seed=0))
    assert not torch.equal(out, held_out(labels, seed=1))


def test_the_strength_is_chosen_for_the_data():
    noisy = train(*material(60, 100, noise=4.0), 4)
    clean = train(*material(600, 10, noise=0.8), 4)
    assert noisy.l2 in GRID
    assert noisy.l2 > clean.l2
    features, labels = material(60, 100, noise=4.0)
    queries, answers = material(400, 100, noise=4.0, seed=5)

    def right(l2: float) -> float:
        probe = train(features, labels, 4, l2=l2)
        return float((probe.logits(queries).argmax(dim=1) == answers).double().mean())

    assert right(noisy.l2) >= right(GRID[-1])


def test_with_a_single_sample_of_each_class_the_default_is_taken():
    features, labels = material(4, 8, noise=0.1)
    probe = train(features, labels, 4)
    assert probe.l2 == DEFAULT_STRENGTH
    assert probe.logits(features).argmax(dim=1).tolist() == labels.tolist()


def test_the_same_features_give_the_same_probe():
    features, labels = material(80, 12, noise=2.0)
    assert torch.equal(train(features, labels, 4).weights, train(features, labels, 4).weights)
