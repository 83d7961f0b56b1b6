"""The index of shards: opening without reading them, noticing what changed, and believing nothing that is not so."""

import concurrent.futures
import hashlib
import json
import os
import pickle
import signal
import subprocess
import sys
import tarfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.data.conftest import encoded, picture, write_class_folders
from tests.data.test_sources_in_shards import shard, write_tar
from vitrail.cli.data import check
from vitrail.cli.data import shard as shard_command
from vitrail.config import Preprocessing
from vitrail.data import BadImage, decode, open_source
from vitrail.data.loader import EvaluationLoader
from vitrail.data.shard_writer import write_shards
from vitrail.data.sources import indexing
from vitrail.data.sources.shard_index import INDEX, Index, read_index, recognise, write_index
from vitrail.errors import UserError
from vitrail.io.sizes import byte_count


@pytest.fixture
def written(tmp_path) -> Path:
    """Shards of ours: 24 samples in several files."""
    write_class_folders(tmp_path / "x", {"a": 12, "b": 12})
    source = open_source(tmp_path / "x", val_fraction=0, test_fraction=0)
    write_shards(source, tmp_path / "out", shard_bytes=20_000)
    assert len(list((tmp_path / "out").glob("*.tar"))) > 2
    return tmp_path / "out"


def train(folder: Path):
    return open_source(folder, val_fraction=0, test_fraction=0).split("train")


def listed(folder: Path) -> list[dict]:
    """The rows of an index, as any reader of parquet sees them."""
    return pq.read_table(folder / INDEX).to_pylist()


def destroy(file: Path) -> None:
    """The same size, and nothing of it left."""
    file.write_bytes(bytes(file.stat().st_size))


# What is written


def test_the_index_says_where_each_sample_lies(written):
    index = read_index(written / INDEX)
    assert index.written
    for row in listed(written):
        entry = index.shards[row["shard"]]
        content = (written / entry.name).read_bytes()
        assert (len(content), hashlib.sha256(content).hexdigest()) == (entry.bytes, entry.sha256)
        with tarfile.open(written / entry.name) as archive:
            member = archive.getmember(f"{row['key']}.png")
            label = archive.extractfile(f"{row['key']}.cls").read()
        assert (member.offset_data, member.size, int(label)) == (row["offset"], row["size"], row["label"])
        image = content[row["offset"] : row["offset"] + row["size"]]
        assert hashlib.sha256(image).digest() == row["sha256"]
        decode(image)
    assert len(index.rows) == 24


def test_the_same_source_gives_the_same_index(written, tmp_path):
    source = open_source(tmp_path / "x", val_fraction=0, test_fraction=0)
    write_shards(source, tmp_path / "again", shard_bytes=20_000)
    assert (tmp_path / "again" / INDEX).read_bytes() == (written / INDEX).read_bytes()


def test_a_folder_with_an_index_is_opened_without_reading_the_shards(written):
    before = open_source(written)
    for file in written.glob("*.tar"):
        destroy(file)
    after = open_source(written)
    assert after.fingerprint() == before.fingerprint()
    assert after.split("all").labels.tolist() == before.split("all").labels.tolist()
    with pytest.raises(BadImage, match="does not match its SHA-256"):
        after.split("all").read(0)


def test_a_killed_writer_leaves_nothing_that_looks_finished(tmp_path):
    script = (
        "import sys, time; from pathlib import Path; from vitrail.data import open_source\n"
        "from vitrail.data.shard_writer import write_shards\n"
        "out, slowly = Path(sys.argv[1]), lambda done: time.sleep(0.01)\n"
        "write_shards(open_source('digits'), out, shard_bytes=20_000, progress=slowly)"
    )
    out = tmp_path / "out"
    process = subprocess.Popen([sys.executable, "-c", script, str(out)])
    try:
        deadline = time.monotonic() + 60
        while not list(tmp_path.glob(".out.*/train-000001.tar")):
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert not out.exists()
    with pytest.raises(UserError, match="no such file or folder"):
        open_source(out)
    shard_command("digits", out, size="50kB")
    assert len(open_source(out).split("all")) == 1797


def test_a_writer_that_fails_takes_everything_back(tmp_path):
    def fail(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_shards(open_source("digits"), tmp_path / "out", progress=fail)
    assert not [each for each in tmp_path.iterdir() if "out" in each.name]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("256MB", 256_000_000),
        ("1GB", 10**9),
        ("500kB", 500_000),
        ("1.5 gb", 1_500_000_000),
        ("2MiB", 2 << 20),
        ("7B", 7),
    ],
)
def test_sizes_as_people_write_them(text, expected):
    assert byte_count(text, "--size") == expected


@pytest.mark.parametrize("text", ["256", "MB", "-1MB", "0MB", "1XB", "1e9B", "iB", "1iB", "", "9999999TB", "\uff11MB"])
def test_sizes_that_are_none(text, tmp_path):
    with pytest.raises(UserError, match="--size"):
        shard_command("digits", tmp_path / "out", size=text)


# Shards that changed after they were written


