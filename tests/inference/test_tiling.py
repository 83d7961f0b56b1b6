"""Large pictures in overlapping tiles: every pixel blended from all tiles that show it, in little memory."""

import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import vitrail
from tests.conftest import toy
from tests.mask_models import mask_model, picture_file, smooth_picture
from vitrail.cli import main
from vitrail.cli.predict import with_tile_size
from vitrail.errors import UserError
from vitrail.inference.export import export
from vitrail.inference.tiling import Tiling, tile_size
from vitrail.masks_and_boxes import Frame


@pytest.fixture(scope="module")
def model():
    return mask_model()


@given(rows=st.integers(1, 700), columns=st.integers(1, 700), tall=st.integers(1, 130), wide=st.integers(1, 130))
@settings(max_examples=200, deadline=None)
def test_tiles_cover_a_picture_to_its_edges_and_have_a_quarter_in_common(rows, columns, tall, wide):
    tiling = Tiling.of((rows, columns), (tall, wide))
    for side, part, starts in zip((rows, columns), tiling.tile, (tiling.tops, tiling.lefts), strict=True):
        assert starts[0] == 0
        assert starts[-1] + part == side
        steps = np.diff(starts)
        assert (steps > 0).all()
        assert len(steps) == 0 or steps.max() <= max(1.0, 0.75 * part + 1)


def test_the_scores_of_a_pixel_are_the_weighted_mean_of_those_of_its_tiles(model):
    """By hand, tile by tile and with a weight for every pixel; more than two tiles overlap in the corners."""
    pixels = smooth_picture(4, 75, 130)
    tall, wide = model.config.rows_columns
    tiling = Tiling.of((75, 130), (tall, wide))
    assert (len(tiling.tops), len(tiling.lefts)) == (3, 4)
    total, weights = np.zeros((3, 75, 130)), np.zeros((75, 130))
    for top in tiling.tops:
        for left in tiling.lefts:
            part = pixels[top : top + tall, left : left + wide]
            with torch.inference_mode():
                logits = model(vitrail.preprocess(model, part))[0].numpy()
            scores = Frame.of((tall, wide), (tall, wide)).inverse_scores(logits)
            for row in range(tall):
                for column in range(wide):
                    down, across = ((place + 0.5) / side for place, side in ((row, tall), (column, wide)))
                    weight = (np.sin(np.pi * down) * np.sin(np.pi * across)) ** 2
                    total[:, top + row, left + column] += weight * scores[:, row, column]
                    weights[top + row, left + column] += weight
    blended = total / weights
    best = np.sort(blended, axis=0)
    sure = best[-1] - best[-2] > 1e-3
    (answer,) = vitrail.predict(model, pixels, tiles=True)
    assert sure.mean() > 0.95
    assert len(np.unique(answer.mask)) == 3
    assert (answer.mask == blended.argmax(axis=0))[sure].all()
    (whole,) = model.predict(pixels)
    assert (answer.mask != whole.mask).mean() > 0.05, "tiles should show what a small picture does not"


@pytest.mark.parametrize("tiles", [True, 64])
def test_where_only_one_tile_shows_a_pixel_the_answer_is_that_of_the_part_alone(model, tiles):
    pixels = smooth_picture(5, 120, 170)
    tall, wide = tile_size(model.config.rows_columns, tiles)
    tiling = Tiling.of((120, 170), (tall, wide))
    (answer,), (part,) = vitrail.predict(model, pixels, tiles=tiles), model.predict(pixels[:tall, :wide])
    own = np.s_[: tiling.tops[1], : tiling.lefts[1]]
    assert (answer.mask[own] == part.mask[own]).mean() > 0.999  # but for ties


@pytest.mark.parametrize("size", [(32, 48), (20, 31), (32, 40)])
def test_one_tile_is_the_whole_picture(model, size, tmp_path):
    file = export(model, tmp_path / "model.onnx").files[0]
    pixels = smooth_picture(1, *size)
    for each in (model, file):
        (tiled,), (whole,) = vitrail.predict(each, pixels, tiles=True), vitrail.predict(each, pixels)
        assert (tiled.mask == whole.mask).all()
        assert tiled.to_json() == whole.to_json()
    large = smooth_picture(1, 300, 200)
    (tiled,), (whole,) = vitrail.predict(model, large, tiles=1000), vitrail.predict(model, large)
    assert (tiled.mask == whole.mask).all()


def test_a_cropping_model_sees_all_of_a_picture_in_tiles():
    model = mask_model(image_size=(32, 32))
    model.card.preprocessing = vitrail.Preprocessing(image_size=32, crop="center", crop_fraction=0.8)
    pixels = smooth_picture(2, 90, 90)
    assert (model.predict(pixels)[0].mask == 255).any()
    assert not (vitrail.predict(model, pixels, tiles=True)[0].mask == 255).any()


