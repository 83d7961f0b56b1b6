"""The report of a run: files that are whole, a page that stands alone, and figures that are right."""

import io
import subprocess
import sys
import threading
from html.parser import HTMLParser

import numpy as np
import pytest
from PIL import Image

from vitrail.tasks import Meaning
from vitrail.tasks.classification import figures as outcomes
from vitrail.tasks.classification.figures import SamplePrediction
from vitrail.tasks.classification.meter import Accuracy
from vitrail.tasks.classification.page import ClassPage, confused_pairs
from vitrail.training import figures
from vitrail.training.objectives.base import Illustration
from vitrail.training.report import RunReport, write_report

HOSTILE = "<script>alert('$x')</script>\" onerror=\"x $\\frac{$ \udcff\x00\u202e日本"
PICTURES = ("curves.png", "confusion.png", "predictions.png")
VOID = ("img", "br", "meta", "source")


class Parsed(HTMLParser):
    """Checks that elements nest, that nothing runs and nothing is loaded; collects the text."""

    def __init__(self, page: str):
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.images: list[str] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        assert tag not in ("script", "iframe", "object", "embed", "link", "base", "form", "svg")
        for name, value in attrs:
            assert not name.startswith("on")
            if name in ("src", "href", "srcset", "action", "poster"):
                assert (value or "").startswith("data:image/")
        self.tags.append(tag)
        if tag == "img":
            self.images.append(dict(attrs)["src"] or "")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.text += " " + data


def read(path) -> Parsed:
    page = path.read_text("utf-8")
    assert "http://" not in page
    assert "https://" not in page
    assert "@import" not in page
    assert "url(" not in page
    return Parsed(page)


def records(steps: int = 300) -> list[dict]:
    made = []
    for step in range(10, steps + 1, 10):
        loss = 2.3 * float(np.exp(-step / 80))
        made.append(
            {
                "step": step,
                "kind": "train",
                "loss": loss,
                "accuracy": 1 - loss / 2.5,
                "lr": 1e-3,
                "gradient_norm": 1.0,
                "images_per_second": 800.0,
                "epoch": step / 35,
            }
        )
        if step % 100 == 0:
            made.append({"step": step, "kind": "val", "loss": loss, "top1": 0.5 + step / 1000, "n": 50, "skipped": 0})
    return made


def samples(number: int, classes, channels: int = 1, size: int = 28) -> list[SamplePrediction]:
    draw = np.random.default_rng(0)
    return [
        SamplePrediction(
            f"test/{place}.png",
            draw.integers(0, 256, (size, size + 3, channels), dtype=np.uint8),
            classes[place % len(classes)],
            classes[(place + (place % 3 == 0)) % len(classes)],
            0.5 + place / 100,
        )
        for place in range(number)
    ]


def counts(number: int) -> np.ndarray:
    return np.eye(number, dtype=np.int64) * 8 + np.roll(np.eye(number, dtype=np.int64), 1, axis=1) * 2


def write(run, **changes):
    classes = changes.get("classes", [str(digit) for digit in range(10)])
    given = {
        "title": "digits",
        "config": {"recipe": "digits", "data": {"source": "digits"}, "optimizer": {"lr": 0.001}},
        "records": records(),
        "final": {"split": "test", "n": 500, "skipped": 7, "top1": 0.97, "top5": 0.999, "loss": 0.1},
        "notes": ["Trained on two threads."],
    }
    confusion = changes.get("confusion", counts(len(classes)))
    shown = None if not classes else page_of(classes, confusion, changes.get("samples", samples(20, classes)))
    own = {name: value for name, value in changes.items() if name not in ("classes", "confusion", "samples")}
    return write_report(run, RunReport(**{**given, **own}, page=shown))


def page_of(classes, confusion: np.ndarray | None, shown: list[SamplePrediction]) -> ClassPage:
    """What a meter with these counts shows, with samples of our own."""
    meter = Accuracy(Meaning(tuple(classes)))
    if confusion is not None:
        meter.confusion = confusion
    page = ClassPage(meter, classes)
    page.samples = shown
    return page


