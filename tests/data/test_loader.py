"""The training stream is the same from any position with any number of workers; evaluation takes each sample once."""

import itertools
import threading

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data.conftest import encoded, picture, smooth, write_class_folders
from vitrail.config import DataConfig, Preprocessing, TransformConfig
from vitrail.data import Split, decode, open_source
from vitrail.data.loader import Batch, EvaluationLoader, Normaliser, TrainingLoader, loader_workers
from vitrail.data.transforms import TrainingTransform
from vitrail.errors import UserError
from vitrail.random_stream import RandomStream

SMALL = Preprocessing(image_size=16)
EVERYTHING = TransformConfig(
    randaugment_layers=2, erase=0.5, colour_jitter=0.2, mixup=0.3, cutmix=0.5, label_smoothing=0.1, rotate=5
)


def in_memory(count: int, side: int = 16) -> Split:
    pictures = np.stack([smooth(side, side, seed=index) for index in range(count)])
    return Split.of_array("train", pictures, np.arange(count) % 3)


def stream(split: Split, config: TransformConfig, batches: int, **options) -> list[Batch]:
    fields = {"batch_size": 8, "seed": 0, "num_classes": 3, "workers": 0, **options}
    return list(itertools.islice(TrainingLoader(split, config, SMALL, **fields), batches))


def same(one: Batch, other: Batch) -> bool:
    if (one.targets is None) != (other.targets is None):
        return False
    soft = one.targets is None or torch.equal(one.targets, other.targets)
    return (
        soft
        and torch.equal(one.images, other.images)
        and torch.equal(one.targets, other.targets)
        and (one.ids, one.bad, one.position) == (other.ids, other.bad, other.position)
    )


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Split:
    root = write_class_folders(tmp_path_factory.mktemp("files"), {"a": 12, "b": 12, "c": 13})
    (root / "a" / "003.png").write_bytes(b"broken")
    (root / "c" / "007.png").write_bytes(encoded(picture())[:300])
    return open_source(root, val_fraction=0, test_fraction=0).split("train")


# The training stream


@pytest.mark.parametrize("workers", [1, 2, 5])
def test_the_number_of_workers_does_not_matter(files, workers):
    alone = stream(files, EVERYTHING, 12, max_bad=1.0)
    together = stream(files, EVERYTHING, 12, max_bad=1.0, workers=workers)
    assert all(same(one, other) for one, other in zip(alone, together, strict=True))
    assert any(batch.bad for batch in alone)
    assert {name for batch in alone for name in batch.ids} > {"a/000.png", "b/000.png", "c/000.png"}


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_a_stream_that_is_taken_up_anywhere_goes_on_the_same(files, workers):
    whole = stream(files, EVERYTHING, 14, max_bad=1.0)
    for done in range(1, 14, 3):
        position = whole[done - 1].position
        rest = stream(files, EVERYTHING, 14 - done, max_bad=1.0, position=position, workers=workers)
        assert all(same(one, other) for one, other in zip(whole[done:], rest, strict=True))


@given(
    count=st.integers(1, 40),
    batch_size=st.integers(1, 17),
    done=st.integers(0, 9),
    workers=st.integers(0, 2),
    seed=st.integers(0, 3),
    repeats=st.integers(1, 3),
)
@settings(deadline=None, max_examples=40)
def test_any_stream_in_memory_resumes_exactly(count, batch_size, done, workers, seed, repeats):
    config = TransformConfig(crop="pad", padding=2, repeats=repeats, mixup=0.2)
    split = in_memory(count)
    options = {"batch_size": batch_size, "seed": seed}
    whole = stream(split, config, done + 3, **options)
    rest = stream(split, config, 3, position=done * batch_size, workers=workers, **options)
    assert all(same(one, other) for one, other in zip(whole[done:], rest, strict=True))


