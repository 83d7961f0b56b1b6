"""Images that take long to decode are refused in time, hold up nobody else, and leave nothing behind."""

import asyncio
import io
import statistics
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
from PIL import Image

from tests.data.costly_pictures import COSTLY, tiff_of_one_tile_many_times
from tests.data.test_decode_limits import processes_of, state
from tests.serving.conftest import PlayedEngine, Running, error_of, picture, played, running, wait_for
from vitrail.data import decode
from vitrail.errors import UserError
from vitrail.serving.batcher import ApartDecoding, Batcher, Operation
from vitrail.serving.limits import DEFAULT_FORMATS, Limits, read_image_formats

LIMIT = 1.0
ALL = "jpeg,png,webp,gif,bmp,tiff"


@pytest.fixture(scope="module")
def short(bundle, tmp_path_factory):
    """A server that reads many formats and gives an image one second."""
    flags = ("--formats", ALL, "--decode-seconds", str(LIMIT), "--decode-mb", "600")
    with running(tmp_path_factory.mktemp("short"), str(bundle), *flags) as found:
        yield found


@pytest.fixture(scope="module")
def http():
    with httpx.Client(timeout=60) as found:
        yield found


def post(http: httpx.Client, found: Running, content: bytes, timeout: float = 60) -> httpx.Response:
    headers = {"Content-Type": "application/octet-stream"}
    return http.post(f"{found.url}/predict", content=content, headers=headers, timeout=timeout)


def timed(http: httpx.Client, found: Running, content: bytes) -> tuple[httpx.Response, float]:
    began = time.monotonic()
    answer = post(http, found, content)
    return answer, time.monotonic() - began


QUICK = ("tiff_of_one_tile_many_times", "jpeg_of_markers", "webp_of_much_memory")


@pytest.mark.parametrize(
    "name", [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in COSTLY]
)
def test_a_costly_image_is_refused_within_its_limit(http, short, name):
    answer, seconds = timed(http, short, COSTLY[name]())
    assert seconds < LIMIT + 3
    assert 400 <= answer.status_code < 500
    assert error_of(answer) in ("image_too_costly", "image_too_large")
    message = answer.json()["error"]["message"]
    assert any(each in message for each in ("--decode-seconds", "--decode-mb", "megapixels"))
    assert http.get(f"{short.url}/v2/health/ready").status_code == 200


def seconds_of(http: httpx.Client, found: Running, contents: list[bytes]) -> list[float]:
    """How long the answers to good photos took, by four clients."""
    with ThreadPoolExecutor(4) as clients:
        answers = list(clients.map(lambda content: timed(http, found, content), contents))
    assert {answer.status_code for answer, _ in answers} == {200}
    return [seconds for _, seconds in answers]


def quantile(seconds: list[float]) -> float:
    return statistics.quantiles(seconds, n=100, method="inclusive")[98]


def test_two_hostile_images_hold_up_no_photo(http, short):
    """A hundred good photos beside them are answered, and so is one of a kind that is decoded beside the hostile."""
    photos = [picture(seed, (300, 400), "JPEG") for seed in range(100)]
    seconds_of(http, short, photos[:20])
    quiet = quantile(seconds_of(http, short, photos))
    hostile = tiff_of_one_tile_many_times()
    with ThreadPoolExecutor(3) as clients:
        refused = [clients.submit(post, http, short, hostile) for _ in range(2)]
        time.sleep(0.2)
        behind = clients.submit(timed, http, short, picture(0, (60, 70), "GIF"))
        jammed = quantile(seconds_of(http, short, photos))
        assert jammed <= 3 * quiet + LIMIT
        answer, seconds = behind.result()
        assert answer.status_code in (200, 503)
        assert seconds < 2 * LIMIT + 3
        assert {error_of(each.result()) for each in refused} == {"image_too_costly"}
    assert post(http, short, picture(0, (60, 70), "GIF")).status_code == 200


@pytest.mark.slow
def test_photos_do_not_even_wait_for_one_limit(http, bundle, tmp_path):
    """All would fail if the threads that decode photos were held up: the limit is longer than they take."""
    with running(tmp_path, str(bundle), "--formats", ALL, "--decode-seconds", "20") as found:
        photos = [picture(seed, (300, 400), "JPEG") for seed in range(40)]
        hostile = tiff_of_one_tile_many_times()
        with ThreadPoolExecutor(6) as clients:
            refused = [clients.submit(post, http, found, hostile, 2) for _ in range(6)]
            time.sleep(0.5)
            assert max(seconds_of(http, found, photos)) < 10
            assert http.get(f"{found.url}/v2/health/ready").status_code == 200
            for each in refused:
                with pytest.raises(httpx.ReadTimeout):
                    each.result()


def test_many_hostile_images_are_all_answered_within_two_limits(http, short):
    hostile = tiff_of_one_tile_many_times()
    began = time.monotonic()
    with ThreadPoolExecutor(12) as clients:
        codes = Counter(error_of(each) for each in clients.map(lambda _: post(http, short, hostile), range(12)))
    assert time.monotonic() - began < 2 * LIMIT + 5
    assert set(codes) == {"image_too_costly", "busy"}
    assert codes["image_too_costly"] >= 2