def test_a_run_gets_its_pictures_and_a_page_that_says_what_matters(tmp_path):
    path = write(tmp_path)
    assert path == tmp_path / "report.html"
    # Nothing temporary is left behind.
    assert sorted(each.name for each in tmp_path.iterdir()) == sorted([*PICTURES, "report.html"])
    for name in PICTURES:
        with Image.open(tmp_path / name) as image:
            image.load()
            assert image.format == "PNG"
            assert all(300 < side < 3000 for side in image.size)
            assert np.asarray(image.convert("L")).std() > 5
    parsed = read(path)
    for words in (
        "97.0%",
        "of 500 test samples right (top-1)",
        "99.90%",
        "95.1% to 98.2%",
        "skipped",
        "Best on validation: 80.0% at step 300",
        "vitrail finetune ",
        "--data digits",
        "80.0%",
        "optimizer.lr",
        "Trained on two threads.",
        "torch",
    ):
        assert words in parsed.text, words
    assert parsed.tags.count("picture") == 5
    assert parsed.tags.count("figure") == 20 + 7
    page = path.read_text("utf-8")
    assert "prefers-color-scheme: dark" in page
    assert "width=device-width" in page


def test_the_style_has_no_broken_names():
    from vitrail.drawing import page

    # A name that a line break cuts in two ("border-" / "collapse") is dropped by browsers without a word.
    assert "-\n" not in page._STYLE


@pytest.mark.parametrize("number", [2, 10, 20, 21, 61, 1000])
def test_any_number_of_classes(number, tmp_path):
    classes = [f"class number {index}" for index in range(number)]
    path = write(tmp_path, classes=classes, samples=[])
    parsed = read(path)
    with Image.open(tmp_path / "confusion.png") as image:
        assert min(image.size) > 500
    assert not (tmp_path / "predictions.png").exists()
    # Without per_class in the result, the table comes from the confusion: 8 of 10 right.
    assert parsed.text.count("80.0%") >= min(number, 20)
    assert ("The 20 hardest" in parsed.text) == (number > 20)
    assert ("top-5" in parsed.text) == (number > 5)


def test_single_mistakes_among_a_thousand_classes_are_seen(tmp_path):
    matrix = np.eye(1000, dtype=np.int64) * 50
    clean = outcomes.confusion(matrix, [str(index) for index in range(1000)])
    matrix[101, 803] = 1
    marked = outcomes.confusion(matrix, [str(index) for index in range(1000)])
    before, after = (np.asarray(Image.open(io.BytesIO(each)).convert("L"), dtype=int) for each in (clean, marked))
    assert before.shape == after.shape
    assert np.abs(before - after).max() > 20


@pytest.mark.parametrize(("channels", "size"), [(1, 8), (3, 8), (1, 300), (3, 300)])
def test_grey_and_coloured_pictures(channels, size, tmp_path):
    path = write(tmp_path, samples=samples(3, ["ant", "bee"], channels, size), classes=["ant", "bee"])
    with Image.open(tmp_path / "predictions.png") as image:
        image.load()
    kinds = {each.split(";")[0] for each in read(path).images[5:]}
    assert kinds == {"data:image/png" if size <= 64 else "data:image/jpeg"}


@pytest.mark.parametrize("size", [(8, 8), (4, 8), (300, 100)])
def test_the_pictures_are_seen_in_the_picture(size):
    """Each in its square, in its own shape: of an oblong one the rest of the square is empty."""
    red = np.zeros((*size, 3), np.uint8)
    red[:, :, 0] = 255
    grids = {
        "predictions": outcomes.predictions([SamplePrediction("a", red, "ant", "ant", 0.9)] * 3),
        "illustration": figures.illustration(Illustration("attention", "title", "about", ("one", "two"), [(red, red)])),
    }
    for name, drawn in grids.items():
        pixels = np.asarray(Image.open(io.BytesIO(drawn)).convert("RGB")).astype(int)
        share = (np.abs(pixels - (255, 0, 0)).sum(axis=2) < 30).mean()
        assert 0.3 < share / (min(size) / max(size)) < 0.95, name


