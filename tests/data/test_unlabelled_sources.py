"""Images without labels are a source like any other: a folder, a pattern, a tar or a parquet file of them."""

import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from tests.data.conftest import counts, encoded, picture, smooth, write_class_folders
from vitrail.data import Source, decode, open_source
from vitrail.data.shard_writer import write_shards
from vitrail.data.sources.base import PRETRAINING
from vitrail.errors import UserError
from vitrail.recipes import RECIPES


def write_photos(folder: Path, count: int = 20, seed: int = 0) -> Path:
    """PNG pictures, all different, directly in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(count):
        (folder / f"{index:03d}.png").write_bytes(encoded(picture(12, 16, seed=seed + index)))
    return folder


def write_tar(file: Path, count: int = 20, labels: dict[int, str] | None = None) -> Path:
    photos = write_photos(file.parent / "packed", count)
    with tarfile.open(file, "w") as archive:
        for index in range(count):
            archive.add(photos / f"{index:03d}.png", f"{index:03d}.png")
            if labels and index in labels:
                (photos / f"{index:03d}.cls").write_text(labels[index])
                archive.add(photos / f"{index:03d}.cls", f"{index:03d}.cls")
    return file


def write_parquet(file: Path, count: int = 20, **columns: list) -> Path:
    contents = [encoded(picture(12, 16, seed=index)) for index in range(count)]
    pq.write_table(pa.table({"image": contents, **columns}), file)
    return file


def check_unlabelled(source: Source, count: int = 20) -> None:
    """No classes, no targets, every picture there once and readable, splits as for any other source."""
    assert source.classes == ()
    assert f"{count} images without labels" in source.notes
    everything = source.split("all")
    assert everything.labels.tolist() == [-1] * count
    assert not everything.known.any()
    assert everything[0].target is None
    assert counts(source) == {"train": count * 8 // 10, "val": count // 10, "test": count // 10}
    seen = {decode(everything.read(index)).tobytes() for index in range(count)}
    assert seen == {smooth(12, 16, seed=index).tobytes() for index in range(count)}
    with pytest.raises(UserError, match="none of its"):
        source.check_labelled()


def photos_in_a_folder(root: Path) -> Path:
    write_photos(root / "photos")
    (root / "photos/.hidden.png").write_bytes(b"")
    return root / "photos"


def photos_by_a_pattern(root: Path) -> Path:
    return write_photos(root / "photos") / "*.png"


def photos_in_a_tar(root: Path) -> Path:
    return write_tar(root / "photos.tar")


def photos_in_parquet(root: Path) -> Path:
    return write_parquet(root / "photos.parquet", caption=["a photo"] * 20)


def photos_in_parquet_with_an_empty_column(root: Path) -> Path:
    return write_parquet(root / "photos.parquet", label=pa.nulls(20))


KINDS = (
    photos_in_a_folder,
    photos_by_a_pattern,
    photos_in_a_tar,
    photos_in_parquet,
    photos_in_parquet_with_an_empty_column,
)


@pytest.mark.parametrize("kind", KINDS)
def test_images_without_labels_are_a_source(tmp_path, kind):
    given = kind(tmp_path)
    check_unlabelled(open_source(given))
    assert open_source(given).fingerprint() == open_source(given).fingerprint()


def test_parquet_without_a_column_of_labels_says_which_it_looked_for(tmp_path):
    source = open_source(photos_in_parquet(tmp_path))
    assert "photos.parquet has no column of labels (one named label" in source.notes[0]


def test_a_split_cut_by_seed_is_the_same_wherever_the_folder_lies(tmp_path):
    one, other = (open_source(write_photos(tmp_path / name)) for name in ("here", "there"))
    assert one.split("val").ids == other.split("val").ids
    assert one.fingerprint() == other.fingerprint()
    assert one.split("val").ids != open_source(tmp_path / "here", split_seed=1).split("val").ids


def test_train_and_val_folders_of_images_are_the_data_sets_own_splits(tmp_path):
    write_photos(tmp_path / "photos/train", 12)
    write_photos(tmp_path / "photos/val", 5, seed=100)
    source = open_source(tmp_path / "photos")
    assert counts(source) == {"train": 12, "val": 5}
    assert source.split("val").ids[0] == "val/000.png"
    assert (source.classes, source.made_splits) == ((), ())
    assert "17 images without labels" in source.notes


def test_class_folders_beside_images_stay_what_they_are_and_the_images_are_left_out(tmp_path):
    write_class_folders(tmp_path / "animals", {"ant": 10, "bee": 10})
    before = open_source(tmp_path / "animals")
    write_photos(tmp_path / "animals", 3)
    source = open_source(tmp_path / "animals")
    assert source.fingerprint() == before.fingerprint()
    assert source.classes == ("ant", "bee")
    assert before.notes == ()
    (said,) = source.notes
    assert "left out: 3 images beside the class folders, such as 000.png" in said
    assert counts(open_source(tmp_path / "animals/*")) == {"train": 3}, "the pattern that the note names"


def test_a_test_split_without_class_folders_is_left_out(tmp_path):
    write_class_folders(tmp_path / "set/train", {"ant": 10, "bee": 10})
    write_photos(tmp_path / "set/test", 4)
    source = open_source(tmp_path / "set")
    assert counts(source) == {"train": 18, "val": 2}
    assert any("left out: 4 images beside the class folders, such as test/000.png" in note for note in source.notes)


def test_one_folder_beside_images_makes_no_classes(tmp_path):
    write_photos(tmp_path / "photos", 12)
    write_photos(tmp_path / "photos/edited", 8, seed=12)
    (tmp_path / "photos/notes").mkdir()
    (tmp_path / "photos/notes.txt").write_text("summer")
    source = open_source(tmp_path / "photos")
    check_unlabelled(source)
    assert "ignored, not named like an image: notes.txt" in source.notes
    assert any("'edited' is the only folder beside images without a class" in note for note in source.notes)
    assert "edited/000.png" in source.split("all").ids


@pytest.mark.parametrize(("pattern", "count"), [("**/*.png", 30), ("*/*.png", 20), ("a/*", 10), ("*.png", 10)])
def test_a_pattern_takes_what_it_names_and_nothing_else(tmp_path, pattern, count):
    for number, folder in enumerate((".", "a", "b")):
        write_photos(tmp_path / "set" / folder, 10, seed=100 * number)
    (tmp_path / "set/a/readme.txt").write_text("a")
    source = open_source(tmp_path / "set" / pattern, val_fraction=0, test_fraction=0)
    assert counts(source) == {"train": count}
    assert source.classes == ()
    ignored = [note for note in source.notes if "ignored, not named like an image" in note]
    assert bool(ignored) == (pattern == "a/*")


@pytest.mark.parametrize("pattern", ["*.gif", "emp*"])
def test_a_pattern_that_matches_no_file_is_refused(tmp_path, pattern):
    write_photos(tmp_path, 2)
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="no file matches"):
        open_source(tmp_path / pattern)


def test_shards_of_them_are_a_source_too(tmp_path):
    source = open_source(photos_in_a_folder(tmp_path))
    write_shards(source, tmp_path / "shards")
    again = open_source(tmp_path / "shards")
    assert (again.classes, counts(again)) == ((), counts(source))
    assert "20 images without labels" in again.notes


def test_part_of_the_samples_may_have_labels(tmp_path):
    labels = {index: str(index % 2) for index in range(10)}
    source = open_source(write_tar(tmp_path / "some.tar", labels=labels), val_fraction=0, test_fraction=0)
    assert source.classes == ("0", "1")
    assert source.split("train").labels.tolist() == [0, 1] * 5 + [-1] * 10
    assert "10 of 20 images have no label" in source.notes
    source.check_labelled("train")


def test_labels_in_another_split_do_not_help(tmp_path):
    labels = {"train": [None] * 20, "test": [0, 1] * 10}
    for name, column in labels.items():
        write_parquet(tmp_path / f"{name}.parquet", label=pa.array(column, pa.int64()))
    source = open_source(tmp_path)
    source.check_labelled()
    source.check_labelled("test")
    with pytest.raises(UserError, match=", train: none of its 18 images has a label"):
        source.check_labelled("train")


def test_a_single_class_is_still_refused(tmp_path):
    with pytest.raises(UserError, match="only one class, '0'"):
        open_source(write_tar(tmp_path / "one.tar", labels={0: "0"}))
    write_class_folders(tmp_path / "animals", {"ant": 3})
    with pytest.raises(UserError, match="only one class, 'ant'"):
        open_source(tmp_path / "animals")


def test_what_has_no_images_says_both_ways_to_fill_it(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"no class folders, and no images: .*class.*or images without classes"):
        open_source(tmp_path / "empty")


def test_the_refusal_names_both_remedies_and_a_recipe_there_is(tmp_path):
    source = open_source(write_photos(tmp_path / "my photos"))
    assert PRETRAINING in RECIPES
    assert RECIPES[PRETRAINING]().self_supervised
    for part in (None, "train", "all"):
        with pytest.raises(UserError) as refused:
            source.check_labelled(part)
        said = str(refused.value)
        assert "my photos: none of its 20 images has a label" in said
        assert "Give class folders" in said
        assert f"vitrail train {PRETRAINING} --data '{tmp_path}/my photos'" in said


def test_a_picture_that_cannot_be_read_is_one_without_a_label_all_the_same(tmp_path):
    write_photos(tmp_path, 9)
    (tmp_path / "009.png").write_bytes(b"junk")
    Image.new("L", (4, 4)).save(tmp_path / "010.png")
    assert "11 images without labels" in open_source(tmp_path).notes
