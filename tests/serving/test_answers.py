"""What the server answers is what the library computes: predictions, features, attention, and every form of asking."""

import base64
import io
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from tests.conftest import toy
from tests.serving.conftest import error_of, picture, running
from vitrail.config import Preprocessing
from vitrail.insight.attention import record
from vitrail.insight.attention_distance import attention_distance
from vitrail.insight.images import Images
from vitrail.insight.position_similarity import position_similarity
from vitrail.insight.rollout import rollout
from vitrail.serving import attention
from vitrail.serving.attention import AttentionRequest, AttentionRunner
from vitrail.serving.images import Preparer

FORMS = [("PNG", "png"), ("JPEG", "jpg"), ("WEBP", "webp"), ("GIF", "gif"), ("BMP", "bmp"), ("TIFF", "tif")]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """One of each format, and a large JPEG, which is reduced while it is decoded."""
    folder = tmp_path_factory.mktemp("files")
    for number, (form, ending) in enumerate(FORMS):
        (folder / f"{number}.{ending}").write_bytes(picture(number, form=form))
    (folder / "large.jpg").write_bytes(picture(9, (900, 700), "JPEG"))
    turned = Image.Exif()
    turned[0x0112] = 6
    (folder / "turned.jpg").write_bytes(picture(10, (60, 40), "JPEG", exif=turned))
    return sorted(folder.iterdir())