def test_batches_of_another_size_hold_the_same_samples():
    """Batching is only a way to group the stream: what happens to a sample does not depend on its neighbours."""
    config = TransformConfig(crop="pad", padding=2, rotate=8, randaugment_layers=1)
    large = stream(in_memory(30), config, 4, batch_size=12)
    single = stream(in_memory(30), config, 48, batch_size=1)
    assert torch.equal(torch.cat([b.images for b in large]), torch.cat([b.images for b in single]))
    assert [name for b in large for name in b.ids] == [name for b in single for name in b.ids]


def test_the_fast_way_for_arrays_equals_the_way_for_files(tmp_path):
    split = in_memory(20)
    for index, name in enumerate(split.ids):
        path = tmp_path / str(split.labels[index]) / f"{name.replace('/', '-')}.png"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(encoded(picture(16, 16, seed=index)))
    files = open_source(tmp_path, val_fraction=0, test_fraction=0).split("train")
    # Give both the same ids and order, for the ids seed the augmentation.
    order = sorted(range(20), key=lambda index: files.ids[index].split("/")[1])
    alike = Split("train", split.ids, files.labels[order], files.reader, files.rows[order])
    config = TransformConfig(crop="pad", padding=3, rotate=10, flip=0.5)
    assert split.in_memory
    assert not alike.in_memory
    for one, other in zip(stream(split, config, 6), stream(alike, config, 6), strict=True):
        assert same(one, other)


