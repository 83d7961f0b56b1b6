"""Sources by URL: fetched once, whole and checked, into a cache that stays within its limit."""

import concurrent.futures
import itertools
import subprocess
import sys
import time
from pathlib import Path

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tests.data.conftest import check_whole, encoded, finish_fetching, picture, write_class_folders
from tests.data.test_sources_in_shards import HUGGINGFACE, images, shard, write_parquet, write_tar
from vitrail.config import Preprocessing, TransformConfig
from vitrail.data import open_source
from vitrail.data.cache import cache_limit
from vitrail.data.loader import TrainingLoader
from vitrail.data.order import ShardOrder, create_order
from vitrail.data.shard_writer import write_shards
from vitrail.data.sources.shard_index import INDEX
from vitrail.data.sources.storage import files
from vitrail.errors import UserError

WHOLE = {"val_fraction": 0, "test_fraction": 0}


class Unsteady(MemoryFileSystem):
    """A network with bad days: the next `failing` transfers break off; all are counted."""

    protocol = "unsteady"
    store: dict = {}  # noqa: RUF012
    pseudo_dirs = [""]  # noqa: RUF012
    failing = 0
    fetched: list = []  # noqa: RUF012

    @classmethod
    def _strip_protocol(cls, path):
        return MemoryFileSystem._strip_protocol(path.replace("unsteady://", "memory://"))

    def get_file(self, rpath, lpath, **options):
        Unsteady.fetched.append(rpath.rpartition("/")[2])
        if Unsteady.failing:
            Unsteady.failing -= 1
            Path(lpath).write_bytes(b"half of it")
            raise TimeoutError("the line went dead")
        super().get_file(rpath, lpath, **options)


@pytest.fixture
def unsteady(monkeypatch):
    fsspec.register_implementation("unsteady", Unsteady, clobber=True)
    monkeypatch.setattr(files, "_PAUSES", (0.0, 0.0, 0.0))
    Unsteady.store.clear()
    Unsteady.fetched.clear()
    Unsteady.failing = 0
    return Unsteady


@pytest.fixture
def written(tmp_path) -> Path:
    write_class_folders(tmp_path / "x", {"a": 12, "b": 12})
    write_shards(open_source(tmp_path / "x", **WHOLE), tmp_path / "out", shard_bytes=20_000)
    return tmp_path / "out"


def upload(folder: Path, url: str) -> str:
    system, path = fsspec.core.url_to_fs(url)
    for file in folder.rglob("*"):
        if file.is_file():
            system.pipe_file(f"{path}/{file.relative_to(folder).as_posix()}", file.read_bytes())
    return url


def fetched(cache: Path) -> list[str]:
    """What the cache holds, by the names of the files."""
    return sorted(file.name.split("-", 1)[1] for file in (cache / "files").glob("[!.]*"))


@pytest.mark.parametrize("kind", ["file", "memory"])
def test_shards_by_url_are_the_same_data_set(written, cache, kind):
    url = f"file://{written}" if kind == "file" else upload(written, "memory://bucket/pets")
    here, there = open_source(written, **WHOLE), open_source(url, **WHOLE)
    assert fetched(cache) == ["classes.txt", INDEX]
    assert there.fingerprint() == here.fingerprint()
    assert there.split("train").remote
    assert not here.split("train").remote
    there.split("train").read(0)
    assert fetched(cache) == ["classes.txt", INDEX, "train-000000.tar"]
    for index in range(24):
        assert there.split("train").read(index) == here.split("train").read(index)
    check_whole(there)


def test_each_file_is_fetched_once(written, unsteady):
    url = upload(written, "unsteady://bucket/pets")
    for _ in range(2):
        split = open_source(url, **WHOLE).split("train")
        with concurrent.futures.ThreadPoolExecutor(8) as pool:
            list(pool.map(split.read, range(24)))
    assert sorted(unsteady.fetched) == sorted(file.name for file in written.iterdir())


def test_processes_can_fetch_the_same_shards_at_once(written, cache):
    script = (
        "import sys; from vitrail.data import open_source\n"
        "split = open_source(sys.argv[1], val_fraction=0, test_fraction=0).split('train')\n"
        "print(sum(len(split.read(index)) for index in range(24)))"
    )
    command = [sys.executable, "-c", script, f"file://{written}"]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = [process.communicate()[0] for process in running]
    split = open_source(written, **WHOLE).split("train")
    assert said == [f"{sum(split.size(index) for index in range(24))}\n"] * 3
    assert fetched(cache) == sorted(file.name for file in written.iterdir())
    assert not list((cache / "files").glob(".*.part"))


