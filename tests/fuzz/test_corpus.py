"""Every hostile file of the corpus ends in a sentence and exit status 2, within 20 seconds and 4 GB of memory."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from tests.fuzz.targets import IMAGE_ROUTES, INFER_ROUTES
from vitrail.serving.routes import attention, inference_protocol, page, predictions

ROOT = Path(__file__).parents[2]
COMMANDS = ("checkpoints", "folders", "data", "pictures")


def test_every_case_of_the_corpus():
    """In a process of its own, which forks: this one has threads."""
    command = [sys.executable, "-m", "tests.fuzz.run", "--minutes", "0", "--only", *COMMANDS]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr


_LITTLE_MEMORY = """
import json, re, sys, torch
from pathlib import Path
from safetensors.torch import save_file
from tests.fuzz import corpus
from tests.fuzz.limits import run_command
from tests.fuzz.targets import warm_up
from vitrail.models.build import create
from vitrail.checkpoints.bundle import save

folder = Path(sys.argv[1])
warm_up()
model = create("Ti/16", num_classes=3)  # 22 MB
save(model, folder / "bundle")
save_file(model.state_dict(), folder / "a.safetensors")
torch.save(model.state_dict(), folder / "a.pth")
own = int(re.search(r"VmSize:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
for more in (4, 16, 32, 40, 48, 64, 400):
    for name in ("bundle", "a.safetensors", "a.pth"):
        out = folder / f"out-{more}-{name}"
        out.mkdir()
        (out / name).symlink_to(folder / name)
        outcome = run_command(corpus.convert(out / name), memory=own + (more << 20))
        print(json.dumps([more, name, outcome.status, outcome.complaint, outcome.said]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="address space is counted on Linux alone")
def test_little_memory_is_said_and_not_taken_for_damage(tmp_path):
    command = [sys.executable, "-c", _LITTLE_MEMORY, str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert not [each for each in said if each[3]], said
    refused = [text for _, _, status, _, text in said if status == 2]
    assert len(refused) >= 4, said
    for text in refused:
        assert "there is not enough memory" in text
        assert "ulimit -v" in text
        assert "damaged" not in text
    assert {name for more, name, status, *_ in said if more == 400 and status == 0} == {
        "bundle",
        "a.safetensors",
        "a.pth",
    }


def test_every_route_with_a_body_is_sent_requests():
    routers = [each.router for each in (attention, inference_protocol, page, predictions)]
    routes = [route for router in routers for route in router.routes if isinstance(route, APIRoute)]
    assert {route.path for route in routes if route.methods - {"GET", "HEAD"}} == {*IMAGE_ROUTES, *INFER_ROUTES}


@pytest.mark.slow
def test_2000_mutated_checkpoints():
    command = [sys.executable, "-m", "tests.fuzz.run", "--cases", "2000", "--seed", "1", "--only", "checkpoints"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3000)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "2000 mutants" in result.stdout


@pytest.mark.slow
def test_a_minute_of_everything():
    command = [sys.executable, "-m", "tests.fuzz.run", "--minutes", "1", "--seed", "7"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    assert result.returncode == 0, result.stdout + result.stderr
