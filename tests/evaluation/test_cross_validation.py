"""Folds: every sample asked once, of a head that has not seen it; classes spread evenly; the command says all of it."""

import json
import statistics

import numpy as np
import pytest
import torch
from sklearn.model_selection import StratifiedKFold

import vitrail
from tests.evaluation.test_closed_form import some
from tests.training.test_probe import digit_model
from vitrail.cli import main
from vitrail.evaluation.cross_validation import cross_validate_features, fold_of
from vitrail.evaluation.features import Features
from vitrail.tasks.classification.closed_form import ridge_head


@pytest.mark.parametrize("counts", [(50, 20, 3), (7, 7, 7), (1, 1, 1, 1, 1), (5,)])
def test_folds_are_as_even_as_can_be_in_all_and_in_every_class(counts):
    labels = torch.from_numpy(np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts)))
    place = fold_of(labels, 5)
    assert set(place.tolist()) <= set(range(5))
    for chosen in (torch.ones(len(labels), dtype=torch.bool), *(labels == label for label in range(len(counts)))):
        sizes = place[chosen].bincount(minlength=5)
        assert sizes.max() - sizes.min() <= 1
    assert torch.equal(place, fold_of(labels, 5))
    assert len(labels) < 10 or not torch.equal(place, fold_of(labels, 5, seed=1))
    if min(counts) >= 5:  # as scikit-learn has them
        theirs = StratifiedKFold(5).split(np.zeros(len(labels)), labels.numpy())
        assert sorted(len(test) for _, test in theirs) == sorted(place.bincount().tolist())


def test_each_fold_is_asked_of_a_head_that_was_solved_without_it():
    data = some(93, 8, apart=0.7)
    place = fold_of(data.targets, 5)
    result = cross_validate_features(data, ("a", "b", "c"), 5)
    for number, fold in enumerate(result.folds):
        inside = place == number
        head = ridge_head(data.values[~inside], data.targets[~inside], 3)
        right = head.outputs(data.values[inside]).argmax(dim=1) == data.targets[inside]
        assert (fold.n, fold.learned_from) == (int(inside.sum()), int((~inside).sum()))
        assert fold.top1 == pytest.approx(float(right.double().mean()))
    assert result.mean == pytest.approx(statistics.fmean(fold.top1 for fold in result.folds))
    assert result.std == pytest.approx(statistics.stdev(fold.top1 for fold in result.folds))


def test_labels_of_chance_are_told_by_chance():
    """With more features than samples a head knows what it learned by heart; what it did not see it cannot."""
    generator = torch.Generator().manual_seed(0)
    values, labels = torch.randn(200, 400, generator=generator), torch.randint(0, 2, (200,), generator=generator)
    result = cross_validate_features(Features([str(each) for each in range(200)], values, labels, 0), ("a", "b"), 5)
    assert 0.38 < result.mean < 0.62


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("model") / "model"
    vitrail.save(digit_model(), folder)  # without a head: none is needed
    return str(folder)


def test_the_command_tells_mean_spread_and_every_fold(model, capsys):
    main(["evaluate", model, "--data", "digits", "--folds", "4", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert set(result) == {
        *("split", "folds", "method", "n", "skipped", "mean", "std", "balanced_accuracy", "per_fold"),
    }
    assert (result["split"], result["folds"], result["n"], result["skipped"]) == ("all", 4, 1797, 0)
    assert [set(each) for each in result["per_fold"]] == [
        {"n", "learned_from", "top1", "balanced_accuracy", "loss"},
    ] * 4
    assert sum(each["n"] for each in result["per_fold"]) == 1797
    assert result["mean"] > 0.6, "random features, but many"
    main(["evaluate", model, "--data", "digits", "--folds", "4", "--split", "test"])
    out = capsys.readouterr().out
    assert out.startswith("digits, test: 180 images, 0 skipped\n4 folds: accuracy ")
    assert "fold 4: " in out
    assert "learned from 135" in out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--folds", "1"], "--folds 1: at least 2 are needed"),
        (["--folds", "2000"], "1797 images can be used, fewer than --folds 2000"),
        (["--folds", "5", "--out", "x"], "leave --out and --real out, or --folds"),
    ],
)
def test_what_cannot_be_folded_is_said(model, flags, said, capsys):
    with pytest.raises(SystemExit) as end:
        main(["evaluate", model, "--data", "digits", *flags])
    assert end.value.code == 2
    assert said in capsys.readouterr().err