@pytest.fixture(scope="module")
def expected(bundle, files):
    """What the command line says of the same files."""
    command = [sys.executable, "-m", "vitrail", "predict", str(bundle), *map(str, files), "--top", "7", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return {row["path"]: row["top"] for row in json.loads(result.stdout)}


def assert_same(top: list[dict], other: list[dict]) -> None:
    assert [each["label"] for each in top] == [each["label"] for each in other]
    assert [each["description"] for each in top] == [each["description"] for each in other]
    for one, two in zip(top, other, strict=True):
        assert one["score"] == pytest.approx(two["score"], abs=1e-4)


def test_one_by_one_they_equal_vitrail_predict(client, files, expected):
    for path in files:
        answer = client.post("/predict?top=7", content=path.read_bytes(), headers={"Content-Type": "image/png"})
        assert answer.status_code == 200, answer.text
        document = answer.json()
        assert set(document) == {"model", "predictions", "milliseconds"}
        (row,) = document["predictions"]
        assert row["error"] is None
        assert_same(row["top"], expected[str(path)])


def test_in_one_request_they_equal_vitrail_predict(client, files, expected):
    sent = [("file", (path.name, path.read_bytes())) for path in files]
    rows = client.post("/predict?top=7", files=sent).json()["predictions"]
    assert [row["name"] for row in rows] == [path.name for path in files]
    for path, row in zip(files, rows, strict=True):
        assert_same(row["top"], expected[str(path)])


def test_from_many_clients_at_once_they_equal_vitrail_predict(server, files, expected):
    def ask(number: int) -> tuple[str, list[dict]]:
        path = files[number % len(files)]
        answer = httpx.post(f"{server.url}/predict?top=7", files={"file": path.read_bytes()}, timeout=60)
        return str(path), answer.json()["predictions"][0]["top"]

    with ThreadPoolExecutor(16) as pool:
        for path, top in pool.map(ask, range(64)):
            assert_same(top, expected[path])


@pytest.mark.assets
def test_photos_with_real_weights_equal_vitrail_predict(assets, tmp_path):
    photos = sorted((assets / "imagenet-sample").rglob("*.*"))
    photos = [path for path in photos if path.suffix.lower() in (".jpg", ".jpeg", ".png")][:12]
    model, labels = str(assets / "deit-ti16.safetensors"), str(assets / "imagenet-labels.json")
    command = [sys.executable, "-m", "vitrail", "predict", model, *map(str, photos), "--labels", labels, "--json"]
    rows = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    with running(tmp_path, f"deit={model}", "--labels", labels) as found:
        sent = [("file", (path.name, path.read_bytes())) for path in photos]
        answer = httpx.post(f"{found.url}/predict", files=sent, timeout=120).json()
        for row, prediction in zip(rows, answer["predictions"], strict=True):
            assert_same(prediction["top"], row["top"])
            single = httpx.post(
                f"{found.url}/predict",
                content=Path(row["path"]).read_bytes(),
                headers={"Content-Type": "image/jpeg"},
                timeout=60,
            ).json()
            assert_same(single["predictions"][0]["top"], row["top"])


def test_raw_multipart_and_json_are_the_same_question(client):
    content = picture()
    text = base64.b64encode(content).decode()
    answers = [
        client.post("/predict", content=content, headers={"Content-Type": "application/octet-stream"}),
        client.post("/predict", files={"file": ("a.png", content, "image/png")}),
        client.post("/predict", json={"image": text}),
        client.post("/predict", json={"images": [text]}),
        client.post("/predict", json={"image": f"data:image/png;base64,{text}"}),
        client.post("/predict?model=second", content=content, headers={"Content-Type": "image/png"}),
    ]
    tops = [answer.json()["predictions"][0]["top"] for answer in answers]
    assert all(top == tops[0] for top in tops)
    assert len(tops[0]) == 5
    assert [answer.json()["model"] for answer in answers] == ["toy"] * 5 + ["second"]


def test_a_bad_image_among_many_fails_alone(client):
    good = picture()
    sent = [
        ("file", ("good.png", good)),
        ("file", ("bad.png", good[:90])),
        ("file", ("text", b"hello")),
        ("file", ("also.png", picture(1))),
    ]
    answer = client.post("/predict", files=sent)
    assert answer.status_code == 200
    rows = answer.json()["predictions"]
    assert [row["error"] and row["error"]["code"] for row in rows] == [None, "bad_image", "unsupported_format", None]
    assert [len(row["top"]) for row in rows] == [5, 0, 0, 5]
    embedded = client.post("/embed", files=sent).json()["embeddings"]
    assert [row["values"] is None for row in embedded] == [False, True, True, False]
    alone = client.post("/predict", files=sent[1:2])
    assert alone.status_code == 400
    assert error_of(alone) == "bad_image"


def test_features_are_the_models_own(client, bundle):
    content = picture(3)
    values = client.post("/embed", files={"file": content}).json()["embeddings"][0]["values"]
    model = vitrail.load(bundle)
    images = Images(model, [np.asarray(Image.open(io.BytesIO(content)))])
    with torch.inference_mode():
        assert values == pytest.approx(model.features(images.tensor(0)[None])[0].tolist(), abs=1e-4)


def test_what_there_is(client):
    document = client.get("/model").json()
    first, second = document["models"]
    assert (first["name"], second["name"]) == ("toy", "second")
    assert first["grid"] == [4, 4]
    assert first["image_size"] == [32, 32]
    assert first["labels_shown"][3] == {"label": "class3", "description": "the third, or so"}
    assert first["attention"]
    assert first["positions"]
    assert document["limits"]["max_body_bytes"] == 16 << 20
    assert "jpeg" in document["limits"]["formats"]
    assert document["version"] == vitrail.__version__


@pytest.fixture(scope="module")
def model(bundle):
    return vitrail.load(bundle)


@pytest.fixture(scope="module")
def content():
    return picture(5)


@pytest.fixture(scope="module")
def images(model, content):
    return Images(model, [np.asarray(Image.open(io.BytesIO(content)))])


@pytest.fixture(scope="module")
def recorded(model, images):
    kept = {}
    record(model, images.tensor(0)[None], lambda step, weights: kept.update({step: weights[0].clone()}))
    return torch.stack([kept[step] for step in sorted(kept)])  # layers, heads, tokens, tokens


class TestAttention:
    def ask(self, client, content, **parameters):
        answer = client.post("/attention", params=parameters, files={"file": content})
        assert answer.status_code == 200, answer.text
        return answer.json()

    def test_one_head_one_layer_one_patch(self, client, content, recorded):
        document = self.ask(client, content, layer=1, head=2, query=6)
        assert (document["grid"], document["layers"], document["queries"]) == ([4, 4], [1], [6])
        assert np.array(document["attention"]).shape == (1, 1, 4, 4)
        assert np.ravel(document["attention"]) == pytest.approx(recorded[1, 2, 1 + 6, 1:].numpy(), abs=1e-5)

    def test_the_mean_of_heads_in_all_layers_as_the_classifier_reads_it(self, client, content, recorded):
        document = self.ask(client, content, layer="all")
        assert document["layers"] == [0, 1, 2]
        assert np.array(document["attention"])[:, 0].reshape(3, -1) == pytest.approx(
            recorded.mean(1)[:, 0, 1:].numpy(), abs=1e-5
        )

    def test_all_patches(self, client, content, recorded):
        document = self.ask(client, content, layer=-1, query="all")
        assert document["queries"] == list(range(16))
        assert np.array(document["attention"])[0].reshape(16, 16) == pytest.approx(
            recorded[-1].mean(0)[1:, 1:].numpy(), abs=1e-5
        )

    def test_rollout(self, client, content, model, images):
        document = self.ask(client, content, head="rollout")
        assert document["layers"] == []
        assert np.array(document["attention"])[0, 0] == pytest.approx(rollout(model, images)[0], abs=1e-5)

    def test_as_a_picture(self, client, content):
        answer = client.post("/attention?format=png&query=3", files={"file": content})
        assert answer.headers["content-type"] == "image/png"
        assert Image.open(io.BytesIO(answer.content)).size[0] >= 200

    def test_the_map_has_everything_a_page_needs(self, client, content, recorded, model, images):
        document = client.post("/attention/map", files={"file": content}).json()
        levels = np.frombuffer(base64.b64decode(document["attention"]), np.uint8).reshape(3, 4, 17, 16)
        scale = np.frombuffer(base64.b64decode(document["scale"]), "<f2").reshape(3, 4, 17, 1).astype(np.float32)
        assert levels / 255 * scale == pytest.approx(recorded[:, :, :, 1:].numpy(), abs=2e-3)
        assert (levels.max(axis=-1) == 255).all()
        rolled = np.frombuffer(base64.b64decode(document["rollout"]), np.uint8) / 255 * document["rollout_max"]
        assert rolled == pytest.approx(rollout(model, images)[0].ravel(), abs=1e-3)
        assert np.array(document["distance"]) == pytest.approx(attention_distance(model, images).mean, abs=0.01)
        seen = np.asarray(Image.open(io.BytesIO(base64.b64decode(document["image"]))))
        assert (seen == images.pixels(0)).all()
        facts = ("grid", "depth", "num_heads", "prefix", "averaged")
        assert [document[name] for name in facts] == [[4, 4], 3, 4, True, False]

    def test_positions(self, client, model):
        document = client.get("/model/toy/positions").json()
        levels = np.frombuffer(base64.b64decode(document["similarity"]), np.uint8).reshape(16, 16)
        assert levels / 127.5 - 1 == pytest.approx(position_similarity(model).reshape(16, 16), abs=0.005)

    @pytest.mark.parametrize(
        ("parameters", "code"),
        [
            ({"layer": "3"}, "invalid_parameter"),
            ({"head": "4"}, "invalid_parameter"),
            ({"query": "16"}, "invalid_parameter"),
            ({"layer": "many"}, "invalid_parameter"),
            ({"format": "gif"}, "invalid_parameter"),
            ({"format": "png", "query": "all"}, "invalid_parameter"),
        ],
    )
    def test_what_there_is_not_is_refused(self, client, content, parameters, code):
        answer = client.post("/attention", params=parameters, files={"file": content})
        assert answer.status_code == 422
        assert error_of(answer) == code


def test_a_map_that_would_be_too_large_is_averaged_and_then_made_coarser(monkeypatch):
    model = toy()
    run = attention.AttentionRunner(model)
    asked = run.prepare(Preparer(Preprocessing(image_size=32), 10**6))((picture(), None))
    (whole,) = run([asked])
    monkeypatch.setattr(attention, "MOST_BYTES", 3 * 17 * 16)
    (averaged,) = run([asked])
    assert (averaged["averaged"], averaged["num_heads"], averaged["coarse"]) == (True, 1, False)
    monkeypatch.setattr(attention, "MOST_BYTES", 100)
    (coarse,) = run([asked])
    assert (coarse["grid"], coarse["coarse"]) == ([2, 2], True)
    shares = []
    for document, heads in ((whole, 4), (averaged, 1), (coarse, 1)):
        cells = document["grid"][0] ** 2
        levels = np.frombuffer(base64.b64decode(document["attention"]), np.uint8).reshape(3, heads, cells + 1, cells)
        scale = np.frombuffer(base64.b64decode(document["scale"]), "<f2").reshape(3, heads, cells + 1, 1)
        shares.append((levels / 255 * scale.astype(np.float32)).mean(axis=1))
    assert shares[1] == pytest.approx(shares[0], abs=2e-3)
    # Of a coarse patch: the mean of its four patches' rows, each added up over the four patches of every cell.
    rows = shares[0][:, 1:].reshape(3, 2, 2, 2, 2, 2, 2, 2, 2).mean(axis=(2, 4)).sum(axis=(4, 6)).reshape(3, 4, 4)
    assert shares[2][:, 1:] == pytest.approx(rows, abs=4e-3)


@pytest.mark.parametrize(
    ("overrides", "steps", "prefix"),
    [
        ({"class_token": False, "pooling": "average"}, 3, False),
        ({"class_token": False, "pooling": "average", "attention": "axial"}, 6, False),
        ({"distillation_token": True, "registers": 2}, 3, True),
        ({"positions": "relative", "image_size": (16, 40)}, 3, True),
    ],
)
def test_maps_of_every_kind_of_transformer(overrides, steps, prefix):
    """Rows are the class token, where there is one, and the patches; other tokens are left out of rows and columns."""
    model = toy(**overrides)
    run = AttentionRunner(model)
    preparer = Preparer(Preprocessing(image_size=model.config.rows_columns), 10**6)
    asked = run.prepare(preparer)((picture(), None))
    (document,) = run([asked])
    rows, columns = model.config.grid
    patches = rows * columns
    assert (document["grid"], document["depth"], document["prefix"]) == ([rows, columns], steps, prefix)
    levels = np.frombuffer(base64.b64decode(document["attention"]), np.uint8)
    levels = levels.reshape(steps, 4, patches + prefix, patches)
    scale = np.frombuffer(base64.b64decode(document["scale"]), "<f2").reshape(*levels.shape[:3], 1)
    kept = {}
    record(model, torch.from_numpy(asked.image)[None], lambda step, weights: kept.update({step: weights[0].clone()}))
    first = model.config.prefix_tokens
    chosen = [*range(int(prefix)), *range(first, first + patches)]
    exact = torch.stack([kept[step] for step in range(steps)])[:, :, chosen][..., first:]
    assert levels / 255 * scale.astype(np.float32) == pytest.approx(exact.numpy(), abs=4e-3)
    assert len(base64.b64decode(document["rollout"])) == patches
    for question in (AttentionRequest(), AttentionRequest(None, 1, 3), AttentionRequest(head="rollout", query="all")):
        (answer,) = run([run.prepare(preparer)((picture(), question))])
        assert answer.maps.shape[2:] == (rows, columns)
        assert np.isfinite(answer.maps).all()


def test_a_resnet_predicts_but_has_no_attention(tmp_path):
    model = vitrail.create("BiT-R50x1", num_classes=3, image_size=32, stages=(1, 1), stem_width=32)
    vitrail.save(model, tmp_path / "bit")
    with running(tmp_path, str(tmp_path / "bit")) as found:
        described = httpx.get(f"{found.url}/model").json()["models"][0]
        assert (described["attention"], described["positions"], described["grid"]) == (False, False, None)
        assert httpx.post(f"{found.url}/predict", files={"file": picture()}).status_code == 200
        for answer in (
            httpx.post(f"{found.url}/attention/map", files={"file": picture()}),
            httpx.get(f"{found.url}/model/bit/positions"),
        ):
            assert answer.status_code == 404
            assert error_of(answer) in ("no_attention", "no_positions")


def test_a_model_of_labels_answers_with_those_above_their_thresholds(tmp_path):
    model = toy(task="multilabel", num_classes=3)
    model.card.label_names = ("sun", "rain", "snow")
    model.card.constants = {"thresholds": [0.0, 1.0, 0.0]}
    vitrail.save(model, tmp_path / "labels")
    with running(tmp_path, str(tmp_path / "labels")) as found:
        answer = httpx.post(f"{found.url}/predict", files={"image": picture()}, timeout=30).json()
        described = httpx.get(f"{found.url}/openapi.json", timeout=30).text
    (row,) = answer["predictions"]
    assert set(row) == {"name", "labels", "error"}
    assert {each["label"] for each in row["labels"]} == {"sun", "snow"}
    assert [each["score"] for each in row["labels"]] == sorted((each["score"] for each in row["labels"]), reverse=True)
    assert '"labels":{"type":"array"' in described.replace(" ", "")
