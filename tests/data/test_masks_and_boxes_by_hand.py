"""Frames that are made by hand: flips, cuts and clipped boxes are exact, and masks and scores come back."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from vitrail.masks_and_boxes import Frame, mirror, translation, upside_down

IGNORE = 255


def numbered(rows: int, columns: int) -> np.ndarray:
    """A picture that names each of its pixels by column and row: (rows, columns, 2)."""
    return np.stack(np.broadcast_arrays(np.arange(columns), np.arange(rows)[:, None]), axis=2).astype(np.uint8)


def test_flips_and_shifts_are_exact():
    picture, size = numbered(20, 30), (20, 30)
    whole = Frame.of(size, size)
    for move, same in (
        (mirror(size), picture[:, ::-1]),
        (upside_down(size), picture[::-1]),
    ):
        frame = whole.then(move)
        assert np.array_equal(frame.mask(picture[:, :, 0]), same[:, :, 0])
        assert np.array_equal(frame.mask(picture[:, :, 1]), same[:, :, 1])
        assert np.array_equal(frame.inverse_mask(frame.mask(picture[:, :, 0])), picture[:, :, 0])
        assert frame.then(move) == whole
    assert whole.then(mirror(size)).boxes([[1, 2, 5, 4]]).tolist() == [[25, 2, 29, 4]]
    assert whole.then(upside_down(size)).boxes([[1, 2, 5, 4]]).tolist() == [[1, 16, 5, 18]]
    moved = whole.then(translation(3, -2))
    assert moved.boxes([[1, 2, 5, 4], [26, 3, 30, 19]]).tolist() == [[4, 0, 8, 2], [29, 1, 30, 17]]
    expected = np.full(size, IGNORE)
    expected[:18, 3:] = picture[2:, :27, 0]
    assert np.array_equal(moved.mask(picture[:, :, 0], IGNORE), expected)


def test_what_was_cut_off_does_not_come_back():
    size = (10, 10)
    frame = Frame.of(size, size).then(translation(4, 0), translation(-6, 0))
    columns = np.broadcast_to(np.arange(10, dtype=np.uint8), size)
    assert frame.mask(columns)[0].tolist() == [2, 3, 4, 5, IGNORE, IGNORE, IGNORE, IGNORE, IGNORE, IGNORE]
    assert frame.boxes([[0, 1, 10, 9], [6, 0, 9, 9]]).tolist() == [[0, 1, 4, 9], [0, 0, 0, 0]]
    back = frame.inverse_mask(np.zeros(size, np.uint8))
    assert back[3].tolist() == [IGNORE, IGNORE, 0, 0, 0, 0, IGNORE, IGNORE, IGNORE, IGNORE]
    # Nor what the crop left out, though a turn would reach it.
    cropped = Frame.of((30, 30), size, (10, 10, 20, 20)).then(translation(4, 0))
    assert cropped.mask(np.zeros((30, 30), np.uint8))[0].tolist() == [IGNORE] * 4 + [0] * 6


def test_a_turned_box_is_clipped_to_what_shows_of_it():
    turn = (0.0, 1.0, 0.0, -1.0, 0.0, 10.0)  # by a quarter
    frame = Frame.of((10, 10), (10, 10)).then(turn)
    assert frame.boxes([[1, 2, 4, 9]]).tolist() == [[1, 1, 8, 4]]
    half = np.sqrt(0.5)
    tilted = Frame.of((10, 10), (10, 10)).then((half, half, 5 - 10 * half, -half, half, 5))
    (found,) = tilted.boxes([[0, 0, 10, 10]])
    assert np.allclose(found, [0, 0, 10, 10])
    tip = 5 - 3 * np.sqrt(2)  # of a corner, the rest of which lies outside
    assert np.allclose(tilted.boxes([[0, 0, 2, 2]]), [[5 - tip, 0, 5 + tip, tip]])


@given(size=st.tuples(st.integers(5, 30), st.integers(5, 30)), factor=st.integers(1, 3), seed=st.integers(0, 10_000))
@settings(deadline=None, max_examples=30)
def test_a_mask_that_was_enlarged_comes_back_whole(size, factor, seed):
    mask = np.random.default_rng(seed).integers(0, 200, (2, *size), dtype=np.uint8)
    box = (1, 2, size[1] - 1, size[0] - 1)
    frame = Frame.of(size, (factor * size[0], factor * size[1] + 1), box)
    back = frame.inverse_mask(frame.mask(mask), unknown=IGNORE)
    expected = np.full_like(mask, IGNORE)
    expected[:, 2:-1, 1:-1] = mask[:, 2:-1, 1:-1]
    assert np.array_equal(back, expected), "and what the crop left out is not known"


@given(size=st.tuples(st.integers(3, 60), st.integers(3, 60)), grid=st.tuples(st.integers(1, 9), st.integers(1, 9)))
@settings(deadline=None, max_examples=30)
def test_scores_come_back_as_torch_interpolates_them(size, grid):
    scores = np.random.default_rng(0).normal(size=(3, *grid)).astype(np.float32)
    frame = Frame.of(size, (32, 48))
    theirs = torch.nn.functional.interpolate(torch.from_numpy(scores)[None], size, mode="bilinear")[0].numpy()
    found = frame.inverse_scores(scores)
    assert found.dtype == np.float32
    assert np.abs(found - theirs).max() < 1e-5
    assert np.array_equal(frame.inverse_scores(scores, slice(1, 3)), found[:, 1:3])


def test_a_frame_is_a_value():
    frame = Frame.of((20, 30), (10, 10))
    with pytest.raises(dataclasses.FrozenInstanceError):
        frame.size = (1, 1)  # pyright: ignore[reportAttributeAccessIssue]
    assert hash(frame.then(mirror((10, 10)))) != hash(frame)
    assert frame.boxes(np.zeros((0, 4))).shape == frame.inverse_boxes(np.zeros((0, 4))).shape == (0, 4)
    assert frame.points(np.zeros((0, 2))).shape == (0, 2)
    with pytest.raises(AssertionError, match="for a picture of"):
        frame.mask(np.zeros((10, 10), np.uint8))
    with pytest.raises(AssertionError, match="does not fit into"):
        frame.mask(np.zeros((20, 30), bool))
