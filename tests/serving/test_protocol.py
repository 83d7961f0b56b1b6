"""The Open Inference Protocol, asked as its clients ask.

tritonclient is not installed here: `triton_request` builds, byte by byte, what its HTTP client sends for
`InferInput("images", ...)` and `InferRequestedOutput("logits", ...)`, in the JSON form (`binary_data=False`) and in the
binary form, which is its default.
"""

import base64
import json

import numpy as np
import pytest
import torch

import vitrail
from tests.serving.conftest import error_of, picture


@pytest.fixture(scope="module")
def images() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(3, 3, 32, 32)).astype(np.float32)


@pytest.fixture(scope="module")
def logits(bundle, images) -> np.ndarray:
    with torch.inference_mode():
        return vitrail.load(bundle)(torch.from_numpy(images)).numpy()


def triton_request(images: np.ndarray, *, binary_in: bool, binary_out: bool, outputs=("logits",)):
    """(body, headers) of tritonclient.http.InferenceServerClient.infer."""
    tensor: dict = {"name": "images", "shape": list(images.shape), "datatype": "FP32"}
    raw = b""
    if binary_in:
        raw = images.tobytes()
        tensor["parameters"] = {"binary_data_size": len(raw)}
    else:
        tensor["data"] = [float(value) for value in images.ravel()]
    asked = [{"name": name, "parameters": {"binary_data": binary_out}} for name in outputs]
    request: dict = {"inputs": [tensor], "id": "request-7", "outputs": asked}
    if not asked:
        del request["outputs"]
        request["parameters"] = {"binary_data_output": True}
    head = json.dumps(request).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))} if binary_in else {}
    return head + raw, headers


def test_metadata(client):
    assert client.get("/v2").json()["name"] == "vitrail"
    assert client.get("/v2/health/live").status_code == 200
    assert client.get("/v2/health/ready").json() == {"ready": True}
    assert client.get("/v2/models/toy/ready").status_code == 200
    document = client.get("/v2/models/toy").json()
    assert document["inputs"] == [{"name": "images", "datatype": "FP32", "shape": [-1, 3, 32, 32]}]
    assert document["outputs"][0] == {"name": "logits", "datatype": "FP32", "shape": [-1, 7]}
    assert client.get("/v2/models/toy/versions/1").json() == document


