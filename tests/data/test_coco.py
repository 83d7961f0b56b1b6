"""COCO JSON: the categories marked in a picture as its labels."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.data.conftest import encoded, picture
from vitrail.data import open_source
from vitrail.errors import UserError

CATEGORIES = [{"id": 90, "name": "toothbrush"}, {"id": 1, "name": "person"}, {"id": 3, "name": "car"}]


def write(root: Path, name: str, files: dict[str, list[int]], categories: list[dict] = CATEGORIES) -> Path:
    """Annotations of pictures by file name, each with the ids of its categories; the pictures too."""
    (root / "annotations").mkdir(parents=True, exist_ok=True)
    (root / name).mkdir(exist_ok=True)
    images, marks = [], []
    for number, (file, marked) in enumerate(files.items()):
        (root / name / file).write_bytes(encoded(picture(8, 8, seed=number)))
        images.append({"id": 100 + number, "file_name": file})
        marks += [{"image_id": 100 + number, "category_id": each, "bbox": [0, 0, 1, 1]} for each in marked]
    path = root / "annotations" / f"instances_{name}.json"
    path.write_text(json.dumps({"images": images, "categories": categories, "annotations": marks}))
    return path


def labels(source, split: str) -> dict[str, list[str]]:
    chosen = source.split(split)
    names = np.asarray(source.classes)
    return {name: names[chosen.targets[row] > 0].tolist() for row, name in enumerate(chosen.ids)}


def test_categories_are_labels_in_the_order_of_their_ids(tmp_path: Path) -> None:
    path = write(tmp_path, "train2017", {"b.png": [1, 1, 90], "a.png": [3], "c.png": []})
    for given in (tmp_path, path):
        source = open_source(given, val_fraction=0, test_fraction=0)
        assert source.task == "multilabel"
        assert source.classes == ("person", "car", "toothbrush")
        assert labels(source, "train") == {
            "train2017/a.png": ["car"],
            "train2017/b.png": ["person", "toothbrush"],
            "train2017/c.png": [],
        }
        assert source.split("train").known.all()
        assert source.split("train").read(0) == (tmp_path / "train2017" / "a.png").read_bytes()
        assert "its labels (multilabel)" in source.notes[0]


def test_files_are_splits_by_their_names_and_the_same_pictures_are_no_split(tmp_path: Path) -> None:
    write(tmp_path, "train2017", {f"{number}.png": [1] for number in range(4)})
    write(tmp_path, "val2017", {"9.png": [3]})
    source = open_source(tmp_path)
    assert {name: len(split) for name, split in source.splits.items()} == {"train": 4, "val": 1}
    same = (tmp_path / "annotations" / "instances_train2017.json").read_bytes()
    (tmp_path / "annotations" / "instances_val2017.json").write_bytes(same)
    source = open_source(tmp_path, val_fraction=0, test_fraction=0)
    assert {name: len(split) for name, split in source.splits.items()} == {"train": 4}
    assert "instances_val2017.json names the same pictures as instances_train2017.json: left out" in source.notes


def test_what_is_wrong_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "train2017", {"a.png": [1], "b.png": [3]})
    good = json.loads(path.read_text())

    def refused(words: str, **changes: object) -> None:
        path.write_text(json.dumps({**good, **changes}))
        with pytest.raises(UserError, match=words) as error:
            open_source(path)
        assert str(path) in str(error.value)

    refused("annotation 0 is of the image 5", annotations=[{"image_id": 5, "category_id": 1}])
    refused("annotation 0 is of the category 5", annotations=[{"image_id": 100, "category_id": 5}])
    refused("names no images", images=[], annotations=[])
    refused("more than once", images=good["images"] + good["images"][:1])
    refused("not COCO JSON .*KeyError", images=[{"id": 1}])
    refused("not COCO JSON", images=None)
    path.write_text("[]")
    with pytest.raises(UserError, match="not COCO JSON"):
        open_source(path)
    path.write_text("{")
    with pytest.raises(UserError, match="not valid JSON"):
        open_source(path)
    path.write_text(json.dumps(good))
    (tmp_path / "train2017" / "b.png").unlink()
    with pytest.raises(UserError, match=r"b\.png does not exist"):
        open_source(tmp_path)
    (tmp_path / "train2017" / "a.png").unlink()
    with pytest.raises(UserError, match=r"a\.png is not in .*train2017"):
        open_source(tmp_path)


def test_files_with_other_categories_do_not_go_together(tmp_path: Path) -> None:
    write(tmp_path, "train2017", {"a.png": [1]})
    write(tmp_path, "val2017", {"b.png": [1]}, CATEGORIES[:2])
    with pytest.raises(UserError, match="other categories than"):
        open_source(tmp_path)
