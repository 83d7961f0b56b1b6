"""An index comes from where the data comes from: whatever it says, it is refused or harmless."""

import hashlib
import json
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.data.conftest import encoded, picture
from tests.data.test_hostile import hostile
from tests.data.test_shard_index import train
from tests.data.test_sources_in_shards import shard, write_tar
from vitrail.data import BadImage, decode, open_source
from vitrail.data.sources.shard_index import INDEX, SCHEMA, Index, SampleTable, Shard, read_index, write_index
from vitrail.errors import UserError


def good_rows() -> dict:
    return {
        "shard": [0, 0, 1],
        "key": ["a", "b", "a"],
        "offset": [512, 2048, 512],
        "size": [100, 100, 100],
        "label": [0, 1, 0],
        "sha256": [bytes(32)] * 3,
    }


def table_of(rows: dict) -> pa.Table:
    """The columns that are given, the others empty."""
    count = len(rows["key"])
    arrays = [pa.array(rows.get(field.name, [None] * count), field.type) for field in SCHEMA]
    return pa.table(arrays, schema=SCHEMA)


def rows_of(rows: dict) -> SampleTable:
    label = np.array(rows.get("label", [-1] * len(rows["key"])), dtype=np.int64)
    return SampleTable(
        np.array(rows["shard"], np.int32), rows["key"], np.array(rows["offset"]), np.array(rows["size"]), label
    )


def hostile_folder(folder: Path, rows: dict | pa.Table, shards: list[dict] | dict | None = None, **header) -> Path:
    """Two shards of 10240 bytes and an index that says what it likes."""
    folder.mkdir(exist_ok=True)
    for name in ("train-0.tar", "train-1.tar"):
        (folder / name).write_bytes(bytes(10240))
    table = rows if isinstance(rows, pa.Table) else table_of(rows)
    entries = [{"name": f"train-{number}.tar", "bytes": 10240} for number in range(2)] if shards is None else shards
    document = {"format": 1, "written": True, "shards": entries, **header}
    metadata = {b"vitrail.shards": json.dumps(document).encode()}
    pq.write_table(table.replace_schema_metadata(metadata), folder / INDEX)
    return folder


def test_the_index_that_the_hostile_ones_are_made_from_is_sound(tmp_path):
    assert len(train(hostile_folder(tmp_path / "x", good_rows()))) == 3


@pytest.mark.parametrize(
    "change",
    [
        {"offset": [512, 2048, 1 << 40]},
        {"offset": [512, 2048, (1 << 63) - 1]},
        {"offset": [-512, 2048, 512]},
        {"offset": [0, 2048, 512]},
        {"offset": [512, None, 512]},
        {"size": [-1, 100, 100]},
        {"size": [100, 100, 9729]},
        {"size": [100, 100, (1 << 63) - 1]},
        {"shard": [0, 0, 2]},
        {"shard": [0, 0, -1]},
        {"shard": [0, 0, None]},
        {"key": ["a", "b", None]},
        {"key": ["a", "b", "x" * 5000]},
        {"key": ["a", "a", "a"]},
        {"label": [0, 1, -5]},
        {"label": [0, 1, 1 << 40]},
    ],
    ids=str,
)
def test_rows_that_cannot_be_are_refused(tmp_path, change):
    with pytest.raises(UserError, match=r"index\.parquet is not a sound index|two samples have one name|label"):
        open_source(hostile_folder(tmp_path / "x", {**good_rows(), **change}))


@pytest.mark.parametrize(
    "name",
    [
        *("../train-0.tar", "/etc/passwd", "/etc/x.tar", "a/../../x.tar", "./x.tar", "a//x.tar", "", "x", "x\0.tar"),
        *("..\\x.tar", "a" * 5000 + ".tar", ["x.tar"], 7, None),
    ],
    ids=lambda name: str(name)[:20],
)
def test_shard_names_that_lead_elsewhere_are_refused(tmp_path, name):
    shards = [{"name": name, "bytes": 10240}, {"name": "train-1.tar", "bytes": 10240}]
    with pytest.raises(UserError, match=r"index\.parquet is not a sound index"):
        open_source(hostile_folder(tmp_path / "x", good_rows(), shards))


@pytest.mark.parametrize(
    ("header", "shards"),
    [
        ({"format": 2}, None),
        ({"format": "1"}, None),
        ({"written": 1}, None),
        ({}, {"name": "train-0.tar"}),
        ({}, []),
        ({}, [{"name": "train-0.tar", "bytes": -1}, {"name": "train-1.tar", "bytes": 10240}]),
        ({}, [{"name": "train-0.tar", "bytes": "10240"}, {"name": "train-1.tar", "bytes": 10240}]),
        ({}, [{"name": "train-0.tar", "bytes": True}, {"name": "train-1.tar", "bytes": 10240}]),
        ({}, [{"name": "train-0.tar", "bytes": 10240}] * 2),
        ({}, [{"name": "train-0.tar", "bytes": 10240, "sha256": "x"}, {"name": "train-1.tar", "bytes": 10240}]),
        ({}, [{"name": "train-0.tar", "bytes": 10240, "sha256": 7}, {"name": "train-1.tar", "bytes": 10240}]),
        ({}, [{"name": "train-0.tar", "bytes": 10240, "more": 1}, {"name": "train-1.tar", "bytes": 10240}]),
        ({}, [{"bytes": 10240}, "x"]),
    ],
    ids=str,
)
def test_headers_that_cannot_be_are_refused(tmp_path, header, shards):
    with pytest.raises(UserError, match=r"index\.parquet is not a sound index"):
        open_source(hostile_folder(tmp_path / "x", good_rows(), shards, **header))


