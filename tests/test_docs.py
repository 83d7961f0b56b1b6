"""Every command and every Python block in README.md and docs/ runs, in order, in one temporary folder a page."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)


def steps(page: Path) -> list[tuple[str, str]]:
    """Python blocks whole, and the lines of bash blocks that call vitrail; make, pip and git lines are for people."""
    found = []
    for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "python":
            found.append((kind, text))
        else:
            joined = text.replace("\\\n", " ")
            found += [(kind, line) for line in joined.splitlines() if line.startswith("vitrail ")]
    return found


# Python blocks of a page share their names, as they would for a reader who types them one after the other.
DRIVER = """
import json, subprocess, sys
names = {"__name__": "__main__"}
for kind, text in json.load(sys.stdin):
    print("+", text, file=sys.stderr, flush=True)
    if kind == "python":
        exec(compile(text, "<page>", "exec"), names)
    else:
        subprocess.run(["bash", "-c", text], check=True)
"""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_the_page_shows_runs(page, tmp_path):
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    command, shown = [sys.executable, "-c", DRIVER], json.dumps(steps(page))
    result = subprocess.run(command, input=shown, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert result.returncode == 0, f"{page.name}\n{result.stdout}\n{result.stderr}"


def test_the_pages_show_something_to_run():
    assert sum(len(steps(page)) for page in PAGES) >= 10


def test_links_between_pages_lead_somewhere():
    for page in PAGES:
        for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_folder_is_in_the_readmes_map():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    folders = [path for path in (ROOT / "vitrail").iterdir() if (path / "__init__.py").exists()]
    for folder in folders:
        assert f"{folder.name}/" in readme, f"README's file map lacks {folder.name}/"
