"""Decoding takes bounded time and memory, whatever a file is made to ask for; plain files need no watching."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import encoded, picture
from tests.data.costly_pictures import COSTLY, png_chunk, tiff
from vitrail.config import Preprocessing
from vitrail.data.bad_image import BadImage, TooCostly, TooLarge, WrongFormat
from vitrail.data.decode_pool import BoundedDecoder, DecodeLimits, DecodePool
from vitrail.data.file_formats import ALL, format_of, read_formats
from vitrail.data.plain_files import is_plain
from vitrail.data.transforms import EvaluationTransform
from vitrail.errors import UserError

TRANSFORM = EvaluationTransform(Preprocessing(image_size=32, mean=(0.5,) * 3, std=(0.5,) * 3))
APART = ("GIF", "TIFF", "JPEG2000", "PPM", "TGA", "ICO", "PCX", "QOI", "SGI")


@pytest.fixture(scope="module")
def pool():
    pool = DecodePool(2)
    yield pool
    pool.close()


def processes_of(pid: int) -> list[int]:
    """The children of a process, those that have ended and were not waited for among them."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and int((folder / "stat").read_text().rpartition(")")[2].split()[1]) == pid:
                found.append(int(folder.name))
        except OSError:
            pass  # it has just ended
    return found


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


# Each needs a second or more, and many of them a gigabyte, when nothing ends them.
@pytest.mark.parametrize("name", [each for each in COSTLY if each != "webp_of_much_memory"])
def test_a_costly_file_ends_within_its_time(pool, name):
    content = COSTLY[name]()
    decoder = BoundedDecoder(DecodeLimits(0.7, 2048), pool)
    assert decoder.is_apart(content)
    pool.start()
    began = time.monotonic()
    with pytest.raises(TooCostly, match=r"takes longer than 0.7 seconds to decode \(--decode-seconds\)"):
        decoder(TRANSFORM, content)
    assert time.monotonic() - began < 3


