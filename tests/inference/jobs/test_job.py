"""A job takes no more of its inputs than it needs to know what there is to do, and counts what it did."""

import subprocess

import pytest

from tests.inference.conftest import encoded
from vitrail.data.inputs import find_pictures
from vitrail.errors import UserError
from vitrail.inference.jobs.job import JobProgress, Observer, _first, stream
from vitrail.inference.jobs.writers import Seen


def test_archives_are_not_read_to_count_them(tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for place in range(40):
        (photos / f"{place:02d}.png").write_bytes(encoded(place, rows=8, columns=8))
    subprocess.run(["tar", "-cf", tmp_path / "photos.tar", "-C", tmp_path, "photos"], check=True)
    loose = sorted(map(str, photos.iterdir()))[:3]
    inputs = find_pictures([*loose, tmp_path / "photos.tar"])
    assert len(_first(inputs, 2000)) == 4
    assert len(list(inputs)) == 39
    assert len(_first(find_pictures([photos]), 2000)) == 40


def test_processes_side_by_side_take_as_long_as_the_slowest():
    done = JobProgress.of_all([JobProgress(30, 1, 10.0), JobProgress(10, 0, 4.0)])
    assert (done.n, done.errors, done.seconds) == (40, 1, 10.0)
    assert done.speed == 4.0


class Log(Observer):
    """Remembers what it is told, and what its writer is told."""

    def __init__(self) -> None:
        self.seen, self.count, self.said = Seen(), 0, []

    def write(self, rows) -> None:
        self.said.append(f"write {len(rows)}")

    def close(self, finished: bool) -> None:
        self.said.append(f"close {finished}")

    def advanced(self, progress: JobProgress) -> None:
        self.said.append(f"{progress.n} done, {progress.errors} bad")

    def ended(self) -> None:
        self.said.append("ended")


def batches(error: Exception | None = None):
    yield [{"error": None}, {"error": "is empty"}]
    if error:
        raise error
    yield [{"error": None}]


def test_an_observer_is_told_of_every_batch_and_of_the_end():
    log = Log()
    done = stream(log, batches(), log)
    assert log.said == ["write 2", "2 done, 1 bad", "write 1", "3 done, 1 bad", "close True", "ended"]
    assert (done.n, done.errors) == (3, 1)


@pytest.mark.parametrize("error", [UserError("full"), KeyboardInterrupt()])
def test_what_stops_a_job_leaves_its_file_unfinished(error):
    log = Log()
    with pytest.raises(type(error)):
        stream(log, batches(error), log)
    assert log.said == ["write 2", "2 done, 1 bad", "close False", "ended"]
