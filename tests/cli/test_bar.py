"""How far a job is: a bar once the number is known, a count before; lines in a while where nobody looks."""

import io
import time
from types import SimpleNamespace

import pytest

from vitrail.cli import bar
from vitrail.cli.bar import Bar, Total


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def terminal(monkeypatch) -> Terminal:
    stream = Terminal()
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr(bar, "sys", SimpleNamespace(stderr=stream))
    return stream


def shown(terminal: Terminal, bar: Bar, **done) -> str:
    bar.last = 0.0
    bar.update(SimpleNamespace(**{"n": 0, "errors": 0, "speed": 10.0} | done))
    bar.close()
    return terminal.getvalue().split("\x1b[K")[-2].rstrip("\r")


def counted(total: Total) -> int | None:
    limit = time.monotonic() + 60
    while total.value is None and time.monotonic() < limit:
        time.sleep(0.01)
    return total.value


def test_pictures_are_counted_beside_the_work_and_those_that_are_done_left_out(terminal, tmp_path):
    for number in range(7):
        (tmp_path / f"{number}.png").write_bytes(b"")
    total = Total([str(tmp_path)], {str(tmp_path / "3.png")})
    assert counted(total) == 6
    line = shown(terminal, Bar(total=total), n=3, errors=1)
    assert line == "━" * 15 + "─" * 15 + "  3 of 6 pictures  10.0 images/s  0 s left  1 unreadable"
    assert shown(terminal, Bar(total=total), n=6).startswith("━" * 30 + "  6 of 6")


def test_a_line_never_wraps(terminal, monkeypatch):
    bar = Bar(total=SimpleNamespace(value=2000))
    lengths = {}
    for columns in (120, 80, 60, 20):
        monkeypatch.setenv("COLUMNS", str(columns))
        line = shown(terminal, bar, n=1000, errors=12)
        lengths[columns] = line.count("━")
        assert len(line) < columns
    assert lengths[120] == 15
    assert 4 <= lengths[80] < 15
    assert lengths[60] == lengths[20] == 0


def test_what_cannot_be_counted_is_a_number_alone(terminal):
    total = Total(["-"])
    assert shown(terminal, Bar(total=total), n=1234) == "1,234 pictures  10.0 images/s"
    assert shown(terminal, Bar(3), n=5) == "5 pictures  10.0 images/s  (in the first of 3 processes)"


@pytest.mark.parametrize(("speed", "left"), [(1.0, "100 s"), (0.1, "16 min"), (0.01, "2 h")])
def test_how_long_it_will_take_is_said_as_people_say_it(terminal, speed, left):
    total = SimpleNamespace(value=100)
    assert f"  {left} left" in shown(terminal, Bar(total=total), n=0, speed=speed)


def test_where_nobody_looks_nothing_is_counted_and_a_line_comes_in_a_while(monkeypatch, tmp_path):
    stream = io.StringIO()
    monkeypatch.setattr(bar, "sys", SimpleNamespace(stderr=stream))
    assert not any(thread.name == "vitrail-count" for thread in bar.threading.enumerate())
    Total([str(tmp_path)])
    assert not any(thread.name == "vitrail-count" for thread in bar.threading.enumerate())
    line = Bar()
    line.update(SimpleNamespace(n=1, errors=0, speed=1.0))
    line.last -= 31
    line.update(SimpleNamespace(n=2, errors=0, speed=1.0))
    line.close()
    assert stream.getvalue() == "2 pictures  1.0 images/s\n"
