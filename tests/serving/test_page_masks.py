"""The page with a model of masks, in a real browser: laid over the photo, with a legend, opacity, and the class under
the pointer or the arrow keys."""

import io

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

import vitrail
from tests.mask_models import NAMES, mask_model, picture_file
from tests.serving.conftest import running
from tests.serving.test_page import CHROMIUM, Visit, axe, drawn
from vitrail.tasks.segmentation.colours import class_colours

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
PHOTO = picture_file(4, 90, 120)


@pytest.fixture(scope="module")
def model():
    return mask_model()


@pytest.fixture(scope="module")
def mask(model) -> np.ndarray:
    (answer,) = model.predict(PHOTO)
    assert len(answer.shares) == 3
    return answer.mask


@pytest.fixture(scope="module")
def address(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    vitrail.save(model, folder / "masks")
    with running(folder, str(folder / "masks")) as found:
        yield found.url


@pytest.fixture(scope="module")
def open_page(address):
    """Opens the page with the photo; at the end, nothing must have been complained about."""
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        visit = Visit(browser)

        def opened(**options) -> Page:
            page = visit(address, **options)
            with page.expect_response(lambda response: "/attention/map" in response.url):
                page.locator("#file").set_input_files({"name": "a.png", "mimeType": "image/png", "buffer": PHOTO})
            expect(page.locator(".panel[aria-busy]")).to_have_count(0)
            expect(page.locator("[data-part=mask]")).to_be_visible()
            return page

        yield opened
        browser.close()
    assert visit.complaints == []


def slide(page: Page, share: int) -> None:
    page.locator("[data-part=opacity]").fill(str(share))
    expect(page.locator("[data-part=opacity-value]")).to_have_text(f"{share}%")


def point(page: Page, row: int, column: int, mask: np.ndarray) -> None:
    canvas = page.locator("[data-part=mask]")
    canvas.scroll_into_view_if_needed()
    # The border is no part of the picture: the canvas says where a place of it is on the screen.
    x, y = canvas.evaluate(
        """(canvas, [down, right]) => {
          const box = canvas.getBoundingClientRect();
          const left = box.left + canvas.clientLeft, top = box.top + canvas.clientTop;
          return [left + right * canvas.clientWidth, top + down * canvas.clientHeight];
        }""",
        [(row + 0.5) / mask.shape[0], (column + 0.5) / mask.shape[1]],
    )
    page.mouse.move(x, y)


def test_the_mask_lies_over_the_photo_as_much_as_the_slider_says(open_page, mask):
    page = open_page()
    photo = np.asarray(Image.open(io.BytesIO(PHOTO))).astype(float)
    page.mouse.move(0, 0)
    slide(page, 0)
    assert np.abs(drawn(page, part="mask") - photo).max() <= 1
    slide(page, 100)
    colours = class_colours(3)[mask].astype(float)
    assert np.abs(drawn(page, part="mask") - colours).max() <= 1
    slide(page, 50)
    assert np.abs(drawn(page, part="mask") - (photo + colours) / 2).max() <= 2


def test_the_legend_names_every_class_with_its_share_and_colour(open_page, mask):
    page = open_page()
    shares = np.bincount(mask.ravel(), minlength=3) / mask.size
    order = np.argsort(-shares)
    lines = page.locator(".bars li")
    assert lines.locator(".bar-name").all_inner_texts() == [NAMES[index] for index in order]
    shown = [float(text.rstrip("%")) for text in lines.locator(".bar-score").all_inner_texts()]
    assert shown == pytest.approx([100 * shares[index] for index in order], abs=0.51)
    colours = lines.locator(".swatch").evaluate_all("all => all.map((each) => each.style.background)")
    assert colours == [f"rgb({', '.join(map(str, class_colours(3)[index].tolist()))})" for index in order]
    expect(page.locator("#announce")).to_contain_text(NAMES[order[0]])


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_the_class_under_the_pointer_is_said(open_page, mask, locale):
    page = open_page(locale=locale)
    readout = page.locator("[data-part=mask-readout]")
    for number in range(3):
        places = np.argwhere(mask == number)
        row, column = places[len(places) // 2].tolist()
        point(page, row, column, mask)
        expect(readout).to_contain_text(NAMES[number])
        expect(readout).to_contain_text(str(row + 1))
        expect(page.locator(".bars .pointed .bar-name")).to_have_text(NAMES[number])
    page.mouse.move(0, 0)
    expect(readout).to_contain_text("Point at a place" if locale == "en-US" else "指向某处")
    expect(page.locator(".bars .pointed")).to_have_count(0)


def test_arrow_keys_ask_about_places_and_escape_lets_go(open_page, mask):
    page = open_page()
    canvas, readout = page.locator("[data-part=mask]"), page.locator("[data-part=mask-readout]")
    canvas.focus()
    plain = drawn(page, part="mask")
    page.keyboard.press("ArrowRight")
    expect(readout).to_have_text(f"{NAMES[mask[45, 60]]}, in row 46, column 61 of the photo")
    assert not np.array_equal(plain, drawn(page, part="mask")), "the place should be marked"
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowUp")
    expect(readout).to_have_text(f"{NAMES[mask[41, 65]]}, in row 42, column 66 of the photo")
    expect(page.locator("#announce")).to_have_text(f"{NAMES[mask[41, 65]]}, in row 42, column 66 of the photo")
    page.keyboard.press("Escape")
    expect(readout).to_contain_text("Point at a place")
    assert np.array_equal(plain, drawn(page, part="mask"))


def test_every_patch_can_be_asked_where_it_looks_beside_the_mask(open_page):
    page = open_page()
    expect(page.get_by_role("radio", name="whole picture")).to_be_checked()
    expect(page.locator("[data-part=mode-hint]")).to_contain_text("Each patch has an answer of its own")
    boxes = [page.locator(f"[data-part={part}]").bounding_box() for part in ("stage", "mask")]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]


@pytest.mark.parametrize(("scheme", "locale"), [("light", "en-US"), ("dark", "zh-CN")])
def test_axe_finds_no_serious_fault_with_a_mask(open_page, mask, scheme, locale):
    script = axe()
    page = open_page(color_scheme=scheme, locale=locale)
    point(page, 10, 10, mask)
    page.evaluate(script)
    result = page.evaluate("async () => (await axe.run()).violations")
    serious = [each for each in result if each["impact"] in ("serious", "critical")]
    assert [(each["id"], [node["html"][:120] for node in each["nodes"]]) for each in serious] == []


def test_a_phone_needs_no_sideways_scroll_with_a_mask(open_page):
    page = open_page(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    assert page.evaluate("() => document.documentElement.scrollWidth") == 360
