"""Nearest neighbours are scikit-learn's; weighted votes are DINO's; memory is bounded by chunks that change nothing."""

import pytest
import torch
from sklearn.neighbors import KNeighborsClassifier

from vitrail.evaluation import knn


def material(samples: int, queries: int, width: int, classes: int, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(samples, width, generator=generator) + 0.3,
        torch.randint(classes, (samples,), generator=generator),
        torch.randn(queries, width, generator=generator) + 0.3,
    )


@pytest.mark.parametrize(
    ("samples", "k", "width", "classes"),
    [(400, 20, 32, 10), (50, 5, 8, 3), (15, 15, 4, 4), (500, 1, 16, 7), (200, 2, 3, 2)],
)
def test_plain_votes_equal_scikit_learns(samples, k, width, classes):
    train, labels, queries = material(samples, 300, width, classes, seed=k)
    found = knn.classify(train, labels, queries, num_classes=classes, k=k, temperature=None)
    theirs = KNeighborsClassifier(k, metric="cosine").fit(train.numpy(), labels.numpy()).predict(queries.numpy())
    assert found.tolist() == theirs.tolist()


def test_weighted_votes_equal_a_plain_loop():
    train, labels, queries = material(80, 60, 8, 5)
    found = knn.classify(train, labels, queries, num_classes=5, k=12, temperature=0.07)
    for query, answer in zip(queries.double(), found.tolist(), strict=True):
        similarity = torch.cosine_similarity(train.double(), query[None])
        votes = [0.0] * 5
        for place in similarity.argsort(descending=True)[:12].tolist():
            votes[labels[place]] += float((similarity[place] / 0.07).exp())
        assert answer == max(range(5), key=votes.__getitem__)
    plain = knn.classify(train, labels, queries, num_classes=5, k=12, temperature=None)
    assert (plain != found).any(), "the weights matter on this material"


def test_by_default_twenty_neighbours_vote_at_dinos_temperature():
    """0.07 and 20 neighbours, as DINO's own evaluation has them."""
    train, labels, queries = material(400, 300, 8, 10)
    found = knn.classify(train, labels, queries, num_classes=10)
    for k in (10, 19, 20, 21, 30):
        for temperature in (0.01, 0.05, 0.06, 0.07, 0.08, 0.1, 0.2, 0.7, None):
            other = knn.classify(train, labels, queries, num_classes=10, k=k, temperature=temperature)
            assert torch.equal(other, found) == ((k, temperature) == (20, 0.07)), (k, temperature)


def test_chunks_change_nothing(monkeypatch):
    train, labels, queries = material(70, 45, 8, 5)
    whole = knn.classify(train, labels, queries, num_classes=5)
    for held in (1, 70, 7 * 70 + 3, 44 * 70):
        monkeypatch.setattr(knn, "_SIMILARITIES", held)
        assert torch.equal(knn.classify(train, labels, queries, num_classes=5), whole)


def test_fewer_samples_than_neighbours_all_vote():
    train, labels = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.1, 1.0]]), torch.tensor([2, 0, 0])
    queries = torch.tensor([[1.0, 0.1], [0.1, 1.0]])
    assert knn.classify(train, labels, queries, num_classes=4, k=20).tolist() == [2, 0]
    assert knn.classify(train, labels, queries, num_classes=4, k=20, temperature=None).tolist() == [0, 0]


def test_length_does_not_matter_and_nothing_overflows():
    train, labels, queries = material(50, 30, 8, 3)
    found = knn.classify(train, labels, queries, num_classes=3)
    assert torch.equal(knn.classify(train * 1000, labels, queries / 1000, num_classes=3), found)
    nearest = knn.classify(train, labels, queries, num_classes=3, k=1)
    assert torch.equal(knn.classify(train, labels, queries, num_classes=3, temperature=1e-6), nearest)
    with_zeros = torch.cat([train, torch.zeros(1, 8)]), torch.cat([labels, torch.tensor([0])])
    assert len(knn.classify(*with_zeros, torch.zeros(2, 8), num_classes=3)) == 2
