"""Memory: bounded, whatever the number of images. Measured as the peak of a process of its own, on one thread."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

SCRIPT = """
import json, re, sys
from pathlib import Path
import vitrail
from tests.conftest import randomised

def peak():
    # Not getrusage: its peak begins with that of the process this one was forked from.
    return int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024

name, size, folder, work = sys.argv[1], int(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
model = randomised(vitrail.create(name, image_size=size, num_classes=10))
peaks = [peak()]
for what, count in work:
    files = [f"{folder}/{number % 4}.png" for number in range(count)]
    if what == "distance":
        vitrail.inspect.attention_distance(model, files)
    else:
        assert vitrail.inspect.report(model, files, f"{folder}/report")["images"]["n"] == count
    peaks.append(peak())
print(json.dumps(peaks))
"""


def peaks(folder, name: str, size: int, *work: tuple[str, int]) -> list[int]:
    """The peak in bytes once the model is made, and after each piece of work."""
    draw = np.random.default_rng(0)
    for number in range(4):
        Image.fromarray(draw.integers(0, 256, (size, size, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    # Every larger block straight from the system and back to it: else the peak depends on which gaps malloc finds among
    # what was freed, and says more of that than of what is kept.
    allocator = {"MALLOC_MMAP_THRESHOLD_": str(2**16)}
    environment = {**os.environ, **allocator, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", SCRIPT, name, str(size), str(folder), json.dumps(work)]
    result = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    print(name, size, work, [f"{each / 2**20:.0f} MB" for each in found])
    return found


@pytest.mark.slow
def test_distances_over_128_images_at_ti_16_stay_under_2_gb_and_take_no_more_than_over_32(tmp_path):
    _, few, many = peaks(tmp_path, "Ti/16", 224, ("distance", 32), ("distance", 128))
    assert many < 2 * 10**9
    assert many - few < 16 * 2**20, "96 images more take 58 MB where they are kept"


@pytest.mark.slow
def test_the_whole_report_over_128_images_at_ti_16_stays_under_2_gb_and_takes_no_more_than_over_32(tmp_path):
    (tmp_path / "few").mkdir()
    (tmp_path / "many").mkdir()
    few = peaks(tmp_path / "few", "Ti/16", 224, ("report", 32))[-1]
    many = peaks(tmp_path / "many", "Ti/16", 224, ("report", 128))[-1]
    assert many < 2 * 10**9
    assert many - few < 64 * 2**20


@pytest.mark.slow
def test_8_images_at_l_16_and_384_px_stay_under_8_gb(tmp_path):
    assert peaks(tmp_path, "L/16", 384, ("report", 8))[-1] < 8 * 10**9
