"""Every command and every Python block in README.md and docs/ runs, in order, in one temporary folder a page.

Published weights come from a hub of our own, which has random ones under the name `Ti/16`."""

import re
from pathlib import Path

import pytest

from tests.warm import Page

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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
@pytest.mark.usefixtures("ti16")
def test_what_the_page_shows_runs(page, tmp_path):
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "docs").symlink_to(ROOT / "docs")  # tables that are kept beside the pages
    reader = Page(folder)
    try:
        for kind, text in steps(page):
            status = reader.python(text) if kind == "python" else reader.command(text)
            assert status == 0, f"{page.name}: {text}\n{reader.log.read_text(encoding='utf-8', errors='replace')}"
    finally:
        reader.close()


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
