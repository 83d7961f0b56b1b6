"""What is written as shards reads back as the same data set."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.conftest import encoded, picture, smooth, write_class_folders
from vitrail.cli.data import shard
from vitrail.data import Split, decode, open_source
from vitrail.data.shard_writer import write_shards
from vitrail.data.sources.base import Source
from vitrail.errors import UserError


def check_same(source: Source, again: Source) -> None:
    assert again.classes == source.classes
    assert list(again.splits) == list(source.splits)
    for name, split in source.splits.items():
        other = again.split(name)
        assert other.labels.tolist() == split.labels.tolist()
        for index in range(len(split)):
            assert np.array_equal(decode(split.read(index)), decode(other.read(index)))


def test_a_folder_becomes_shards_of_about_the_size_asked_for(folder, tmp_path):
    (folder / "ant" / "more.jpg").write_bytes(encoded(picture(seed=9), "JPEG"))
    source = open_source(folder)
    write_shards(source, tmp_path / "out", shard_bytes=20_000)
    check_same(source, open_source(tmp_path / "out"))
    shards = sorted((tmp_path / "out").glob("train-*.tar"))
    assert len(shards) > 2
    assert all(file.stat().st_size < 50_000 for file in shards)
    write_shards(source, tmp_path / "again", shard_bytes=20_000)
    for file in shards:
        assert (tmp_path / "again" / file.name).read_bytes() == file.read_bytes()


def test_arrays_of_any_channels_become_shards(tmp_path):
    for channels in (1, 3, 5):
        images = np.stack([smooth(9, 11, seed=index, channels=channels) for index in range(8)])
        split = Split.of_array("train", images, [0, 1] * 4)
        write_shards(Source("x", ("a", "b"), {"train": split}), tmp_path / str(channels))
        again = open_source(tmp_path / str(channels), val_fraction=0, test_fraction=0).split("train")
        for index in range(8):
            assert np.array_equal(decode(again.read(index), channels), images[index])


def test_the_command_leaves_out_what_cannot_be_read_and_says_so(tmp_path, capsys):
    write_class_folders(tmp_path / "x", {"a": 3, "b": 3})
    (tmp_path / "x" / "a" / "000.png").write_bytes(b"junk")
    shard(str(tmp_path / "x"), tmp_path / "out", val_fraction=0, test_fraction=0)
    out = capsys.readouterr().out
    assert "5 samples (5 train)" in out
    assert "left out: a/000.png is not an image" in out
    with pytest.raises(UserError, match="not empty"):
        shard(str(tmp_path / "x"), tmp_path / "out")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="cannot be written"):
        shard("digits", Path(tmp_path / "file" / "below"))
