"""The page in a real browser: no error, no network, a click on a patch changes what is shown; keys, phones, dark."""

import shutil

import numpy as np
import pytest
from PIL import Image

import vitrail
from tests.conftest import toy


@pytest.fixture(scope="module")
def browser():
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("there is no Chromium on this machine to open the page with")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    draw = np.random.default_rng(0)
    for number in range(3):
        Image.fromarray(draw.integers(0, 256, (48, 80, 3), dtype=np.uint8)).save(folder / f"{number}.png")
    model = toy(image_size=(24, 40), registers=1)
    vitrail.inspect.report(model, folder, folder / "out")
    return folder / "out/report.html"


@pytest.fixture
def page(browser, report):
    """The page, opened; whatever goes wrong on it fails the test."""
    view = browser.new_page(viewport={"width": 1100, "height": 900})
    wrong: list[str] = []
    view.on("console", lambda message: wrong.append(message.text))
    view.on("pageerror", lambda error: wrong.append(str(error)))
    view.on("request", lambda request: wrong.append(request.url) if request.url.startswith("http") else None)
    view.goto(report.as_uri())
    view.wait_for_function("document.querySelector('[data-part=canvas]').width > 300")
    yield view
    view.close()
    assert not wrong


def overlay(page) -> str:
    return page.evaluate("document.querySelector('[data-part=canvas]').toDataURL()")


def said(page) -> str:
    return page.inner_text("[data-part=said]")


def layers(page) -> list[str]:
    return page.evaluate("[...document.querySelectorAll('[data-part=layers] canvas')].map((each) => each.toDataURL())")


def click_patch(page, row: int, column: int) -> None:
    canvas = page.locator("[data-part=canvas]")
    box = canvas.bounding_box()
    canvas.click(position={"x": box["width"] * (column + 0.5) / 5, "y": box["height"] * (row + 0.5) / 3})


def test_clicking_a_patch_changes_the_overlay_in_every_layer(page):
    before, small, text = overlay(page), layers(page), said(page)
    assert "What the classifier reads (the class token)" in text
    click_patch(page, 0, 1)
    first = overlay(page)
    assert first != before
    assert "patch in row 1, column 2" in said(page)
    assert all(new != old for new, old in zip(layers(page), small, strict=True))
    click_patch(page, 2, 4)
    assert overlay(page) not in (first, before)
    assert "patch in row 3, column 5" in said(page)
    page.click("[data-part=reader]")
    assert (overlay(page), said(page)) == (before, text)


def test_layers_heads_and_images_can_be_chosen(page):
    click_patch(page, 1, 1)
    seen = {overlay(page)}
    page.locator("[data-part=layers] button").first.click()
    assert "layer 1" in said(page)
    seen.add(overlay(page))
    page.select_option("[data-part=head]", "2")
    assert "head 3" in said(page)
    seen.add(overlay(page))
    page.select_option("[data-part=image]", "1")
    assert page.locator("[data-part=head]").is_disabled(), "the second image has the average alone"
    assert "all heads" in said(page)
    seen.add(overlay(page))
    assert len(seen) == 4
    assert "patch in row 2, column 2" in said(page), "the patch stays"


def test_it_can_be_used_without_a_mouse(page):
    page.focus("[data-part=canvas]")
    page.keyboard.press("ArrowLeft")
    assert "row 2, column 3" in said(page), "it begins in the middle"
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowUp")
    assert "row 1, column 2" in said(page)
    for _ in range(9):
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowRight")
    assert "row 1, column 5" in said(page), "it stops at the edge"
    page.focus("[data-part=layer]")
    page.keyboard.press("Home")
    assert "layer 1" in said(page)
    for _ in range(30):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.part") == "reader":
            break
    page.keyboard.press("Enter")
    assert "What the classifier reads" in said(page)


def test_what_is_said_is_what_the_model_computes(page, report):
    model = toy(image_size=(24, 40), registers=1)
    attention = vitrail.inspect.attention(model, report.parent.parent / "0.png")[0]
    click_patch(page, 1, 2)
    page.locator("[data-part=layers] button").nth(2).click()
    page.select_option("[data-part=head]", "1")
    row = attention[2, 1, 2 + 7]
    shares = row[2:]
    assert f"{100 * row[:2].sum():.0f} % goes to tokens that are no patches" in said(page)
    best = divmod(int(shares.argmax()), 5)
    assert f"goes to row {best[0] + 1}, column {best[1] + 1}" in said(page) or best == (1, 2)


def test_a_phone_shows_it_without_scrolling_sideways(page):
    for width in (320, 375, 768):
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_light_and_dark(page):
    page.emulate_media(color_scheme="light")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    drawing = page.evaluate("document.querySelector('picture img').currentSrc")
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light
    # The browser chooses a picture's source in its own time: a drawing that stays runs into the limit.
    page.wait_for_function("(light) => document.querySelector('picture img').currentSrc !== light", arg=drawing)


def test_every_picture_is_shown_and_described(page):
    page.evaluate("document.querySelectorAll('img').forEach((each) => each.scrollIntoView())")
    pictures = page.evaluate("[...document.querySelectorAll('img')].map((each) => [each.naturalWidth, each.alt])")
    assert len(pictures) > 20
    assert all(width > 0 and description for width, description in pictures)
