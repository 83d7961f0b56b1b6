"""`vitrail data check` finds what was planted, and says nothing about a clean set."""

import io
import json
import os
import subprocess
import sys
import time
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import encoded, picture, smooth, write_class_folders
from tests.data.costly_pictures import tiff_of_one_tile_many_times
from vitrail.cli import main
from vitrail.data import Split, open_source
from vitrail.data.check import check_source
from vitrail.data.decode_pool import DecodeLimits
from vitrail.data.duplicates import exact_groups, gradient_hash, grey_thumbnail, near_groups
from vitrail.data.sources.base import Source


@pytest.fixture
def sick(tmp_path) -> Path:
    """A data set with one of everything that can be wrong."""
    root = tmp_path / "sick"
    write_class_folders(root / "train", {"ant": 12, "bee": 24})
    write_class_folders(root / "test", {"ant": 6, "bee": 6}, seed=500)
    train, test = root / "train", root / "test"
    (train / "ant" / "zero.png").write_bytes(b"")
    (train / "ant" / "cut.jpg").write_bytes(encoded(picture(80, 80, seed=90), "JPEG")[:600])
    (train / "bee" / "page.png").write_bytes(b"<html>404</html>")
    # The same pixels in another file format are the same picture.
    (test / "ant" / "copy.bmp").write_bytes(encoded(Image.open(train / "ant" / "001.png"), "BMP"))
    (train / "bee" / "twice.png").write_bytes((train / "bee" / "002.png").read_bytes())
    (train / "bee" / "mislabelled.png").write_bytes((train / "ant" / "003.png").read_bytes())
    large = picture(120, 160, seed=77)
    (train / "bee" / "large.png").write_bytes(encoded(large))
    (test / "bee" / "small.jpg").write_bytes(encoded(large.resize((80, 60)), "JPEG", quality=70))
    (train / "bee" / "print.jpg").write_bytes(encoded(picture(seed=91, mode="CMYK"), "JPEG"))
    (train / "bee" / "really.jpg").write_bytes(encoded(picture(seed=92)))
    exif = Image.Exif()
    exif[0x0112] = 6
    (train / "bee" / "turned.jpg").write_bytes(encoded(picture(seed=93), "JPEG", exif=exif))
    return root


def ids(group: list[dict]) -> set[str]:
    return {member["id"] for member in group}


def test_a_file_that_takes_too_long_is_among_those_that_cannot_be_read(tmp_path):
    root = write_class_folders(tmp_path / "set", {"ant": 12, "bee": 12})
    (root / "ant" / "tiles.tif").write_bytes(tiff_of_one_tile_many_times())
    (root / "bee" / "copy.gif").write_bytes(encoded(Image.open(root / "bee" / "001.png").convert("L"), "GIF"))
    began = time.monotonic()
    findings = check_source(open_source(root), decode_limits=DecodeLimits(1)).to_json()
    assert time.monotonic() - began < 20
    (found,) = findings["corrupt"]
    assert found["id"] == "ant/tiles.tif"
    assert found["reason"] == "takes longer than 1 seconds to decode (--decode-seconds)"
    assert findings["n"] == 26
    assert findings["formats"] == {"PNG": 24, "GIF": 1}
    assert [ids(group) for group in findings["near_duplicates"]] == [{"bee/001.png", "bee/copy.gif"}]


def test_everything_planted_is_found_and_nothing_else(sick):
    findings = check_source(open_source(sick, val_fraction=0)).to_json()
    assert findings["n"] == 59
    assert findings["skipped"] == 3
    reasons = {each["id"]: each["reason"] for each in findings["corrupt"]}
    assert set(reasons) == {"train/ant/zero.png", "train/ant/cut.jpg", "train/bee/page.png"}
    assert "zero bytes" in reasons["train/ant/zero.png"]
    assert "truncated" in reasons["train/ant/cut.jpg"]
    assert "not an image" in reasons["train/bee/page.png"]
    exact = [ids(group) for group in findings["exact_duplicates"]]
    across = {"train/ant/001.png", "test/ant/copy.bmp"}
    contradicting = {"train/ant/003.png", "train/bee/mislabelled.png"}
    resized = {"train/bee/large.png", "test/bee/small.jpg"}
    assert sorted(exact, key=sorted) == sorted(
        [across, {"train/bee/002.png", "train/bee/twice.png"}, contradicting], key=sorted
    )
    assert [ids(group) for group in findings["near_duplicates"]] == [resized]
    leaks = [(leak["kind"], ids(leak["members"])) for leak in findings["leaks"]]
    assert leaks == [("exact", across), ("near", resized)]
    assert [ids(each["members"]) for each in findings["conflicts"]] == [contradicting]
    assert ids(findings["odd_modes"]) == {"train/bee/print.jpg"}
    assert ids(findings["misnamed"]) == {"train/bee/really.jpg"}
    assert findings["turned_by_exif"] == 1
    assert findings["class_balance"] == {"ant": {"train": 14, "test": 7}, "bee": {"train": 31, "test": 7}}
    assert findings["modes"]["CMYK"] == 1
    assert findings["sizes"]["columns"]["most"] == 160
    assert sum(each["n"] for each in findings["sizes"]["shorter_side"]) == 56


