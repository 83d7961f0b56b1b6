"""Folders of images with masks: every layout, every way to store a mask, and what is wrong with one."""

import io
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.data.conftest import counts, encoded, picture
from vitrail.data import open_source
from vitrail.data.bad_image import BadImage, TooLarge
from vitrail.data.mask_files import decode_mask
from vitrail.data.sources.base import Source
from vitrail.errors import UserError
from vitrail.tasks.segmentation.target import IGNORE

SIZE = (24, 32)


def drawn(seed: int = 0, ids: tuple[int, ...] = (0, 1, 2), size: tuple[int, int] = SIZE) -> np.ndarray:
    """A mask of flat parts: the first id around, rectangles of the others in it."""
    generator = np.random.default_rng(seed)
    mask = np.full(size, ids[0], dtype=np.uint8 if max(ids) < 256 else np.uint16)
    for identity in ids[1:]:
        top, left = generator.integers(0, size[0] // 2), generator.integers(0, size[1] // 2)
        mask[top : top + 9, left : left + 11] = identity
    mask[0, : len(ids)] = ids  # each occurs in every mask
    return mask


def write(path: Path, mask: np.ndarray, **options) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(mask).save(path, **options)


def write_pair(pictures: Path, masks: Path, name: str, mask: np.ndarray) -> None:
    """A picture and its mask, with the same name."""
    pictures.mkdir(parents=True, exist_ok=True)
    seed = sum(map(ord, name))
    (pictures / f"{name}.jpg").parent.mkdir(parents=True, exist_ok=True)
    (pictures / f"{name}.jpg").write_bytes(encoded(picture(*mask.shape[:2], seed=seed), "JPEG"))
    write(masks / f"{name}.png", mask)


def write_set(root: Path, pictures: str = "images", masks: str = "masks", count: int = 10, ids=(0, 1, 2)) -> Path:
    for number in range(count):
        write_pair(root / pictures, root / masks, f"{number:03d}", drawn(number, ids))
    return root


def opened(root: Path, **options) -> Source:
    return open_source(root, **{"val_fraction": 0, "test_fraction": 0, **options})


def answers(source: Source, split: str = "train") -> dict[str, np.ndarray]:
    chosen = source.split(split)
    found = {name: chosen.annotation(row) for row, name in enumerate(chosen.ids)}
    return {name: mask for name, mask in found.items() if mask is not None}


# Layouts


@pytest.mark.parametrize("pair", [
    ("images", "masks"), ("images", "annotations"), ("images", "labels"), ("images", "trimaps"),
    ("images", "annotations/trimaps"), ("JPEGImages", "SegmentationClass"), ("image", "mask"), ("imgs", "gt"),
])  # fmt: skip
def test_folders_side_by_side(tmp_path, pair):
    write_set(tmp_path / "set", *pair)
    (tmp_path / "set" / "annotations" / "xmls").mkdir(parents=True, exist_ok=True)
    (tmp_path / "set" / "annotations" / "xmls" / "000.xml").write_text("<annotation/>")
    source = open_source(tmp_path / "set")
    assert source.task == "segmentation"
    assert source.classes == ("0", "1", "2")
    assert counts(source) == {"train": 8, "val": 1, "test": 1}
    everything = source.split("all")
    assert list(everything.ids) == [f"{pair[0]}/{number:03d}.jpg" for number in range(10)]
    assert everything.known.all()
    for number in range(10):
        assert np.array_equal(everything.annotation(number), drawn(number))
        assert everything.read(number) == (tmp_path / "set" / everything.ids[number]).read_bytes()
    assert f"masks in {pair[1]}" in source.notes[0]


def test_split_folders_on_either_level_and_beside(tmp_path):
    for split, number in (("train", 3), ("val", 2), ("test", 1)):
        folders = {
            "below": (f"images/{split}", f"masks/{split}"),
            "above": (f"{split}/images", f"{split}/masks"),
            "beside": (split, f"{split}annot"),
        }
        for layout, (pictures, masks) in folders.items():
            write_set(tmp_path / layout / pictures, "", f"../{'../' * pictures.count('/')}{masks}", number)
    for layout in ("below", "above", "beside"):
        source = open_source(tmp_path / layout)
        assert counts(source) == {"train": 3, "val": 2, "test": 1}, layout
        assert source.made_splits == ()
        assert source.classes == ("0", "1", "2")
    assert list(open_source(tmp_path / "beside").split("val").ids) == ["val/000.jpg", "val/001.jpg"]
    assert open_source(tmp_path / "below").split("test").ids[0] == "images/test/000.jpg"


@pytest.mark.parametrize("folder", ["", "annotations", "ImageSets/Segmentation", "masks"])
def test_lists_say_which_picture_is_in_which_split(tmp_path, folder):
    root = write_set(tmp_path / "set")
    (root / folder).mkdir(parents=True, exist_ok=True)
    (root / folder / "train.txt").write_text("# stem and class\n000 1 1 1\n\n  003\t2\nimages/004.jpg masks/004.png\n")
    (root / folder / "val.txt").write_text("/images/001.jpg\n002 # the last\n")
    (root / folder / "trainval.txt").write_text("000\n001\n")
    (root / "images/009.jpg").rename(root / "images/nine to five.jpg")
    (root / "masks/009.png").rename(root / "masks/nine to five.png")
    with (root / folder / "val.txt").open("a") as file:
        file.write("nine to five\n")
    source = open_source(root)
    assert counts(source) == {"train": 3, "val": 3}
    assert [name[-7:-4] for name in source.split("train").ids] == ["000", "003", "004"]
    assert any("4 pictures are not in train.txt, val.txt" in note for note in source.notes)


def test_trainval_is_train_where_there_is_no_train(tmp_path):
    root = write_set(tmp_path / "set", count=20)
    (root / "trainval.txt").write_text("".join(f"{number:03d}\n" for number in range(10)))
    (root / "test.txt").write_text("".join(f"{number:03d}\n" for number in range(10, 20)))
    assert counts(open_source(root)) == {"train": 9, "val": 1, "test": 10}


def test_lists_that_cannot_be_right_are_refused_with_the_line(tmp_path):
    root = write_set(tmp_path / "set")
    (root / "train.txt").write_text("# none\n000\n01\n")
    with pytest.raises(UserError, match=r"train\.txt, line 3: there is no picture '01' in .*images"):
        open_source(root)
    (root / "train.txt").write_text("000\n001\n")
    (root / "val.txt").write_text("001\n")
    with pytest.raises(UserError, match=r"val\.txt, line 1: 001 is in train\.txt too"):
        open_source(root)
    (root / "train.txt").write_text("# nothing\n")
    (root / "val.txt").unlink()
    with pytest.raises(UserError, match=r"train\.txt lists no pictures"):
        open_source(root)


def test_folders_within_are_matched_by_their_paths_and_masks_may_be_named_after_their_pictures(tmp_path):
    root = tmp_path / "set"
    write_pair(root / "images", root / "masks", "paris/1", drawn(1))
    write_pair(root / "images", root / "masks", "rome/1", drawn(2))
    write_pair(root / "images", root / "masks", "oslo", drawn(3))
    (root / "masks" / "oslo.png").rename(root / "masks" / "oslo_mask.png")
    write_pair(root / "images", root / "masks", "bonn", drawn(4))
    (root / "masks" / "bonn.png").rename(root / "masks" / "bonn.jpg.png")
    found = answers(opened(root))
    for name, seed in (("paris/1", 1), ("rome/1", 2), ("oslo", 3), ("bonn", 4)):
        assert np.array_equal(found[f"images/{name}.jpg"], drawn(seed)), name


def test_an_archive_that_unpacks_to_a_folder_is_entered(tmp_path):
    write_set(tmp_path / "VOCdevkit" / "VOC2012", "JPEGImages", "SegmentationClass")
    source = open_source(tmp_path / "VOCdevkit")
    assert source.split("all").ids[0] == "VOC2012/JPEGImages/000.jpg"
    assert any("holds one folder only" in note for note in source.notes)


def test_pictures_that_are_no_masks_are_not_taken_for_masks(tmp_path):
    for name in ("images", "labels"):
        (tmp_path / name).mkdir()
        for number in range(4):
            noise = np.random.default_rng(number).integers(0, 256, (40, 40, 3), dtype=np.uint8)
            Image.fromarray(noise).save(tmp_path / name / f"{number}.png")
    with pytest.raises(UserError, match=r"images/ beside labels/.*There are no masks for these pictures"):
        open_source(tmp_path)
    (tmp_path / "images").rename(tmp_path / "maps")
    assert open_source(tmp_path).classes == ("labels", "maps")
    # Masks of other pictures are none of these.
    root = write_set(tmp_path / "other")
    for file in (root / "masks").iterdir():
        file.rename(file.with_name(f"x{file.name}"))
    with pytest.raises(UserError, match="images/ beside masks/"):
        open_source(root)


# What a mask stores


def test_a_palette_is_its_places_and_not_its_colours(tmp_path):
    mask = drawn(0, (0, 3, 7))
    image = Image.fromarray(mask, "P")
    image.putpalette([255, 0, 0] * 3 + [9, 9, 9] * 253)  # the first three places have one colour
    for bits in (4, 8):
        stream = io.BytesIO()
        image.save(stream, "PNG", bits=bits)
        assert Image.open(stream).mode == "P"
        assert np.array_equal(decode_mask(stream.getvalue()), mask)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.bool_, np.int32])
