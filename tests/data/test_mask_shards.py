"""Masks in tar shards: what is written reads back the same, and what others wrote is read by what is in it."""

import io
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet
import pytest
from PIL import Image

from tests.data.conftest import encoded, picture
from tests.data.test_mask_check import CLASSES, clean_set, drawn, named, saved_as_jpeg
from vitrail.cli import main
from vitrail.data import open_source
from vitrail.data.bad_image import BadImage
from vitrail.data.check import check_source
from vitrail.data.mask_files import decode_mask
from vitrail.data.shard_writer import write_shards
from vitrail.data.sources.base import Source
from vitrail.errors import UserError
from vitrail.tasks.segmentation.target import IGNORE


def check_equal(source: Source, again: Source) -> None:
    assert (again.task, again.classes) == (source.task, source.classes)
    assert list(again.splits) == list(source.splits)
    for name, split in source.splits.items():
        other = again.split(name)
        assert list(other.ids) == list(split.ids)
        assert other.targets.dtype == split.targets.dtype
        assert np.array_equal(other.targets, split.targets)
        for index in range(len(split)):
            assert np.array_equal(other.annotation(index), split.annotation(index)) or not split.known[index]
            if isinstance(split.read(index), bytes):
                assert other.read(index) == split.read(index)
    assert again.fingerprint() == source.fingerprint()


@pytest.fixture
def masks(tmp_path: Path) -> Path:
    """Masks with ignored pixels, one of them in colours, and a picture without a mask."""
    root = clean_set(tmp_path / "set")
    mask = drawn(1)
    mask[:4] = 255
    Image.fromarray(mask).save(root / "masks/train/01.png")
    colours = np.zeros((*mask.shape, 3), np.uint8)
    colours[drawn(2) == 20] = (255, 0, 0)
    Image.fromarray(colours).save(root / "masks/train/02.png")
    (root / "masks/train/04.png").unlink()
    return root


def test_masks_come_back_with_their_classes_splits_and_ids(masks, tmp_path):
    source = open_source(masks)
    write_shards(source, tmp_path / "out", shard_bytes=10_000)
    assert len(list((tmp_path / "out").glob("train-*.tar"))) > 1
    again = open_source(tmp_path / "out")
    check_equal(source, again)
    assert again.split("train").annotation(4) is None
    check_equal(again, pickle.loads(pickle.dumps(again)))
    write_shards(again, tmp_path / "twice", shard_bytes=10_000)
    check_equal(source, open_source(tmp_path / "twice"))
    for file in sorted((tmp_path / "out").iterdir()):
        assert (tmp_path / "twice" / file.name).read_bytes() == file.read_bytes(), file.name


def test_drawn_pictures_and_coco_can_be_written_too(tmp_path):
    source = open_source("shapes")
    few = Source("shapes", source.classes, {name: split.subset(range(5)) for name, split in source.splits.items()})
    write_shards(few, tmp_path / "out")
    check_equal(few, open_source(tmp_path / "out"))


def test_the_file_of_a_mask_holds_places_among_the_classes(masks, tmp_path):
    write_shards(open_source(masks), tmp_path / "out")
    with tarfile.open(tmp_path / "out/train-000000.tar") as archive:
        names = archive.getnames()
        assert "00000004.seg.png" not in names
        assert names[:2] == ["00000000.png", "00000000.seg.png"]
        member = archive.extractfile("00000001.seg.png")
        assert member is not None
        stored = Image.open(io.BytesIO(member.read()))
    expected = np.select([drawn(1) == identity for identity in (0, 10, 20, 200)], range(4)).astype(np.uint8)
    expected[:4] = IGNORE
    assert stored.mode == "P"
    assert np.array_equal(np.asarray(stored), expected)
    assert (tmp_path / "out/classes.txt").read_text() == "ground\ngrass\nhouse\nsky\n"


def test_a_mask_that_cannot_be_used_leaves_its_sample_out_with_the_reason(masks, tmp_path, capsys):
    mask = drawn(3)
    mask[0, 0] = 99
    Image.fromarray(mask).save(masks / "masks/train/03.png")
    main(["data", "shard", str(masks), str(tmp_path / "out")])
    printed = capsys.readouterr().out
    assert "left out: images/train/03.png has a mask that cannot be used" in printed
    assert "the id 99" in printed
    assert "images/train/03.png" not in open_source(tmp_path / "out").split("train").ids


def test_ids_can_be_ignored_of_shards_too(masks, tmp_path):
    write_shards(open_source(masks), tmp_path / "out")
    source = open_source(tmp_path / "out", ignore=(2,))
    assert source.classes == ("ground", "grass", "sky")
    mask = source.split("train").annotation(0)
    assert mask is not None
    assert set(mask[drawn(0) == 20].tolist()) == {IGNORE}
    assert set(mask[drawn(0) == 200].tolist()) == {2}


def test_without_their_index_masks_are_read_by_the_list_of_classes(masks, tmp_path):
    source = open_source(masks)
    write_shards(source, tmp_path / "out")
    (tmp_path / "out/index.parquet").unlink()
    again = open_source(tmp_path / "out")
    assert (again.task, again.classes) == (source.task, source.classes)
    split, other = source.split("train"), again.split("train")
    assert [np.array_equal(other.annotation(row), split.annotation(row)) for row in (0, 1, 2)] == [True] * 3
    assert other.known.tolist() == split.known.tolist()