def test_what_breaks_off_is_tried_again(written, unsteady, cache):
    url = upload(written, "unsteady://bucket/pets")
    split = open_source(url, **WHOLE).split("train")
    unsteady.failing = 3
    assert split.read(0) == open_source(written, **WHOLE).split("train").read(0)
    assert unsteady.fetched.count("train-000000.tar") == 4


def test_what_cannot_be_fetched_is_named_and_leaves_nothing(written, unsteady, cache):
    url = upload(written, "unsteady://bucket/pets")
    split = open_source(url, **WHOLE).split("train")
    unsteady.failing = 100
    with pytest.raises(UserError, match=r"pets/train-000000\.tar cannot be read, in 4 attempts: the line went dead"):
        split.read(0)
    assert fetched(cache) == ["classes.txt", INDEX]
    assert not list((cache / "files").glob(".*.part"))
    unsteady.failing = 0
    assert split.read(0)


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_a_shard_that_arrives_damaged_is_refused(written, unsteady, cache, damage):
    url = upload(written, "unsteady://bucket/pets")
    content = bytearray((written / "train-000000.tar").read_bytes())
    content[700] ^= 1
    broken = bytes(content) if damage == "flip" else bytes(content[:-512])
    fsspec.filesystem("unsteady").pipe_file("/bucket/pets/train-000000.tar", broken)
    split = open_source(url, **WHOLE).split("train")
    with pytest.raises(UserError, match=r"pets/train-000000\.tar cannot be read, .*in(dex says| the index)"):
        split.read(0)
    assert "train-000000.tar" not in fetched(cache)
    assert split.read(23)


def test_a_shard_that_is_not_there_is_named(written):
    url = upload(written, "memory://bucket/gone")
    fsspec.filesystem("memory").rm("/bucket/gone/train-000000.tar")
    with pytest.raises(UserError, match=r"gone/train-000000\.tar cannot be read: there is no such file"):
        open_source(url, **WHOLE).split("train").read(0)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nowhere://x/y", "cannot be opened: .*nowhere"),
        ("memory://empty/folder", r"there are no \.tar or \.parquet files"),
        ("memory://empty/*.tar", "no file matches"),
        ("memory://empty/x.tar", "there is no such file"),
        ("memory://empty/x.parquet", "cannot be read: there is no such file"),
    ],
)
def test_urls_that_lead_nowhere(url, message):
    with pytest.raises(UserError, match=message):
        open_source(url)


def test_a_package_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    with pytest.raises(UserError, match=r"s3://bucket/x: s3:// needs the package s3fs: pip install s3fs"):
        open_source("s3://bucket/x")


def test_others_shards_by_url_are_indexed_once(tmp_path, cache, unsteady):
    for number in range(3):
        write_tar(tmp_path / "data" / f"train-{number}.tar", shard(9 * number, 9))
    url = upload(tmp_path / "data", "unsteady://bucket/others")
    for _ in range(2):
        source = open_source(url, **WHOLE)
        assert [source.split("train").read(index) for index in (0, 26)] == [encoded(picture(seed=i)) for i in (0, 26)]
    assert sorted(unsteady.fetched) == ["train-0.tar", "train-1.tar", "train-2.tar"]
    assert len(list((cache / "indexes").iterdir())) == 1
    # Another file under the same name is another file.
    write_tar(tmp_path / "data" / "train-1.tar", shard(50, 9))
    upload(tmp_path / "data", url)
    assert "train-1/00050" in open_source(url, **WHOLE).split("train").ids


def test_patterns_and_single_files_by_url(tmp_path):
    for number in range(3):
        write_tar(tmp_path / "data" / f"part-{number}.tar", shard(9 * number, 9))
    url = upload(tmp_path / "data", "memory://bucket/patterns")
    for pattern, count in (("part-{0..1}.tar", 18), ("part-*.tar", 27), ("part-[12].tar", 18), ("part-2.tar", 9)):
        split = open_source(f"{url}/{pattern}", **WHOLE).split("train")
        local = open_source(tmp_path / "data" / pattern, **WHOLE).split("train")
        assert list(split.ids) == list(local.ids)
        assert len(split) == count
        assert split.read(count - 1) == local.read(count - 1)