def test_ids_of_any_depth_come_out_as_they_were_stored(dtype):
    ids = (0, 1) if dtype is np.bool_ else (0, 1, 7) if dtype is np.uint8 else (0, 1, 700)
    mask = drawn(0, ids).astype(dtype)
    kind = "TIFF" if dtype is np.int32 else "PNG"
    assert np.array_equal(decode_mask(encoded(Image.fromarray(mask), kind)), mask)
    stream = io.BytesIO()
    np.save(stream, mask)
    assert np.array_equal(decode_mask(stream.getvalue()), mask)


@pytest.mark.parametrize("bits", [1, 2, 4])
def test_grey_of_few_bits_is_not_scaled(bits):
    """Pillow multiplies them to 255, and writes none of 2 or 4 bits, so the file is put together here."""
    values = np.arange(16).reshape(2, 8) % 2**bits
    rows = [np.packbits(np.unpackbits(row.astype(np.uint8)[:, None], axis=1)[:, 8 - bits :].ravel()) for row in values]
    data = b"".join(b"\0" + row.tobytes() for row in rows)

    def chunk(kind: bytes, part: bytes) -> bytes:
        return struct.pack(">I", len(part)) + kind + part + struct.pack(">I", zlib.crc32(kind + part))

    header = struct.pack(">IIBBBBB", 8, 2, bits, 0, 0, 0, 0)
    chunks = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(data)) + chunk(b"IEND", b"")
    assert np.array_equal(decode_mask(b"\x89PNG\r\n\x1a\n" + chunks), values)