_MEMORY = """
import resource, sys
from tests.data.costly_pictures import COSTLY
from tests.data.test_decode_limits import TRANSFORM
from vitrail.data.decode_pool import BadImage, BoundedDecoder, DecodeLimits, DecodePool
pool = DecodePool(1)
pool.start()  # before this process has grown: the system takes its size for that of a child at the start
decoder = BoundedDecoder(DecodeLimits(20, 300), pool)
content = COSTLY[sys.argv[1]]()
own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    print(decoder(TRANSFORM, content).shape)
except BadImage as error:
    print(error)
pool.close()
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss >> 10)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - own >> 10)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere address space is not counted")
@pytest.mark.parametrize("name", ["tiff_with_a_tile_of_another_type", "webp_of_much_memory", "gif_of_comments"])
def test_a_costly_file_ends_within_its_memory(name):
    result = subprocess.run([sys.executable, "-c", _MEMORY, name], capture_output=True, text=True, check=True)
    said, child, own = result.stdout.splitlines()
    assert "300 MB of memory" in said
    assert "--decode-mb" in said
    assert int(child) < 300 + 150  # Python, NumPy, Pillow and the file itself
    assert int(own) < 40


@pytest.mark.parametrize("form", APART)
def test_what_is_decoded_apart_has_the_same_pixels(pool, form):
    content = encoded(picture(70, 90), form)
    decoder = BoundedDecoder(pool=pool)
    assert decoder.is_apart(content)
    found = decoder(TRANSFORM, content)
    assert found.dtype == np.uint8
    assert np.array_equal(found, TRANSFORM(content))


def test_floats_and_errors_come_back_as_they_are(pool):
    deep = EvaluationTransform(Preprocessing(image_size=32, mean=(0.5,), std=(0.5,), range=(0.0, 4095.0)))
    content = encoded(Image.fromarray(np.arange(6400, dtype=np.uint16).reshape(80, 80)), "TIFF")
    decoder = BoundedDecoder(pool=pool)
    found = decoder(deep, content)
    assert found.dtype == np.float32
    assert np.array_equal(found, deep(content))
    with pytest.raises(BadImage, match="is cut off before its end"):
        decoder(TRANSFORM, encoded(picture(), "TIFF")[:900])
    with pytest.raises(TooLarge, match="claims 90 x 70 pixels, above the limit of 100"):
        decoder(EvaluationTransform(TRANSFORM.preprocessing, max_pixels=100), encoded(picture(70, 90), "TIFF"))
    with pytest.raises(RuntimeError, match="division by zero"):
        decoder(fails, encoded(picture(), "GIF"))


def fails(content: bytes) -> np.ndarray:
    raise ZeroDivisionError("division by zero")


def kills_itself(content: bytes) -> np.ndarray:
    os.kill(os.getpid(), signal.SIGSEGV)
    return np.empty(0)


def says_where(content: bytes) -> dict:
    return {"process": os.getpid(), "torch": "torch" in sys.modules}


def sleeps(content: bytes) -> np.ndarray:
    time.sleep(60)
    return np.empty(0)


def prints(content: bytes) -> dict:
    print("something else", flush=True)
    os.write(1, b"and more")
    return {"read": sys.stdin.read()}


def takes_much(content: bytes) -> np.ndarray:
    return np.zeros(300 << 20, np.uint8)


def test_a_process_is_used_again_and_replaced_when_it_has_ended():
    pool = DecodePool(1)
    decoder = BoundedDecoder(DecodeLimits(5), pool)
    content = encoded(picture(), "GIF")
    try:
        first = decoder(says_where, content)
        assert first == {"process": first["process"], "torch": False}
        assert first["process"] != os.getpid()
        assert decoder(says_where, content) == first
        assert decoder(prints, content) == {"read": ""}
        assert decoder(says_where, content) == first
        with pytest.raises(BadImage, match=r"ends the process that decodes it \(SIGSEGV\)"):
            decoder(kills_itself, content)
        second = decoder(says_where, content)
        assert second != first
        with pytest.raises(TooCostly, match="becomes more than 256 MB of pixels"):
            decoder(takes_much, content)
        third = decoder(says_where, content)
        assert third != second
        os.kill(third["process"], signal.SIGKILL)  # while it has nothing to do, as a system short of memory may
        time.sleep(0.1)
        assert decoder(says_where, content) != third
        assert (
            len([each for each in processes_of(os.getpid()) if Path(f"/proc/{each}/cmdline").read_bytes() == b""]) == 0
        )
    finally:
        pool.close()


def test_a_process_that_is_stopped_keeps_others_for_one_limit():
    pool = DecodePool(1)
    decoder = BoundedDecoder(DecodeLimits(1), pool)
    content = encoded(picture(), "GIF")
    try:
        where = decoder(says_where, content)
        os.kill(where["process"], signal.SIGSTOP)
        began = time.monotonic()
        with ThreadPoolExecutor(1) as thread:
            stopped = thread.submit(decoder, TRANSFORM, content)
            time.sleep(0.1)
            assert decoder(TRANSFORM, content).shape == (32, 32, 3)
            assert time.monotonic() - began < 4
            with pytest.raises(TooCostly):
                stopped.result()
    finally:
        pool.close()


def test_closing_a_pool_ends_what_it_does():
    pool = DecodePool(1)
    errors = []

    def run() -> None:
        try:
            pool.run(sleeps, b"", DecodeLimits())
        except BadImage as error:
            errors.append(str(error))

    pool.start()
    before = set(processes_of(os.getpid()))
    thread = threading.Thread(target=run)
    thread.start()
    time.sleep(0.2)
    pool.close()
    thread.join(5)
    assert errors == ["ends the process that decodes it (SIGKILL)"]
    assert len(before - set(processes_of(os.getpid()))) == 1


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_no_process_outlives_the_one_that_started_it(how):
    code = """