def test_a_shard_that_was_cut_off_is_refused_at_once(written):
    file = sorted(written.glob("*.tar"))[1]
    file.write_bytes(file.read_bytes()[:-1024])
    with pytest.raises(UserError, match=rf"{file.name} has \d+ bytes where .*index\.parquet says .*delete"):
        open_source(written)
    # The remedy works: without the index the shards are read as they are.
    (written / INDEX).unlink()
    assert len(train(written)) == 24


def test_a_shard_that_is_missing_is_refused(written):
    files = sorted(written.glob("*.tar"))
    files[0].unlink()
    with pytest.raises(UserError, match=rf"{files[0].name} is missing"):
        open_source(written)
    for file in files[1:]:
        file.unlink()
    with pytest.raises(UserError, match=rf"{files[0].name} is missing"):
        open_source(written)


def test_a_shard_that_the_index_does_not_know_is_refused(written):
    write_tar(written / "train-000099.tar", shard(0, 3))
    with pytest.raises(UserError, match=r"train-000099\.tar is not in .*index\.parquet"):
        open_source(written)


def test_some_of_the_shards_can_be_asked_for(written):
    files = sorted(written.glob("*.tar"))
    files[-1].unlink()
    chosen = open_source(written / "train-{000000..000001}.tar", val_fraction=0, test_fraction=0).split("train")
    assert {name.split("/")[0] for name in chosen.ids} == {"train-000000", "train-000001"}
    alone = open_source(files[0], val_fraction=0, test_fraction=0).split("train")
    assert list(alone.ids) == [name for name in chosen.ids if name.startswith("train-000000/")]
    assert np.array_equal(decode(alone.read(1)), decode(chosen.read(1)))


