"""The picture of ratios."""

import io

import pytest
from PIL import Image

from vitrail.drawing.ratios import ratios


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