@pytest.mark.parametrize("workers", [1, 3])
def test_a_clean_set_has_no_findings(tmp_path, workers):
    write_class_folders(tmp_path / "clean", {"ant": 20, "bee": 20})
    done = []
    checkup = check_source(open_source(tmp_path / "clean"), workers=workers, progress=done.append)
    findings = checkup.to_json()
    for name in ("corrupt", "exact_duplicates", "near_duplicates", "leaks", "conflicts", "odd_modes", "misnamed"):
        assert findings[name] == []
    assert sum(done) == 40


def test_a_set_where_nothing_can_be_read_is_still_reported(tmp_path):
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "x.png").write_bytes(b"junk")
    findings = check_source(open_source(tmp_path, val_fraction=0, test_fraction=0)).to_json()
    assert findings["skipped"] == findings["n"] == 2
    assert findings["sizes"] == {}


def test_arrays_of_many_channels_can_be_checked():
    images = np.stack([smooth(12, 12, seed=index, channels=5) for index in range(6)] * 2)
    split = Split.of_array("train", images, np.arange(12) % 2)
    findings = check_source(Source("satellite", ("a", "b"), {"train": split})).to_json()
    assert len(findings["exact_duplicates"]) == 6
    assert findings["modes"] == {"5 channels": 12}


# Duplicates


def features(images: list[Image.Image]) -> tuple[np.ndarray, np.ndarray]:
    greys = [image.convert("L") for image in images]
    return np.array([gradient_hash(grey) for grey in greys], np.uint64), np.stack([grey_thumbnail(g) for g in greys])


def recompressed(image: Image.Image) -> Image.Image:
    return Image.open(io.BytesIO(encoded(image, "JPEG", quality=30)))


