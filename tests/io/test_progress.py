"""Times are said as people say them, and nothing is shown where nobody watches (bars: tests/cli/test_terminal.py)."""

import pytest

from vitrail.io.progress import duration, progress, working


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0.4, "0 s"), (119, "119 s"), (119.6, "2 min"), (7199, "119 min"), (7200, "2 h"), (90_000, "25 h")],
)
def test_a_time_as_people_say_it(seconds, said):
    assert duration(seconds) == said


def test_nothing_is_shown_where_nobody_watches(capsys):
    with progress("reading", 3, unit="images") as advance, working("building"):
        advance(3)
    assert capsys.readouterr() == ("", "")
