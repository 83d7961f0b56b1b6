"""The picture of merged patches, and that of ratios."""

import io

import numpy as np
import pytest
from PIL import Image

from vitrail.drawing.merged import merged_patches, tiles
from vitrail.drawing.plots import DARK, LIGHT
from vitrail.drawing.ratios import ratios


def test_a_group_has_its_average_colour_and_lines_where_groups_meet():
    photo = np.zeros((4, 6, 3), np.uint8)
    photo[:2, :2], photo[:2, 2:4], photo[2:, 4:] = 100, 200, 30
    groups = np.array([[0, 0, 1], [2, 2, 1]])
    mosaic, lines = tiles(photo, groups)
    assert (mosaic[:2, :4] == 150).all()
    assert (mosaic[:, 4:] == 15).all()
    assert (mosaic[2:, :4] == 0).all()
    assert sorted(lines) == [((0, 2), (2, 2)), ((2, 2), (4, 2)), ((4, 0), (4, 2)), ((4, 2), (4, 4))]


@pytest.mark.parametrize("theme", [LIGHT, DARK])
@pytest.mark.parametrize("shape", [(28, 28), (28, 28, 1), (28, 14, 3), (14, 28, 4)])
def test_any_photo_is_drawn_with_its_mosaic(shape, theme):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    groups = np.arange(shape[0] // 7 * (shape[1] // 7)).reshape(shape[0] // 7, -1) // 2
    with Image.open(io.BytesIO(merged_patches(pixels, groups, theme))) as picture:
        assert picture.size[0] > 900


@pytest.mark.parametrize("peers", [["timm"], ["timm", "transformers", "a peer with a very long name $x$"]])
@pytest.mark.parametrize("cases", [1, 3])
def test_ratios_are_drawn_for_any_number_of_cases_and_peers(peers, cases):
    rows = [
        {"what": f"case {case}", "subject": subject, "peer": peer, "ratio": 1.2, "spread": [1.1, 1.4]}
        for case in range(cases)
        for subject in ("vitrail torch", "vitrail onnxruntime")
        for peer in peers
    ]
    with Image.open(io.BytesIO(ratios(rows))) as picture:
        assert min(picture.size) > 100