@pytest.mark.parametrize(
    "change",
    [
        recompressed,
        lambda image: image.resize((image.width // 2, image.height // 2)),
        lambda image: image.point(lambda value: min(round(value * 1.04), 255)),
    ],
    ids=["compressed", "resized", "brighter"],
)
def test_altered_copies_are_near_and_other_pictures_are_not(change):
    originals = [picture(90, 120, seed=index) for index in range(60)]
    groups, limited = near_groups(*features(originals + [change(image) for image in originals]))
    assert not limited
    assert all(group[1] == group[0] + 60 and len(group) == 2 for group in groups)
    assert len(groups) >= 57


def test_grouping_is_by_likeness_to_the_first_and_not_passed_on():
    first = smooth(64, 64, seed=3).astype(float)
    last = smooth(64, 64, seed=4).astype(float)
    fade = [Image.fromarray(np.rint(first + (last - first) * step / 60).astype(np.uint8)) for step in range(61)]
    groups, _ = near_groups(*features(fade))
    assert len(groups) > 3
    assert not any({0, 60} <= set(group) for group in groups)
    places = [place for group in groups for place in group]
    assert len(places) == len(set(places))


def test_many_alike_pictures_do_not_take_for_ever():
    generator = np.random.default_rng(0)
    thumbnails = np.clip(smooth(16, 16, channels=1).reshape(-1) + generator.integers(-1, 2, (3000, 256)), 0, 255)
    groups, limited = near_groups(np.full(3000, 7, np.uint64), thumbnails.astype(np.uint8))
    assert limited
    assert groups


def test_exact_groups():
    assert exact_groups([b"a", b"b", b"a", b"c", b"b", b"a"]) == [[0, 2, 5], [1, 4]]


# The command


class Parsed(HTMLParser):
    """Tags must be closed in order, and nothing may come from elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images = 0
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            assert name not in ("src", "href") or value.startswith("data:")
        self.images += tag == "img"
        if tag not in ("img", "br", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_command_writes_its_report_and_prints_a_table(sick, tmp_path, capsys):
    main(["data", "check", str(sick), "--out", str(tmp_path / "out")])
    captured = capsys.readouterr()
    assert "unreadable" in captured.out
    assert "train/ant/cut.jpg" in captured.out
    assert "check.html" in captured.err
    page = (tmp_path / "out" / "check.html").read_text("utf-8")
    parsed = Parsed(page)
    assert parsed.open == []
    assert parsed.images >= 10
    assert "http" not in page
    for name in ("zero bytes", "mislabelled.png", "prefers-color-scheme: dark"):
        assert name in page
    findings = json.loads((tmp_path / "out" / "check.json").read_text("utf-8"))
    main(["data", "check", str(sick), "--out", str(tmp_path / "out"), "--json"])
    assert json.loads(capsys.readouterr().out) == findings


def test_file_names_that_are_not_valid_text_can_be_reported(tmp_path, capsys):
    write_class_folders(tmp_path / "x", {"a": 3, "b": 3})
    for name in (b"\xff.png", b"\xfe.png"):
        Path(os.fsdecode(os.fsencode(tmp_path / "x" / "a") + b"/" + name)).write_bytes(encoded(picture()))
    main(["data", "check", str(tmp_path / "x"), "--out", str(tmp_path / "out"), "--json"])
    findings = json.loads(capsys.readouterr().out)
    assert ids(findings["exact_duplicates"][0]) == {"a/\\udcff.png", "a/\\udcfe.png"}


def test_names_in_the_report_are_escaped(tmp_path):
    write_class_folders(tmp_path / "x", {"<script>a": 3, "b&c": 3})
    main(["data", "check", str(tmp_path / "x"), "--out", str(tmp_path / "out"), "--json"])
    page = (tmp_path / "out" / "check.html").read_text("utf-8")
    assert "<script>" not in page
    assert "&lt;script&gt;a" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no source 'nowhere'"),
        (["digits", "--val-fraction", "0.6", "--test-fraction", "0.5"], "nothing to train on"),
        (["digits", "--out", "file.txt/below"], "--out"),
    ],
)
def test_mistakes_end_in_status_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file.txt").write_text("x")
    with pytest.raises(SystemExit) as ended:
        main(["data", "check", *arguments])
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_checking_files_does_not_need_torch(tmp_path):
    write_class_folders(tmp_path / "x", {"a": 3, "b": 3})
    code = (
        "import sys; from vitrail.cli import main; "
        f"main(['data', 'check', {str(tmp_path / 'x')!r}, '--out', {str(tmp_path / 'out')!r}]); "
        "assert 'torch' not in sys.modules; assert 'tyro' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_pictures_whose_gradients_differ_are_not_near():
    """In at most ten of the 64 bits; the thumbnails here are the same."""
    thumbnails = np.tile(np.arange(256, dtype=np.uint8), (2, 1))
    bits = [bit for bit in range(64) if bit % 4]  # of one band none, so that the two are compared at all
    for count in (1, 10, 11, 20):
        other = sum(1 << bit for bit in bits[:count])
        groups, _ = near_groups(np.array([0, other], dtype=np.uint64), thumbnails)
        assert bool(groups) == (count <= 10)


def test_a_folder_that_holds_other_things_is_refused_and_left_as_it_was(tmp_path, capsys):
    write_class_folders(tmp_path / "pets", {"ant": 4, "bee": 4})
    out = tmp_path / "out"
    main(["data", "check", str(tmp_path / "pets"), "--out", str(out)])
    main(["data", "check", str(tmp_path / "pets"), "--out", str(out)])
    assert {each.name for each in out.iterdir()} == {"check.html", "check.json"}, "an earlier report is replaced"
    (out / "thesis.txt").write_text("precious")
    before = (out / "check.json").stat().st_mtime_ns
    with pytest.raises(SystemExit) as ended:
        main(["data", "check", str(tmp_path / "pets"), "--out", str(out)])
    assert ended.value.code == 2
    assert "contains 'thesis.txt', which is not a file of a report" in capsys.readouterr().err
    assert (out / "check.json").stat().st_mtime_ns == before
