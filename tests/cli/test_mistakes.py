"""Mistakes of the first minutes: each gets the sentence that helps, and leaves nothing behind."""

import base64
import importlib
import importlib.util
import warnings
from pathlib import Path

import numpy as np
import pytest
import tyro
from PIL import Image, features

import vitrail
from tests.conftest import toy
from vitrail.cli import COMMAND_GROUPS, COMMANDS, main
from vitrail.cli.spelling import command_flags, field_flags
from vitrail.config import Preprocessing
from vitrail.data.decode import decode
from vitrail.recipes import recipe


def photos(folder: Path, *classes: str, count: int = 3, size: int = 64, grey: bool = False) -> None:
    """Class folders of pictures of noise, all different."""
    for name in classes:
        (folder / name).mkdir(parents=True)
        for index in range(count):
            shape = (size, size) if grey else (size, size, 3)
            seed = sum(map(ord, str(folder / name))) + 1000 * index
            pixels = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{index}.png")


@pytest.fixture
def told(tmp_path, monkeypatch, capsys):
    """Runs a command in a folder of its own; its exit status, and all it said."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> tuple[int, str]:
        status = 0
        try:
            main(list(arguments))
        except SystemExit as end:
            status = int(end.code or 0)
        said = capsys.readouterr()
        assert "Traceback" not in said.err
        return status, said.out + said.err

    return run


@pytest.fixture
def refused(told):
    """What a command says that exits with 2 and leaves nothing behind."""

    def run(*arguments: str) -> str:
        before = sorted(Path().rglob("*"))
        status, said = told(*arguments)
        assert status == 2, said
        assert sorted(Path().rglob("*")) == before
        return said

    return run


def save_model(path: str = "model", **overrides) -> None:
    model = toy(**{"image_size": 16, "num_classes": 2, **overrides})
    model.card.preprocessing = Preprocessing(image_size=16)
    model.card.label_names = ("cats", "dogs", *"cdefghij")[: model.config.num_classes]
    vitrail.save(model, path)


def test_train_with_data_in_the_place_of_the_recipe(refused, tmp_path):
    photos(tmp_path / "photos", "cats", "dogs")
    said = refused("train", "photos")
    assert "photos is data, not a recipe" in said
    assert "vitrail finetune MODEL --data photos" in said
    assert "vitrail train RECIPE --data photos" in said
    save_model()
    assert "vitrail finetune model --data SRC" in refused("train", "model")


def test_photos_are_not_made_digits(refused, tmp_path):
    photos(tmp_path / "photos", "cats", "dogs", size=80)
    said = refused("train", "--data", "photos")
    assert "its pictures (about 80 x 80 px, in colour) become 28 x 28 px and grey by the recipe mnist5k" in said
    assert "vitrail finetune MODEL --data photos" in said
    photos(tmp_path / "icons", "up", "down", size=28)
    assert "(about 28 x 28 px, in colour) become 28 x 28 px and grey" in refused("train", "--data", "icons")


def test_a_recipe_that_was_named_trains_on_photos_and_says_what_it_makes_of_them(told, tmp_path):
    photos(tmp_path / "photos", "cats", "dogs", size=80)
    status, said = told("train", "digits", "--data", "photos", "--steps", "1", "--out", "run")
    assert status == 0
    assert "become 8 x 8 px and grey by the recipe digits; for photos start from a trained model" in said


def test_digits_of_ones_own_are_trained_without_a_word(told, tmp_path):
    photos(tmp_path / "scans", "one", "two", size=32, grey=True)
    status, said = told("train", "--data", "scans", "--steps", "1", "--model.depth", "1", "--out", "run")
    assert status == 0, said
    assert "become" not in said


@pytest.mark.parametrize("name", ["finetune-cifar10", "finetune-flowers", "finetune"])
def test_train_with_a_recipe_that_starts_from_a_model(refused, name):
    assert f"vitrail finetune MODEL --recipe {name} --data SRC" in refused("train", name, "--data", "digits")


def test_pictures_in_the_place_of_the_model(refused, tmp_path):
    photos(tmp_path / "photos", "cats")
    for picture in ("photos/cats/0.png", "photos"):
        said = refused("predict", picture)
        assert f"{picture} is not a model: give a MODEL first, then the pictures: MODEL {picture}" in said
        assert "MODEL comes first" not in said
    assert "give a MODEL first" in refused("embed", "photos/cats/0.png", "--out", "x.parquet")
    save_model()
    for picture in ("photos/cats/0.png", "photos"):
        assert f"model is a model and {picture} is not: the MODEL comes first" in refused("predict", picture, "model")


@pytest.mark.parametrize(("arguments", "meant"), [
    ("train --epoch 3", "vitrail train has no flag --epoch; did you mean --epochs?"),
    ("train digits --batchsize=3", "no flag --batchsize; did you mean --batch-size?"),
    ("train digits --lr 0.1", "did you mean --optimizer.lr?"),
    ("train digits --learning-rate 0.1", "did you mean --optimizer.lr?"),
    ("train --image-size 32", "did you mean --model.image-size or"),
    ("train --model B/16", "did you mean --model.size?"),
    ("train digits --resum", "did you mean --resume?"),
    ("train digits --zebra", "vitrail train has no flag --zebra; see vitrail train --help"),
    ("evaluate x --dat digits", "vitrail evaluate has no flag --dat; did you mean --data?"),
    ("predict x y --topk 5", "did you mean --top?"),
    ("predict x y --image_sise 5", "did you mean --image-size?"),
    ("data check digits --output x", "vitrail data check has no flag --output; did you mean --out?"),
    ("train mnist", "no recipe named 'mnist'; did you mean mnist5k?"),
    ("train --model.size vit-bb16", "no model named 'vit-bb16'; did you mean B/16?"),
    ("trian", "no command 'trian'; did you mean 'train'?"),
])  # fmt: skip
def test_names_that_are_nearly_right(refused, arguments, meant):
    said = refused(*arguments.split())
    assert meant in said
    assert len(said.splitlines()) == 1


def own_flags(parser) -> set[str]:
    flags = {each.removeprefix("--") for action in parser._actions for each in action.option_strings}
    return flags - {"-h", "help"}


def test_every_flag_that_there_is_is_known():
    """By tyro's own parsers: a flag of ours that is taken for a mistake could not be used."""
    commands = []
    for name in COMMANDS:
        module = importlib.import_module(f"vitrail.cli.{name}")
        commands += [getattr(module, each) for each in COMMAND_GROUPS.get(name, ("command",)) if hasattr(module, each)]
    assert len(commands) > len(COMMANDS) - 3
    style = (tyro.conf.FlagCreatePairsOff, tyro.conf.PositionalMetavarFromFieldName, tyro.conf.DisallowNone)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        for command in commands:
            parser = tyro.extras.get_parser(command, config=style)
            assert own_flags(parser) <= set(command_flags(command)), command.__module__
        default, style = recipe("mnist5k"), (tyro.conf.FlagCreatePairsOff, tyro.conf.AvoidSubcommands)
        parser = tyro.extras.get_parser(type(default), default=default, config=style)
        assert own_flags(parser) <= set(field_flags(default))


