"""The drawn pictures: the same everywhere, with exact masks and boxes, and made in no time."""

import hashlib
import pickle
import time

import numpy as np

from tests.data.conftest import counts
from vitrail.data import open_source
from vitrail.data.sources.shapes import CLASSES, COUNTS, SIDE, draw_scene


def test_the_source_has_pictures_with_masks_in_three_splits_of_its_own():
    source = open_source("shapes")
    assert source.task == "segmentation"
    assert source.classes == CLASSES
    assert counts(source) == COUNTS
    assert source.made_splits == ()
    for split in source.splits.values():
        assert split.in_memory
        assert split.known.all()
        assert split.read(0).shape == (SIDE, SIDE, 3)
        assert np.array_equal(split.annotation(3), draw_scene(split.name, 3).mask)
        assert np.array_equal(split.read(3), draw_scene(split.name, 3).pixels)
        assert split.size(0) == SIDE * SIDE * 4
    copy = pickle.loads(pickle.dumps(source))
    assert copy.fingerprint() == source.fingerprint()
    assert source.split("all").annotation(449).shape == (SIDE, SIDE)
    contents = {split.read(row).tobytes() for split in source.splits.values() for row in range(len(split))}
    assert len(contents) == 450


def test_every_class_is_in_every_split():
    for split in open_source("shapes").splits.values():
        seen = np.bincount(np.concatenate([split.annotation(row).ravel() for row in range(len(split))]), minlength=4)
        assert len(seen) == 4
        share = seen / seen.sum()
        assert 0.7 < share[0] < 0.85
        assert (share[1:] > 0.03).all()


def test_masks_and_boxes_are_those_of_the_shapes():
    most = 0
    for number in range(60):
        scene = draw_scene("test", number)
        most = max(most, len(scene.kinds))
        assert 2 <= len(scene.kinds) <= 5
        assert scene.instances.max() == len(scene.kinds) == len(scene.boxes)
        assert np.array_equal(scene.mask > 0, scene.instances > 0)
        for row, (kind, box) in enumerate(zip(scene.kinds, scene.boxes, strict=True)):
            rows, columns = np.nonzero(scene.instances == row + 1)
            assert len(rows) > 20
            assert (scene.mask[rows, columns] == kind).all()
            assert box.tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
    assert most == 5


def test_a_disc_is_round_and_a_square_has_four_equal_sides():
    """By the second moments of shapes that nothing hides: of a disc of area A they are A / 4 pi, of a square A / 12."""
    expected = {1: 1 / (4 * np.pi), 2: 1 / 12, 3: 1 / (6 * np.sqrt(3))}
    for number in range(40):
        scene = draw_scene("moments", number)
        top = len(scene.kinds)  # drawn last
        rows, columns = np.nonzero(scene.instances == top)
        if min(rows.min(), columns.min()) == 0 or max(rows.max(), columns.max()) == SIDE - 1:
            continue
        spread = (rows.var() + columns.var()) / 2 / len(rows)
        assert abs(spread / expected[int(scene.kinds[-1])] - 1) < 0.06


def test_the_same_pictures_on_every_machine():
    scene = draw_scene("train", 0)
    assert hashlib.sha256(scene.mask.tobytes()).hexdigest()[:16] == "4f60051a07733218"
    assert hashlib.sha256(scene.pixels.tobytes()).hexdigest()[:16] == "675030f323fbe26c"
    assert not np.array_equal(draw_scene("train", 1).mask, scene.mask)


def test_all_are_drawn_in_a_second():
    began = time.process_time()
    for number in range(450):
        draw_scene("speed", number)
    assert time.process_time() - began < 1.0
