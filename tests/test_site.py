"""The pages as a site: mkdocs.yml lists them all, it builds without a warning, and reading it asks no other machine."""

import os
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest
import yaml
from playwright.sync_api import expect, sync_playwright

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"


def listed(nav: object) -> list[str]:
    """Returns the pages that a nav leads to, in order."""
    if isinstance(nav, str):
        return [nav]
    children = nav.values() if isinstance(nav, dict) else nav
    return [page for child in children for page in listed(child)]  # pyright: ignore[reportGeneralTypeIssues]


def test_every_page_is_in_the_nav_once():
    # A tag names a function, which only mkdocs has to know.
    text = re.sub(r"!!python\S+", "", (ROOT / "mkdocs.yml").read_text("utf-8"))
    pages = listed(yaml.safe_load(text)["nav"])
    assert sorted(pages) == sorted(str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md"))


class Sources(HTMLParser):
    """Collects the addresses that a browser fetches to show a page."""

    def __init__(self, page: str):
        super().__init__()
        self.found: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        values = dict(attrs)
        if tag in ("script", "img", "iframe", "source", "audio", "video", "embed"):
            self.found += [values.get("src") or ""]
        if tag == "link" and values.get("rel") not in ("canonical", "next", "prev"):
            self.found += [values.get("href") or ""]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # the theme's own, on versions to come
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not done.stdout + done.stderr
    return folder


def test_the_site_has_every_page_and_the_reference(site):
    for page in DOCS.rglob("*.md"):
        assert (site / page.relative_to(DOCS)).with_suffix(".html").is_file(), page
    reference = (site / "api.html").read_text("utf-8")
    for name in ("create", "load", "finetune", "evaluate", "UserError", "PositionEmbedding"):
        assert re.search(rf'id="vitrail\.([a-z_.]+\.)?{name}"', reference), name
    assert ":::" not in reference


def test_reading_asks_no_other_machine(site):
    pages = list(site.rglob("*.html"))
    assert len(pages) > 25
    for page in pages:
        for address in Sources(page.read_text("utf-8")).found:
            assert not re.match(r"(https?:)?//", address), f"{page.name} fetches {address}"
    for style in site.rglob("*.css"):
        assert not re.search(r"(url\(|@import)\s*[\"']?(https?:)?//", style.read_text("utf-8")), style.name


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
def test_it_can_be_searched_from_the_disk_in_both_languages(site):
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        page.on("pageerror", lambda error: asked.append(f"error: {error}"))
        page.goto((site / "zh" / "index.html").as_uri())
        for words, leads_to in (("stochastic depth", "how-it-works.html"), ("插值", "zh/how-it-works.html")):
            field = page.locator("input.md-search__input")
            field.click()
            field.fill("")
            field.press_sequentially(words)
            field.press("End")
            expect(page.locator(f".md-search-result__link[href*='/{leads_to}']").first).to_be_visible(timeout=30_000)
        browser.close()
    assert asked
    assert all(address.startswith("file:") for address in asked), asked
