"""Every command and every Python block in README.md and docs/ runs, in order, in one temporary folder a page.

Published weights come from a hub of our own, which has random ones under the name `Ti/16`. Pages that begin with a
folder of photos find a small one, and what they serve is served, at a free port, until the page ends."""

import json
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.hub_server import write_like_published
from tests.warm import Page, run

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CHINESE = {ROOT / "README.zh-CN.md": ROOT / "README.md"} | {
    page: ROOT / "docs" / page.name for page in sorted((ROOT / "docs" / "zh").glob("*.md"))
}
"""Pages in Chinese, each with the English page that it says the same as."""
BLOCK = re.compile(r"^```(bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
SHOWN_OUTPUT = re.compile(r"^```bash\n((?:(?!```).)*)^```\n\n```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
"""Commands, and what they print."""
WITH_PHOTOS = {"tutorial.md", "coming-from.md", "serving.md"}
"""Pages whose reader has photos: class folders in `photos`, others in `new-photos`, and two that have names."""
SHOWN_ADDRESS = "http://127.0.0.1:8000"


def steps(page: Path) -> list[tuple[str, str]]:
    """Returns Python blocks whole, and the lines of bash blocks that call vitrail or ask what it serves; make, pip and
    git lines are for people."""
    found = []
    for kind, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        if kind == "python":
            found.append((kind, text))
        else:
            joined = text.replace("\\\n", " ")
            found += [(kind, line) for line in joined.splitlines() if line.startswith(("vitrail ", "curl "))]
    return found


def draw_photos(folder: Path) -> None:
    """Makes two classes of noise, one dark and one light."""
    random = np.random.default_rng(0)
    for name, count in (("photos/ants", 12), ("photos/bees", 12), ("new-photos", 4)):
        (folder / name).mkdir(parents=True)
        for number in range(count):
            least = 128 * (name.endswith("bees") or number % 2)
            colours = random.integers(least, least + 128, (6, 8, 3), dtype=np.uint8)
            Image.fromarray(colours).resize((96, 72)).save(folder / name / f"{number + 1}.jpg")
    for number, name in enumerate(("cat", "dog"), 1):
        shutil.copy(folder / "new-photos" / f"{number}.jpg", folder / f"{name}.jpg")


@contextmanager
def served(line: str, folder: Path) -> Iterator[str]:
    """Runs `vitrail serve ...` at a free port and yields its address once it is ready; it must end with 0."""
    command = [sys.executable, "-m", "vitrail", *shlex.split(line)[1:], "--port", "0", "--json"]
    log = folder.parent / "server.log"
    with log.open("w") as stream:
        process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=stream, text=True)
    assert process.stdout is not None
    try:
        lines = "".join(iter(process.stdout.readline, "}\n")) if process.poll() is None else ""
        assert lines, f"{line}\n{log.read_text('utf-8')}"
        url = json.loads(lines + "}")["url"]
        for _ in range(600):
            try:
                urllib.request.urlopen(url + "/v2/health/ready")
                break
            except urllib.error.HTTPError:  # not warm yet
                time.sleep(0.1)
        yield url
        process.terminate()
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def run_page(page: Path, folder: Path) -> None:
    reader = Page(folder)
    address = SHOWN_ADDRESS
    try:
        with ExitStack() as servers:
            for kind, text in steps(page):
                if text.startswith("vitrail serve "):
                    address = servers.enter_context(served(text, folder))
                    continue
                if text.startswith("curl "):
                    if shutil.which("curl") is None:
                        continue
                    command = text.replace("curl ", "curl --fail --silent --show-error ", 1)
                    done = subprocess.run(command.replace(SHOWN_ADDRESS, address), shell=True, cwd=folder)
                    status = done.returncode
                else:
                    status = reader.python(text) if kind == "python" else reader.command(text)
                assert status == 0, f"{page.name}: {text}\n{reader.log.read_text(encoding='utf-8', errors='replace')}"
    finally:
        reader.close()


def test_the_readme_shows_what_the_tutorial_shows_too():
    """So it runs there; and what it prints is what the tutorial's commands print."""
    tutorial = ROOT / "docs" / "tutorial.md"
    left = iter(steps(tutorial))
    for step in steps(ROOT / "README.md"):
        assert step in left, f"the tutorial does not show, or in another order: {step[1]}"
    printed = {line for _, output in SHOWN_OUTPUT.findall(tutorial.read_text("utf-8")) for line in output.splitlines()}
    for _, output in SHOWN_OUTPUT.findall((ROOT / "README.md").read_text("utf-8")):
        assert set(output.splitlines()) <= printed


LONG = {
    *("training.md", "multilabel.md", "segmentation.md", "self-supervision.md", "scale.md", "inference.md"),
    *("commands.md", "coming-from.md"),
}
"""Pages with many trainings, commands or processes: three minutes together."""


def marked(page: Path) -> Any:
    """A page as a parameter of the test, slow if it is one of the long ones."""
    return pytest.param(page, id=page.name, marks=pytest.mark.slow if page.name in LONG else ())


@pytest.mark.parametrize("page", [marked(page) for page in PAGES[1:]])
@pytest.mark.usefixtures("ti16")
def test_what_the_page_shows_runs(page, tmp_path):
    folder = tmp_path / "page"
    folder.mkdir()
    (folder / "docs").symlink_to(ROOT / "docs")  # tables that are kept beside the pages
    if page.name in WITH_PHOTOS:
        draw_photos(folder)
    run_page(page, folder)


NUMBER = re.compile(r"\d+(?:\.\d+)?")


def alike(shown: str, printed: str) -> bool:
    """Tells whether two lines differ in their numbers alone, and these by half a point at most."""
    pairs = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=False)
    near = all(abs(float(one) - float(other)) <= 0.5 for one, other in pairs)
    return near and NUMBER.sub("#", shown).strip() == NUMBER.sub("#", printed).strip()