def counted(said: str) -> str:
    """The line of `data check` on how many images there are."""
    return next(line for line in said.splitlines() if line.startswith("images")).split(maxsplit=1)[1]


def test_classes_that_differ_by_case_only_are_said(told, tmp_path):
    photos(tmp_path / "flowers", "tulip", "Tulip", "rose")
    status, said = told("data", "check", "flowers")
    assert status == 0
    assert "the classes 'Tulip' and 'tulip' differ only by case or spaces" in said
    assert "put their images into one folder" in said
    photos(tmp_path / "clean", "tulip", "rose")
    assert "differ" not in told("data", "check", "clean")[1]


def test_a_class_that_is_spelt_otherwise_in_another_split_is_said(refused, tmp_path):
    photos(tmp_path / "flowers/train", "tulip", "rose")
    photos(tmp_path / "flowers/val", "Tulip", "rose")
    said = refused("data", "check", "flowers")
    assert "flowers/val/Tulip: the class 'Tulip' is in val but not in train; is it 'tulip'?" in said
    save_model()
    photos(tmp_path / "pets", "Cats", "dogs")
    assert "(is 'Cats' its 'cats'?)" in refused("evaluate", "model", "--data", "pets")


def test_split_folders_are_known_by_a_word_of_their_names(told, refused, tmp_path):
    photos(tmp_path / "set/seg_train", "forest", "sea", count=10)
    photos(tmp_path / "set/seg_test", "forest", "sea", count=4)
    status, said = told("data", "check", "set")
    assert status == 0
    assert counted(said) == "28  (18 train, 2 val, 8 test)"
    assert "split folders, by the words in their names: seg_test as test, seg_train as train" in said
    photos(tmp_path / "set/seg_pred", "seg_pred")
    assert "split folders (seg_test, seg_train) and also 'seg_pred': move it away" in refused("data", "check", "set")


def test_split_folders_that_hold_themselves_once_more_are_opened(told, tmp_path):
    photos(tmp_path / "set/seg_train/seg_train", "forest", "sea", count=10)
    photos(tmp_path / "set/seg_test/seg_test", "forest", "sea", count=4)
    status, said = told("data", "check", "set")
    assert status == 0
    assert counted(said) == "28  (18 train, 2 val, 8 test)"
    assert "set/seg_train holds one folder only: the folders in set/seg_train/seg_train are taken" in said


@pytest.mark.parametrize(
    "names", [("train", "bus", "ship"), ("train_station", "test_tube"), ("train_old", "train_new")]
)
def test_classes_may_be_called_like_splits(told, tmp_path, names):
    photos(tmp_path / "set", *names, count=10)
    status, said = told("data", "check", "set")
    assert status == 0, said
    classes = len(names)
    assert counted(said) == f"{10 * classes}  ({8 * classes} train, {classes} val, {classes} test)"