def test_a_format_that_is_switched_off_is_a_415_that_names_the_flag(http, bundle, tmp_path):
    with running(tmp_path, str(bundle)) as found:
        for form in ("BMP", "TIFF", "ICO", "JPEG2000"):
            answer = post(http, found, picture(0, (32, 32), form))
            assert (answer.status_code, error_of(answer)) == (415, "unsupported_format")
            message = answer.json()["error"]["message"]
            assert message == (
                f"the image is a file of the format {form.lower()}, not of the formats that are read here: "
                "jpeg, png, webp, gif (--formats)"
            )
        for form in ("JPEG", "PNG", "WEBP", "GIF"):
            assert post(http, found, picture(0, (32, 32), form)).status_code == 200
        assert http.get(f"{found.url}/model").json()["limits"]["formats"] == list(DEFAULT_FORMATS)
        children = processes_of(found.process.pid)
        assert children
        found.process.terminate()
        assert found.process.wait(20) == 0
        assert not [each for each in children if Path(f"/proc/{each}").exists() and state(each) != "Z"]


def test_the_flag_takes_image_formats_alone():
    assert read_image_formats("JPG, heic") == ("jpeg", "heif")
    with pytest.raises(UserError, match="--formats png,npy: arrays"):
        read_image_formats("png,npy")
    with pytest.raises(UserError, match="there is no format 'svg'"):
        read_image_formats("svg")


def test_not_ready_while_nothing_can_decode(monkeypatch):
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with played(PlayedEngine(), wait=False) as found:
        ready = f"{found.url}/v2/health/ready"
        wait_for(lambda: all(each.warm for each in found.service.models))
        assert httpx.get(ready).status_code == 503
        answer = httpx.post(f"{found.url}/predict", files={"file": picture(0, (32, 32), "GIF")}, timeout=30)
        assert (answer.status_code, error_of(answer)) == (503, "not_ready")
        assert httpx.post(f"{found.url}/predict", files={"file": picture()}, timeout=30).status_code == 200
        monkeypatch.undo()
        wait_for(lambda: httpx.get(ready).status_code == 200)
        answer = httpx.post(f"{found.url}/predict", files={"file": picture(0, (32, 32), "GIF")}, timeout=30)
        assert answer.status_code == 200


def test_decoders_that_are_all_held_up_are_a_stall():
    release = threading.Event()

    async def run() -> None:
        def prepare(content: bytes) -> bytes:
            release.wait(30)
            return content

        operation = Operation("held", prepare, lambda inputs: inputs, 4)
        batcher = Batcher(max_queue=8, max_wait=0, decoders=2, apart=ApartDecoding())
        batcher.start([operation])
        one = batcher.submit(operation, [b""])
        await asyncio.sleep(0.2)
        assert not batcher.stalled(0.1), "one of two can still take images"
        other = batcher.submit(operation, [b""])
        await asyncio.sleep(0.2)
        assert batcher.stalled(0.1)
        assert not batcher.stalled(5)
        release.set()
        await asyncio.gather(one.future, other.future)
        await asyncio.sleep(0.1)
        assert not batcher.stalled(0.1)
        batcher.stop()

    asyncio.run(run())


def test_what_is_decoded_apart_takes_no_room_from_others():
    release = threading.Event()

    async def run() -> None:
        def prepare(content: int) -> int:
            if content:
                release.wait(30)
            return content

        operation = Operation("some", prepare, lambda inputs: inputs, 4, is_apart=bool)
        batcher = Batcher(max_queue=4, max_wait=0, decoders=2, apart=ApartDecoding(1, 30))
        batcher.start([operation])
        slow = [batcher.submit(operation, [1, 1]) for _ in range(2)]
        await asyncio.sleep(0.2)
        assert (batcher.pending, batcher.pending_apart, batcher.waiting) == (0, 4, 4)
        assert not batcher.full(4)
        assert await asyncio.wait_for(batcher.submit(operation, [0, 0]).future, 5) == [0, 0]
        (refused,) = await asyncio.wait_for(batcher.submit(operation, [1]).future, 5)
        assert refused.code == "busy"
        batcher.drop(slow[1])
        assert (batcher.pending, batcher.pending_apart) == (0, 2)
        release.set()
        assert await asyncio.wait_for(slow[0].future, 5) == [1, 1]
        assert (batcher.pending, batcher.pending_apart) == (0, 0)
        batcher.stop()

    asyncio.run(run())


@pytest.mark.parametrize("form", ["GIF", "TIFF", "BMP"])
def test_what_is_decoded_apart_has_the_scores_of_the_same_pixels_as_png(http, short, form):
    content, png = picture(3, (70, 90), form), io.BytesIO()
    Image.fromarray(decode(content)).save(png, "PNG")
    answers = [post(http, short, each).json()["predictions"][0]["top"] for each in (content, png.getvalue())]
    assert [each["label"] for each in answers[0]] == [each["label"] for each in answers[1]]
    assert np.allclose(*[[each["score"] for each in answer] for answer in answers], atol=1e-6)


def test_limits_of_decoding_name_their_flag():
    for name in ("decode_seconds", "decode_mb"):
        with pytest.raises(UserError, match=f"--{name.replace('_', '-')}"):
            Limits(**{name: 0})
