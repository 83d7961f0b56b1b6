"""What processes of one job tell each other: sums, the largest, what each has in order; and who failed."""

import json
import os
import socket
import subprocess
import sys

import pytest
import torch

from vitrail.environment import is_distributed, is_first, restart_count
from vitrail.errors import UserError
from vitrail.process_group import ProcessGroup

PROGRAM = """
import json, sys
import torch
from vitrail.errors import UserError
from vitrail.process_group import open_process_group

def fails():
    raise UserError("it cannot be")

with open_process_group(torch.device("cpu")) as these:
    found = {
        "place": [these.rank, these.count, these.first],
        "sum": these.sum([2**24 + 1, these.rank + 0.1]),
        "largest": these.max(5 - 3 * these.rank),
        "gather": these.gather({"rank": these.rank}),
        "added": these.sum_tensor(torch.ones(2) * (1 + these.rank)).tolist(),
        "first": these.run_on_first(lambda: f"said by {these.rank}"),
    }
    try:
        these.run_on_all(fails if these.rank == 1 else lambda: None)
    except UserError as error:
        found["error"] = [str(error), error.said_by_another]
    print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def told() -> list[dict]:
    """What each of two real processes found."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM],
            env={**os.environ, **place, "RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    ended = [process.communicate(timeout=300) for process in processes]
    assert [process.returncode for process in processes] == [0, 0], ended
    return [json.loads(out) for out, _ in ended]


def test_each_knows_its_place(told):
    assert [each["place"] for each in told] == [[0, 2, True], [1, 2, False]]


def test_all_have_the_same_sums_largest_and_parts_in_order(told):
    for each in told:
        assert each["sum"] == [2 * (2**24 + 1), pytest.approx(1.2, abs=1e-12)], "to the last unit of large counts"
        assert each["largest"] == 5
        assert each["gather"] == [{"rank": 0}, {"rank": 1}]
        assert each["added"] == [3.0, 3.0]
        assert each["first"] == "said by 0"


def test_if_one_fails_all_do_and_one_says_it(told):
    assert [each["error"] for each in told] == [["it cannot be", False], ["it cannot be", True]]


def test_a_process_alone_needs_nobody():
    alone = ProcessGroup()
    assert alone.first
    assert alone.sum([1.5, 2]) == [1.5, 2]
    assert (alone.max(3), alone.gather("x"), alone.run_on_first(lambda: 7)) == (3, ["x"], 7)
    assert alone.sum_tensor(torch.ones(2)).tolist() == [1.0, 1.0]
    with pytest.raises(UserError, match="no"):
        alone.raise_if_any("no")
    alone.raise_if_any(None)


def test_how_a_process_was_started_is_told_by_its_environment(monkeypatch):
    for name in ("WORLD_SIZE", "RANK", "TORCHELASTIC_RESTART_COUNT"):
        monkeypatch.delenv(name, raising=False)
    assert (is_distributed(), is_first(), restart_count()) == (False, True, 0)
    for name, value in (("WORLD_SIZE", "2"), ("RANK", "1"), ("TORCHELASTIC_RESTART_COUNT", "3")):
        monkeypatch.setenv(name, value)
    assert (is_distributed(), is_first(), restart_count()) == (True, False, 3)