def test_a_damaged_sample_is_counted_and_the_rest_is_read(written, tmp_path):
    row = listed(written)[5]
    file = sorted(written.glob("*.tar"))[row["shard"]]
    content = bytearray(file.read_bytes())
    content[row["offset"] + row["size"] // 2] ^= 1
    file.write_bytes(content)
    split = train(written)
    loader = EvaluationLoader(split, Preprocessing(image_size=16), batch_size=5)
    assert sum(len(batch) for batch in loader) == 23
    ((name, reason),) = loader.bad.items()
    assert name == split.ids[5]
    assert "does not match its SHA-256 in the index: the shard is damaged" in reason
    check(str(written), tmp_path / "report", val_fraction=0, test_fraction=0)
    findings = json.loads((tmp_path / "report" / "check.json").read_text())
    assert [each["id"] for each in findings["corrupt"]] == [name]
    assert findings["damaged_shards"] == [{"shard": str(file), "reason": "does not match its SHA-256 in the index"}]
    assert "Damaged shards" in (tmp_path / "report" / "check.html").read_text()


def test_a_changed_label_shows_in_the_check_of_the_shard(written, tmp_path, capsys):
    file = sorted(written.glob("*.tar"))[0]
    with tarfile.open(file) as archive:
        place = archive.getmember("00000000.cls").offset_data
    content = bytearray(file.read_bytes())
    content[place] ^= 1
    file.write_bytes(content)
    check(str(written), tmp_path / "report")
    assert "damaged shards" in capsys.readouterr().out
    findings = json.loads((tmp_path / "report" / "check.json").read_text())
    assert [each["shard"] for each in findings["damaged_shards"]] == [str(file)]
    assert findings["corrupt"] == []


# Others' shards


@pytest.fixture
def scanned(monkeypatch) -> list[str]:
    """The names of the shards whose headers were read."""
    names: list[str] = []
    real = indexing.scan
    monkeypatch.setattr(indexing, "scan", lambda path, name, *rest: names.append(name) or real(path, name, *rest))
    return names


def test_an_index_of_others_shards_is_made_once_and_kept(tmp_path, scanned):
    for number in range(3):
        write_tar(tmp_path / f"train-{number}.tar", shard(9 * number, 9))
    first = open_source(tmp_path)
    assert scanned == ["train-0.tar", "train-1.tar", "train-2.tar"]
    assert any("kept as" in note and str(tmp_path / INDEX) in note for note in first.notes)
    index = read_index(tmp_path / INDEX)
    assert not index.written
    assert index.rows.sha256 is None
    again = open_source(tmp_path)
    assert len(scanned) == 3
    assert again.fingerprint() == first.fingerprint()
    assert not again.notes


def test_only_what_changed_is_read_again(tmp_path, scanned):
    for number in range(3):
        write_tar(tmp_path / f"train-{number}.tar", shard(9 * number, 9))
    open_source(tmp_path)
    scanned.clear()
    write_tar(tmp_path / "train-1.tar", shard(50, 6))
    write_tar(tmp_path / "train-3.tar", shard(27, 6))
    (tmp_path / "train-0.tar").unlink()
    split = train(tmp_path)
    assert scanned == ["train-1.tar", "train-3.tar"]
    assert list(split.ids) == [
        *(f"train-1/{index:05d}" for index in range(50, 56)),
        *(f"train-2/{index:05d}" for index in range(18, 27)),
        *(f"train-3/{index:05d}" for index in range(27, 33)),
    ]
    for place, index in enumerate([*range(50, 56), *range(18, 33)]):
        assert split.read(place) == encoded(picture(seed=index))
    assert [each.name for each in read_index(tmp_path / INDEX).shards] == ["train-1.tar", "train-2.tar", "train-3.tar"]


def test_globs_in_turn_do_not_undo_each_others_index(tmp_path, scanned):
    for number in range(4):
        write_tar(tmp_path / f"part-{number}.tar", shard(9 * number, 9))
    for _ in range(2):
        for pattern in ("part-{0..1}.tar", "part-{2..3}.tar", "part-[12].tar"):
            split = open_source(tmp_path / pattern, val_fraction=0, test_fraction=0).split("train")
            assert len(split) == 18
    assert sorted(scanned) == [f"part-{number}.tar" for number in range(4)]


def test_a_shard_replaced_by_one_of_the_same_size_is_noticed(tmp_path):
    write_tar(tmp_path / "x.tar", {"a.npy": b"1" * 600, "a.cls": b"0", "b.png": b"x", "b.cls": b"1"})
    assert train(tmp_path).ids[0] == "x/a"
    write_tar(tmp_path / "x.tar", {"c.npy": b"1" * 600, "c.cls": b"0", "d.png": b"x", "d.cls": b"1"})
    os.utime(tmp_path / "x.tar", ns=(1, 1))
    assert list(train(tmp_path).ids) == ["x/c", "x/d"]


def test_a_data_sets_own_index_parquet_is_left_alone(tmp_path, cache):
    write_tar(tmp_path / "data" / "x.tar", shard(0, 6))
    pq.write_table(pa.table({"mine": [1, 2]}), tmp_path / "data" / INDEX)
    before = (tmp_path / "data" / INDEX).read_bytes()
    first = train(tmp_path / "data")
    assert (tmp_path / "data" / INDEX).read_bytes() == before
    (kept,) = (cache / "indexes").iterdir()
    assert recognise(kept) == "index"
    assert list(train(tmp_path / "data").ids) == list(first.ids)
    kept.write_bytes(b"broken")  # ours to make again
    assert list(train(tmp_path / "data").ids) == list(first.ids)


def test_where_the_folder_cannot_be_written_the_cache_has_the_index(tmp_path, cache, monkeypatch, scanned):
    write_tar(tmp_path / "x.tar", shard(0, 6))
    real = write_index

    def refuse(path: Path, index: Index) -> None:
        if path.parent == tmp_path:
            raise PermissionError(13, "read-only")
        real(path, index)

    monkeypatch.setattr(indexing, "write_index", refuse)
    for _ in range(2):
        assert len(train(tmp_path)) == 6
    assert scanned == ["x.tar"]
    assert len(list((cache / "indexes").iterdir())) == 1
    assert not (tmp_path / INDEX).exists()


def test_names_that_are_not_valid_text(tmp_path):
    with tarfile.open(tmp_path / "x.tar", "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as archive:
        for index, name in enumerate(("café", "über")):
            for ending, content in (("png", encoded(picture(seed=index))), ("cls", str(index).encode())):
                write_member(archive, f"{name}.{ending}", content)
    for _ in range(2):
        split = train(tmp_path)
        assert list(split.ids) == ["x/\\xfcber", "x/caf\\xe9"]
        assert split.labels.tolist() == [1, 0]


def write_member(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    import io

    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"a.png": b"x", "a.cls": b"9" * 30}, "is not a class"),
        ({"a.png": b"x", "a.cls": b"--7"}, "cannot be read as a label"),
        ({"a.png": b"x", "a.txt": b"w" * 5000}, "too long for the name of a class"),
        ({"a.png": b"x", "a.json": b'"\\ud800"'}, "cannot be read as a label"),
        ({"a.png": b"x", "a.json": b"[" * 100_000}, "cannot be read as a label"),
    ],
)
def test_labels_that_no_index_could_hold(tmp_path, members, message):
    write_tar(tmp_path / "x.tar", members)
    with pytest.raises(UserError, match=message):
        open_source(tmp_path)


def test_what_is_refused_once_is_refused_again(tmp_path):
    """An index that was kept hides nothing of what is wrong with the shards."""
    write_tar(tmp_path / "x.tar", {"a.png": b"x", "a.cls": b"-7", "b.png": b"x", "b.cls": b"1"})
    for _ in range(2):
        with pytest.raises(UserError, match="-7 is negative"):
            open_source(tmp_path)


def test_few_files_stay_open_however_many_shards_there_are(tmp_path):
    for number in range(90):
        write_tar(tmp_path / f"{number:03d}.tar", {"a.npy": f"{number}".encode(), "a.cls": f"{number % 2}".encode()})
    split = train(tmp_path)
    before = len(list(Path("/proc/self/fd").iterdir()))
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        contents = list(pool.map(split.read, list(range(90)) * 10))
    assert contents == [str(number).encode() for number in range(90)] * 10
    assert len(list(Path("/proc/self/fd").iterdir())) - before <= 64
    copy = pickle.loads(pickle.dumps(split))
    assert copy.read(7) == b"7"
