"""Splits are stratified, disjoint, complete and the same on every machine; classes are matched by name."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.config import DataConfig
from vitrail.data import match_classes, open_data
from vitrail.data.sources.splits import split_named, stratified_split
from vitrail.errors import UserError

labelled = st.lists(st.integers(-1, 5), min_size=1, max_size=120)
fractions = st.fixed_dictionaries({"test": st.floats(0, 0.45), "val": st.floats(0, 0.45)})


@given(labels=labelled, parts=fractions, seed=st.integers(0, 5))
@settings(deadline=None, max_examples=150)
def test_splits_are_disjoint_complete_and_stratified(labels, parts, seed):
    ids = [f"sample/{index:04d}" for index in range(len(labels))]
    numbers = np.array(labels)
    split = stratified_split(ids, numbers, parts, seed)
    assert sorted(np.concatenate(list(split.values())).tolist()) == list(range(len(labels)))
    for label in set(labels):
        members = numbers == label
        assert (numbers[split["train"]] == label).any()
        for part, fraction in parts.items():
            count = int((numbers[split[part]] == label).sum())
            assert count < members.sum() * fraction + 1
            spare = members.sum() - 1 - sum(int((numbers[split[each]] == label).sum()) for each in parts)
            assert count > members.sum() * fraction - 1 or spare == 0


@given(labels=labelled, seed=st.integers(0, 3), shuffle=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=80)
def test_the_order_in_which_samples_are_listed_does_not_matter(labels, seed, shuffle):
    ids = [f"{index:04d}.jpg" for index in range(len(labels))]
    parts = {"test": 0.2, "val": 0.1}
    first = stratified_split(ids, np.array(labels), parts, seed)
    order = list(range(len(labels)))
    shuffle.shuffle(order)
    again = stratified_split([ids[i] for i in order], np.array(labels)[order], parts, seed)
    for part in first:
        assert [ids[i] for i in first[part]] == [ids[order[i]] for i in again[part]]


def test_the_split_is_the_same_for_ever():
    ids = [f"{index}" for index in range(20)]
    split = stratified_split(ids, np.arange(20) % 2, {"test": 0.2, "val": 0.1}, 0)
    assert {part: sorted(ids[i] for i in chosen) for part, chosen in split.items() if part != "train"} == {
        "test": ["0", "14", "15", "17"],
        "val": ["10", "9"],
    }


def test_another_seed_gives_another_split():
    ids, labels = [f"{index}" for index in range(100)], np.zeros(100, dtype=int)
    tests = [set(stratified_split(ids, labels, {"test": 0.2}, seed)["test"].tolist()) for seed in (0, 1)]
    assert tests[0] != tests[1]
    assert [len(test) for test in tests] == [20, 20]


def test_small_classes_still_add_up_to_the_share():
    ids, labels = [f"{index}" for index in range(300)], np.arange(300) // 3
    split = stratified_split(ids, labels, {"test": 0.1, "val": 0.1}, 0)
    assert {part: len(chosen) for part, chosen in split.items()} == {"test": 30, "val": 30, "train": 240}


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("data/train-00000-of-00002.parquet", "train"),
        ("imagenet-val-000001.tar", "val"),
        ("validation/0000.parquet", "val"),
        ("Test_01.tar", "test"),
        ("shard-000.tar", None),
        ("trainer.tar", None),
    ],
)
def test_splits_are_told_from_whole_words(name, split):
    assert split_named(name) == split


def test_the_same_classes_in_another_order_are_mapped_by_name():
    places = match_classes(["cat", "dog", "ant"], ["ant", "cat", "dog"])
    assert places.tolist() == [2, 0, 1]
    assert places[np.array([0, 0, 2])].tolist() == [2, 2, 1]


@given(st.permutations(list("abcdef")))
def test_matching_undoes_any_order(names):
    assert [names[place] for place in match_classes(names, list("abcdef"))] == list("abcdef")


@pytest.mark.parametrize(
    ("source", "named"),
    [(["ant", "cat"], "'dog'"), (["ant", "cat", "dog", "elk"], "'elk'"), (["ant", "cat", "fox"], "'fox'")],
)
def test_classes_that_differ_are_an_error_that_names_them(source, named):
    with pytest.raises(UserError, match=named):
        match_classes(["cat", "dog", "ant"], source)


def test_some_of_the_models_classes_are_enough_only_when_asked():
    model = ["a", "b", "c", "d"]
    assert match_classes(model, ["d", "b"], subset=True).tolist() == [3, 1]
    with pytest.raises(UserError, match="'a', 'c'"):
        match_classes(model, ["d", "b"])
    with pytest.raises(UserError, match="'x'"):
        match_classes(model, ["d", "x"], subset=True)


@given(size=st.integers(10, 1437))
@settings(deadline=None, max_examples=25)
def test_fewer_training_samples_keep_every_class_and_the_rest_as_it_was(size):
    whole, less = open_data(DataConfig("digits")), open_data(DataConfig("digits", train_size=size))
    training = less.split("train")
    assert len(training) == size
    assert set(training.ids) <= set(whole.split("train").ids)
    counts = np.bincount(training.labels, minlength=10)
    assert counts.min() >= 1
    exact = np.bincount(whole.split("train").labels) * size / 1437
    assert np.abs(counts - exact).max() <= 1
    assert less.split("test").ids == whole.split("test").ids
    assert len(open_data(DataConfig("digits", val_size=20)).split("val")) == 20


def test_more_than_there_is_and_fewer_than_classes_are_refused():
    with pytest.raises(UserError, match="train has 1437 samples"):
        open_data(DataConfig("digits", train_size=1438))
    with pytest.raises(UserError, match="some of its 10 classes empty"):
        open_data(DataConfig("digits", train_size=9))