def test_columns_of_another_type_are_refused(tmp_path):
    table = table_of(good_rows())
    for place, name in enumerate(table.column_names):
        other = table.set_column(place, name, pa.array([1.5, 2.5, 3.5]))
        with pytest.raises(UserError, match=rf"its column {name} is of double"):
            open_source(hostile_folder(tmp_path / name, other))
        with pytest.raises(UserError, match=f"no column {name}"):
            open_source(hostile_folder(tmp_path / f"no-{name}", table.drop_columns([name])))


def test_a_small_index_that_unpacks_to_fill_the_memory_is_refused(tmp_path):
    """A few bytes can stand for many million equal rows."""
    shards = [{"name": "train-0.tar", "bytes": 1 << 50}]
    (tmp_path / "x").mkdir()
    for count, length, message in (
        (3_000_000, 20, "3000000 samples, more than its shards can hold"),
        (30_000, 4000, "its names unpack to 120000000 bytes"),
    ):
        folder = hostile_folder(tmp_path / "x", many_equal(count, length), shards)
        with pytest.raises(UserError, match=message):
            open_source(f"file://{folder}")  # where a size is only a claim


def test_more_samples_than_the_shards_can_hold_are_refused(tmp_path):
    folder = hostile_folder(tmp_path / "x", many_equal(50, 20))
    with pytest.raises(UserError, match="50 samples, more than its shards can hold"):
        open_source(folder)


def many_equal(count: int, length: int) -> pa.Table:
    zeros, ones = np.zeros(count, np.int32), np.ones(count, np.int64)
    columns = {"shard": zeros, "key": pa.repeat("x" * length, count), "offset": 512 * ones, "size": ones}
    nulls = {"label": pa.int64(), "name": pa.string(), "sha256": pa.binary(32)}
    return pa.table({**columns, **{name: pa.nulls(count, kind) for name, kind in nulls.items()}})


def test_junk_under_the_name_of_the_index_is_refused(tmp_path):
    write_tar(tmp_path / "x.tar", shard(0, 6))
    for junk in (b"", b"PAR1", b"junk" * 1000):
        (tmp_path / INDEX).write_bytes(junk)
        with pytest.raises(UserError, match="delete it to have one made"):
            open_source(tmp_path)


@given(data=st.data())
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_damage_to_an_index_is_refused_or_harmless(tmp_path, data):
    """Opened or refused; and what is opened never reads outside of a shard."""
    path = tmp_path / INDEX
    if not (tmp_path / "sound").exists():
        write_index(path, Index((Shard("a.tar", 10240), Shard("b.tar", 10240)), rows_of(good_rows()), written=True))
        path.rename(tmp_path / "sound")
    content = bytearray((tmp_path / "sound").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    del content[data.draw(st.integers(len(content) // 2, len(content))) :]
    path.write_bytes(content)
    try:
        index = read_index(path)
    except UserError as error:
        assert str(path) in str(error)
        return
    offsets, sizes = index.rows.offset, index.rows.size
    assert ((offsets >= 512) & (sizes >= 0) & (offsets + sizes <= 10240)).all()
    assert all("/" not in each.name for each in index.shards)


@given(
    rows=st.lists(
        st.tuples(st.integers(-2, 3), st.text(max_size=5), st.integers(-(2**63), 2**63 - 1), st.integers(-9, 12_000)),
        max_size=5,
    )
)
@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_rows_are_refused_or_lie_in_their_shards(tmp_path, rows):
    names = ("shard", "key", "offset", "size")
    given = rows_of({name: [row[place] for row in rows] for place, name in enumerate(names)})
    write_index(tmp_path / INDEX, Index((Shard("a.tar", 10240), Shard("b.tar", 512)), given, written=True))
    try:
        index = read_index(tmp_path / INDEX)
    except UserError:
        assert rows
        return
    for shard_number, _, offset, size in rows:
        assert 0 <= shard_number < 2
        assert 512 <= offset <= offset + size <= index.shards[shard_number].bytes


def test_an_index_that_points_at_a_pickle_runs_nothing(tmp_path):
    """The worst an index can do is to call a pickle an image: then it is none."""
    marker = tmp_path / "it-ran"
    evil = hostile(str(marker))["os.system, protocol 2"]
    write_tar(tmp_path / "train-0.tar", {"a.pkl": evil, "a.png": encoded(picture()), "a.cls": b"0", "b.pkl": evil})
    with tarfile.open(tmp_path / "train-0.tar") as archive:
        members = [archive.getmember(name) for name in ("a.pkl", "b.pkl")]
    rows = {
        "shard": [0, 0],
        "key": ["a", "b"],
        "offset": [member.offset_data for member in members],
        "size": [member.size for member in members],
        "label": [0, 1],
        "sha256": [hashlib.sha256(evil).digest()] * 2,
    }
    entry = Shard("train-0.tar", (tmp_path / "train-0.tar").stat().st_size)
    write_index(tmp_path / INDEX, Index((entry,), rows_of(rows), written=True))
    split = train(tmp_path)
    assert split.read(0) == evil
    for index in range(2):
        with pytest.raises(BadImage):
            decode(split.read(index))
    assert not marker.exists()
