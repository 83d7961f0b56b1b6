"""Every hostile file of the corpus ends in a sentence and exit status 2, within 20 seconds and 4 GB of memory."""

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