def test_a_mask_is_turned_as_pictures_are():
    exif = Image.Exif()
    exif[0x0112] = 6
    mask = drawn(0)
    assert np.array_equal(decode_mask(encoded(Image.fromarray(mask), exif=exif)), np.rot90(mask, -1))


def test_ids_need_not_begin_at_0_nor_follow_each_other(tmp_path):
    root = write_set(tmp_path / "set", ids=(7, 40, 300))
    for file in (root / "masks").iterdir():
        assert decode_mask(file.read_bytes()).dtype == np.uint16
    source = opened(root)
    assert source.classes == ("7", "40", "300")
    found = answers(source)["images/001.jpg"]
    assert found.dtype == np.uint8
    assert np.array_equal(np.array([7, 40, 300])[found], drawn(1, (7, 40, 300)))


def test_255_and_the_ids_that_the_user_leaves_out_are_ignored(tmp_path):
    root = write_set(tmp_path / "set", ids=(1, 2, 3, 255))
    source = opened(root)
    assert source.classes == ("1", "2", "3")
    mask = drawn(0, (1, 2, 3, 255))
    expected = np.where(mask == 255, IGNORE, mask - 1)
    assert np.array_equal(answers(source)["images/000.jpg"], expected)
    fewer = opened(root, ignore=[3])
    assert fewer.classes == ("1", "2")
    assert np.array_equal(answers(fewer)["images/000.jpg"], np.where(mask > 2, IGNORE, mask - 1))