# The cache


def test_the_cache_stays_within_its_limit(written, cache, monkeypatch):
    sizes = {file.name: file.stat().st_size for file in written.glob("*.tar")}
    monkeypatch.setenv("VITRAIL_CACHE_SIZE", f"{2 * max(sizes.values())}B")
    split = open_source(f"file://{written}", **WHOLE).split("train")
    expected = [open_source(written, **WHOLE).split("train").read(index) for index in range(24)]
    for index in [*range(24), *reversed(range(24))]:
        assert split.read(index) == expected[index]
        assert sum(file.stat().st_size for file in (cache / "files").glob("[!.]*")) <= cache_limit()
        time.sleep(0.002)  # so that what was used last is told by the clock
    assert len(fetched(cache)) < len(sizes) + 2


def test_a_limit_that_is_no_size_is_refused(written, monkeypatch):
    monkeypatch.setenv("VITRAIL_CACHE_SIZE", "much")
    with pytest.raises(UserError, match="VITRAIL_CACHE_SIZE 'much' is not a size"):
        open_source(f"file://{written}")


def test_a_cache_that_cannot_be_written_is_named(written, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path / "file" / "below"))
    with pytest.raises(UserError, match=r"the cache .*below.* cannot be written"):
        open_source(f"file://{written}")


# Training


def test_training_goes_by_shards_and_fetches_ahead(written, cache):
    url = upload(written, "memory://bucket/ahead")
    split = open_source(url, **WHOLE).split("train")
    assert isinstance(create_order(split, 0, 1, "auto", 5), ShardOrder)
    options = {"batch_size": 1, "seed": 0, "num_classes": 2, "workers": 0, "shuffle_buffer": 5}
    loader = TrainingLoader(split, TransformConfig(), Preprocessing(image_size=16), **options)
    next(iter(loader))
    finish_fetching()
    shards = split.shards()
    order = ShardOrder(shards, 0, 1, 5)
    soon = {shards[order.at(position)[1]] for position in range(10)}
    assert {f"train-{number:06d}.tar" for number in soon} == {name for name in fetched(cache) if name.endswith(".tar")}
    assert len(soon) < len(list(written.glob("*.tar")))


def test_a_stream_by_url_resumes_exactly(written):
    url, small = upload(written, "memory://bucket/resume"), Preprocessing(image_size=16)
    options = {"batch_size": 5, "seed": 0, "num_classes": 2, "shuffle_buffer": 7}

    def stream(position: int, count: int) -> list:
        split = open_source(url, **WHOLE).split("train")
        return list(
            itertools.islice(TrainingLoader(split, TransformConfig(), small, position=position, **options), count)
        )

    whole = stream(0, 12)
    for one, other in zip(whole[7:], stream(whole[6].position, 5), strict=True):
        assert one.ids == other.ids
        assert np.array_equal(one.images.numpy(), other.images.numpy())


# Parquet


def test_parquet_by_url_reads_labels_first_and_images_when_asked(tmp_path, cache):
    for number in range(2):
        structs = [{"bytes": content, "path": "x.png"} for content in images(9, 9 * number)]
        labels = [index % 3 for index in range(9)]
        write_parquet(tmp_path / "data" / f"train-{number}.parquet", {"kind": labels, "picture": structs}, HUGGINGFACE)
    url = upload(tmp_path / "data", "memory://bucket/parquet")
    there, here = open_source(url, **WHOLE), open_source(tmp_path / "data", **WHOLE)
    assert not (cache / "files").exists() or not fetched(cache)
    assert there.classes == ("zebra", "ant", "bee")
    assert there.fingerprint() == here.fingerprint()
    there.split("train").read(9)
    assert fetched(cache) == ["train-1.parquet"]
    for index in range(18):
        assert there.split("train").read(index) == here.split("train").read(index)
    assert isinstance(create_order(there.split("train"), 0, 1, "auto", 4), ShardOrder)
    check_whole(there)


def test_parquet_by_url_that_is_none(tmp_path):
    (tmp_path / "x.parquet").write_bytes(b"PAR1 not really")
    with pytest.raises(UserError, match=r"x\.parquet is not a readable parquet file"):
        open_source(f"file://{tmp_path}/x.parquet")