def test_wrong_predictions_are_marked_by_more_than_a_colour(tmp_path):
    pixels = np.full((9, 9, 1), 200, np.uint8)
    given = [
        SamplePrediction("a", pixels, "ant", "ant", 0.9),
        SamplePrediction("b", pixels, "ant", "bee", 0.6),
        SamplePrediction("c", pixels, "bee", "ant", 0.8),
    ]
    text = read(write(tmp_path, samples=given, classes=["ant", "bee"])).text
    grid, mistakes = text.split("Most confident mistakes")
    assert "✓ ant" in grid
    assert "✗ bee" in grid
    # The surest mistake first, and nothing that is right.
    assert mistakes.index("✗ ant") < mistakes.index("✗ bee")
    assert "✓" not in mistakes


def test_only_so_many_samples_are_shown_but_mistakes_are_sought_in_all(tmp_path):
    pixels = np.zeros((9, 9, 1), np.uint8)
    given = [SamplePrediction(f"{place}", pixels, "a", "a", 0.9) for place in range(40)]
    # Given twice, shown once.
    given += [SamplePrediction("the last one", pixels, "b", "a", 0.99)] * 2
    parsed = read(write(tmp_path, samples=given, classes=["a", "b"]))
    assert parsed.tags.count("figure") == 32 + 1
    assert "the last one" in parsed.text


def test_confused_pairs_worked_by_hand():
    matrix = np.array(
        [
            [5, 3, 0, 2],  # 10
            [1, 4, 0, 0],  # 5
            [0, 0, 0, 0],  # none
            [0, 3, 1, 2],  # 6
        ]
    )
    # 3 of 6 is worse than 3 of 10; 1 of 5 worse than 1 of 6.
    expected = [(3, 1, 3, 0.5), (0, 1, 3, 0.3), (0, 3, 2, 0.2), (1, 0, 1, 0.2), (3, 2, 1, 1 / 6)]
    assert confused_pairs(matrix) == expected
    assert confused_pairs(matrix, most=2) == expected[:2]
    assert confused_pairs(np.eye(3, dtype=np.int64)) == []


def test_the_page_lists_the_pairs(tmp_path):
    matrix = np.array([[8, 2, 0], [0, 9, 1], [0, 0, 10]])
    text = " ".join(read(write(tmp_path, classes=["ant", "bee", "cat"], confusion=matrix, samples=[])).text.split())
    assert "share of the class ant bee 2 20.0% bee cat 1 10.0%" in text


def test_hostile_names_are_shown_not_obeyed(tmp_path):
    classes = [HOSTILE, "</style></title></textarea><img src=x>"]
    run = tmp_path / "a run; $(reboot) <b>"
    run.mkdir()
    path = write(
        run,
        title=HOSTILE,
        classes=classes,
        config={HOSTILE: HOSTILE, "data": {"source": HOSTILE}, "empty": {}},
        final={"split": HOSTILE, "n": 3, "top1": 0.5},
        samples=[SamplePrediction(HOSTILE, np.zeros((9, 9, 3), np.uint8), HOSTILE, classes[1], 0.5)],
        notes=[HOSTILE],
    )
    page = path.read_text("utf-8")
    assert "<script" not in page
    assert "<b>'" not in page
    assert "\x00" not in page
    assert "\u202e" not in page
    parsed = read(path)
    assert "<script>alert('$x')</script>" in parsed.text
    assert "\\udcff\\x00\\u202e日本" in parsed.text
    assert f"vitrail finetune '{run}' --data FOLDER_OF_PHOTOS" in parsed.text


def test_nothing_but_a_title(tmp_path):
    path = write(tmp_path, config={}, records=[], final={}, confusion=None, classes=[], samples=[], notes=[])
    text = read(path).text
    assert "Nothing was recorded" in text
    assert "no final result" in text
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