@pytest.mark.slow
@pytest.mark.assets
def test_the_tutorial_prints_what_it_shows(assets, hub, tmp_path):
    """On the photos that the page names, with DeiT's weights."""
    from vitrail.checkpoints.published import by_name

    weights = by_name("Ti/16@deit")
    assert weights is not None
    write_like_published(weights, tmp_path / "deit")
    (tmp_path / "deit" / weights.file).unlink()
    (tmp_path / "deit" / weights.file).symlink_to(assets / "deit-ti16.safetensors")
    for file in (tmp_path / "deit").iterdir():
        (hub.repository(weights.hub) / file.name).symlink_to(file)
    folder = tmp_path / "page"
    for name in ("ants", "bees"):
        (folder / "photos" / name).mkdir(parents=True)
        for photo in sorted((assets / "ants-and-bees" / "train" / name).glob("*.jpg"))[:50]:
            (folder / "photos" / name / photo.name).symlink_to(photo)
    (folder / "new-photos").mkdir()
    new = ("ants/10308379_1b6c72e180", "bees/1032546534_06907fe3b3", "bees/1181173278_23c36fac71")
    for number, photo in enumerate(new, 1):
        (folder / "new-photos" / f"{number}.jpg").symlink_to(assets / "ants-and-bees" / "val" / f"{photo}.jpg")

    compared = 0
    for commands, output in SHOWN_OUTPUT.findall((ROOT / "docs" / "tutorial.md").read_text("utf-8")):
        lines = [line for line in commands.splitlines() if line.startswith("vitrail ") and " serve " not in line]
        done = [run(*shlex.split(line.replace("Ti/16", weights.full_name))[1:], cwd=folder) for line in lines]
        printed = [line for each in done for line in (each.stderr + each.stdout).splitlines()]
        for line in filter(str.strip, output.splitlines() if lines else []):
            assert any(alike(line, other) for other in printed), f"{lines}: {line!r} is not among\n" + "\n".join(
                printed
            )
            compared += 1
    assert compared > 30

    measured = run("evaluate", "ants-or-bees", "--data", str(assets / "ants-and-bees" / "val"), "--json", cwd=folder)
    document = json.loads(measured.stdout)
    told = re.search(r"Of (\d+) photos that it had not seen ([\d.]+) %", (ROOT / "README.md").read_text("utf-8"))
    assert told is not None
    assert document["n"] == int(told[1])
    assert abs(100 * document["top1"] - float(told[2])) < 0.7  # a photo


def test_the_pages_show_something_to_run():
    assert sum(len(steps(page)) for page in PAGES) >= 100


