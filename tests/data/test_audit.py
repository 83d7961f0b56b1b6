"""`vitrail data check` of tables of labels and of numbers: what is wrong with the targets, in the task's words."""

import json
from pathlib import Path

import numpy as np
import pytest

from tests.data.conftest import encoded, picture
from tests.data.test_coco import write as write_coco
from vitrail.cli import main
from vitrail.data import open_source
from vitrail.data.check import check_source


def table(folder: Path, header: str, rows: list[str]) -> Path:
    """A table of pictures 0.png, 1.png ..., one a row."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(len(rows)):
        (folder / f"{number}.png").write_bytes(encoded(picture(12, 16, seed=number)))
    lines = [header, *(f"{number}.png,{cells}" for number, cells in enumerate(rows))]
    (folder / "table.csv").write_text("\n".join(lines) + "\n")
    return folder / "table.csv"


def ids(group: list[dict]) -> set[str]:
    return {member["id"] for member in group}


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """Labels with one of everything that can be wrong."""
    rows = ["sun|rain,train"] * 6 + ["sun,test"] * 3 + [",train", ",test", "snow,test", "sun,train"]
    path = table(tmp_path, "file,labels,split", rows)
    (tmp_path / "0.png").write_bytes(b"junk")
    (tmp_path / "7.png").write_bytes((tmp_path / "1.png").read_bytes())  # a leak, and sun is not sun|rain
    (tmp_path / "3.png").write_bytes((tmp_path / "2.png").read_bytes())
    return path


def test_labels_are_checked(labelled: Path) -> None:
    found = check_source(open_source(labelled, val_fraction=0)).to_json()
    assert (found["n"], found["skipped"]) == (13, 1)
    assert [each["id"] for each in found["corrupt"]] == ["0.png"]
    assert [ids(each["members"]) for each in found["leaks"]] == [{"1.png", "7.png"}]
    assert [ids(each["members"]) for each in found["conflicts"]] == [{"1.png", "7.png"}]
    assert {each["label"] for each in found["conflicts"][0]["members"]} == {"rain|sun", "sun"}
    assert {"2.png", "3.png"} in [ids(each) for each in found["exact_duplicates"]]
    assert found["class_balance"]["sun"] == {"train": 7, "test": 3}
    assert found["labels_once"] == ["snow"]
    assert found["labels_never"] == []
    assert found["labels_not_in_train"] == ["snow"]
    assert found["without_labels"] == {"n": 2, "share": pytest.approx(2 / 13)}
    assert found["labels_a_picture"] == pytest.approx((10 + 6 + 1) / 13)
    assert found["unlabelled"] == []


def test_the_command_tells_prints_and_draws_labels(labelled: Path, capsys) -> None:
    out = labelled.parent / "report"
    main(["data", "check", str(labelled), "--val-fraction", "0", "--out", str(out)])
    said = capsys.readouterr().out
    for words in ("labels ", "3  (of 1 to 10 images)", "labels of one picture", "1  (such as snow)", "2  (15.4%)"):
        assert words in said
    assert "classes" not in said
    page = (out / "check.html").read_text()
    assert "<h2>Labels</h2>" in page
    assert "Rare labels" in page
    assert "One picture, two labels" in page
    assert json.loads((out / "check.json").read_text())["labels_once"] == ["snow"]


def test_categories_that_no_picture_has_are_found(tmp_path: Path) -> None:
    write_coco(tmp_path, "train2017", {f"{number}.png": [1] for number in range(4)})
    found = check_source(open_source(tmp_path, val_fraction=0, test_fraction=0)).to_json()
    assert found["labels_never"] == ["car", "toothbrush"]
    assert found["labels_once"] == []


def test_pictures_that_nobody_has_looked_at_are_no_pictures_without_labels(tmp_path: Path) -> None:
    path = table(tmp_path, "file,sun,rain", ["1,0", "0,0", ",", "0,1"])
    found = check_source(open_source(path, val_fraction=0, test_fraction=0)).to_json()
    assert found["unlabelled"] == ["2.png"]
    assert found["without_labels"] == {"n": 1, "share": pytest.approx(1 / 3)}


def numbers(folder: Path) -> Path:
    ages = [str(20 + number) for number in range(20)] + ["999", "31"]
    path = table(folder, "file,age,height,year", [f"{age},{number / 7},2024" for number, age in enumerate(ages)])
    (folder / "21.png").write_bytes((folder / "5.png").read_bytes())
    return path


def test_numbers_are_checked(tmp_path: Path) -> None:
    found = check_source(open_source(numbers(tmp_path), val_fraction=0, test_fraction=0)).to_json()
    assert [ids(each["members"]) for each in found["conflicts"]] == [{"5.png", "21.png"}]
    assert found["class_balance"] == {}
    ages = np.array([*range(20, 40), 999, 31.0])
    median = np.median(ages)
    mad = np.median(np.abs(ages - median))
    facts = {"n": 22, "least": 20, "median": median, "most": 999, "mad": mad, "constant": False}
    assert found["numbers"]["age"] == facts
    assert found["constant_numbers"] == ["year"]
    (outlier,) = found["outliers"]
    assert outlier == {
        "name": "age", "id": "20.png", "split": "train", "value": 999, "mads": pytest.approx((999 - median) / mad)
    }  # fmt: skip


def test_a_number_at_the_bound_is_no_outlier_and_unknown_ones_are_passed_over(tmp_path: Path) -> None:
    cells = ["-1", "0", "1", "-1", "1", "6", "-6.001", ""]
    found = check_source(open_source(table(tmp_path, "file,x", cells), val_fraction=0, test_fraction=0)).to_json()
    assert found["numbers"]["x"]["mad"] == 1
    assert [each["value"] for each in found["outliers"]] == [-6.001]
    assert found["numbers"]["x"]["n"] == 7
    assert found["unlabelled"] == ["7.png"]


def test_the_command_tells_prints_and_draws_numbers(tmp_path: Path, capsys) -> None:
    out = tmp_path / "report"
    main(["data", "check", str(numbers(tmp_path)), "--out", str(out), "--json"])
    assert json.loads(capsys.readouterr().out)["constant_numbers"] == ["year"]
    main(["data", "check", str(tmp_path / "table.csv"), "--out", str(out)])
    said = capsys.readouterr().out
    for words in ("20 to 999, median 30", "contradicting numbers", "1  (such as year)", "20.png: age 999"):
        assert words in said
    page = (out / "check.html").read_text()
    assert "Outliers beyond 6 median absolute deviations" in page
    assert "One picture, different numbers" in page


def test_a_task_can_be_asked_for(tmp_path: Path, capsys) -> None:
    for name in ("a", "b"):
        (tmp_path / "x" / name).mkdir(parents=True)
        (tmp_path / "x" / name / "same.png").write_bytes(encoded(picture()))
        (tmp_path / "x" / name / "own.png").write_bytes(encoded(picture(seed=ord(name))))
    flags = ["--out", str(tmp_path / "report"), "--task", "multilabel", "--json"]
    main(["data", "check", str(tmp_path / "x"), *flags])
    found = json.loads(capsys.readouterr().out)
    assert (found["n"], found["conflicts"], found["labels_a_picture"]) == (3, [], pytest.approx(4 / 3))
