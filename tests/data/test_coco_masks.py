"""COCO JSON as pictures with masks: drawn as COCO's reference draws, smaller objects over larger ones."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pycocotools import mask as reference
from pycocotools.coco import COCO

from tests.data.conftest import encoded, picture
from vitrail.cli import main
from vitrail.data import open_source
from vitrail.data.bad_image import BadImage
from vitrail.data.polygons import polygon_pixels
from vitrail.data.sources.base import Source
from vitrail.errors import UserError
from vitrail.tasks.segmentation.rle import encode_runs, run_lengths
from vitrail.tasks.segmentation.target import IGNORE

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept:DeprecationWarning")
"""By pycocotools, which has not been adapted to NumPy 2."""
SIZE = (20, 30)
CATEGORIES = [{"id": 90, "name": "cup"}, {"id": 1, "name": "person"}, {"id": 7, "name": "car"}]
BOX = [2.0, 3.0, 12.0, 3.0, 12.0, 15.0, 2.0, 15.0]
INNER = [4, 5, 8, 5, 8, 9, 4, 9]


def write(
    root: Path, objects: list[tuple[int, Any]], size: tuple[int, int] | None = SIZE, categories: Any = CATEGORIES
) -> Path:
    """Three pictures, the first of which has the objects (category, segmentation)."""
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / "train").mkdir(exist_ok=True)
    images = []
    for number in range(3):
        (root / f"train/{number}.png").write_bytes(encoded(picture(*SIZE, seed=number)))
        stated = {} if size is None else {"height": size[0], "width": size[1]}
        images.append({"id": 10 + number, "file_name": f"{number}.png", **stated})
    marks = [{"image_id": 10, "category_id": category, "segmentation": each} for category, each in objects]
    document = {"images": images, "categories": categories, "annotations": marks}
    (root / "annotations/instances_train.json").write_text(json.dumps(document))
    return root


def opened(root: Path, **options) -> Source:
    return open_source(root, val_fraction=0, test_fraction=0, task="segmentation", **options)


def first_mask(root: Path, **options) -> np.ndarray:
    found = opened(root, **options).split("train").annotation(0)
    assert found is not None
    return found


def drawn_by_reference(segmentation: Any) -> np.ndarray:
    runs = reference.frPyObjects(segmentation, *SIZE)
    return np.asarray(reference.decode(reference.merge(runs) if isinstance(runs, list) else runs)).astype(bool)


@pytest.mark.parametrize("seed", range(8))
def test_polygons_cover_the_pixels_that_the_reference_covers(seed):
    generator = np.random.default_rng(seed)
    for number in range(60):
        rows, columns = (int(side) for side in generator.integers(1, 60, 2))
        corners = generator.uniform(-20, 80, (int(generator.integers(3, 12)), 2))
        corners = np.round(corners * 2) / 2 if number % 3 else corners
        corners = np.repeat(corners, 2, axis=0) if number % 7 == 0 else corners
        runs = reference.frPyObjects([corners.ravel().tolist()], rows, columns)
        window, covered = polygon_pixels(corners, (rows, columns))
        mask = np.zeros((rows, columns), dtype=bool)
        mask[window] = covered
        assert np.array_equal(mask, np.asarray(reference.decode(runs))[:, :, 0].astype(bool))


def test_objects_become_classes_and_the_rest_is_background(tmp_path):
    source = opened(write(tmp_path, [(90, [INNER]), (1, [BOX])]))
    assert source.task == "segmentation"
    assert source.classes == ("background", "person", "car", "cup")
    mask = source.split("train").annotation(0)
    expected = np.zeros(SIZE, np.uint8)
    expected[drawn_by_reference([BOX])] = 1
    expected[drawn_by_reference([INNER])] = 3  # the smaller one, though it stands first
    assert np.array_equal(mask, expected)
    assert {0, 1, 3} == set(np.unique(expected).tolist())
    for row in (1, 2):
        assert not source.split("train").annotation(row).any()
    assert list(source.split("train").ids) == ["train/0.png", "train/1.png", "train/2.png"]
    assert "the objects of 3 categories are masks; what none covers is background" in source.notes[0]


def test_an_object_of_several_polygons_is_one_object(tmp_path):
    """Its parts count together when objects are compared by size: the other is smaller than both, and larger than
    each."""
    parts = [[0, 0, 9, 0, 9, 9, 0, 9], [14, 0, 23, 0, 23, 9, 14, 9]]
    between = [5, 0, 18, 0, 18, 9, 5, 9]
    mask = first_mask(write(tmp_path, [(1, [between]), (7, parts)]))
    expected = np.where(drawn_by_reference(parts), 2, 0)
    assert np.array_equal(mask, np.where(drawn_by_reference([between]), 1, expected))


def test_run_lengths_as_text_and_as_lists_and_crowds_count_as_their_class(tmp_path):
    one, two = np.zeros(SIZE, bool), np.zeros(SIZE, bool)
    one[2:9, 3:20], two[12:19, 1:28] = True, True
    segmentations = [encode_runs(one), {"size": [*SIZE], "counts": run_lengths(two)}]
    mask = first_mask(write(tmp_path, [(7, segmentations[0]), (90, segmentations[1])]))
    assert np.array_equal(mask, np.where(one, 2, 0) + np.where(two, 3, 0))
    assert np.array_equal(np.asarray(reference.decode(segmentations[0])).astype(bool), one)


def test_categories_can_be_ignored_and_one_may_be_the_background(tmp_path):
    root = write(tmp_path, [(1, [BOX]), (90, [INNER])], categories=[*CATEGORIES, {"id": 200, "name": "background"}])
    assert opened(root).classes == ("background", "person", "car", "cup")
    source = opened(root, ignore=(90,))
    assert source.classes == ("background", "person", "car")
    mask = source.split("train").annotation(0)
    assert mask is not None
    assert set(mask[drawn_by_reference([INNER])].tolist()) == {IGNORE}


def test_without_the_task_the_categories_are_labels_and_a_note_says_what_else_there_is(tmp_path):
    source = open_source(write(tmp_path, [(1, [BOX])]), val_fraction=0, test_fraction=0)
    assert source.task == "multilabel"
    assert "--task segmentation reads masks" in source.notes[0]


@pytest.mark.parametrize(("segmentation", "reason"), [
    ([[0, 0, float("nan"), 5, 5, 5]], "coordinates that are no places"),
    ([[0, 0, 1e308, 5, 5, 5]], "coordinates that are no places"),
    ([[0, 0, 10**400, 5, 5, 5]], "a number that is too large"),
    ([[0, 0, 5, 5, 5]], "no list of x, y"),
    ([["0", "0", "5", "5", "5", "0"]], "no list of x, y"),
    ([5], "no list of x, y"),
    ([[0, 0, 29, 19] * 30_000], "too long for an object"),
    ({"size": [10**9, 10**9], "counts": [10**18]}, "run lengths of the size"),
    ({"size": [*SIZE], "counts": [10**18]}, "cover"),
    ({"size": [*SIZE], "counts": "~~~"}, "damaged text"),
    ({"size": [*SIZE]}, "without counts"),
    ({"counts": "1"}, "without counts"),
])  # fmt: skip
def test_what_cannot_be_drawn_leaves_its_picture_out_with_the_reason(tmp_path, segmentation, reason):
    split = opened(write(tmp_path, [(1, [BOX]), (7, segmentation)])).split("train")
    with pytest.raises(BadImage, match=f"an object of the category 7 .*{reason}"):
        split.annotation(0)
    assert split.annotation(1) is not None


@pytest.mark.parametrize(("size", "reason"), [
    (None, "do not state its height and width"), ((0, 5), "do not state"), ((10**6, 10**6), "above the limit"),
    ((2.5, 5), "do not state"),
])  # fmt: skip
def test_sizes_that_cannot_be_are_refused(tmp_path, size, reason):
    with pytest.raises(BadImage, match=reason):
        opened(write(tmp_path, [(1, [BOX])], size)).split("train").annotation(0)


def test_boxes_alone_are_no_masks(tmp_path):
    with pytest.raises(UserError, match=r"no segmentation, so there are no masks: leave --task out"):
        opened(write(tmp_path, [(1, None), (7, [])]))
    with pytest.raises(BadImage, match="neither polygons nor run lengths"):
        opened(write(tmp_path, [(1, None), (7, [BOX])])).split("train").annotation(0)


@pytest.mark.slow
def test_too_much_drawing_is_refused_before_it_takes_long(tmp_path):
    everything = [0, 0, 4000, 0, 4000, 4000, 0, 4000]
    root = write(tmp_path, [(1, [everything])] * 200, size=(4000, 4000))
    with pytest.raises(BadImage, match="more objects than can be drawn"):
        opened(root).split("train").annotation(0)


def test_the_fingerprint_knows_the_objects_and_the_reader_can_be_sent(tmp_path):
    source = opened(write(tmp_path, [(1, [BOX])]))
    other = opened(write(tmp_path, [(1, [BOX]), (7, [INNER])]))
    assert source.fingerprint() != other.fingerprint()
    copy = pickle.loads(pickle.dumps(source))
    assert np.array_equal(copy.split("train").annotation(0), source.split("train").annotation(0))


def test_the_check_names_sizes_that_differ(tmp_path, capsys):
    root = write(tmp_path, [(1, [BOX])], size=(30, 20))
    main(["data", "check", str(root), "--task", "segmentation", "--out", str(tmp_path / "out")])
    assert "masks of other sizes than their pictures" in capsys.readouterr().out


@pytest.mark.assets
def test_real_objects_are_drawn_as_the_reference_draws_them(assets, capsys):
    """128 photos of COCO with polygons and crowds: every pixel of every object alone, and the masks of the pictures."""
    file = assets / "coco128/annotations/instances_train2017.json"
    coco = COCO(str(file))
    capsys.readouterr()
    source = opened(assets / "coco128")
    split = source.split("all")
    names = {each["file_name"]: each for each in coco.dataset["images"]}
    places = {each["id"]: source.classes.index(each["name"]) for each in coco.dataset["categories"]}
    for row in range(0, len(split), 4):
        image = names[split.ids[row].rpartition("/")[2]]
        marks = coco.loadAnns(coco.getAnnIds(image["id"]))
        objects = [(coco.annToMask(each).astype(bool), places[each["category_id"]]) for each in marks]
        expected = np.zeros((image["height"], image["width"]), np.uint8)
        for covered, place in sorted(objects, key=lambda each: -each[0].sum()):
            expected[covered] = place
        assert np.array_equal(split.annotation(row), expected), split.ids[row]