@pytest.mark.parametrize("pair", [("images", "annotations"), ("JPEGImages", "SegmentationClass"), ("images", "labels")])
def test_pictures_beside_masks_or_boxes_are_not_two_classes(refused, tmp_path, pair):
    photos(tmp_path / "set", *pair)
    said = refused("data", "check", "set")
    assert f"set has {pair[0]}/ beside {pair[1]}/: pictures and what is marked in them (masks or boxes)" in said
    photos(tmp_path / "yolo/train", "images", "labels")
    photos(tmp_path / "yolo/val", "images", "labels")
    assert "yolo/train has images/ beside labels/" in refused("train", "digits", "--data", "yolo", "--out", "run")


def test_a_folder_that_holds_one_folder_of_classes(told, tmp_path):
    photos(tmp_path / "download/flowers", "rose", "tulip", count=10)
    (tmp_path / "download/readme.txt").write_text("unpacked")
    status, said = told("data", "check", "download")
    assert status == 0
    assert "download holds one folder only: the folders in download/flowers are taken" in said
    assert counted(said).startswith("20 ")
    (tmp_path / "round").mkdir()
    (tmp_path / "round/again").symlink_to(tmp_path / "round", target_is_directory=True)
    status, said = told("data", "check", "round")
    assert status == 2, "a link that leads back to where it lies is not followed for ever"


@pytest.mark.parametrize(("given", "said"), [
    ("photos.zip", "photos.zip is an archive: unpack it and give the folder"),
    ("empty", "the class folder empty/dogs holds no images: fill it or remove it"),
])  # fmt: skip
def test_data_that_is_not_ready(refused, tmp_path, given, said):
    (tmp_path / "photos.zip").write_bytes(b"PK")
    photos(tmp_path / "empty", "cats")
    (tmp_path / "empty/dogs").mkdir()
    for command in (("train", "digits"), ("data", "check")):
        flag = ("--data", given) if command[0] == "train" else (given,)
        assert said in refused(*command, *flag)


def test_what_is_forgotten_or_in_the_way(refused, tmp_path):
    save_model()
    assert "vitrail finetune needs --data SRC" in refused("finetune", "model")
    assert "vitrail finetune needs a MODEL" in refused("finetune", "--data", "digits")
    assert "--data" in refused("evaluate", "model")
    assert "give pictures" in refused("predict", "model")
    said = refused("train", "digits", "--out", "model")
    assert "model: is in use already; choose another --out" in said


HEIC = base64.b64decode(
    "AAAAHGZ0eXBoZWljAAAAAG1pZjFoZWljbWlhZgAAAXxtZXRhAAAAAAAAACFoZGxyAAAAAAAAAABwaWN0AAAAAAAAAAAAAAAAAAAAACJpbG9jAAAA"
    "AERAAAEAAQAAAAABoAABAAAAAAAAAEYAAAAjaWluZgAAAAAAAQAAABVpbmZlAgAAAAABAABodmMxAAAAAA5waXRtAAAAAAABAAAA/GlwcnAAAADc"
    "aXBjbwAAAHVodmNDAQNwAAAAkAAAAAAAHvAA/P34+AAADwNgAAEAGEABDAH//wNwAAADAJAAAAMAAAMAHroCQGEAAQApQgEBA3AAAAMAkAAAAwAA"
    "AwAeoCCBBZbqrprm4CGgwIAAAAyAAAADAIRiAAEABkQBwXPBiQAAABNjb2xybmNseAABAA0ABoAAAAAUaXNwZQAAAAAAAABAAAAAQAAAAChjbGFw"
    "AAAAEAAAAAEAAAAQAAAAAf///9AAAAAC////0AAAAAIAAAAQcGl4aQAAAAADCAgIAAAAGGlwbWEAAAAAAAAAAQABBYECAwWEAAAATm1kYXQAAABC"
    "KAGvEyGfMGjlMPv+Bk+ET48NX71iLzH68sNccuhWYkwfpm6mIY3joPS55pKgRcEUVwt9s0DjjzB/rwHQqF1/qx5G"
)
"""16 x 16 pixels, the left half (203, 30, 32) and the right half (20, 40, 214), written by pillow-heif 1.8."""
INSTALLED = importlib.util.find_spec("pillow_heif") is not None


def test_heic_pictures_are_counted_and_read_or_say_what_to_install(told, tmp_path):
    save_model()
    photos(tmp_path / "photos", "cats", "dogs")
    (tmp_path / "photos/cats/phone.HEIC").write_bytes(HEIC)
    status, said = told("predict", "model", "photos/cats/phone.HEIC")
    _, checked = told("data", "check", "photos")
    assert counted(checked).startswith("7 ")
    if INSTALLED:
        assert status == 0
        assert decode(HEIC)[4, 4].tolist() == [203, 30, 32]
        assert decode(HEIC)[4, 12].tolist() == [20, 40, 214]
    else:
        assert status == 2
        assert "is a HEIC picture: HEIC needs the package pillow-heif (pip install pillow-heif)" in said
        assert "1 of 7 pictures in photos cannot be read yet: HEIC needs the package pillow-heif" in checked


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_avif_is_not_taken_for_heic(tmp_path):
    Image.new("RGB", (16, 16), (200, 30, 30)).save(tmp_path / "a.avif")
    assert decode((tmp_path / "a.avif").read_bytes()).shape == (16, 16, 3)