def test_json_tensors_as_tritonclient_sends_them(client, images, logits):
    body, headers = triton_request(images, binary_in=False, binary_out=False)
    answer = client.post("/v2/models/toy/infer", content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert (document["model_name"], document["id"]) == ("toy", "request-7")
    (output,) = document["outputs"]
    assert (output["name"], output["datatype"], output["shape"]) == ("logits", "FP32", [3, 7])
    assert output["data"] == pytest.approx(logits.ravel(), abs=1e-4)


@pytest.mark.parametrize("outputs", [("logits",), ()])
def test_binary_tensors_as_tritonclient_sends_them_by_default(client, images, logits, outputs):
    body, headers = triton_request(images, binary_in=True, binary_out=True, outputs=outputs)
    answer = client.post("/v2/models/toy/infer", content=body, headers=headers)
    assert answer.status_code == 200, answer.text
    length = int(answer.headers["Inference-Header-Content-Length"])
    document = json.loads(answer.content[:length])
    (output,) = document["outputs"]
    assert output["parameters"]["binary_data_size"] == 4 * logits.size
    values = np.frombuffer(answer.content[length:], "<f4").reshape(output["shape"])
    assert values == pytest.approx(logits, abs=1e-4)


def test_nested_data_and_both_outputs(client, images, bundle):
    tensor = {"name": "images", "shape": [1, 3, 32, 32], "datatype": "FP32", "data": images[:1].tolist()}
    request = {"inputs": [tensor], "outputs": [{"name": "features"}, {"name": "logits"}]}
    features, logits = client.post("/v2/models/toy/infer", json=request).json()["outputs"]
    assert (features["shape"], logits["shape"]) == ([1, 32], [1, 7])
    with torch.inference_mode():
        expected = vitrail.load(bundle).features(torch.from_numpy(images[:1]))
    assert features["data"] == pytest.approx(expected.ravel().tolist(), abs=1e-4)


def test_image_files_as_bytes(client):
    content = picture(4)
    top = client.post("/predict?top=7", files={"file": content}).json()["predictions"][0]["top"]
    tensor: dict = {"name": "image", "shape": [1], "datatype": "BYTES"}
    in_json = {**tensor, "data": [base64.b64encode(content).decode()]}
    raw = len(content).to_bytes(4, "little") + content
    head = json.dumps({"inputs": [{**tensor, "parameters": {"binary_data_size": len(raw)}}]}).encode()
    answers = [
        client.post("/v2/models/toy/infer", json={"inputs": [in_json]}),
        client.post(
            "/v2/models/toy/infer", content=head + raw, headers={"Inference-Header-Content-Length": str(len(head))}
        ),
    ]
    for answer in answers:
        logits = np.array(answer.json()["outputs"][0]["data"])
        scores = np.exp(logits) / np.exp(logits).sum()
        assert sorted(scores, reverse=True) == pytest.approx([each["score"] for each in top], abs=1e-4)


GOOD = {"name": "images", "shape": [1, 3, 32, 32], "datatype": "FP32", "data": [0.0] * 3072}


@pytest.mark.parametrize(
    ("document", "code"),
    [
        ({}, "bad_request"),
        ([], "bad_request"),
        ({"inputs": []}, "bad_request"),
        ({"inputs": [{**GOOD, "name": "pixels"}]}, "bad_request"),
        ({"inputs": [{**GOOD, "datatype": "FP64"}]}, "bad_request"),
        ({"inputs": [{**GOOD, "shape": [1, 3, 32, 33]}]}, "bad_request"),
        ({"inputs": [{**GOOD, "shape": [-1, 3, 32, 32]}]}, "bad_request"),
        ({"inputs": [{**GOOD, "shape": [2**31, 3, 32, 32]}]}, "too_many_images"),
        ({"inputs": [{**GOOD, "shape": [0, 3, 32, 32], "data": []}]}, "too_many_images"),
        ({"inputs": [{**GOOD, "data": [0.0] * 3071}]}, "bad_request"),
        ({"inputs": [{**GOOD, "data": [[1], [2, 3]]}]}, "bad_request"),
        ({"inputs": [{**GOOD, "data": None}]}, "bad_request"),
        ({"inputs": [{**GOOD, "data": [1e39] * 3072}]}, "bad_request"),
        ({"inputs": [{**GOOD, "data": ["x"] * 3072}]}, "bad_request"),
        ({"inputs": [{**GOOD, "parameters": {"binary_data_size": 5}}]}, "bad_request"),
        ({"inputs": [GOOD], "outputs": [{"name": "boxes"}]}, "bad_request"),
        ({"inputs": [GOOD], "outputs": [{"name": "logits", "parameters": {"classification": 3}}]}, "bad_request"),
        ({"inputs": [{"name": "image", "shape": [1], "datatype": "BYTES", "data": ["http://a/b"]}]}, "bad_base64"),
    ],
)
def test_what_is_not_a_request_is_a_400_with_a_sentence(client, document, code):
    answer = client.post("/v2/models/toy/infer", json=document)
    assert 400 <= answer.status_code < 500
    assert error_of(answer) == code


@pytest.mark.parametrize("header", ["-1", "99999999", "x", "5"])
def test_a_false_header_length_is_refused(client, images, header):
    body, _ = triton_request(images, binary_in=True, binary_out=True)
    answer = client.post("/v2/models/toy/infer", content=body, headers={"Inference-Header-Content-Length": header})
    assert answer.status_code == 400
    assert error_of(answer) in ("bad_request", "bad_json")


def test_numbers_that_overflow_the_model_are_refused_and_not_written_as_nan(client):
    answer = client.post("/v2/models/toy/infer", json={"inputs": [{**GOOD, "data": [3e38, -3e38] * 1536}]})
    assert answer.status_code in (200, 422)
    if answer.status_code == 422:
        assert error_of(answer) == "not_finite"


def test_unknown_models_and_versions(client):
    for path in ("/v2/models/none", "/v2/models/none/ready", "/v2/models/toy/versions/2"):
        assert client.get(path).status_code == 404
    assert error_of(client.post("/v2/models/none/infer", json={})) == "no_such_model"
