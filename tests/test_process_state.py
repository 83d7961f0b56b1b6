"""What belongs to the whole process is changed by programs, not by importing the library nor for good by using it.

The last part of it is in tests/serving/test_life.py: the switch interval, and models that are freed.
"""

import subprocess
import sys
import threading
import warnings
from io import BytesIO

import numpy as np
import pytest
from PIL import Image

from vitrail.data.decode import decode
from vitrail.data.pillow_limit import allow_pixels
from vitrail.environment import silence_pillow

_IMPORT_TWICE = """
import importlib, os, pkgutil, signal, sys, warnings
from PIL import Image

def import_all():
    import vitrail
    names = [each.name for each in pkgutil.walk_packages(vitrail.__path__, "vitrail.")]
    names.remove("vitrail.__main__")
    for name in names:
        importlib.import_module(name)
    return len(names)

def state():
    handlers = {each: signal.getsignal(each) for each in signal.valid_signals()}
    return {
        "filters": list(warnings.filters), "pixels": Image.MAX_IMAGE_PIXELS, "switch interval": sys.getswitchinterval(),
        "handlers": handlers, "variables": dict(os.environ),
    }

def reset():
    warnings.resetwarnings()
    Image.MAX_IMAGE_PIXELS = 12345
    sys.setswitchinterval(0.25)
    for each, handler in handlers.items():
        signal.signal(each, handler)
    os.environ.clear()
    os.environ.update(variables)

handlers, variables = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}, dict(os.environ)
# Other packages change some of this when they are first imported: they stay imported, and only our own are run again.
import_all()
for name in [name for name in sys.modules if name.partition(".")[0] == "vitrail"]:
    del sys.modules[name]
reset()
before = state()
count = import_all()
after = state()
changed = [name for name in before if before[name] != after[name]]
assert not changed, changed
print(count)
"""


def test_importing_any_module_changes_nothing_of_the_process():
    done = subprocess.run([sys.executable, "-c", _IMPORT_TWICE], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 100


def _tiff(rows: int, columns: int) -> bytes:
    stream = BytesIO()
    Image.fromarray(np.zeros((rows, columns), np.uint8)).save(stream, "TIFF")
    return stream.getvalue()


def test_pillows_limit_is_raised_only_while_a_picture_is_decoded(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(Image.DecompressionBombError):
        Image.open(BytesIO(_tiff(30, 40)))
    assert decode(_tiff(30, 40), max_pixels=2400).shape == (30, 40, 3)
    assert Image.MAX_IMAGE_PIXELS == 100


def test_pillows_limit_is_the_highest_that_a_thread_needs(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    inside, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with allow_pixels(1000):
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=hold)
    with allow_pixels(3000):
        thread.start()
        assert inside.wait(60)
        assert Image.MAX_IMAGE_PIXELS == 1500
    assert Image.MAX_IMAGE_PIXELS == 500
    leave.set()
    thread.join()
    assert Image.MAX_IMAGE_PIXELS == 100
    with allow_pixels(200):
        assert Image.MAX_IMAGE_PIXELS == 100


def test_a_program_hides_pillows_warnings_of_pictures_that_it_accepts(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(Image.DecompressionBombWarning):
            Image.open(BytesIO(_tiff(30, 40)))
        silence_pillow()
        assert Image.open(BytesIO(_tiff(30, 40))).size == (40, 30)
        with pytest.raises(UserWarning, match="ours"):
            warnings.warn("ours", stacklevel=1)
