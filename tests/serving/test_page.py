"""The page in a real browser against the real server: what it shows is what the model says, for everyone."""

import base64
import importlib.util
import io
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Page, expect, sync_playwright

import vitrail
from tests.conftest import toy
from vitrail.config import Preprocessing
from vitrail.insight.attention import attention
from vitrail.insight.images import Images
from vitrail.insight.rollout import rollout
from vitrail.models.vit import ViT

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium")
expect.set_options(timeout=30_000)
WEB = Path(vitrail.__file__).parent / "serving" / "web"
FAULTS = ("error", "warning", "assert")
NAMES = ("ash", "birch", "cedar", "elm", "fir", "hazel", "<b>oak</b>")


def keen(model: ViT, names: tuple[str, ...]) -> ViT:
    """Random weights attend everywhere alike; with larger queries and keys the maps differ clearly."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("attn.qkv.weight"):
                parameter.mul_(8)
    model.card.label_names = names
    channels = model.config.channels
    model.card.preprocessing = Preprocessing(
        image_size=model.config.image_size,
        mean=(0.5,) * channels,
        std=(0.5,) * channels,
        crop="squash",
        crop_fraction=1.0,
    )
    return model


@pytest.fixture(scope="module")
def models() -> dict[str, ViT]:
    """One with a class token and colours; one without, grey, on another grid."""
    grey = {"channels": 1, "image_size": 28, "patch_size": 4, "class_token": False, "pooling": "average"}
    digits = tuple(str(digit) for digit in range(10))
    return {"trees": keen(toy(), NAMES), "digits": keen(toy(**grey, num_classes=10, positions="sincos"), digits)}


@pytest.fixture(scope="module")
def folder(models, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    for name, model in models.items():
        vitrail.save(model, folder / name)
    (folder / "keys").write_text("a-key-of-more-than-sixteen-letters\n", encoding="utf-8")
    return folder


def served(folder: Path, *flags: str) -> Iterator[str]:
    """The address of a server that is ready, until it is no longer needed."""
    command = [sys.executable, "-m", "vitrail", "serve", "trees", "digits", "--port", "0", "--json", *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (folder / "log").open("a") as log:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=log, text=True)
        try:
            assert process.stdout is not None
            text = ""
            while not text.rstrip().endswith("}"):
                line = process.stdout.readline()
                assert line, (folder / "log").read_text()
                text += line
            address = json.loads(text)["url"]
            for _ in range(300):
                try:
                    urllib.request.urlopen(f"{address}/v2/health/ready").close()
                    break
                except urllib.error.HTTPError as error:
                    error.close()
                    time.sleep(0.1)
            else:
                pytest.fail((folder / "log").read_text())
            yield address
        finally:
            process.terminate()
            process.communicate(timeout=30)


@pytest.fixture(scope="module")
def address(folder) -> Iterator[str]:
    yield from served(folder, "--max-body-mb", "0.5")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    camera = ["--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *camera])
        yield browser
        browser.close()


class Visit:
    """Opens pages, and remembers what a browser would complain about and whom it spoke to."""

    def __init__(self, browser: Browser):
        self.browser = browser
        self.contexts = []
        self.complaints: list[str] = []
        self.requests: list[str] = []

    def __call__(self, address: str, ready: bool = True, **options) -> Page:
        options = {"locale": "en-US", "viewport": {"width": 1280, "height": 900}, "reduced_motion": "reduce", **options}
        context = self.browser.new_context(**options)
        self.contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", lambda said: self.complaints.append(said.text) if said.type in FAULTS else None)
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("request", lambda request: self.requests.append(request.url))
        page.goto(address)
        if ready:
            answered(page)
        return page


@pytest.fixture
def visit(browser, address) -> Iterator[Visit]:
    """Every test that opens a page shows as well: nothing in the console, nothing asked of other servers."""
    visit = Visit(browser)
    yield visit
    for context in visit.contexts:
        context.close()
    assert visit.complaints == []
    assert visit.requests
    assert {url for url in visit.requests if not url.startswith((address, "blob:", "data:"))} == set()


def answered(page: Page, panels: int = 1) -> None:
    expect(page.locator(".panel")).to_have_count(panels)
    expect(page.locator(".panel[aria-busy]")).to_have_count(0)
    expect(page.locator(".panel:not(:has(.bars li))")).to_have_count(0)


def png(pixels: np.ndarray) -> bytes:
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


def noise(size: int = 32, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8)


PLAIN = np.full((32, 32, 3), 200, np.uint8)
"""A picture without features: all that is light or dark on it is attention."""


def upload(page: Page, content: bytes, name: str = "picture.png", kind: str = "image/png") -> None:
    with page.expect_response(lambda response: "/attention/map" in response.url):
        page.locator("#file").set_input_files({"name": name, "mimeType": kind, "buffer": content})
    answered(page, page.locator(".panel").count())


def drawn(page: Page, panel: int = 0, part: str = "stage") -> np.ndarray:
    """What a canvas shows: [rows, columns, channels]."""
    canvas = page.locator(f"[data-part={part}]").nth(panel)
    address = canvas.evaluate("canvas => canvas.toDataURL('image/png')")
    content = base64.b64decode(address.partition(",")[2])
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB")).astype(float)


def panes(page: Page, grid: tuple[int, int], panel: int = 0) -> np.ndarray:
    """How bright the middle of every pane is, row by row."""
    pixels = drawn(page, panel).mean(axis=2)
    rows, columns = grid
    high, wide = pixels.shape[0] / rows, pixels.shape[1] / columns
    middle = [(int((row + 0.5) * high), int((column + 0.5) * wide)) for row in range(rows) for column in range(columns)]
    return np.array([pixels[y - 3 : y + 3, x - 3 : x + 3].mean() for y, x in middle])


def point_at(page: Page, row: int, column: int, grid: tuple[int, int], panel: int = 0, part: str = "stage") -> None:
    canvas = page.locator(f"[data-part={part}]").nth(panel)
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(
        box["x"] + box["width"] * (column + 0.5) / grid[1], box["y"] + box["height"] * (row + 0.5) / grid[0]
    )


def assert_lit_by(page: Page, shares: np.ndarray, panel: int = 0) -> None:
    """Panes are the brighter the more attention they get, in the order of the model's own numbers."""
    assert shares.max() > 1.5 * shares.min(), "the model attends everywhere alike: nothing to see"
    light = panes(page, shares.shape, panel)
    order = np.argsort(shares.ravel())
    steps = np.diff(light[order])
    assert steps.min() > -1.5  # 8 bits there and back
    assert light[order[-1]] - light[order[0]] > 20