def test_masks_of_0_and_255_alone_have_two_classes(tmp_path):
    source = opened(write_set(tmp_path / "set", ids=(0, 255)))
    assert source.classes == ("0", "255")
    assert np.array_equal(answers(source)["images/000.jpg"], drawn(0, (0, 255)) // 255)


def test_grey_that_is_stored_as_colour_is_ids(tmp_path):
    root = write_set(tmp_path / "set")
    for file in (root / "masks").iterdir():
        write(file, np.repeat(decode_mask(file.read_bytes())[:, :, None], 3, axis=2))
    assert np.array_equal(answers(opened(root))["images/002.jpg"], drawn(2))


COLOURS = np.array([[0, 0, 0], [128, 0, 0], [0, 128, 64]], np.uint8)


@pytest.mark.parametrize(("name", "text"), [
    ("classes.csv", "id,name,colour\n0,sky,#000000\n5,road,#800000\n9,car,#008040\n"),
    ("classes.csv", "name;r;g;b\nsky;0;0;0\nroad;128;0;0\ncar;0;128;64\n"),
    ("classes.csv", 'id,name,color\n0,sky,"0,0,0"\n5,road,"128, 0, 0"\n9,car,"0 128 64"\n'),
    ("classes.txt", "# a comment\n0 sky #000000\n5 road 128 0 0\n9 car 0,128,64\n"),
    ("masks/classes.txt", "0\tsky\t0 0 0\n5\troad\t#800000\n9\tcar\t#008040\n"),
])  # fmt: skip
def test_colours_are_classes_by_a_table(tmp_path, name, text):
    root = write_set(tmp_path / "set")
    for file in (root / "masks").iterdir():
        write(file, COLOURS[decode_mask(file.read_bytes())])
    with pytest.raises(UserError, match=r"its masks are in colours .*classes.csv"):
        open_source(root)
    (root / name).write_text(text)
    source = opened(root)
    assert source.classes == ("sky", "road", "car")
    assert np.array_equal(answers(source)["images/003.jpg"], drawn(3))
    write(root / "masks" / "003.png", np.full((*SIZE, 3), 77, np.uint8))
    with pytest.raises(BadImage, match=r"masks/003.png has pixels of #4d4d4d, which is no colour of classes"):
        answers(source)


@pytest.mark.parametrize("text", ["sky\nroad\n\ncar\n", "0,sky\n1,road\n2,car\n", "2: car\n0: sky\n1: road\n"])
def test_names_of_classes(tmp_path, text):
    root = write_set(tmp_path / "set")
    (root / "classes.txt").write_text(text)
    source = opened(root)
    assert set(source.classes) == {"sky", "road", "car"}
    found = answers(source)["images/004.jpg"]
    meant = np.array(["sky", "road", "car"])[drawn(4)]
    assert np.array_equal(np.array(source.classes)[found], meant)


def test_a_file_of_classes_may_name_255_and_the_user_may_leave_it_out(tmp_path):
    root = write_set(tmp_path / "set", ids=(0, 1, 255))
    (root / "classes.csv").write_text("id,name\n0,sky\n1,road\n255,unclear\n")
    assert opened(root).classes == ("sky", "road", "unclear")
    assert np.array_equal(np.unique(answers(opened(root))["images/000.jpg"]), [0, 1, 2])
    source = opened(root, ignore=[255])
    assert source.classes == ("sky", "road")
    assert np.array_equal(np.unique(answers(source)["images/000.jpg"]), [0, 1, IGNORE])


@pytest.mark.parametrize(("text", "message"), [
    ("id,name\n0,sky\n0,road\n", "line 3: the id 0 stands above already, for 'sky'"),
    ("id,name\nx,sky\n", "line 2: the id 'x' is no whole number"),
    ("id,name\n70000,sky\n", "line 2: the id 70000 is not from 0 to 65535"),
    ("id,name,colour\n0,sky,#00zz00\n", "line 2: '#00zz00' is no colour"),
    ("id,name,colour\n0,sky,#000000\n1,road,#000000\n", "line 3: #000000 is the colour of 'sky' already"),
    ("id,name\n0\n", "line 2: has 1 cells"),
    ("# nothing\n", "names no classes"),
    ("sky\nsky\n", "the class 'sky' occurs more than once"),
    ("sky\n", "masks of 1 class"),
])  # fmt: skip
def test_what_is_wrong_in_a_file_of_classes_is_named(tmp_path, text, message):
    root = write_set(tmp_path / "set")
    (root / "classes.csv").write_text(text)
    with pytest.raises(UserError, match=message):
        open_source(root)


def test_too_many_ids_are_refused(tmp_path):
    root = write_set(tmp_path / "set", count=2)
    write(root / "masks" / "000.png", np.arange(24 * 32, dtype=np.uint16).reshape(24, 32))
    with pytest.raises(UserError, match="its masks hold 767 ids, and there can be 255 classes"):
        open_source(root)


# What is wrong


def test_a_mask_that_cannot_be_used_is_a_bad_image_that_names_it(tmp_path):
    root = write_set(tmp_path / "set")
    (root / "train.txt").write_text("".join(f"{number:03d}\n" for number in range(10)))
    (root / "classes.txt").write_text("a\nb\nc\n")
    masks = root / "masks"
    (masks / "000.png").unlink()
    (masks / "001.png").write_bytes(b"")
    (masks / "002.png").write_bytes((masks / "002.png").read_bytes()[:60])
    (masks / "003.png").write_text("<html>")
    write(masks / "004.png", drawn(4, (0, 1, 2, 7)))
    write(masks / "005.png", COLOURS[drawn(5)])
    source = opened(root)
    split = source.split("train")
    reasons = {}
    for row, name in enumerate(split.ids):
        try:
            split.annotation(row)
        except BadImage as error:
            reasons[name[-7:-4]] = str(error)
    assert set(reasons) == {f"00{number}" for number in range(6)}
    for number, words in enumerate((
        "does not exist", "is empty", "truncated", "is not an image", "has pixels of the id 7, which no class has",
        "is in colours, and nothing says which class each is",
    )):  # fmt: skip
        assert reasons[f"00{number}"].startswith(f"has a mask that cannot be used: masks/00{number}.png ")
        assert words in reasons[f"00{number}"]


def test_a_mask_is_refused_by_its_header_as_a_picture_is(tmp_path):
    content = bytearray(encoded(Image.fromarray(drawn(0))))
    content[16:24] = (60_000).to_bytes(4, "big") * 2
    content[29:33] = zlib.crc32(content[12:29]).to_bytes(4, "big")
    with pytest.raises(TooLarge, match=r"more pixels|claims 60000 x 60000 pixels"):
        decode_mask(bytes(content))
    small = encoded(Image.fromarray(drawn(0)))
    with pytest.raises(TooLarge):
        decode_mask(small, max_pixels=24 * 32 - 1)
    root = write_set(tmp_path / "set")
    (root / "classes.txt").write_text("a\nb\nc\n")
    with pytest.raises(BadImage, match=r"masks/000.png claims 32 x 24 pixels"):
        opened(root, max_pixels=100).split("train").annotation(0)


def test_pictures_without_a_mask_have_no_target_and_masks_without_a_picture_are_said(tmp_path):
    root = write_set(tmp_path / "set")
    (root / "masks" / "002.png").unlink()
    (root / "images" / "003.jpg").unlink()
    source = opened(root)
    split = source.split("train")
    assert split.ids[2] == "images/002.jpg"
    assert split.known.tolist() == [True, True, False] + [True] * 6
    assert split.annotation(2) is None
    assert split[2].target is None
    assert "1 of 9 images have no label" in source.notes
    assert "left out: 1 mask(s) without a picture, such as masks/003.png" in source.notes


def test_the_fingerprint_knows_the_masks_and_a_source_can_be_shared(tmp_path):
    root = write_set(tmp_path / "set")
    source = open_source(root)
    copy = pickle.loads(pickle.dumps(source))
    assert copy.fingerprint() == source.fingerprint()
    assert np.array_equal(copy.split("all").annotation(0), drawn(0))
    file, before = root / "masks" / "000.png", source.fingerprint()
    file.write_bytes(file.read_bytes() + b"\0")
    assert open_source(root).fingerprint() != before


def test_classes_in_another_order_renumber_masks(tmp_path):
    source = opened(write_set(tmp_path / "set", ids=(0, 1, 255)))
    turned = source.with_classes(["1", "0"])
    mask = drawn(0, (0, 1, 255))
    assert np.array_equal(answers(turned)["images/000.jpg"], np.where(mask == 255, IGNORE, 1 - mask))


def test_ids_that_were_found_are_kept_until_a_mask_changes(tmp_path):
    root = write_set(tmp_path / "set")
    assert open_source(root).classes == ("0", "1", "2")
    assert len(list((tmp_path / "vitrail-cache" / "mask-ids").iterdir())) == 1
    assert open_source(root).classes == ("0", "1", "2")
    write(root / "masks" / "000.png", drawn(0, (0, 1, 2, 9)))
    assert open_source(root).classes == ("0", "1", "2", "9")
    for kept in (tmp_path / "vitrail-cache" / "mask-ids").iterdir():
        kept.write_text('{"ids": [0, 99999999], "counts": [0, 0, 0], "colours": []}')
    assert open_source(root).classes == ("0", "1", "2", "9")


def test_ignore_is_for_masks_alone(tmp_path):
    with pytest.raises(UserError, match=r"digits has no masks.*leave --data.ignore out"):
        open_source("digits", ignore=[3])


@pytest.mark.assets
def test_oxford_pets_open_from_their_own_folder(assets):
    source = open_source(assets / "pets", ignore=[3])
    assert source.task == "segmentation"
    assert source.classes == ("1", "2")
    assert counts(source) == {"train": 135, "val": 15, "test": 149}
    assert source.made_splits == ("val",)
    first = source.split("test")
    assert first.ids[0] == "images/Abyssinian_10.jpg" or first.ids[0].startswith("images/")
    stored = decode_mask((assets / "pets/annotations/trimaps" / f"{Path(first.ids[0]).stem}.png").read_bytes())
    assert np.array_equal(first.annotation(0), np.where(stored == 3, IGNORE, stored - 1))
