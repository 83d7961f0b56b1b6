"""The report: of every kind of model, self-contained, whole or not at all, with sentences that follow the numbers."""

import base64
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.conftest import pictures, toy
from tests.insight.test_attention import KINDS
from vitrail.data.inputs import Prepared
from vitrail.inference.token_merging import merge_map, merged
from vitrail.insight import captions, overlays
from vitrail.insight.explorer import BUDGET, coarsened, explore, map_bytes, membership
from vitrail.insight.findings import examine
from vitrail.insight.images import Images
from vitrail.insight.report import OUTPUTS, write_inspection

MORE = {
    "no positions": {"positions": "none"},
    "no head": {"num_classes": 0},
    "one patch": {"image_size": 8, "depth": 1, "num_heads": 1},
    "five channels": {"channels": 5},
}


def sentences(numbers) -> list[captions.Caption]:
    said = [captions.filters(numbers), captions.distance(numbers), captions.maps(numbers), captions.features(numbers)]
    said += [captions.attention(numbers, "the class token"), captions.neighbours(numbers)]
    said += [captions.merging(numbers)] if numbers["merging"] else []
    return said + ([captions.positions(numbers)] if numbers["position_similarity"] else [])


@pytest.mark.parametrize("fields", [*KINDS.values(), *MORE.values()], ids=[*KINDS, *MORE])
def test_every_kind_of_model_can_be_looked_at_and_the_numbers_are_numbers(fields):
    model = toy(**fields)
    numbers = examine(model, Prepared(pictures(model, batch=3))).to_json()
    assert json.loads(json.dumps(numbers, allow_nan=False)) == numbers
    assert numbers["images"] == {"n": 3, "drawn_by_the_program": False, "with_maps": 3}
    assert numbers["model"]["grid"] == list(model.config.grid)
    assert (numbers["position_similarity"] is None) == (model.config.positions in ("none", "relative"))
    for each in sentences(numbers):
        assert each.shows.endswith(".")
        assert each.says.endswith(".")
        assert "None" not in each.says
        assert "nan" not in each.says


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """A report of a small model with a grid that is not square, and its folder."""
    folder = tmp_path_factory.mktemp("inspect")
    model = toy(image_size=(24, 40), registers=2)
    model.card.label_names = ("<b>a</b>", "b & c", *"defgh")
    draw = np.random.default_rng(0)
    for number in range(8):
        pixels = draw.integers(0, 256, (30, 50, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}<i>.png")
    numbers = vitrail.inspect.report(model, folder, folder / "out", label="b & c", title="Inside <script>")
    return folder / "out", numbers, model


def test_it_holds_the_page_the_numbers_and_the_pictures(written):
    out, numbers, _ = written
    assert {path.name for path in out.iterdir()} == OUTPUTS
    assert json.loads((out / "numbers.json").read_text()) == numbers
    for path in out.glob("*.png"):
        with Image.open(path) as image:
            assert min(image.size) >= 100
            assert np.asarray(image.convert("L")).std() > 5, f"{path.name} is empty"
    assert numbers["images"]["n"] == 8
    assert {each["class"] for each in numbers["maps"]} == {"b & c"}
    assert numbers["agreement"]["n"] == 4


def test_the_page_needs_nothing_from_elsewhere_and_escapes_names(written):
    text = (written[0] / "report.html").read_text()
    assert not re.findall(r"""(?:src|href|srcset)=["'](?!data:)""", text)
    assert "http" not in re.sub(r"data:[^\"]*", "", text).replace("http-equiv", "")
    assert "<title>Inside &lt;script&gt;</title>" in text
    assert "&lt;i&gt;.png" in text
    assert "<i>" not in text
    assert text.count("prefers-color-scheme: dark") >= 4


def test_each_figure_has_what_it_shows_and_what_this_models_numbers_say(written):
    out, numbers, _ = written
    text = (out / "report.html").read_text()
    said = sentences(numbers)
    assert len(said) == 8
    for each in said:
        assert f'<p class="own">{_escaped(each.says)}</p>' in text
        assert _escaped(each.shows) in text


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#x27;")


def test_sentences_follow_the_numbers(written):
    numbers = json.loads(json.dumps(written[1]))
    places = numbers["position_similarity"]
    assert "NOT more similar" in captions.positions({"position_similarity": {**places, "near": 0.1, "far": 0.3}}).says
    assert (
        ": positions are more similar"
        in captions.positions({"position_similarity": {**places, "near": 0.9, "far": 0.3}}).says
    )
    assert (
        "hardly more similar"
        in captions.positions({"position_similarity": {**places, "near": 0.01, "far": -0.03}}).says
    )
    assert (captions.pixels(3.96), captions.pixels(69.4)) == ("4.0 px", "69 px")
    distance = {**numbers["attention_distance"], "early_global_share": 0.5, "early_local_share": 0.25}
    assert (
        "2 of 4 heads in the first layer are global and 1 local"
        in captions.distance({"attention_distance": {**distance, "early_layers": 1}}).says
    )
    for trend, said in ((0.9, "grows with depth"), (-0.9, "falls with depth"), (0.1, "no clear trend")):
        assert said in captions.distance({"attention_distance": {**distance, "depth_correlation": trend}}).says
    agreement = {**numbers["agreement"], "rollout_and_occlusion": 0.1, "gradient_and_occlusion": 0.6}
    assert "gradient rollout is the better guide, and what it marks" in captions.maps({"agreement": agreement}).says


def test_what_is_missing_is_noted():
    notes = {name: examine(toy(**{**KINDS, **MORE}[name]), None).notes for name in ("relative", "hybrid", "axial")}
    assert any("relative" in each for each in notes["relative"])
    assert any("stem's first convolution" in each for each in notes["hybrid"])
    assert any("axial" in each for each in notes["axial"])
    fresh = vitrail.create(toy().config)
    assert any("no trained head" in each for each in examine(fresh, None).notes)


def test_the_merging_view_shows_what_merging_merges(written):
    _, numbers, model = written
    assert numbers["merging"]["per_layer"] == 2, "half of 15 patches in 3 layers"
    assert numbers["merging"]["tokens_left"] == 15 - 3 * 2
    images = pictures(model, 3)
    groups = vitrail.inspect.merged_patches(model, Prepared(images), per_layer=4)
    assert np.array_equal(groups, merge_map(merged(model, 4), images).numpy())
    assert [len(np.unique(each)) for each in groups] == [15 - 4 - 4 - 3] * 3, "at most half of what is left"
    painted = overlays.mosaic(np.zeros((24, 40, 3), np.uint8), groups[0])
    assert set(np.unique(painted)) == {0, 255}, "lines where tokens end"


def test_a_group_has_its_average_colour_and_lines_where_groups_meet():
    photo = np.zeros((224, 224, 1), np.uint8)
    photo[:112, :112], photo[:112, 112:] = 100, 200
    painted = overlays.mosaic(photo, np.array([[0, 0], [1, 2]]))
    assert set(np.unique(painted[:112])) == {150}, "one group, of two patches"
    assert set(np.unique(painted[113:, :112])) == set(np.unique(painted[113:, 113:])) == {0}
    assert (painted[112] == 255).all()
    assert (painted[112:, 112] == 255).all()


def test_without_merging_there_is_no_view_of_it():
    assert examine(toy(depth=1), None).to_json()["merging"] is None
    with pytest.raises(vitrail.UserError, match="axial"):
        vitrail.inspect.merged_patches(toy(**KINDS["axial"]), Prepared(torch.zeros(1, 3, 24, 40)), 1)


def test_weights_that_are_not_numbers_are_refused():
    model = toy()
    model.blocks[1].norm1.weight.data[3] = torch.nan
    with pytest.raises(vitrail.UserError, match="NaN"):
        examine(model, Prepared(pictures(model)))


def test_a_place_that_cannot_be_written_is_found_out_before_the_model_runs(tmp_path):
    (tmp_path / "file").write_text("")

    def never():
        raise AssertionError("the model was run")

    for out in (tmp_path / "file", tmp_path / "file/out"):
        with pytest.raises(vitrail.UserError, match=str(out)):
            write_inspection(out, "title", never)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("fields", [{}, {"registers": 2, "image_size": (16, 40)}, KINDS["axial"]], ids=str)
def test_the_embedded_attention_is_the_models_own_in_8_bits(fields):
    model = toy(**fields)
    images = pictures(model, 2)
    attention = vitrail.inspect.attention(model, Prepared(images))
    read = vitrail.inspect.class_attention(model, Prepared(images))
    found = explore(model, Images(model, Prepared(images)))
    first = model.config.prefix_tokens
    patches = attention[..., first:, first:]
    expected = np.concatenate([read.reshape(*read.shape[:3], 1, -1), patches], axis=3)  # images, steps, heads, ...
    assert [len(each.heads) for each in found.images] == [4, 0], "the first head by head"
    assert found.images[0].average is None, "it is the mean of the heads"
    for head, maps in enumerate(found.images[0].heads):
        assert _share_error(maps, expected[0, :, head]) <= 1.05 / 255
    assert _share_error(found.images[1].average, expected[1].mean(axis=1)) <= 1.05 / 255
    document = found.to_json()["images"][0]["heads"][0]
    levels = np.frombuffer(base64.b64decode(document["levels"]), np.uint8)
    assert np.array_equal(levels, found.images[0].heads[0].levels.ravel())


def _share_error(maps, expected: np.ndarray) -> float:
    """Relative to the largest share of each row."""
    shares = maps.peaks[..., None] * (maps.levels / 255.0) ** 2
    return float((np.abs(shares - expected) / expected.max(axis=-1, keepdims=True)).max())


def test_a_grid_too_fine_for_the_page_is_coarsened_and_shares_stay_shares():
    for grid, steps in (((14, 14), 12), ((24, 24), 24), ((37, 37), 40), ((1, 900), 12), ((64, 64), 12)):
        coarse = coarsened(grid, steps, 500_000)
        assert map_bytes(coarse, steps) <= 500_000
        members = membership(grid, coarse)
        assert members.sum() == grid[0] * grid[1]
        assert (members.sum(dim=0) == 1).all(), "every patch is in one cell"
        assert (members.sum(dim=1) > 0).all(), "no cell is empty"
    assert coarsened((14, 14), 12, 500_000) == (14, 14)


def test_the_embedded_data_stays_within_its_budget():
    model = vitrail.create("Ti/16", num_classes=0, image_size=224)
    found = explore(model, Images(model, Prepared(torch.randn(3, 3, 224, 224))))
    kept = [maps for each in found.images for maps in (each.average, *each.heads) if maps]
    assert {maps.grid for maps in kept} == {(14, 14)}
    assert sum(maps.levels.nbytes + maps.peaks.nbytes for maps in kept) <= BUDGET
    assert len(json.dumps(found.to_json())) < 3_100_000
    assert len(found.images) == 2