# What the model says


def test_a_picture_gets_the_models_own_classes(visit, address, models):
    page, pixels = visit(address), noise()
    upload(page, png(pixels))
    model = models["trees"]
    scores = model(Images(model, pixels).tensor(0)[None]).softmax(-1)[0]
    best = scores.argsort(descending=True)[:5].tolist()
    shown = [text.split("\n") for text in page.locator(".bars li").all_inner_texts()]
    assert [name for name, _ in shown] == [NAMES[index] for index in best]  # and <b> is text, not an element
    assert [float(score.rstrip("%")) for _, score in shown] == pytest.approx(
        [100 * scores[index].item() for index in best], abs=0.51
    )
    widths = page.locator(".bar-fill").evaluate_all("bars => bars.map((bar) => parseFloat(bar.style.width))")
    assert widths == pytest.approx([100 * scores[index].item() for index in best], abs=0.41)
    expect(page.locator("#announce")).to_contain_text(NAMES[best[0]])


def test_the_page_shows_something_before_anything_is_given(visit, address):
    page = visit(address)
    assert page.locator(".bars li").count() == 5
    assert page.locator(".example").count() == 6
    before = drawn(page)
    with page.expect_response(lambda response: "/attention/map" in response.url):
        page.locator(".example").nth(3).click()
    answered(page)
    assert not np.array_equal(before, drawn(page))


# Where it looks


