"""docs/extend.md adds five parts: a copy of the package gets them as the page says, and does what the page shows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vitrail

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "extend.md"
BLOCK = re.compile(r'^```(python|diff|console)(?: title="([^"]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
TRY = "try it"


def sections() -> dict[str, list[tuple[str, str, str]]]:
    """Heading -> blocks (kind, title, text)."""
    parts = re.split(r"^## (.+)\n", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    return dict(zip(parts[::2], map(BLOCK.findall, parts[1::2]), strict=True))


def changed(text: str, diff: str) -> str:
    """Applies a block of unchanged, removed and added lines, whose old lines occur exactly once."""
    lines = [(line[:1], line[1:] + "\n") for line in diff.splitlines()]
    old = "".join(line for mark, line in lines if mark in " -")
    assert text.count(old) == 1, f"these lines are not in the file, or not only once:\n{old}"
    return text.replace(old, "".join(line for mark, line in lines if mark in " +"))


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    """A folder that holds a copy of the package with all five parts."""
    folder = tmp_path_factory.mktemp("extended")
    shutil.copytree(Path(vitrail.__file__).parent, folder / "vitrail", ignore=shutil.ignore_patterns("__pycache__"))
    for blocks in sections().values():
        for kind, title, text in blocks:
            file = folder / title
            if kind == "diff":
                file.write_text(changed(file.read_text("utf-8"), text), "utf-8")
            elif title and title != TRY:
                assert not file.exists()
                file.parent.mkdir(exist_ok=True)
                file.write_text(text, "utf-8")
    return folder


def program(blocks: list[tuple[str, str, str]]) -> str:
    """What a section shows to try, as one program; each command must end with 0."""
    steps = []
    for kind, title, text in blocks:
        if kind == "console":
            steps += [f"command({line[2:]!r})" for line in text.splitlines() if line.startswith("$ ")]
        elif title == TRY:
            steps.append(text)
    head = """
import shlex
from vitrail.cli import main

def command(line):
    program, *arguments = shlex.split(line)
    assert program == "vitrail"
    try:
        status = main(arguments)
    except SystemExit as stopped:
        status = stopped.code
    assert not status, f"{line}: {status}"

"""
    return head + "\n".join(steps)


@pytest.mark.parametrize("section", sections())
def test_the_part_works_as_the_page_shows(section, package, tmp_path):
    path = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", program(sections()[section])],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


def test_the_copy_is_what_runs(package, tmp_path):
    shown = "import vitrail.tasks as t; print(t.__file__, *t.task_names())"
    environment = {**os.environ, "PYTHONPATH": str(package)}
    done = subprocess.run([sys.executable, "-c", shown], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [
        str(package / "vitrail/tasks/__init__.py"),
        *("classification", "multilabel", "regression", "rotation", "segmentation"),
    ]


def test_a_task_is_one_folder_and_no_edit_elsewhere():
    files = [(kind, title) for kind, title, _ in sections()["A task"] if title and title != TRY]
    assert files
    assert all(kind == "python" and title.startswith("vitrail/tasks/rotation/") for kind, title in files)


def test_every_other_part_is_one_file_and_one_entry():
    for name, blocks in sections().items():
        if name != "A task":
            written = [kind for kind, title, _ in blocks if title and title != TRY]
            assert sorted(written) == ["diff", "python"], name


def test_a_change_that_does_not_fit_is_noticed():
    with pytest.raises(AssertionError, match="not in the file"):
        changed("one\ntwo\n", " three\n+four\n")
    assert changed("one\ntwo\n", " one\n+middle\n-two\n+end\n") == "one\nmiddle\nend\n"