@pytest.mark.parametrize("page", [page for page in PAGES if page.name != "extend.md"], ids=lambda page: page.name)
def test_what_is_shown_to_be_typed_is_in_blocks_that_are_run(page):
    """The commands of extend.md, in blocks with a prompt, are run by tests/test_extend.py."""
    text = page.read_text("utf-8")
    assert "```console" not in text
    assert not re.findall(r"^\$ ", text, re.MULTILINE)


def shown(page: Path) -> list[tuple[str, str]]:
    """Returns every block that is code, with its comments left out."""
    blocks = re.findall(r"^```(bash|python|console)\n(.*?)^```", page.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    return [(kind, re.sub(r"(^|[ \t]+)# .*$", "", text, flags=re.MULTILINE)) for kind, text in blocks]


def pictures_of(page: Path) -> list[str]:
    return re.findall(r"^!\[.*\]\((.+)\)$", page.read_text("utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", CHINESE, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_translation_shows_the_same_code(page):
    """So what runs in English runs in Chinese; both link to each other and have the same pictures."""
    english = CHINESE[page]
    assert shown(page) == shown(english)
    outputs = [[output for _, output in SHOWN_OUTPUT.findall(each.read_text("utf-8"))] for each in (page, english)]
    assert outputs[0] == outputs[1]
    assert [Path(each).name for each in pictures_of(page)] == [Path(each).name for each in pictures_of(english)]
    for one, other in ((page, english), (english, page)):
        links = re.findall(r"\]\(([^)#]+)[^)]*\)", one.read_text("utf-8"))
        assert any((one.parent / link).resolve() == other for link in links), f"{one.name} does not link to {other}"


def test_both_glossaries_have_the_same_words():
    def words(page: str) -> list[str]:
        found = re.findall(r"^\| \*\*(.+?)\*\*", (ROOT / "docs" / page).read_text("utf-8"), re.MULTILINE)
        return [word.replace("、", ", ") for word in found]

    assert words("zh/glossary.md") == words("glossary.md")


def test_links_between_pages_lead_somewhere():
    for page in (*PAGES, *CHINESE):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)[^)]*\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


NAMED_FILE = re.compile(r"`(vitrail/[\w/]+\.\w+)`")
NAMES_IN_FILE = re.compile(r"`(vitrail/[\w/]+\.py)` ?[(\uff08]((?:`[\w.]+`(?:, |\u3001)?)+)")


def test_the_files_that_pages_name_are_there():
    for page in (*PAGES, *CHINESE):
        if page.name != "extend.md":  # its files are those that the reader adds
            for file in NAMED_FILE.findall(page.read_text("utf-8")):
                assert (ROOT / file).is_file(), f"{page.name} names {file}"


@pytest.mark.parametrize("page", [ROOT / "docs/how-it-works.md", ROOT / "docs/zh/how-it-works.md"], ids=str)
def test_each_concept_is_in_the_file_that_the_page_names(page):
    found = NAMES_IN_FILE.findall(page.read_text("utf-8"))
    assert len(found) > 20
    for file, names in found:
        code = (ROOT / file).read_text("utf-8")
        for name in re.findall(r"`([\w.]+)`", names):
            assert re.search(rf"(class|def) {name}\b|self\.{name} =", code), f"{file} has no {name}"


def test_every_folder_is_in_the_readmes_map():
    folders = [path for path in (ROOT / "vitrail").iterdir() if (path / "__init__.py").exists()]
    for page in (ROOT / "README.md", ROOT / "README.zh-CN.md"):
        text = page.read_text("utf-8")
        for folder in folders:
            assert f"{folder.name}/" in text, f"the file map of {page.name} lacks {folder.name}/"


def test_every_function_of_the_package_is_on_the_page_of_functions():
    text = (ROOT / "docs" / "api.md").read_text("utf-8")
    for name in set(vitrail.__all__) - {"__version__"}:
        assert f"::: vitrail.{name}\n" in text, f"docs/api.md lacks vitrail.{name}"
        assert f"`vitrail.{name}`" in text, f"the table of docs/api.md lacks vitrail.{name}"


def test_every_entry_of_the_page_of_functions_is_there():
    entries = re.findall(r"^::: (.+)$", (ROOT / "docs" / "api.md").read_text("utf-8"), re.MULTILINE)
    assert entries
    for entry in entries:
        assert pkgutil.resolve_name(entry) is not None