def run(*arguments) -> int:
    try:
        main([str(each) for each in arguments])
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_masks_overlays_and_rows_are_written_and_resumed(model, tmp_path, capsys):
    vitrail.save(model, tmp_path / "model")
    folder = tmp_path / "photos"
    folder.mkdir()
    for seed in range(3):
        (folder / f"{seed}.png").write_bytes(picture_file(seed, 70 + seed, 110))
    (folder / "broken.png").write_bytes(b"no picture")
    out = tmp_path / "rows.jsonl"
    flags = ("--out", out, "--masks", tmp_path / "masks", "--overlay", tmp_path / "overlays")
    assert run("predict", tmp_path / "model", folder / "1.png", "--tiles", *flags) == 0
    assert run("predict", tmp_path / "model", folder, "--tiles", *flags, "--resume") == 0
    rows = {os.path.basename(row["path"]): row for row in map(json.loads, out.read_text().splitlines())}  # noqa: PTH119
    assert sorted(rows) == ["0.png", "1.png", "2.png", "broken.png"]
    assert len(out.read_text().splitlines()) == 4
    assert "is not an image" in rows["broken.png"]["error"]
    for seed in range(3):
        (expected,) = vitrail.predict(model, folder / f"{seed}.png", tiles=True)
        row = rows[f"{seed}.png"]
        assert row["shares"] == pytest.approx(expected.shares, abs=1e-6)
        with Image.open(row["mask"]) as written:
            assert (np.asarray(written) == expected.mask).all()
        with Image.open(tmp_path / "overlays" / f"{seed}.jpg") as painted:
            assert painted.size == (110, 70 + seed)
    assert sorted(each.name for each in (tmp_path / "masks").iterdir()) == ["0.png", "1.png", "2.png"]


def test_the_flag_needs_no_number(model, tmp_path, capsys):
    assert with_tile_size(["m", "--tiles", "a.png"]) == ["m", "--tiles", "auto", "a.png"]
    assert with_tile_size(["m", "a.png", "--tiles"]) == ["m", "a.png", "--tiles", "auto"]
    assert with_tile_size(["m", "--tiles", "512", "a.png"]) == ["m", "--tiles", "512", "a.png"]
    file = export(model, tmp_path / "model.onnx").files[0]
    (tmp_path / "a.png").write_bytes(picture_file())
    for flags, tiles in ((["--tiles"], True), (["--tiles", "64"], 64), ([], False)):
        assert run("predict", file, tmp_path / "a.png", *flags, "--json") == 0
        (row,) = json.loads(capsys.readouterr().out)
        assert row["mask"] == vitrail.predict(file, tmp_path / "a.png", tiles=tiles)[0].to_json()["mask"]


def test_what_cannot_be_cut_into_tiles_says_so(model, tmp_path):
    with pytest.raises(UserError, match="--tiles is for models that give the class of each pixel"):
        vitrail.predict(toy(), smooth_picture(), tiles=True)
    with pytest.raises(UserError, match="tiles have at least 16 pixels"):
        vitrail.predict(model, smooth_picture(), tiles=3)
    (answer,) = vitrail.predict(model, vitrail.Prepared(np.zeros((3, 32, 48), np.float32)), tiles=True)
    assert "prepared input" in answer.error
    broken = mask_model()
    with torch.no_grad():
        broken.head.weight[0, 0] = float("nan")
    (answer,) = vitrail.predict(broken, smooth_picture(), tiles=True)
    assert answer.error == "the model's outputs are not numbers (nan or infinite)"


@pytest.mark.slow
def test_a_picture_of_100_megapixels_takes_less_than_two_gigabytes(model, tmp_path):
    """The process that answers, and the one that decodes for it, together at their largest."""
    vitrail.save(model, tmp_path / "model")
    Image.fromarray(smooth_picture(0, 20, 20)).resize((10_000, 10_000)).save(tmp_path / "scan.jpg", quality=80)
    program = """
import re, resource, sys
from pathlib import Path
from vitrail.cli import main
from vitrail.data.decode_pool import shared_pool
main(sys.argv[1:])
shared_pool().close()
own = int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1))
print(own * 1024, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024)
"""
    flags = ["--tiles", "512", "--masks", "masks", "--overlay", "overlays", "--out", "rows.jsonl"]
    command = [sys.executable, "-c", program, "predict", "model", "scan.jpg", *flags]
    found = subprocess.run(command, cwd=tmp_path, check=True, timeout=600, capture_output=True, text=True)
    own, children = map(int, found.stdout.split())
    assert own + children < 2e9
    (row,) = map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())
    assert sum(row["shares"].values()) == pytest.approx(1, abs=1e-5)
    assert struct.unpack(">II", (tmp_path / "masks" / "scan.png").read_bytes()[16:24]) == (10_000, 10_000)
