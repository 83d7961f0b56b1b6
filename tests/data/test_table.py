"""Tables of image files and their targets: what is read, for which task, and what is refused with a remedy."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.conftest import encoded, picture
from vitrail.config import DataConfig
from vitrail.data import open_data, open_source
from vitrail.errors import UserError


def table(folder: Path, text: str, files: int = 4, name: str = "table.csv") -> Path:
    """A table beside so many pictures in a folder `photos`: 0.png, 1.png ..."""
    (folder / "photos").mkdir(exist_ok=True)
    for number in range(files):
        (folder / "photos" / f"{number}.png").write_bytes(encoded(picture(8, 8, seed=number)))
    (folder / name).write_text(text, encoding="utf-8")
    return folder / name


def rows(*cells: str, header: str = "file,labels") -> str:
    return "\n".join([header, *(f"photos/{number}.png,{cell}" for number, cell in enumerate(cells))]) + "\n"


def whole(path: Path, **options: object):
    """Every sample, in order of id, as text."""
    source = open_source(path, val_fraction=0, test_fraction=0, **options)
    text = {"multilabel": "|".join, "classification": "".join}[source.task]
    split = source.split("train")
    if source.task == "classification":
        return source, {name: source.classes[split.targets[row]] for row, name in enumerate(split.ids)}
    found = [np.asarray(source.classes)[split.targets[row] > 0].tolist() for row in range(len(split))]
    return source, {name: text(labels) for name, labels in zip(split.ids, found, strict=True)}


def test_labels_joined_by_a_bar(tmp_path: Path) -> None:
    path = table(tmp_path, rows("cat|dog", "dog", "", " bird | cat "))
    source, found = whole(path)
    assert source.task == "multilabel"
    assert source.classes == ("bird", "cat", "dog")
    assert found == {"photos/0.png": "cat|dog", "photos/1.png": "dog", "photos/2.png": "", "photos/3.png": "bird|cat"}
    assert source.split("train").known.all()
    assert source.notes[0] == f"{path}: 3 labels (multilabel) by column labels; --task NAME reads it for another task"
    assert source.split("train").read(1) == (tmp_path / "photos" / "1.png").read_bytes()


def test_a_column_of_zeros_and_ones_a_label(tmp_path: Path) -> None:
    text = "Image;sun;rain\nphotos/0.png;1;0\nphotos/1.png;True;1.0\nphotos/2.png;;\nphotos/3.png;0;0\n"
    source, found = whole(table(tmp_path, text))
    assert source.classes == ("sun", "rain")
    assert found == {"photos/0.png": "sun", "photos/1.png": "sun|rain", "photos/2.png": "", "photos/3.png": ""}
    assert source.split("train").known.tolist() == [True, True, False, True]


def test_one_column_of_text_is_classes(tmp_path: Path) -> None:
    source, found = whole(table(tmp_path, rows("cat", "dog", "cat", "dog", header="filename,animal")))
    assert source.task == "classification"
    assert list(found.values()) == ["cat", "dog", "cat", "dog"]


def test_numbers_are_classes_where_the_column_says_so_or_they_are_asked_for(tmp_path: Path) -> None:
    source, _ = whole(table(tmp_path, rows("10", "9", "10", "9", header="file,class")))
    assert source.classes == ("9", "10")
    path = table(tmp_path, rows("10", "9", "10", "9", header="file,year"))
    source, _ = whole(path, task="classification")
    assert source.classes == ("9", "10")
    assert source.notes[0].endswith("2 classes (classification) by column year")


def test_the_task_that_is_asked_for_reads_the_table(tmp_path: Path) -> None:
    path = table(tmp_path, rows("cat", "dog", "cat", "dog"))
    assert open_source(path).task == "classification"
    assert open_data(DataConfig(source=str(path), task="multilabel")).task == "multilabel"
    with pytest.raises(UserError, match="there is no task 'dance'"):
        open_source(path, task="dance")
    with pytest.raises(UserError, match="digits is data for classification, and cannot be taken for multilabel"):
        open_source("digits", task="multilabel")


def test_a_column_of_splits(tmp_path: Path) -> None:
    cells = ["a,train", "b,train", "a,Validation", "b,test"]
    source = open_source(table(tmp_path, rows(*cells, header="file,label,split")))
    assert {name: list(split.ids) for name, split in source.splits.items()} == {
        "train": ["photos/0.png", "photos/1.png"],
        "val": ["photos/2.png"],
        "test": ["photos/3.png"],
    }
    assert source.made_splits == ()


def test_other_columns_than_that_of_labels_are_said_to_be_unused(tmp_path: Path) -> None:
    source = open_source(table(tmp_path, rows("a,x", "b,y", "a,x", "b,z", header="path,label,photographer")))
    assert source.classes == ("a", "b")
    assert "by column label (column photographer not used)" in source.notes[0]


def test_a_parquet_table_is_read_alike(tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    path = table(tmp_path, "")
    files = [f"photos/{number}.png" for number in range(4)]
    columns = {"path": files, "labels": [["cat", "dog"], ["dog"], None, ["cat"]]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path.with_suffix(".parquet"))
    source, found = whole(path.with_suffix(".parquet"))
    assert source.task == "multilabel"
    assert list(found.values()) == ["cat|dog", "dog", "", "cat"]
    columns = {"path": files, "sun": [1, 0, 1, 0], "rain": [True, False, False, True]}
    pyarrow.parquet.write_table(pyarrow.table(columns), path.with_suffix(".parquet"))
    assert list(whole(path.with_suffix(".parquet"))[1].values()) == ["sun|rain", "", "sun", "rain"]
    pyarrow.parquet.write_table(pyarrow.table({**columns, "path": ["", *files[1:]]}), path.with_suffix(".parquet"))
    with pytest.raises(UserError, match=r"table\.parquet, row 1: the cell of 'path' is empty"):
        open_source(path.with_suffix(".parquet"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name,label\nphotos/0.png,a\n", "no column of image files .* its columns are name, label"),
        ("file\nphotos/0.png\n", "no column besides the files"),
        ("file,label\n", "no rows below its header"),
        ("", "no rows below its header"),
        (rows("a", "b") + "photos/7.png,a\n\nphotos/9.png,a\n", r"line 4: .*7\.png does not exist, nor do 1 more"),
        ("file,label\n,a\n", "line 2: the cell of 'file' is empty"),
        (rows("a", "b") + "photos/0.png,b\n", r"line 4: photos/0\.png stands in .*line 2 already.*joined by \|"),
        (rows("a", "", "b"), None),
        (rows("a", "", "b", header="file,label"), "line 3: the cell of 'label' is empty"),
        (rows("1,0", "1,", header="file,sun,rain"), "line 3: the cell of 'rain' is empty while others"),
        (rows("a,x", "b,y", header="file,sun,rain"), "columns sun, rain cannot be read for any of .*'rain'"),
        (rows("a,train", "b,maybe", header="file,label,split"), "line 3: 'maybe' in 'split' is no split"),
        (rows("a,b", "b"), "line 2: has 3 cells, but there are 2 columns"),
        ("file,label,label\nphotos/0.png,a,b\n", "the column name 'label' occurs more than once"),
        ('file,label\nphotos/0.png,"a\n', "cannot be read as a table"),
    ],
)
def test_what_cannot_be_read_is_named_with_its_place(tmp_path: Path, text: str, words: str | None) -> None:
    path = table(tmp_path, text)
    if words is None:
        with pytest.raises(UserError, match="the cell of 'labels' is empty"):
            open_source(path)
        return
    with pytest.raises(UserError, match=words) as error:
        open_source(path)
    assert "table.csv" in str(error.value)


def test_a_cell_over_several_lines_does_not_shift_what_is_said(tmp_path: Path) -> None:
    text = 'file,label,note\nphotos/0.png,a,"one\ntwo"\nphotos/1.png,,x\n'
    with pytest.raises(UserError, match="line 4: the cell of 'label' is empty"):
        open_source(table(tmp_path, text))


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_bytes(b"file,label\n\xff,\xfe\n")
    with pytest.raises(UserError, match="save it as UTF-8"):
        open_source(tmp_path / "table.csv")


def test_the_fingerprint_changes_with_a_label(tmp_path: Path) -> None:
    one = open_source(table(tmp_path, rows("a|b", "b", "a", ""))).fingerprint()
    again = open_source(table(tmp_path, rows("b|a", "b", "a", ""))).fingerprint()
    other = open_source(table(tmp_path, rows("a", "b", "a", "b|a"))).fingerprint()
    assert one == again != other