@pytest.mark.parametrize("missing", ["step", "kind", "loss", "accuracy", "lr", "gradient_norm", "epoch", "top1"])
def test_records_may_lack_any_key(missing, tmp_path):
    thinned = [{key: value for key, value in each.items() if key != missing} for each in records(100)]
    read(write(tmp_path, records=thinned, samples=[], confusion=None, final={}))
    assert (tmp_path / "curves.png").exists() == (missing not in ("step", "kind"))


@pytest.mark.parametrize("missing", ["split", "skipped", "loss"])
def test_the_result_may_lack_any_key(missing, tmp_path):
    final = {"split": "test", "n": 500, "skipped": 0, "top1": 0.97, "top5": 0.999, "loss": 0.1}
    del final[missing]
    read(write(tmp_path, records=[], samples=[], confusion=None, final=final))


def test_odd_values_do_not_stop_the_report(tmp_path):
    odd = [
        {"step": 1, "kind": "train", "loss": float("nan"), "accuracy": None, "lr": 0.0, "gradient_norm": float("inf")},
        {"step": 2, "kind": "train", "loss": -3.0, "accuracy": "much", "lr": 0.0, "gradient_norm": 0.0, "epoch": 0},
        {"step": 3, "kind": "other"},
        {},
    ]
    matrix = np.zeros((3, 3), dtype=np.int64)
    matrix[1] = [1, 0, 1]
    final = {"n": 0, "skipped": 0, "top1": float("nan"), "loss": float("nan")}
    read(write(tmp_path, records=odd, final=final, confusion=matrix, classes=["a", "b", "c"], samples=[]))
    # Nothing was measured, so there is no confusion to show, and the one of before goes.
    assert (tmp_path / "confusion.png").exists()
    read(write(tmp_path, records=odd, final={}, confusion=matrix * 0, classes=["a", "b", "c"], samples=[]))
    assert not (tmp_path / "confusion.png").exists()


def test_a_write_that_fails_leaves_the_report_of_before(tmp_path, monkeypatch):
    path = write(tmp_path, records=[], samples=[], confusion=None)
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(type(path), "replace", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path, title="other", records=[], samples=[], confusion=None)
    assert path.read_bytes() == before
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_smoothing_and_thinning_worked_by_hand():
    values = np.arange(30, dtype=float)
    values[15] = 100
    smoothed = figures.smooth(values)
    assert smoothed[5] == 5
    assert smoothed[0] == (0 + 1 + 2) / 3
    assert smoothed[15] == (13 + 14 + 100 + 16 + 17) / 5
    assert figures.smooth(values[:19]) is not None
    assert (figures.smooth(values[:19]) == values[:19]).all()
    steps = np.arange(100_000, dtype=float)
    spiky = np.zeros(100_000)
    spiky[54_321] = 7
    kept_steps, kept = figures.thin(steps, spiky)
    assert len(kept) <= 2002
    assert kept_steps[kept.argmax()] == 54_321
    assert (kept_steps[0], kept_steps[-1]) == (0, 99_999)


def test_epochs_and_series_come_from_the_records():
    assert figures.epochs_per_step([{"step": 70, "epoch": 2.0}, {"step": 80}]) == 2 / 70
    assert figures.epochs_per_step([{"step": 0, "epoch": 0.0}]) is None
    steps, values = figures.series(
        [{"step": 2, "kind": "val", "loss": 1}, {"step": 1, "kind": "val", "loss": 3}], "val", "loss"
    )
    assert steps.tolist() == [1, 2]
    assert values.tolist() == [3, 1]


def test_drawing_works_in_threads():
    drawn: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: drawn.append(outcomes.confusion(counts(2), ["ant", "bee"]))) for _ in range(3)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert len(drawn) == 3
    assert len(set(drawn)) == 1


def test_matplotlib_is_imported_late_and_pyplot_never():
    # In a process of its own: other tests may have imported either.
    script = (
        "import sys; from vitrail.training.figures import curve_panels; assert 'matplotlib' not in sys.modules;"
        "curve_panels([{'step': 1, 'kind': 'train', 'loss': 1.0}]); assert 'matplotlib.pyplot' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
