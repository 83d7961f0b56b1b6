"""`vitrail data check` of pictures with masks: every planted fault is named, and nothing in clean data."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFilter

from tests.data.conftest import encoded, picture
from vitrail.cli import main
from vitrail.data import open_source
from vitrail.data.check import CheckResult, check_source
from vitrail.data.check_report import render_check
from vitrail.data.sources.shapes import draw_scene
from vitrail.tasks.segmentation.faults import MASK_FAULTS

SIZE = (40, 60)
CLASSES = "id,name,colour\n0,ground,#000000\n10,grass,#00ff00\n20,house,#ff0000\n200,sky,#0000ff\n"
EXIF_TURNED = 6


def drawn(seed: int, ids: tuple[int, ...] = (0, 10, 20, 200), size: tuple[int, int] = SIZE) -> np.ndarray:
    """A mask of rectangles, a different one for each seed, with every id in it."""
    generator = np.random.default_rng(seed)
    mask = np.full(size, ids[0], dtype=np.uint8)
    for part, identity in enumerate(ids[1:]):
        left = part * size[1] // len(ids) + 2 + int(generator.integers(0, 4))
        top = int(generator.integers(1, size[0] // 3))
        mask[top : top + size[0] // 2, left : left + 12] = identity
    return mask


def write_png(file: Path, mask: np.ndarray, **options) -> None:
    Image.fromarray(mask).save(file, "PNG", **options)


def clean_set(root: Path, count: int = 8, classes: str = CLASSES) -> Path:
    """A sound data set, split by folders, 8 pictures in each split."""
    for number, split in enumerate(("train", "val")):
        for kind in ("images", "masks"):
            (root / kind / split).mkdir(parents=True)
        for index in range(count):
            seed = 100 * number + index
            (root / f"images/{split}/{index:02d}.png").write_bytes(encoded(picture(*SIZE, seed=seed)))
            write_png(root / f"masks/{split}/{index:02d}.png", drawn(seed))
    if classes:
        (root / "classes.csv").write_text(classes)
    return root


def missing_mask(root: Path) -> None:
    (root / "masks/train/03.png").unlink()


def missing_picture(root: Path) -> None:
    (root / "images/train/03.png").unlink()


def two_masks(root: Path) -> None:
    write_png(root / "masks/train/03.tif", drawn(50))
    Image.fromarray(drawn(50)).save(root / "masks/train/03.tif", "TIFF")


def cut_off(root: Path) -> None:
    file = root / "masks/train/03.png"
    file.write_bytes(file.read_bytes()[:90])


def floats(root: Path) -> None:
    Image.fromarray(drawn(3).astype(np.float32)).save(root / "masks/train/03.tif", "TIFF")
    (root / "masks/train/03.png").unlink()


def saved_as_jpeg(root: Path) -> None:
    Image.fromarray(drawn(3)).save(root / "masks/train/03.png", "JPEG", quality=60)


def saved_as_lossy_webp(root: Path) -> None:
    Image.fromarray(drawn(3)).convert("RGB").save(root / "masks/train/03.png", "WEBP", quality=50)


def transparent(root: Path) -> None:
    mask = drawn(3)
    alpha = np.where(mask == 10, 128, 255).astype(np.uint8)
    Image.fromarray(np.stack([mask, alpha], axis=2), "LA").save(root / "masks/train/03.png")


def colours_without_table(root: Path) -> None:
    (root / "classes.csv").write_text("".join(line.rpartition(",")[0] + "\n" for line in CLASSES.splitlines()))
    colours = np.zeros((*SIZE, 3), np.uint8)
    colours[drawn(3) == 10] = (0, 255, 0)
    Image.fromarray(colours).save(root / "masks/train/03.png")


def colours_not_in_the_table(root: Path) -> None:
    colours = np.zeros((*SIZE, 3), np.uint8)
    colours[drawn(3) == 10] = (0, 255, 0)
    colours[drawn(3) == 20] = (250, 128, 0)
    Image.fromarray(colours).save(root / "masks/train/03.png")


def resized_with_blending(root: Path) -> None:
    small = Image.fromarray(drawn(3)[::2, ::2])
    small.resize(SIZE[::-1], Image.Resampling.BILINEAR).save(root / "masks/train/03.png")


def blended_between_classes(root: Path) -> None:
    """Without a list of classes, every id in between is taken for a class."""
    (root / "classes.csv").unlink()
    resized_with_blending(root)


def unknown_ids(root: Path) -> None:
    write_png(root / "masks/train/03.png", np.where(drawn(3) == 10, 77, drawn(3)).astype(np.uint8))


def intact(file: Path) -> bool:
    return file.read_bytes().endswith(b"IEND\xaeB`\x82")


def palettes_that_differ(root: Path) -> None:
    for file in (root / "masks").glob("*/*.png"):
        with Image.open(file) as opened:
            if opened.format != "PNG" or opened.mode != "L":  # another fault is planted there
                continue
            image = Image.fromarray(np.asarray(opened), "P") if intact(file) else None
        if image is None:
            continue
        swap = file.parts[-2:] == ("train", "03.png")
        image.putpalette([part for place in range(256) for part in (place, 255 - place, 90 if swap else 9)])
        image.save(file)


def turned_by_exif(root: Path) -> None:
    image = Image.fromarray(np.asarray(picture(SIZE[0], SIZE[1], seed=3)).swapaxes(0, 1))
    exif = Image.Exif()
    exif[0x0112] = EXIF_TURNED
    image.save(root / "images/train/03.png", exif=exif)  # upright it is SIZE
    write_png(root / "masks/train/03.png", np.ascontiguousarray(drawn(3).T))


def resized(root: Path) -> None:
    write_png(root / "masks/train/03.png", drawn(3)[::2, ::2])


def another_size(root: Path) -> None:
    write_png(root / "masks/train/03.png", drawn(3)[:20])


def all_ignored(root: Path) -> None:
    write_png(root / "masks/train/03.png", np.full(SIZE, 255, np.uint8))


def of_one_class(root: Path) -> None:
    write_png(root / "masks/train/03.png", np.full(SIZE, 10, np.uint8))


def copied_mask(root: Path) -> None:
    shutil.copy(root / "masks/train/02.png", root / "masks/train/03.png")


def copied_picture(root: Path) -> None:
    shutil.copy(root / "images/train/02.png", root / "images/train/03.png")


def class_never_seen(root: Path) -> None:
    (root / "classes.csv").write_text(f"{CLASSES}30,river,#123456\n")


def class_in_one_split(root: Path) -> None:
    (root / "classes.csv").write_text(f"{CLASSES}30,river,#123456\n")
    for index in range(2):
        mask = drawn(index)
        mask[:5, :5] = 30
        write_png(root / f"masks/train/{index:02d}.png", mask)


FAULTS: list[tuple[Callable[[Path], None], str, str]] = [
    (missing_mask, "mask_missing", "images/train/03.png"),
    (missing_picture, "picture_missing", "masks/train/03.png"),
    (two_masks, "several_masks", "masks/train/03.tif"),
    (cut_off, "unreadable", "images/train/03.png"),
    (floats, "not_ids", "images/train/03.png"),
    (saved_as_jpeg, "lossy", "images/train/03.png"),
    (saved_as_lossy_webp, "lossy", "images/train/03.png"),
    (transparent, "transparent", "images/train/03.png"),
    (colours_without_table, "no_colour_table", "images/train/03.png"),
    (colours_not_in_the_table, "unknown_colours", "images/train/03.png"),
    (resized_with_blending, "blended", "images/train/03.png"),
    (blended_between_classes, "blended", "images/train/03.png"),
    (unknown_ids, "unknown_ids", "images/train/03.png"),
    (palettes_that_differ, "palettes_differ", "images/train/03.png"),
    (turned_by_exif, "turned", "images/train/03.png"),
    (resized, "resized", "images/train/03.png"),
    (another_size, "size_differs", "images/train/03.png"),
    (all_ignored, "all_ignored", "images/train/03.png"),
    (of_one_class, "one_class", "images/train/03.png"),
    (copied_mask, "equal_masks", "images/train/03.png"),
    (copied_picture, "contradicting", "images/train/03.png"),
    (class_never_seen, "class_never", "river"),
    (class_in_one_split, "class_in_one_split", "river"),
]


def checked(root: Path, **options) -> CheckResult:
    return check_source(open_source(root, **{"val_fraction": 0, "test_fraction": 0, **options}), workers=2)


def named(found: CheckResult) -> dict[str, list[str]]:
    """The ids of what has each kind of fault."""
    faults = found.to_json()["masks"]["faults"]
    return {kind: [each["id"] for each in members["members"]] for kind, members in faults.items()}


@pytest.mark.parametrize(("plant", "kind", "example"), FAULTS, ids=[plant.__name__ for plant, *_ in FAULTS])
def test_each_planted_fault_is_named_and_nothing_else(tmp_path, plant, kind, example):
    root = clean_set(tmp_path / "set")
    assert named(checked(root)) == {}
    plant(root)
    found = named(checked(root))
    by_chance = {"class_in_one_split"} if plant is blended_between_classes else set()
    assert {name: members for name, members in found.items() if name not in by_chance} == {kind: [example]}


def test_all_kinds_of_faults_are_planted():
    assert {kind for _, kind, _ in FAULTS} == set(MASK_FAULTS)
    assert len(MASK_FAULTS) >= 20


def many_faults(root: Path) -> Path:
    """One data set with twenty kinds of faults, each in a picture of its own."""
    clean_set(root, 30)
    plants = {kind: plant for plant, kind, _ in FAULTS}
    left_out = {"no_colour_table", "class_in_one_split"}  # there is a table; a class of train follows below
    own = [plant for kind, plant in plants.items() if kind not in left_out]
    for number, plant in enumerate(own):
        name = f"{number + 4:02d}"
        work = root.parent / f"work-{number}"
        shutil.copytree(root, work)
        for kind in ("images", "masks"):  # what a plant does to picture 03 becomes that of another
            shutil.copy(root / kind / f"train/{name}.png", work / kind / "train/03.png")
        plant(work)
        for kind in ("images", "masks"):
            for file in (root / kind / "train").glob(f"{name}.*"):
                file.unlink()
            for file in (work / kind / "train").glob("03.*"):
                shutil.copy(file, root / kind / "train" / f"{name}{file.suffix}")
        if plant is palettes_that_differ:
            for file in (work / "masks").glob("*/*.png"):
                if file.stem not in ("03", name) and int(file.stem) > 26:
                    shutil.copy(file, root / "masks" / file.parent.name / file.name)
        if plant is class_never_seen:
            shutil.copy(work / "classes.csv", root / "classes.csv")
        shutil.rmtree(work)
    with (root / "classes.csv").open("a") as file:
        file.write("40,road,#654321\n")
    for number in range(2):
        mask = drawn(number)
        mask[:5, :5] = 40
        write_png(root / f"masks/train/{number:02d}.png", mask)
    return root


def test_twenty_kinds_in_one_folder_are_all_named(tmp_path, capsys):
    root = many_faults(tmp_path / "set")
    main(["data", "check", str(root), "--out", str(tmp_path / "report")])
    printed = capsys.readouterr().out
    findings = json.loads((tmp_path / "report/check.json").read_text())
    kinds = set(findings["masks"]["faults"])
    assert kinds == set(MASK_FAULTS) - {"no_colour_table"}
    assert len(kinds) == 20
    page = (tmp_path / "report/check.html").read_text()
    for kind in kinds:
        assert MASK_FAULTS[kind].title in printed, kind
        assert MASK_FAULTS[kind].title in page, kind
    assert page.count("<figure>") > 20
    for name in ("ground", "grass", "house", "sky"):
        assert f"</span> {name}</span>" in page  # the legend
    assert "</span> river</span>" not in page  # which no mask has


def test_ids_without_a_class_are_counted_with_an_example(tmp_path):
    root = clean_set(tmp_path / "set")
    for index, pixels in ((1, 3), (2, 5)):
        mask = drawn(index)
        mask[-1, :pixels] = 77
        mask[-1, -1] = 78 if index == 2 else mask[-1, -1]
        write_png(root / f"masks/train/{index:02d}.png", mask)
    found = checked(root).to_json()["masks"]
    assert found["unknown_ids"] == [
        {"id": "77", "masks": 2, "pixels": 8, "example": "images/train/01.png"},
        {"id": "78", "masks": 1, "pixels": 1, "example": "images/train/02.png"},
    ]
    reason = found["faults"]["unknown_ids"]["members"][1]["reason"]
    assert reason == "masks/train/02.png has 77 (5 pixels), 78 (1 pixel)"
    assert named(checked(root, ignore=(77, 78))) == {}


def test_shares_of_pixels_are_those_of_the_masks(tmp_path):
    root = clean_set(tmp_path / "set")
    found = checked(root).to_json()
    for split, first in (("train", 0), ("val", 100)):
        masks = np.stack([drawn(first + index) for index in range(8)])
        for name, identity in (("ground", 0), ("grass", 10), ("house", 20), ("sky", 200)):
            entry = found["masks"]["classes"][name]
            assert entry["pixels"][split] == (masks == identity).sum()
            assert entry["share"][split] == pytest.approx((masks == identity).mean())
            assert found["class_balance"][name][split] == 8
    assert found["masks"]["n"] == 16
    assert found["masks"]["ignored_share"] == 0


def test_masks_are_checked_whatever_the_picture_is(tmp_path):
    """A picture that cannot be read leaves what its mask says of itself."""
    root = clean_set(tmp_path / "set")
    (root / "images/train/03.png").write_bytes(b"junk")
    saved_as_jpeg(root)
    found = checked(root)
    assert named(found) == {"lossy": ["images/train/03.png"]}
    assert [each["id"] for each in found.to_json()["corrupt"]] == ["images/train/03.png"]


def test_a_border_of_one_pixel_and_many_classes_side_by_side_are_not_blending(tmp_path):
    (tmp_path / "images").mkdir()
    (tmp_path / "masks").mkdir()
    for number in range(6):
        mask = np.zeros((64, 64), np.uint8)
        mask[10 + number : 40, 12:50] = 1
        mask[11 + number : 39, 13:49] = 2
        mask[::, 56:] = np.arange(64)[:, None] // 8 + 3
        (tmp_path / f"images/{number}.png").write_bytes(encoded(picture(64, 64, seed=number)))
        write_png(tmp_path / f"masks/{number}.png", mask)
    assert named(checked(tmp_path)) == {}


def test_an_equal_picture_may_have_an_equal_mask(tmp_path):
    """It is a duplicate, which is named as such, and its mask is right."""
    root = clean_set(tmp_path / "set")
    copied_picture(root)
    copied_mask(root)
    found = checked(root)
    assert named(found) == {}
    assert len(found.to_json()["exact_duplicates"]) == 1


@pytest.mark.parametrize("turned", [False, True])
def test_blending_is_found_in_either_direction(tmp_path, turned):
    """Stripes have edges in one direction alone."""
    root = clean_set(tmp_path / "set")
    stripes = np.repeat(np.array([0, 200, 0, 200, 10, 200], np.uint8), 10)
    stripes = np.asarray(Image.fromarray(stripes[None]).resize((SIZE[0] if turned else SIZE[1], 1), 2))[0]
    mask = np.tile(stripes[:, None], (1, SIZE[1])) if turned else np.tile(stripes, (SIZE[0], 1))
    mask = np.array(Image.fromarray(mask).filter(ImageFilter.BoxBlur(1)))
    write_png(root / "masks/train/03.png", mask)
    assert named(checked(root)) == {"blended": ["images/train/03.png"]}


@pytest.fixture(scope="module")
def shapes_as_files(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("shapes")
    names = ("background", "disc", "square", "triangle")
    for split, count in (("train", 24), ("val", 12)):
        for kind in ("images", "masks"):
            (root / kind / split).mkdir(parents=True)
        for number in range(count):
            scene = draw_scene(split, number)
            Image.fromarray(scene.pixels).save(root / f"images/{split}/{number}.png")
            write_png(root / f"masks/{split}/{number}.png", scene.mask)
    (root / "classes.txt").write_text("\n".join(names))
    return root


def test_drawn_shapes_are_clean(shapes_as_files):
    assert named(checked(shapes_as_files)) == {}


def test_embedded_shapes_are_clean_too():
    source = open_source("shapes")
    few = {name: split.subset(range(20)) for name, split in source.splits.items()}
    found = check_source(type(source)(source.name, source.classes, few))
    assert named(found) == {}
    assert found.to_json()["masks"]["n"] == 60


@pytest.mark.slow
@pytest.mark.assets
def test_the_pets_are_clean(assets):
    assert named(check_source(open_source(assets / "pets"))) == {}


def test_the_page_shows_the_worst_under_their_masks_and_some_good_ones(tmp_path):
    root = clean_set(tmp_path / "set")
    resized(root)
    source = open_source(root)
    found = check_source(source)
    page = render_check(found, source)
    faulty, sound = page.index("Masks with faults"), page.index("Masks without faults")
    assert "its mask 30 x 20" in page[faulty:sound]
    assert page[faulty:sound].count("<figure>") == 1
    assert page[sound:].count("<figure>") == 6