def test_augmentation_is_seeded_by_seed_epoch_repeat_and_id_alone():
    split, config = in_memory(10), TransformConfig(crop="pad", padding=4, repeats=2)
    transform, normalise = TrainingTransform(config, SMALL), Normaliser(SMALL)
    for position, batch in enumerate(stream(split, config, 30, batch_size=1, seed=5)):
        draws = RandomStream("sample", 5, position // 10, position % 2, batch.ids[0])
        pixels = transform(split.read(list(split.ids).index(batch.ids[0])), draws)
        assert torch.equal(batch.images, normalise(np.ascontiguousarray(pixels[None])))


def test_an_epoch_has_every_sample_once_and_epochs_differ():
    batches = stream(in_memory(24), TransformConfig(crop="pad"), 9, batch_size=8)
    epochs = [[name for batch in batches[3 * e : 3 * e + 3] for name in batch.ids] for e in range(3)]
    assert all(len(set(epoch)) == 24 for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 3
    other = stream(in_memory(24), TransformConfig(crop="pad"), 3, batch_size=8, seed=1)
    assert [name for batch in other for name in batch.ids] != epochs[0]


def test_a_sample_is_augmented_anew_in_every_epoch():
    split = in_memory(1)
    batches = stream(split, TransformConfig(), 10, batch_size=1)
    assert len({batch.images.numpy().tobytes() for batch in batches}) == 10


def test_repeated_augmentation_shows_fewer_samples_in_several_versions():
    batches = stream(in_memory(24), TransformConfig(repeats=3), 3, batch_size=8)
    ids = [name for batch in batches for name in batch.ids]
    assert ids == [name for name in ids[::3] for _ in range(3)]
    assert len(set(ids)) == 8
    images = torch.cat([batch.images for batch in batches])
    assert not torch.equal(images[0], images[1])


@pytest.mark.parametrize("world_size", [2, 3])
def test_processes_share_the_global_batch(world_size):
    split = in_memory(30)
    config = TransformConfig(crop="pad")
    whole = stream(split, config, 4, batch_size=4 * world_size)
    parts = [stream(split, config, 4, batch_size=4, rank=rank, world_size=world_size) for rank in range(world_size)]
    for step, batch in enumerate(whole):
        assert batch.ids == [name for part in parts for name in part[step].ids]
        assert torch.equal(batch.images, torch.cat([part[step].images for part in parts]))
        assert {part[step].position for part in parts} == {batch.position}


def test_labels_and_targets():
    plain = stream(in_memory(9), TransformConfig(crop="pad"), 1)[0]
    assert plain.soft is None
    assert plain.images.dtype == torch.float32
    assert plain.images.shape == (8, 3, 16, 16)
    assert plain.targets.tolist() == [int(name[-6:]) % 3 for name in plain.ids]
    soft = stream(in_memory(9), TransformConfig(crop="pad", label_smoothing=0.3), 1)[0]
    assert soft.soft.shape == (8, 3)
    assert soft.soft.argmax(dim=1).tolist() == soft.targets.tolist()
    unlabelled = Split.of_array("train", np.zeros((4, 16, 16, 3), np.uint8), [0, 1, -1, 0])
    with pytest.raises(UserError, match="need a label"):
        stream(unlabelled, TransformConfig(crop="pad", mixup=0.1), 1)


# Bad files


def broken_set(root, count: int = 100, broken: int = 2):
    write_class_folders(root, {"a": count // 2, "b": count // 2})
    for index in range(broken):
        file = root / "ab"[index % 2] / f"{index * 7:03d}.png"
        file.write_bytes([b"", b"junk", file.read_bytes()[:200]][index % 3])
    expected = {f"{'ab'[index % 2]}/{index * 7:03d}.png" for index in range(broken)}
    return open_source(root, val_fraction=0, test_fraction=0).split("train"), expected


@pytest.mark.parametrize("workers", [0, 2])
def test_two_percent_of_broken_files_are_replaced_and_listed_exactly(tmp_path, workers):
    split, expected = broken_set(tmp_path)
    options = {"batch_size": 10, "seed": 0, "num_classes": 2, "max_bad": 0.05, "workers": workers}
    loader = TrainingLoader(split, TransformConfig(), SMALL, **options)
    batches = list(itertools.islice(loader, 20))
    assert all(len(batch) == 10 for batch in batches)
    assert set(loader.bad) == expected
    assert all(reason for reason in loader.bad.values())
    assert not expected & {name for batch in batches for name in batch.ids}
    assert {each.id for batch in batches[:10] for each in batch.bad} == expected
    # The rest of the epoch is as it would have been: each good sample once, and two substitutes.
    epoch = [name for batch in batches[:10] for name in batch.ids]
    assert len(set(epoch)) == 98


def test_too_many_broken_files_stop_the_training(tmp_path):
    split, expected = broken_set(tmp_path, broken=6)
    with pytest.raises(UserError, match=r"--data\.max-bad") as error:
        stream(split, TransformConfig(), 20, batch_size=10, max_bad=0.05)
    assert "6 of 100" in str(error.value)
    assert sum(name in str(error.value) for name in expected) == 3
    assert len(stream(split, TransformConfig(), 20, batch_size=10, max_bad=0.06)) == 20
    with pytest.raises(UserError, match=r"of 100 images cannot be used, more than --data\.max-bad 0 "):
        stream(split, TransformConfig(), 20, batch_size=10, max_bad=0)


def test_a_set_with_nothing_but_broken_files_says_so(tmp_path):
    split, _ = broken_set(tmp_path, count=4, broken=0)
    for file in tmp_path.glob("*/*"):
        file.write_bytes(b"junk")
    with pytest.raises(UserError, match="in a row cannot be read"):
        stream(split, TransformConfig(), 1, batch_size=2, max_bad=1.0)


def test_the_share_of_bad_files_can_be_given_in_percent():
    assert DataConfig(max_bad="5%").max_bad_fraction == 0.05
    assert DataConfig(max_bad=0.02).max_bad_fraction == 0.02
    for value in ("many", "120%", -1):
        with pytest.raises(UserError, match="max_bad"):
            DataConfig(max_bad=value)
    with pytest.raises(UserError, match="nothing to train on"):
        DataConfig(val_fraction=0.5, test_fraction=0.5)
    assert DataConfig.from_json(DataConfig(max_bad="5%").to_json()) == DataConfig(max_bad=0.05)


# Evaluation


@pytest.mark.parametrize("batch_size", [1, 2, 7, 16, 50])
def test_evaluation_takes_every_sample_exactly_once(batch_size):
    for count in range(1, 34):
        split = in_memory(count)
        for workers in (0, 2):
            loader = EvaluationLoader(split, SMALL, batch_size=batch_size, workers=workers)
            batches = list(loader)
            assert [name for batch in batches for name in batch.ids] == list(split.ids)
            assert len(batches) == len(loader)
            assert [len(batch) for batch in batches[:-1]] == [batch_size] * (len(batches) - 1)
            assert all(len(batch.images) == len(batch.targets) == len(batch.ids) for batch in batches)


@pytest.mark.parametrize("world_size", [2, 3, 5])
def test_processes_together_evaluate_every_sample_once(world_size):
    for count in (1, 4, 7, 11):
        split = in_memory(count)
        seen = []
        for rank in range(world_size):
            loader = EvaluationLoader(split, SMALL, batch_size=2, workers=0, rank=rank, world_size=world_size)
            seen += [name for batch in loader for name in batch.ids]
        assert sorted(seen) == sorted(split.ids)


def test_evaluation_leaves_bad_samples_out_and_lists_them(tmp_path):
    split, expected = broken_set(tmp_path, broken=5)
    for workers in (0, 2):
        loader = EvaluationLoader(split, SMALL, batch_size=9, workers=workers)
        for _ in range(2):  # the list is of one pass
            ids = [name for batch in loader for name in batch.ids]
            assert set(loader.bad) == expected
            assert ids == [name for name in split.ids if name not in expected]
    with pytest.raises(UserError, match="max-bad"):
        list(EvaluationLoader(split, SMALL, batch_size=9, workers=0, max_bad=0.01))


def test_evaluation_of_arrays_and_files_is_the_same(files):
    loader = EvaluationLoader(files, SMALL, batch_size=5)
    for batch in loader:
        for place, name in enumerate(batch.ids):
            index = list(files.ids).index(name)
            array = Split.of_array("x", decode(files.read(index))[None], [0])
            (single,) = EvaluationLoader(array, SMALL, batch_size=1)
            assert torch.equal(single.images[0], batch.images[place])


# Threads


def test_leaving_the_loop_early_ends_the_threads():
    def ours() -> list[str]:
        return [thread.name for thread in set(threading.enumerate()) - others if "vitrail-loader" in thread.name]

    others = set(threading.enumerate())
    loader = TrainingLoader(in_memory(9), TransformConfig(), SMALL, batch_size=2, seed=0, num_classes=3, workers=2)
    iterator = iter(loader)
    next(iterator)
    assert ours()
    iterator.close()
    assert not ours()


def test_an_error_in_a_worker_reaches_the_loop():
    split = in_memory(9)

    class Breaks:
        def read(self, row):
            raise RuntimeError("a bug")

        def size(self, row):
            return 0

    broken = Split("train", split.ids, split.labels, Breaks(), split.rows)
    for workers in (0, 2):
        with pytest.raises(RuntimeError, match="a bug"):
            stream(broken, TransformConfig(), 1, workers=workers)


def test_senseless_requests_are_refused():
    empty = Split.of_array("train", np.zeros((0, 16, 16, 3), np.uint8), [])
    with pytest.raises(UserError, match="no samples"):
        stream(empty, TransformConfig(), 1)
    with pytest.raises(UserError, match="batch size"):
        stream(in_memory(3), TransformConfig(), 1, batch_size=0)
    assert loader_workers(in_memory(3)) == 1


def test_every_view_is_drawn_for_itself():
    config = TransformConfig(crop="inception", area=(0.2, 0.5))
    for batch in stream(in_memory(20), config, 3, views=[(config, SMALL)] * 2):
        views = [batch.images, *batch.views]
        for one, other in itertools.combinations(views, 2):
            assert not any(torch.equal(a, b) for a, b in zip(one, other, strict=True))


def test_each_process_mixes_its_part_for_itself():
    pictures = np.stack([smooth(16, 16, seed=index) for index in range(40)])
    split = Split.of_array("train", pictures, np.arange(40))
    config = TransformConfig(crop="pad", mixup=1.0)
    for step in range(3):
        parts = [stream(split, config, 3, num_classes=40, rank=rank, world_size=2)[step] for rank in (0, 1)]
        shares = [set(part.soft[part.soft > 0].tolist()) for part in parts]
        assert shares[0] & shares[1] <= {1.0}, "1 where a picture was mixed with itself"
