"""Masks over HTTP: those of `vitrail predict` in every form, described as they are sent, within bounds."""

import base64
import io
import json
import subprocess
import sys

import httpx
import jsonschema_rs
import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.mask_models import NAMES, mask_model, picture_file
from tests.serving.conftest import error_of, running
from vitrail.config import Preprocessing
from vitrail.inference.engines.torch import TorchEngine
from vitrail.inference.export import export
from vitrail.masks_and_boxes import Frame
from vitrail.serving.errors import ApiError
from vitrail.serving.images import Preparer
from vitrail.serving.models import ComputedOutput, ServedModel
from vitrail.serving.routes.predictions import too_large


@pytest.fixture(scope="module")
def model():
    return mask_model()


@pytest.fixture(scope="module")
def server(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    vitrail.save(model, folder / "masks")
    file = export(model, folder / "exported.onnx").files[0]
    with running(folder, str(folder / "masks"), str(file)) as found:
        yield found


@pytest.fixture
def client(server):
    with httpx.Client(base_url=server.url, timeout=60) as found:
        yield found


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Pictures of several sizes; a JPEG that lies on its side, and one large enough to be reduced while decoding."""
    folder = tmp_path_factory.mktemp("pictures")
    (folder / "0.png").write_bytes(picture_file(0))
    (folder / "1.png").write_bytes(picture_file(1, 31, 200))
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.open(io.BytesIO(picture_file(2, 60, 90))).save(folder / "2.jpg", exif=turned)
    Image.open(io.BytesIO(picture_file(3, 700, 900))).save(folder / "3.jpg")
    return sorted(folder.iterdir())


@pytest.mark.parametrize("name", ["masks", "exported"])
def test_the_masks_equal_those_of_vitrail_predict(client, server, model, files, name, tmp_path):
    sent = [("file", (path.name, path.read_bytes())) for path in files]
    rows = client.post(f"/predict?model={name}", files=sent).json()["predictions"]
    command = [sys.executable, "-m", "vitrail", "predict", str(tmp_path / "m"), *map(str, files), "--json"]
    vitrail.save(model, tmp_path / "m")
    expected = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert [row["name"] for row in rows] == [path.name for path in files]
    for row, wanted in zip(rows, expected, strict=True):
        assert row["error"] is None
        assert row["mask"] == wanted["mask"]
        assert row["shares"] == pytest.approx(wanted["shares"], abs=1e-6)
    assert [row["size"] for row in rows] == [[80, 100], [31, 200], [90, 60], [700, 900]]


def test_a_mask_comes_as_run_lengths_as_a_picture_or_not_at_all(client, model, files):
    (expected,) = model.predict(files[0])
    assert len(expected.shares) > 1
    asked = {"content": files[0].read_bytes(), "headers": {"Content-Type": "image/png"}}
    answers = {form: client.post(f"/predict?mask={form}", **asked).json() for form in ("rle", "png", "none")}
    (coded,) = answers["png"]["predictions"]
    picture = Image.open(io.BytesIO(base64.b64decode(coded["mask"])))
    assert picture.mode == "P"
    assert (np.asarray(picture) == expected.mask).all()
    assert answers["rle"]["predictions"][0]["mask"] == expected.to_json()["mask"]
    assert answers["none"]["predictions"][0]["mask"] is None
    for each in answers.values():
        assert each["predictions"][0]["shares"] == pytest.approx(expected.shares)
    assert error_of(client.post("/predict?mask=jpeg", **asked)) == "invalid_parameter"


def test_the_answers_are_of_the_form_that_the_description_says(client, files):
    document = client.get("/openapi.json").json()
    described = document["paths"]["/predict"]["post"]["responses"]["200"]["content"]["application/json"]["schema"]
    sent = [("file", ("good.png", files[0].read_bytes())), ("file", ("bad.png", b"no picture"))]
    for form in ("rle", "png", "none"):
        answer = client.post(f"/predict?mask={form}", files=sent).json()
        jsonschema_rs.validate(described, answer)
        good, bad = answer["predictions"]
        assert (good["error"], bad["mask"]) == (None, None)
        assert bad["error"]["code"] == "unsupported_format"
    (parameter,) = [each for each in document["paths"]["/predict"]["post"]["parameters"] if each["name"] == "mask"]
    assert parameter["schema"]["enum"] == ["rle", "png", "none"]


def test_the_model_is_described_with_its_colours_and_shapes(client):
    described = client.get("/model").json()["models"][0]
    assert [each["label"] for each in described["legend"]] == list(NAMES)
    assert len({each["colour"] for each in described["legend"]}) == 3
    outputs = client.get("/v2/models/masks").json()["outputs"]
    assert outputs == [
        {"name": "mask_logits", "datatype": "FP32", "shape": [-1, 3, 4, 6]},
        {"name": "features", "datatype": "FP32", "shape": [-1, 32]},
    ]


@torch.inference_mode()
def test_logits_features_and_attention_are_the_models_own(client, model, files):
    images = np.random.default_rng(0).normal(size=(2, 3, 32, 48)).astype(np.float32)
    tensor = {"name": "images", "shape": [2, 3, 32, 48], "datatype": "FP32", "data": images.ravel().tolist()}
    (output,) = client.post("/v2/models/masks/infer", json={"inputs": [tensor]}).json()["outputs"]
    assert output["shape"] == [2, 3, 4, 6]
    expected = model(torch.from_numpy(images)).numpy().ravel()
    assert output["data"] == pytest.approx(expected.tolist(), abs=1e-4)
    content, kind = files[0].read_bytes(), {"Content-Type": "image/png"}
    (row,) = client.post("/embed", content=content, headers=kind).json()["embeddings"]
    assert row["values"] == pytest.approx(vitrail.embed(model, files[0])[0].tolist(), abs=1e-4)
    document = client.post("/attention/map", content=content, headers=kind).json()
    assert (document["grid"], document["prefix"]) == ([4, 6], False)  # the head reads every patch, not a class token


def test_an_answer_of_too_many_scores_is_refused(model):
    served = ServedModel("m", TorchEngine(model), Preparer(Preprocessing(), 10**9))
    row = np.zeros((3, 4, 6), np.float32)
    small, large = (ComputedOutput(row, Frame.of(size, (32, 48))) for size in ((900, 800), (30_000, 30_000)))
    assert too_large(served, small) == (small, 3 * 900 * 800)
    refused, cells = too_large(served, large)
    assert isinstance(refused, ApiError)
    assert (refused.status, refused.code, cells) == (413, "image_too_large", 0)
    assert "715,827,882" in str(refused.to_json())
