"""The order of training samples: every sample once an epoch, the same from anywhere, and by shards a few at a time."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.conftest import smooth
from vitrail.config import DataConfig, Preprocessing, TransformConfig
from vitrail.data import Split, open_source
from vitrail.data.loader import TrainingLoader
from vitrail.data.order import GlobalOrder, ShardOrder, create_order
from vitrail.data.shard_writer import write_shards
from vitrail.data.sources.base import Source
from vitrail.errors import UserError

SMALL = Preprocessing(image_size=16)
GOLDEN = [11, 5, 3, 7, 1, 0, 2, 10, 8, 9, 4, 6, 11, 4, 6, 1, 10, 3, 8, 5, 9, 0, 7, 2]
"""Two epochs as the first version of the loader gave them: a run begun then must go on the same."""
LAYOUTS = st.lists(st.integers(1, 9), min_size=1, max_size=12)


def layout(sizes: list[int], seed: int = 0) -> np.ndarray:
    """Which shard each sample lies in; samples of a split need not stand shard by shard."""
    shards = np.repeat(np.arange(len(sizes)) * 3, sizes)
    return np.random.default_rng(seed).permutation(shards)


@given(sizes=LAYOUTS, buffer=st.integers(1, 40), seed=st.integers(0, 5), epoch=st.integers(0, 3))
@settings(deadline=None)
def test_an_epoch_by_shards_has_every_sample_once(sizes, buffer, seed, epoch):
    order = ShardOrder(layout(sizes), seed, 1, buffer)
    count = sum(sizes)
    places = [order.at(epoch * count + place) for place in range(count)]
    assert sorted(sample for _, sample, _ in places) == list(range(count))
    assert {(each, repeat) for each, _, repeat in places} == {(epoch, 0)}


@given(sizes=LAYOUTS, buffer=st.integers(1, 40), start=st.integers(0, 400), repeats=st.integers(1, 3))
@settings(deadline=None)
def test_an_order_is_the_same_from_any_position(sizes, buffer, start, repeats):
    whole, late = (ShardOrder(layout(sizes), 7, repeats, buffer) for _ in range(2))
    expected = [whole.at(position) for position in range(start + 30)]
    assert [late.at(position) for position in range(start, start + 30)] == expected[start:]
    backwards = ShardOrder(layout(sizes), 7, repeats, buffer)
    assert [backwards.at(position) for position in reversed(range(start + 30))] == expected[::-1]


@given(sizes=st.lists(st.integers(5, 9), min_size=1, max_size=30), buffer=st.integers(1, 40), seed=st.integers(0, 5))
@settings(deadline=None)
def test_a_block_touches_few_shards(sizes, buffer, seed):
    shards = layout(sizes)
    order = ShardOrder(shards, seed, 1, buffer)
    for first in range(0, sum(sizes), buffer):
        block = [order.at(place)[1] for place in range(first, min(first + buffer, sum(sizes)))]
        assert len(set(shards[block])) <= -(-buffer // 5) + 1
        assert set(block) <= set(order.soon(first).tolist())
        assert order.stretch(first) == first // buffer


def test_shards_and_their_samples_are_shuffled_anew_each_epoch():
    shards = np.repeat(np.arange(20), 50)
    order = ShardOrder(shards, 0, 1, buffer=100)
    epochs = [[order.at(1000 * epoch + place)[1] for place in range(1000)] for epoch in range(3)]
    firsts = [list(dict.fromkeys(shards[samples].tolist())) for samples in epochs]
    assert len({tuple(first) for first in firsts}) == 3
    assert epochs[0][:100] != sorted(epochs[0][:100])
    # Both shards of a block come up from its beginning: they are mixed, not one after the other.
    assert len(set(shards[epochs[0][:20]])) == 2
    assert [ShardOrder(shards, 1, 1, 100).at(place)[1] for place in range(1000)] != epochs[0]


@given(sizes=LAYOUTS, repeats=st.integers(2, 4))
@settings(deadline=None)
def test_repeats_stand_side_by_side(sizes, repeats):
    order, count = ShardOrder(layout(sizes), 0, repeats, 4), sum(sizes)
    places = [order.at(place) for place in range(count)]
    assert [repeat for *_, repeat in places] == [place % repeats for place in range(count)]
    samples = [sample for _, sample, _ in places]
    assert samples == [sample for sample in samples[::repeats] for _ in range(repeats)][:count]
    assert len(set(samples)) == -(-count // repeats)


def test_the_global_order_is_what_it_always_was():
    order = GlobalOrder(12, seed=3)
    assert [order.at(position)[1] for position in range(24)] == GOLDEN


# The loader


@pytest.fixture(scope="module")
def sharded(tmp_path_factory) -> Split:
    images = np.stack([smooth(16, 16, seed=index) for index in range(70)])
    source = Source("x", ("a", "b", "c"), {"train": Split.of_array("train", images, np.arange(70) % 3)})
    out = tmp_path_factory.mktemp("shards") / "out"
    write_shards(source, out, shard_bytes=12_000)
    assert len(list(out.glob("*.tar"))) > 5
    return open_source(out, val_fraction=0, test_fraction=0).split("train")


def stream(split: Split, batches: int, **options) -> list:
    fields = {"batch_size": 6, "seed": 0, "num_classes": 3, "workers": 0, "shuffle": "shards", "shuffle_buffer": 20}
    config = options.pop("config", TransformConfig(crop="pad", padding=2, mixup=0.2))
    return list(itertools.islice(TrainingLoader(split, config, SMALL, **{**fields, **options}), batches))


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stream_by_shards_goes_on_from_anywhere(sharded, workers):
    whole = stream(sharded, 30)
    for done in (1, 11, 12, 23):
        rest = stream(sharded, 30 - done, position=whole[done - 1].position, workers=workers)
        for one, other in zip(whole[done:], rest, strict=True):
            assert one.ids == other.ids
            assert torch.equal(one.images, other.images)
            assert torch.equal(one.targets, other.targets)


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_the_order_by_shards(sharded, world_size):
    config = TransformConfig(crop="pad", repeats=2)
    whole = stream(sharded, 20, batch_size=6, config=config)
    size = 6 // world_size
    parts = [
        stream(sharded, 20, batch_size=size, rank=rank, world_size=world_size, config=config)
        for rank in range(world_size)
    ]
    for step, batch in enumerate(whole):
        assert batch.ids == [name for part in parts for name in part[step].ids]
        assert torch.equal(batch.images, torch.cat([part[step].images for part in parts]))


def test_what_a_configuration_asks_for(sharded):
    def kind(split: Split, shuffle) -> type:
        return type(create_order(split, 0, 1, shuffle, 10))

    assert kind(sharded, "auto") is kind(sharded, "global") is GlobalOrder
    assert kind(sharded, "shards") is ShardOrder
    # A part of a split lies in the same shards.
    assert kind(sharded.subset(range(30)), "shards") is ShardOrder
    array = Split.of_array("train", np.zeros((4, 8, 8), np.uint8), [0, 1, 0, 1])
    assert kind(array, "auto") is GlobalOrder
    with pytest.raises(UserError, match=r"--data\.shuffle shards.*use --data\.shuffle global"):
        kind(array, "shards")
    with pytest.raises(UserError, match="shuffle is 'all'; choose one of auto, global, shards"):
        DataConfig(shuffle="all")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match="shuffle_buffer"):
        DataConfig(shuffle_buffer=0)
    chosen = DataConfig(shuffle="shards", shuffle_buffer=5)
    assert DataConfig.from_json(chosen.to_json()) == chosen


def test_another_seed_orders_shards_and_their_samples_otherwise():
    shards = np.repeat(np.arange(20), 50)

    def shards_in_turn(seed: int) -> list[int]:
        order = ShardOrder(shards, seed, 1, buffer=50)
        return [int(shards[order.at(50 * block)[1]]) for block in range(20)]

    assert sorted(shards_in_turn(0)) == sorted(shards_in_turn(1)) == list(range(20))
    assert shards_in_turn(0) != shards_in_turn(1)
    one, other = ShardOrder(np.zeros(50, int), 0), ShardOrder(np.zeros(50, int), 1)
    assert [one.at(place)[1] for place in range(50)] != [other.at(place)[1] for place in range(50)]
