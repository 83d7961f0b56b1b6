"""COCO's run lengths, compared with pycocotools."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pycocotools import mask as coco

from vitrail.tasks.segmentation.rle import decode_runs, encode_classes, encode_runs, run_lengths


@given(
    rows=st.integers(1, 40), columns=st.integers(1, 40), share=st.sampled_from([0, 0.02, 0.5, 1]), seed=st.integers(0)
)
@settings(max_examples=100)
def test_masks_are_the_text_that_pycocotools_writes(rows, columns, share, seed):
    mask = np.random.default_rng(seed).random((rows, columns)) < share
    own, other = encode_runs(mask), coco.encode(np.asfortranarray(mask.astype(np.uint8)))
    assert own == {"size": other["size"], "counts": other["counts"].decode()}
    assert (decode_runs(own, 1600) == mask).all()
    assert (decode_runs({"size": [rows, columns], "counts": run_lengths(mask)}, 1600) == mask).all()


def test_long_runs_and_the_differences_between_them():
    mask = np.zeros((900, 1100), bool)
    mask[100:700, 200:900] = True
    mask[650, 300:310] = False
    assert encode_runs(mask)["counts"] == coco.encode(np.asfortranarray(mask.astype(np.uint8)))["counts"].decode()
    assert (decode_runs(encode_runs(mask), mask.size) == mask).all()


@pytest.mark.parametrize(("document", "message"), [
    ({"size": [3, 3], "counts": [4, 4]}, "cover 8 of 9"),
    ({"size": [3, 3], "counts": [10, -1]}, "no lengths"),
    ({"size": [3, 3], "counts": "o" * 50}, "damaged"),
    ({"size": [3, 3], "counts": "\x1f"}, "damaged"),
    ({"size": [3, 3], "counts": "0" * 50}, "damaged"),
    ({"size": [3, 3], "counts": "o"}, "within a number"),
    ({"size": [3, 3], "counts": {}}, "no lengths"),
    ({"size": [10**6, 10**6], "counts": [10**12]}, "too large"),
    ({"size": [0, 3], "counts": []}, "size"),
    ({"counts": []}, "size"),
])  # fmt: skip
def test_damaged_run_lengths_are_refused(document, message):
    with pytest.raises(ValueError, match=message):
        decode_runs(document, 1 << 20)


@given(rows=st.integers(1, 9), columns=st.integers(1, 9), classes=st.integers(1, 4), seed=st.integers(0, 1000))
@settings(max_examples=150, deadline=None)
def test_all_classes_at_once_are_encoded_as_one_by_one(rows, columns, classes, seed):
    mask = np.random.default_rng(seed).integers(0, classes, (rows, columns)).astype(np.uint8)
    found = encode_classes(mask, range(classes + 1))
    assert found == {each: encode_runs(mask == each) for each in range(classes + 1)}