def test_names_that_begin_with_numbers_are_no_ids(tmp_path):
    root = clean_set(tmp_path / "set", classes='id,name\n0,"2 doors"\n10,"4 doors, red"\n20,12\n200,#sky\n')
    source = open_source(root)
    write_shards(source, tmp_path / "out")
    check_equal(source, open_source(tmp_path / "out"))
    (tmp_path / "out/index.parquet").unlink()
    assert open_source(tmp_path / "out").classes == ("2 doors", "4 doors, red", "12", "#sky")


def test_damage_to_a_mask_is_noticed(masks, tmp_path):
    write_shards(open_source(masks), tmp_path / "out")
    file = tmp_path / "out/val-000000.tar"
    with tarfile.open(file) as archive:
        position = archive.getmember("00000000.seg.png").offset_data
    content = bytearray(file.read_bytes())
    content[position + 60] ^= 1
    file.write_bytes(content)
    source = open_source(tmp_path / "out")
    with pytest.raises(BadImage, match=r"mask that cannot be used: .* does not match its SHA-256"):
        source.split("val").annotation(0)
    found = check_source(source)
    assert "unreadable" in named(found)
    assert len(found.to_json()["damaged_shards"]) == 1


def changed_index(out: Path, **columns: list[int]) -> None:
    table = parquet.read_table(out / "index.parquet")
    for name, values in columns.items():
        table = table.set_column(table.schema.get_field_index(name), name, pa.array(values, pa.int64()))
    parquet.write_table(table, out / "index.parquet")


@pytest.mark.parametrize(("column", "value"), [
    ("annotation_offset", 10**12), ("annotation_size", 10**12), ("annotation_size", -5), ("annotation_offset", 3),
])  # fmt: skip
def test_an_index_that_points_elsewhere_is_refused(tmp_path, column, value):
    write_shards(open_source(clean_set(tmp_path / "set", 4)), tmp_path / "out")
    changed_index(tmp_path / "out", **{column: [value] * 8})
    with pytest.raises(UserError, match=r"is not a sound index: a sample of train-000000\.tar would lie at"):
        open_source(tmp_path / "out")


# Shards that others wrote


def write_foreign(folder: Path, count: int = 12, ids: tuple[int, ...] = (0, 10, 20, 200), **others: bytes) -> Path:
    folder.mkdir(parents=True)
    with tarfile.open(folder / "all-000.tar", "w") as archive:
        for number in range(count):
            members = {"jpg": encoded(picture(40, 60, seed=number), "JPEG"), **others}
            if number != 5:
                members["seg.png"] = encoded(Image.fromarray(drawn(number, ids)))
            for ending, content in members.items():
                info = tarfile.TarInfo(f"{number:03d}.{ending}")
                info.size = len(content)
                archive.addfile(info, io.BytesIO(content))
    return folder


def test_masks_of_other_programs_are_read_by_a_list_of_classes_or_the_ids_found(tmp_path):
    root = write_foreign(tmp_path / "out")
    for listed in (False, True, True):
        if listed:
            (root / "classes.csv").write_text(CLASSES)
        source = open_source(root, val_fraction=0, test_fraction=0)
        assert source.task == "segmentation"
        assert source.classes == (("ground", "grass", "house", "sky") if listed else ("0", "10", "20", "200"))
        split = source.split("train")
        assert list(split.ids)[:2] == ["all-000/000", "all-000/001"]
        assert split.known.tolist() == [number != 5 for number in range(12)]
        expected = np.select([drawn(7) == identity for identity in (0, 10, 20, 200)], range(4))
        assert np.array_equal(split.annotation(7), expected)
    notes = open_source(write_foreign(tmp_path / "b")).notes
    assert any("had no index" in note for note in notes)


def test_labels_beside_masks_stay_what_is_learned_unless_masks_are_asked_for(tmp_path):
    root = write_foreign(tmp_path / "out", cls=b"1", txt=b"1")
    (root / "classes.txt").write_text("cat\ndog\n")
    assert open_source(root).task == "classification"
    assert open_source(root, task="segmentation").classes[0] == "cat"
    with pytest.raises(UserError, match="cannot be taken for regression"):
        open_source(write_foreign(tmp_path / "bare", ids=(0, 1)), task="regression")


def test_two_masks_of_one_sample_are_refused(tmp_path):
    with pytest.raises(UserError, match="'000' has two masks"):
        open_source(write_foreign(tmp_path / "out", **{"mask.png": encoded(Image.fromarray(drawn(1)))}))


def test_masks_in_shards_are_checked_like_others(tmp_path):
    root = clean_set(tmp_path / "set")
    saved_as_jpeg(root)
    with tarfile.open(tmp_path / "one.tar", "w") as archive:
        for file in sorted((root / "images/train").iterdir()):
            archive.add(file, f"{file.stem}.png")
            archive.add(root / "masks/train" / file.name, f"{file.stem}.seg.png")
    (tmp_path / "classes.csv").write_text(CLASSES)
    found = check_source(open_source(tmp_path / "one.tar", val_fraction=0, test_fraction=0))
    assert named(found) == {"lossy": ["one/03"]}
    assert decode_mask((root / "masks/train/00.png").read_bytes()).shape == drawn(0).shape