import sys, time
from tests.data.test_decode_limits import TRANSFORM, encoded, picture
from vitrail.data.decode_pool import BoundedDecoder
BoundedDecoder()(TRANSFORM, encoded(picture(), "GIF"))
print("ready", flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        (worker,) = processes_of(process.pid)
        process.send_signal(how)
        process.wait(10)
    end = time.monotonic() + 10
    while Path(f"/proc/{worker}").exists() and state(worker) != "Z":  # which is for the system's first process to clear
        assert time.monotonic() < end
        time.sleep(0.05)


def test_ordinary_pictures_are_plain():
    exif = Image.Exif()
    exif[0x0112], exif[0x010F] = 6, "a camera"
    for form, options in (
        ("JPEG", {}),
        ("JPEG", {"progressive": True, "optimize": True}),
        ("JPEG", {"exif": exif, "comment": b"hello", "icc_profile": bytes(200_000)}),
        ("PNG", {"exif": exif}),
        ("PNG", {"icc_profile": bytes(3000)}),
        ("WEBP", {}),
        ("WEBP", {"exif": exif, "icc_profile": bytes(3000)}),
    ):
        assert is_plain(encoded(picture(70, 90), form, **options)), (form, options)
    for mode in ("L", "P", "RGB", "1"):
        assert is_plain(encoded(picture(70, 90).convert(mode), "BMP")), mode
    for mode in ("L", "P", "RGBA", "LA", "1", "I;16"):
        assert is_plain(encoded(picture(70, 90).convert("L").convert(mode), "PNG")), mode
    array = io.BytesIO()
    np.save(array, np.zeros((8, 8, 3), np.uint8))
    assert is_plain(array.getvalue())


@pytest.mark.assets
def test_photos_are_plain(assets):
    photos = [*assets.rglob("*.JPEG"), *assets.rglob("*.jpg")]
    assert len(photos) > 100
    apart = [each for each in photos if not is_plain(each.read_bytes())]
    assert len(apart) < len(photos) / 100


def large(size: tuple[int, int], mode: str = "L") -> Image.Image:
    return Image.new(mode, size)


def directory_of(entries: int) -> bytes:
    return tiff([(place, 4, 1, 1) for place in range(1, entries + 1)], b"")


UNUSUAL = {
    "a JPEG with many pixels": lambda: encoded(large((9000, 8000)), "JPEG"),
    "a progressive JPEG with many pixels": lambda: encoded(large((8000, 5000)), "JPEG", progressive=True),
    "a JPEG of four channels": lambda: encoded(picture(mode="CMYK"), "JPEG"),
    "a JPEG with a scan a channel": lambda: _without_interleaving(),
    "a JPEG with long EXIF data": lambda: encoded(picture(), "JPEG", exif=b"Exif\0\0" + directory_of(200)),
    "a JPEG cut off in its header": lambda: encoded(picture(), "JPEG")[:300],
    "a JPEG of many segments": lambda: b"\xff\xd8" + b"\xff\xfe\0\2" * 70 + encoded(picture(), "JPEG")[2:],
    "a JPEG with bytes between its segments": lambda: b"\xff\xd8\xff" + encoded(picture(), "JPEG")[2:],
    "a JPEG with a long table": lambda: b"\xff\xd8\xff\xdb" + b"\x20\0" * 4097 + encoded(picture(), "JPEG")[2:],
    "a PNG with many pixels": lambda: encoded(large((9000, 8000)), "PNG"),
    "a deep PNG with many pixels": lambda: encoded(large((4000, 3000), "I;16"), "PNG"),
    "an animated PNG": lambda: encoded(
        picture(), "PNG", save_all=True, append_images=[picture(seed=1), picture(seed=2)]
    ),
    "a PNG with EXIF data as text": lambda: _with_chunk(b"tEXt", b"Raw profile type exif\0\n"),
    "a PNG with long EXIF data": lambda: _with_chunk(b"eXIf", directory_of(200)),
    "a PNG with two of EXIF data": lambda: _with_chunk(b"eXIf", directory_of(1), 2),
    "a PNG of many chunks": lambda: _with_chunk(b"prVt", b"", 9000),
    "an interlaced PNG": lambda: _interlaced(),
    "a WebP with many pixels": lambda: encoded(large((4000, 3000)), "WEBP"),
    "a WebP without loss": lambda: encoded(picture(), "WEBP", lossless=True),
    "an animated WebP": lambda: encoded(picture(), "WEBP", save_all=True, append_images=[picture(seed=1)]),
    "a WebP with transparency": lambda: encoded(_translucent(), "WEBP"),
    "a WebP with long EXIF data": lambda: encoded(picture(), "WEBP", exif=b"Exif\0\0" + directory_of(200)),
    "a BMP with run lengths": lambda: COSTLY["bmp_of_ended_lines"](),
    "a BMP without its pixels": lambda: encoded(picture(), "BMP")[:600],
    "a text": lambda: b"hello",
}


def _without_interleaving() -> bytes:
    """Its first scan has one of three channels."""
    content = encoded(picture(), "JPEG")
    place = content.index(b"\xff\xda")
    return content[:place] + b"\xff\xda\0\x08\1\1\0\0\x3f\0" + content[place + 14 :]


def _translucent() -> Image.Image:
    image = picture()
    image.putalpha(picture(seed=1, mode="L"))
    return image


def _with_chunk(kind: bytes, data: bytes, times: int = 1) -> bytes:
    content = encoded(picture(), "PNG")
    return content[:33] + png_chunk(kind, data) * times + content[33:]


def _interlaced() -> bytes:
    content = encoded(picture(), "PNG")
    return content[:28] + b"\1" + content[29:]


@pytest.mark.parametrize("name", UNUSUAL)
def test_what_is_unusual_about_a_file_makes_it_not_plain(name):
    assert not is_plain(UNUSUAL[name]())


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "BMP"])
def test_no_cut_and_no_flip_of_a_header_breaks_the_look_at_it(form):
    exif = Image.Exif()
    exif[0x0112] = 6
    content = encoded(picture(), form, exif=exif)  # which a BMP does without
    generator = np.random.default_rng(0)
    for length in range(min(len(content), 700)):
        is_plain(content[:length])
    for _ in range(3000):
        changed = bytearray(content)
        for _ in range(3):
            changed[int(generator.integers(0, min(len(content), 400)))] = int(generator.integers(0, 256))
        is_plain(bytes(changed))