def test_panes_are_lit_as_the_model_attends(visit, address, models):
    page, model = visit(address), models["trees"]
    upload(page, png(PLAIN))
    weights, grid = attention(model, Images(model, PLAIN))[0], model.config.grid  # (layers, heads, tokens, tokens)
    page.locator("#lines").uncheck()
    assert_lit_by(page, weights[-1].mean(0)[0, 1:].reshape(grid))  # the class token, last layer, mean of heads
    point_at(page, 2, 1, grid)
    hovered = panes(page, grid)
    assert_lit_by(page, weights[-1].mean(0)[1 + 2 * grid[1] + 1, 1:].reshape(grid))
    point_at(page, 0, 3, grid)
    assert not np.allclose(hovered, panes(page, grid), atol=2)
    assert_lit_by(page, weights[-1].mean(0)[1 + 3, 1:].reshape(grid))
    page.locator("[data-part=layer]").fill("1")
    head = int(weights[0, :, 0, 1:].sum(axis=1).argmax())  # the one that leaves least to the class token itself
    page.locator("[data-part=head]").fill(str(head + 1))
    page.mouse.move(0, 0)
    assert_lit_by(page, weights[0, head, 0, 1:].reshape(grid))
    page.locator("input[value=rollout]").check()
    assert_lit_by(page, rollout(model, Images(model, PLAIN))[0])


def test_one_bright_corner_does_not_black_out_the_picture(visit, address):
    page = visit(address)
    shares = np.linspace(0.5, 1.5, 196) / 196
    shares[13] = 0.3  # sixty times the mean
    found = page.evaluate(
        "async (shares) => Array.from((await import('/web/maps.js')).levels(shares))", shares.tolist()
    )
    light = np.delete(np.array(found), 13)
    assert found[13] == 1
    assert light.min() > 0.3, "scaled by the corner, the others would be below 0.1"
    assert (np.diff(light) >= 0).all()
    assert len(np.unique(light)) == 195, "nothing else is clipped"
    assert page.evaluate("async () => Array.from((await import('/web/maps.js')).levels([0, 0, 0, 5]))") == [0, 0, 0, 1]


def test_without_a_class_token_the_whole_picture_asks(visit, address, models):
    page, model = visit(address), models["digits"]
    page.locator("#first").select_option("digits")
    answered(page)
    expect(page.get_by_role("radio", name="whole picture")).to_be_checked()
    grey = PLAIN[:28, :28, :1]
    upload(page, png(grey[..., 0]))
    page.locator("#lines").uncheck()
    weights = attention(model, Images(model, grey))[0]
    assert_lit_by(page, weights[-1].mean(axis=(0, 1)).reshape(model.config.grid))


def test_a_click_keeps_a_patch_and_keys_move_it(visit, address, models):
    page, grid = visit(address), models["trees"].config.grid
    upload(page, png(noise()))
    caption, stage = page.locator("[data-part=caption]"), page.locator("[data-part=stage]")
    point_at(page, 1, 1, grid)
    expect(caption).to_contain_text("the patch in row 2, column 2 looks most at")
    page.mouse.move(0, 0)
    expect(caption).to_contain_text("class token")
    point_at(page, 1, 1, grid)
    page.mouse.down()
    page.mouse.up()
    page.mouse.move(0, 0)
    expect(caption).to_contain_text("row 2, column 2 looks")
    expect(page.get_by_role("radio", name="patch")).to_be_checked()
    stage.focus()
    for key in ("ArrowRight", "ArrowDown", "ArrowDown", "ArrowDown", "ArrowDown"):
        page.keyboard.press(key)
    expect(caption).to_contain_text("row 4, column 3 looks")  # and no further than the edge
    expect(page.locator("#announce")).to_contain_text("row 4, column 3 looks")
    page.keyboard.press("Escape")
    expect(caption).to_contain_text("class token")


