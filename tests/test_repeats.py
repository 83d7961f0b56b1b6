"""No more than ten lines of the package stand twice, but in recipes, which are read one by one."""

from collections import defaultdict
from pathlib import Path

import vitrail

PACKAGE = Path(vitrail.__file__).parent
MOST = 10


def lines_of(text: str) -> list[tuple[int, str]]:
    """The lines of a file that are not empty, by number and without indentation."""
    return [(number, line.strip()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]


def repeats(texts: dict[str, str], most: int = MOST) -> list[str]:
    """Where the same lines, more than `most` in a row, stand in two places."""
    found = defaultdict(list)
    for file, text in texts.items():
        lines = lines_of(text)
        for start in range(len(lines) - most):
            run = lines[start : start + most + 1]
            found[tuple(line for _, line in run)].append(f"{file}:{run[0][0]}")
    return [" = ".join(places) for places in found.values() if len(places) > 1]


def test_repeats_are_found():
    lines = "\n".join(f"line {number}" for number in range(11))
    assert repeats({"one": f"{lines}\nend", "two": f"def f():\n\n    {lines}"}) == ["one:1 = two:3"]
    assert not repeats({"one": lines, "two": lines.replace("line 7", "another")})


def test_no_part_of_the_package_stands_twice():
    texts = {
        file.relative_to(PACKAGE).as_posix(): file.read_text("utf-8")
        for file in PACKAGE.rglob("*.py")
        if file.parent.name != "recipes"
    }
    assert len(texts) > 200
    assert not repeats(texts)