def test_the_format_is_told_by_the_first_bytes():
    for form, options in [
        ("JPEG", {}),
        ("PNG", {}),
        ("WEBP", {}),
        *((each, {}) for each in APART if each != "TGA"),
        ("BMP", {}),
    ]:
        assert format_of(encoded(picture(), form, **options)) == form.lower()
    assert format_of(encoded(picture(), "DIB")) == "bmp"
    assert format_of(b"hello") is None
    assert format_of(b"") is None


def test_other_formats_are_refused_unless_they_are_asked_for():
    decoder = BoundedDecoder(DecodeLimits(formats=read_formats("jpg,PNG")))
    assert decoder(TRANSFORM, encoded(picture(), "JPEG")).shape == (32, 32, 3)
    for content, reason in (
        (encoded(picture(), "TIFF"), "is a file of the format tiff, not of the formats that are read here: jpeg, png"),
        (encoded(picture(), "TGA"), r"is none of the formats that are read here: jpeg, png \(--formats\)"),
        (b"hello", "is none of"),
    ):
        with pytest.raises(WrongFormat, match=reason):
            decoder(TRANSFORM, content)
    with pytest.raises(BadImage, match="zero bytes"):
        decoder(TRANSFORM, b"")
    assert read_formats(None) == ALL
    with pytest.raises(UserError, match="--formats jpeg,psd: there is no format 'psd'; there are jpeg, png"):
        read_formats("jpeg,psd")
    for limits in ({"seconds": 0}, {"memory_mb": float("inf")}, {"seconds": float("nan")}):
        with pytest.raises(UserError, match="must be a number above 0"):
            DecodeLimits(**limits)