def test_layer_and_head_can_be_chosen_by_slider_strip_and_chart(visit, address):
    page = visit(address)
    upload(page, png(noise()))
    layer, head = page.get_by_label("Layer", exact=True), page.get_by_label("Head", exact=True)
    views = [drawn(page)]

    def changed() -> None:
        assert all(not np.array_equal(drawn(page), view) for view in views)
        views.append(drawn(page))

    expect(page.locator("[data-part=layer-value]")).to_have_text("3 of 3")
    layer.press("ArrowLeft")
    expect(page.locator("[data-part=layer-value]")).to_have_text("2 of 3")
    changed()
    expect(page.get_by_role("button", name="layer 2", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(head).to_have_attribute("aria-valuetext", "all, averaged")
    head.press("ArrowRight")
    expect(head).to_have_attribute("aria-valuetext", "1 of 4")
    changed()
    page.get_by_role("button", name="layer 1", exact=True).click()
    expect(layer).to_have_value("1")
    changed()
    page.get_by_role("button", name="head 4", exact=True).click()
    expect(head).to_have_value("4")
    changed()
    dots, readout = page.locator(".chart circle"), page.locator("[data-part=distance-readout]")
    assert dots.count() == 3 * 4
    dots.nth(4 + 2).hover(force=True)
    expect(readout).to_contain_text(re.compile(r"Layer 2, head \d: [\d.]+ pixels"))
    dots.nth(4 + 2).click(force=True)
    expect(layer).to_have_value("2")
    page.mouse.move(0, 0)
    page.locator(".chart svg").focus()
    page.keyboard.press("ArrowRight")
    expect(layer).to_have_value("3")
    expect(readout).to_contain_text("Layer 3, head")


def test_places_alike_are_shown_for_the_patch_pointed_at(visit, address, models):
    page, grid = visit(address), models["trees"].config.grid
    readout = page.locator("[data-part=positions-readout]")
    point_at(page, 0, 0, grid, part="positions")
    expect(readout).to_contain_text("row 1, column 1")
    first = drawn(page, part="positions")
    point_at(page, 3, 3, grid, part="positions")
    expect(readout).to_contain_text("row 4, column 4")
    assert not np.array_equal(first, drawn(page, part="positions"))
    page.locator("[data-part=positions]").focus()
    page.keyboard.press("ArrowUp")
    expect(readout).to_contain_text("row 3, column 4")


def test_two_models_look_at_one_picture_and_at_one_place(visit, address, models):
    page = visit(address)
    upload(page, png(noise()))
    page.locator("#second").select_option("digits")
    answered(page, 2)
    boxes = [page.locator(".panel").nth(panel).bounding_box() for panel in (0, 1)]
    assert boxes[0]["y"] == boxes[1]["y"]
    assert boxes[0]["x"] + boxes[0]["width"] <= boxes[1]["x"]
    captions = page.locator("[data-part=caption]")
    point_at(page, 3, 0, models["trees"].config.grid)  # of 4 x 4; the other has 7 x 7
    expect(captions.nth(0)).to_contain_text("row 4, column 1 looks")
    expect(captions.nth(1)).to_contain_text("row 7, column 1 looks")
    page.locator("#second").select_option("")
    expect(page.locator(".panel")).to_have_count(1)


# Ways in


def hand_over(page: Page, event: str, content: bytes) -> None:
    """Drop or paste a file, as the browser would hand it over."""
    page.evaluate(
        """([event, content]) => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([Uint8Array.from(content)], "given.png", { type: "image/png" }));
          const options = { clipboardData: transfer, dataTransfer: transfer, bubbles: true, cancelable: true };
          const Kind = event === "paste" ? ClipboardEvent : DragEvent;
          document.body.dispatchEvent(new Kind(event, options));
        }""",
        [event, list(content)],
    )


@pytest.mark.parametrize("event", ["drop", "paste"])
def test_a_picture_can_be_dropped_or_pasted(visit, address, event):
    page = visit(address)
    upload(page, png(PLAIN))
    before = drawn(page)
    with page.expect_response(lambda response: "/attention/map" in response.url):
        hand_over(page, event, png(noise()))
    answered(page)
    assert not np.array_equal(before, drawn(page))


def test_a_picture_can_be_photographed_or_drawn(visit, address):
    page = visit(address, permissions=["camera"])
    before = drawn(page)
    page.get_by_role("button", name="Take a photo").click()
    page.wait_for_function("() => document.querySelector('video').videoWidth > 0")
    with page.expect_response(lambda response: "/attention/map" in response.url):
        page.get_by_role("button", name="Take it").click()
    answered(page)
    photo = drawn(page)
    assert not np.array_equal(before, photo)
    page.get_by_role("button", name="Draw").click()
    box = page.locator("#pad canvas").bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 60, box["y"] + 60)
    page.mouse.down()
    page.mouse.move(box["x"] + 200, box["y"] + 240, steps=4)
    page.mouse.up()
    with page.expect_response(lambda response: "/attention/map" in response.url):
        page.get_by_role("button", name="Look at it").click()
    answered(page)
    assert not np.array_equal(photo, drawn(page))


# When something is wrong


def test_what_is_no_picture_is_said_in_plain_words(browser, address):
    page = Visit(browser)(address)
    with page.expect_response(lambda response: response.status == 400 or response.status in (415, 422)):
        page.locator("#file").set_input_files({"name": "a.png", "mimeType": "image/png", "buffer": b"no picture"})
    expect(page.get_by_role("alert").filter(visible=True)).to_contain_text("This is not a picture the server can read")
    expect(page.get_by_role("button", name="Try again")).to_be_hidden()
    expect(page.locator(".panel[aria-busy]")).to_have_count(0)
    upload(page, png(noise()))  # and the next one works
    expect(page.locator("#notice")).to_be_hidden()
    page.context.close()


def test_what_is_too_large_is_made_smaller_or_refused(visit, address):
    page, large = visit(address), png(noise(600))
    assert len(large) > 2**19
    with page.expect_request(lambda request: "/predict" in request.url) as sent:
        upload(page, large)
    assert int(sent.value.all_headers()["content-length"]) <= 2**19
    expect(page.locator("#status")).to_contain_text("made it smaller")
    page.locator("#file").set_input_files({"name": "a", "mimeType": "image/png", "buffer": b"x" * 2**20})
    expect(page.locator("#notice")).to_contain_text("too large")


def test_a_busy_server_is_asked_again_and_a_lost_one_on_request(browser, address):
    page = Visit(browser)(address)
    answers = iter([503, 503])

    def busy(route) -> None:
        status = next(answers, None)
        if status is None:
            route.continue_()
        else:
            route.fulfill(status=status, headers={"Retry-After": "1"}, json={"error": {"code": "busy", "message": "x"}})

    page.route("**/predict*", busy)
    page.locator(".example").nth(1).click()
    expect(page.locator("#status")).to_contain_text("busy")
    answered(page)
    expect(page.locator("#notice")).to_be_hidden()
    page.route("**/attention/map*", lambda route: route.abort())
    page.locator(".example").nth(2).click()
    expect(page.locator("#notice")).to_contain_text("cannot be reached")
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    answered(page)
    expect(page.locator("#notice")).to_be_hidden()
    page.context.close()


def test_a_server_with_keys_is_asked_with_one(browser, folder):
    (key,) = (folder / "keys").read_text().split()
    addresses = served(folder, "--api-key-file", "keys")
    page = Visit(browser)(next(addresses), ready=False)
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("asks for a key")
    dialog.get_by_label("API key").fill("wrong")
    dialog.get_by_role("button").click()
    expect(dialog).to_contain_text("does not know this key")
    dialog.get_by_label("API key").fill(key)
    page.keyboard.press("Enter")
    answered(page)
    expect(dialog).to_be_hidden()
    assert page.evaluate("() => JSON.stringify({ ...localStorage }) + document.cookie") == "{}"
    page.reload()
    answered(page)  # this tab remembers
    page.context.close()
    addresses.close()


# For everyone


def test_both_languages_have_the_same_words(visit, address):
    page = visit(address)
    english, chinese = (page.evaluate(f"async () => (await import('/web/{name}.js')).default") for name in ("en", "zh"))
    assert list(english) == list(chinese)
    holes = {key: sorted(re.findall(r"\{\w+\}", text)) for key, text in english.items()}
    assert holes == {key: sorted(re.findall(r"\{\w+\}", text)) for key, text in chinese.items()}
    assert all(re.search("[\u3000-\u9fff\uff00-\uffef]", text) for text in chinese.values())
    source = "".join(path.read_text(encoding="utf-8") for path in [*WEB.glob("*.js"), *WEB.glob("*.html")])
    used = set(re.findall(r"""(?:say\(|words: |data-words(?:-label)?=|\? |: )"([\w.]+)\"""", source)) & set(english)
    built = {key for key in english if key.startswith(("problem.", "caption.")) or key.endswith(".hint")}
    assert set(english) - used - built == set(), "words nobody says"
    assert set(re.findall(r"""(?:say\(|data-words(?:-label)?=)"([\w.]+)\"""", source)) <= set(english)


def test_the_language_can_be_switched_and_is_guessed(visit, address):
    page = visit(address)
    assert page.locator("html").get_attribute("lang") == "en"
    page.get_by_role("button", name="中文").click()
    assert page.locator("html").get_attribute("lang") == "zh-Hans"
    expect(page.get_by_role("heading", level=2).first).to_have_text("选一张图片")
    expect(page.locator("[data-part=caption]")).to_contain_text("类别标记最关注")
    expect(page.locator("[data-part=facts]")).to_contain_text("个参数")
    latin = page.evaluate(
        """() => [...document.querySelectorAll("main [data-words]")].map((each) => each.textContent)
                 .filter((text) => !/[\u4e00-\u9fff]/.test(text))"""
    )
    assert latin == []
    page.reload()
    answered(page)
    assert page.locator("html").get_attribute("lang") == "zh-Hans"  # remembered
    page.get_by_role("button", name="English").click()
    expect(page.get_by_role("heading", level=2).first).to_have_text("Choose a picture")
    assert visit(address, locale="zh-CN").locator("html").get_attribute("lang") == "zh-Hans"


@pytest.mark.parametrize("locale", ["en-US", "zh-CN"])
def test_a_phone_needs_no_sideways_scroll(visit, address, locale):
    page = visit(address, locale=locale, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    width = "() => [document.documentElement.scrollWidth, document.body.scrollWidth]"
    assert page.evaluate(width) == [360, 360]
    page.locator("#second").select_option("digits")
    answered(page, 2)
    assert page.evaluate(width) == [360, 360]
    page.locator("input[name=look][value=colour]").check(force=True)
    stage = page.locator("[data-part=stage]").first
    stage.scroll_into_view_if_needed()
    box = stage.bounding_box()
    page.touchscreen.tap(box["x"] + 20, box["y"] + 20)
    expect(page.locator("input[value=patch]").first).to_be_checked()
    assert page.evaluate(width) == [360, 360]


def test_light_and_dark_follow_the_system_until_told(visit, address):
    background = "() => getComputedStyle(document.body).backgroundColor"
    light, dark = visit(address).evaluate(background), visit(address, color_scheme="dark").evaluate(background)
    assert light != dark
    page = visit(address)
    page.get_by_role("combobox", name="Colours").select_option("dark")
    assert page.evaluate(background) == dark
    page.reload()
    assert page.evaluate(background) == dark


def test_everything_can_be_reached_by_keyboard_and_shows_where_it_is(visit, address):
    page = visit(address)
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.append(
            page.evaluate(
                """() => {
                  const at = document.activeElement, style = getComputedStyle(at);
                  const beside = at.nextElementSibling && getComputedStyle(at.nextElementSibling);
                  const seen = style.outlineStyle !== "none" || beside?.outlineStyle !== "none";
                  const { part, language } = at.dataset;
                  return [at.id || part || language || at.value || at.getAttribute("class"), seen];
                }"""
            )
        )
    names = [name for name, _ in reached]
    for wanted in ("pick", "photograph", "draw", "example", "first", "second", "light", "lines", "stage", "class"):
        assert wanted in names, f"{wanted} cannot be reached: {names}"
    assert {"layer", "head", "positions"} <= set(names)
    assert [name for name, seen in reached if not seen and name] == []


def test_colours_can_be_told_without_telling_hues(visit, address):
    colours = visit(address).evaluate(
        """async () => {
          const { ramp } = await import("/web/colours.js");
          return Array.from({ length: 65 }, (_, step) => ramp(step / 64));
        }"""
    )
    linear = np.array(colours) / 255
    linear = np.where(linear <= 0.04045, linear / 12.92, ((linear + 0.055) / 1.055) ** 2.4)
    lightness = 116 * np.cbrt(linear @ [0.2126, 0.7152, 0.0722]) - 16
    assert np.diff(lightness).min() > 0.5  # every step is lighter than the last
    assert lightness[-1] - lightness[0] > 80


def axe() -> str:
    """axe-core's script: the file named by VITRAIL_AXE, else the one in the package axe-playwright-python."""
    named, package = os.environ.get("VITRAIL_AXE"), importlib.util.find_spec("axe_playwright_python")
    if named:
        return Path(named).read_text(encoding="utf-8")
    if package and package.submodule_search_locations:
        return (Path(package.submodule_search_locations[0]) / "axe.min.js").read_text(encoding="utf-8")
    return pytest.skip("axe-core is not there: pip install axe-playwright-python, or name the file by VITRAIL_AXE")


@pytest.mark.parametrize(("scheme", "locale"), [("light", "en-US"), ("dark", "zh-CN")])
def test_axe_finds_no_serious_fault(visit, address, scheme, locale):
    script = axe()
    page = visit(address, color_scheme=scheme, locale=locale)
    page.locator("#second").select_option("digits")
    answered(page, 2)
    page.locator("input[name=look][value=colour]").check(force=True)

    def faults() -> list[str]:
        page.evaluate(script)
        result = page.evaluate("async () => (await axe.run()).violations")
        return [
            f"{each['impact']} {each['id']}: {[node['html'][:120] for node in each['nodes']]}"
            for each in result
            if each["impact"] in ("serious", "critical")
        ]

    assert faults() == []
    page.locator("#draw").click()
    assert faults() == []


# Safe


def test_the_policy_is_in_force_and_the_page_keeps_it(browser, address, visit):
    page = Visit(browser)(address)
    ran = page.evaluate(
        """async () => {
          const broken = [];
          document.addEventListener("securitypolicyviolation", (event) => broken.push(event.effectiveDirective));
          const script = document.createElement("script");
          script.textContent = "window.ran = true";
          document.body.append(script);
          const block = document.createElement("p");
          block.setAttribute("style", "color: red");
          document.body.append(block);
          const elsewhere = await fetch("https://example.invalid/").then(() => true, () => false);
          await new Promise((resolve) => setTimeout(resolve, 100));
          return { broken: [...new Set(broken)].sort(), ran: window.ran === true, elsewhere };
        }"""
    )
    assert ran == {"broken": ["connect-src", "script-src-elem", "style-src-attr"], "ran": False, "elsewhere": False}
    page.context.close()
    visit(address)  # and on its own the page breaks no rule: the console would say so
    source = (WEB / "index.html").read_text(encoding="utf-8")
    assert not re.search(r"\sstyle=|\son\w+=|<style|javascript:|https?://", source)
    scripts = "".join(path.read_text(encoding="utf-8") for path in WEB.glob("*.js"))
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", scripts)


def test_nothing_of_a_picture_stays_in_the_browser(visit, address):
    page = visit(address)
    upload(page, png(noise()))
    kept = "() => JSON.stringify([localStorage, sessionStorage, document.cookie])"
    assert page.evaluate(kept) == '[{},{},""]'
    assert page.evaluate("async () => [await indexedDB.databases(), await caches.keys()]") == [[], []]
    expect(page.get_by_text("Nothing you upload is stored.")).to_be_visible()
