"""Thousands of damaged uploads, and requests drawn from the schema: never a 5xx, never an end, no memory lost."""

import json
import random
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.serving.conftest import Running, error_of, picture, running, wait_for

FORMS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")


def damaged(seed: int) -> bytes:
    """A file with bytes flipped, cut out, repeated, or its numbers made large; the same for the same seed."""
    draw = random.Random(seed)
    form = FORMS[seed % len(FORMS)]
    options = {"progressive": True} if form == "JPEG" and draw.random() < 0.3 else {}
    if form == "TIFF":
        options = {"compression": draw.choice(["raw", "tiff_lzw", "tiff_deflate", "jpeg", "packbits"])}
    content = bytearray(picture(seed % 50, (draw.randrange(1, 80), draw.randrange(1, 80)), form, **options))
    for _ in range(draw.randrange(1, 6)):
        place = draw.randrange(len(content)) if draw.random() < 0.5 else draw.randrange(min(len(content), 80))
        kind = draw.randrange(5)
        if kind == 0:
            content[place] ^= 1 << draw.randrange(8)
        elif kind == 1:
            content[place : place + 4] = draw.choice([b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff"])
        elif kind == 2:
            del content[place : place + draw.randrange(1, 40)]
        elif kind == 3:
            content[place:place] = content[max(0, place - 30) : place] * draw.randrange(1, 5)
        else:
            content[place : place + 8] = draw.randbytes(8)
        if not content:
            break
    if draw.random() < 0.1:
        del content[draw.randrange(len(content) + 1) :]
    return bytes(content)


def send_damaged(server: Running, count: int, warm: int) -> None:
    statuses: dict[int, int] = {}
    memory = 0
    with httpx.Client(base_url=server.url, timeout=60) as client:
        for seed in range(count + warm):
            if seed == warm:
                memory = server.memory()
            kind = seed % 3
            content = damaged(seed)
            if kind == 0:
                answer = client.post("/predict", content=content, headers={"Content-Type": "image/jpeg"})
            elif kind == 1:
                answer = client.post("/predict", files={"file": content})
            else:
                answer = client.post("/attention/map", files={"file": content})
            statuses[answer.status_code] = statuses.get(answer.status_code, 0) + 1
            assert answer.status_code < 500, (seed, answer.text)
    assert server.process.poll() is None
    assert statuses.keys() <= {200, 400, 413, 415}
    assert statuses[200]
    assert statuses[400]
    # What a batch needs is kept while there is work, and given back within a second or two after it.
    wait_for(lambda: server.memory() - memory < 50 << 20, 10)
    assert all(line["event"] for line in server.lines()), "and every line of the log is still JSON"


def test_300_damaged_uploads(server):
    send_damaged(server, 300, 100)


@pytest.mark.slow
def test_10_000_damaged_uploads(bundle, tmp_path):
    formats = "jpeg,png,webp,gif,bmp,tiff"
    with running(tmp_path, str(bundle), "--log-level", "warning", "--formats", formats) as found:
        send_damaged(found, 10_000, 500)


def test_json_of_millions_of_values_is_refused(server, client):
    before = server.memory()
    for body in (b'{"image": [' + b"[]," * 2_200_000 + b"[]]}", b'{"a":1,' * 2_200_000):
        for path in ("/predict", "/v2/models/toy/infer"):
            answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
            assert (answer.status_code, error_of(answer)) == (413, "too_many_values")
    assert server.memory() - before < 200 << 20


def test_damaged_multipart_and_json(client):
    """Bodies cut and changed at random: answered or refused, never a 5xx."""
    content = picture()
    request = client.build_request("POST", "/predict", files={"file": ("a.png", content)})
    body, kind = request.read(), request.headers["content-type"]
    text = json.dumps({"inputs": [{"name": "images", "shape": [1, 3, 32, 32], "datatype": "FP32", "data": [0] * 3072}]})
    draw = random.Random(0)
    for _ in range(60):
        changed = bytearray(draw.choice([body, text.encode()]))
        for _ in range(draw.randrange(1, 4)):
            place = draw.randrange(min(len(changed), 250))
            changed[place : place + draw.randrange(0, 9)] = draw.randbytes(draw.randrange(0, 9))
        for path, type_ in (("/predict", kind), ("/predict", "application/json"), ("/v2/models/toy/infer", kind)):
            answer = client.post(path, content=bytes(changed), headers={"Content-Type": type_})
            assert answer.status_code < 500, answer.text


def schemathesis(server: Running, folder: Path, examples: int) -> None:
    """The schema is asked about itself: every answer must have a documented form, and none may be a 5xx."""
    command = [
        str(Path(sys.executable).parent / "schemathesis"),
        "run",
        f"{server.url}/openapi.json",
        "--checks",
        "not_a_server_error,content_type_conformance,response_schema_conformance",
        "--phases",
        "examples,coverage,fuzzing",
        "--max-examples",
        str(examples),
        "--seed",
        "1",
        "--suppress-health-check",
        "all",
        "--request-timeout",
        "60",
    ]
    result = subprocess.run(command, capture_output=True, text=True, cwd=folder)
    assert result.returncode == 0, result.stdout[-6000:] + result.stderr[-2000:]


def test_schemathesis_finds_no_5xx(server, tmp_path):
    schemathesis(server, tmp_path, 3)


@pytest.mark.slow
def test_schemathesis_finds_no_5xx_in_many(server, tmp_path):
    schemathesis(server, tmp_path, 100)
