"""Data from strangers: nothing in it is ever executed, and nothing in it fills the memory."""

import os
import pickle
import struct
import tracemalloc

import numpy as np
import pytest

from tests.data.test_sources_in_shards import shard, write_tar
from vitrail.data import open_source
from vitrail.data.sources.plain_pickle import read_plain_pickle
from vitrail.errors import UserError


class Calls:
    """Pickles to a call of `function`."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


class Builds:
    """Pickles to an object whose state is set."""

    def __init__(self):
        self.a = 1


def hostile(marker: str) -> dict[str, bytes]:
    """Pickles that would make the file `marker` if they were executed, and others that misuse the language."""
    command = f"touch {marker}"
    content = {
        f"os.system, protocol {protocol}": pickle.dumps({"data": Calls(os.system, command)}, protocol)
        for protocol in range(6)
    }
    content |= {
        "eval": pickle.dumps({"data": Calls(eval, f"open({marker!r}, 'w')")}, 2),
        "nested": pickle.dumps({"labels": [[{"a": Calls(os.system, command)}]]}, 2),
        "class with state": pickle.dumps({"data": Builds()}, 2),
        "instance opcode": f"(S'{command}'\nios\nsystem\n.".encode(),
        "object opcode": f"(cos\nsystem\nS'{command}'\no.".encode(),
        "stack global": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c"
        + bytes([len(command)])
        + command.encode()
        + b"\x85R.",
        "called twice": f"cnumpy\ndtype\n(S'{command}'\ntRcos\nsystem\n(S'x'\ntR.".encode(),
        "dotted name": b"\x80\x04\x8c\x05numpy\x8c\x0fndarray.__init__\x93.",
        "extension": b"\x80\x02\x82\x01.",
        "persistent id": b"Pabc\n.",
        "object array": pickle.dumps({"data": np.array([Calls(os.system, command)], dtype=object)}, 2),
        "reconstruct of another class": b"cnumpy.core.multiarray\n_reconstruct\n(cos\nsystem\nI0\ntR.",
    }
    return content


@pytest.mark.parametrize("kind", hostile(""))
def test_a_hostile_pickle_ends_in_a_user_error_and_runs_nothing(tmp_path, kind):
    marker = tmp_path / "it-ran"
    for name in ("data_batch_1", "test_batch"):
        (tmp_path / name).write_bytes(hostile(str(marker))[kind])
    with pytest.raises(UserError, match="nothing in it was executed"):
        open_source(tmp_path)
    assert not marker.exists()


def test_the_hostile_pickles_are_indeed_hostile(tmp_path):
    marker = tmp_path / "it-ran"
    pickle.loads(hostile(str(marker))["os.system, protocol 2"])
    assert marker.exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b".",
        b"\x80\x02}.",
        b"\x80\x02N.",
        b"\x80\x02(((((.",
        b"\x80\x02u.",
        b"h\x07.",
        b"\x80\x02}(U\x01au.",
        b"\x80\x02]}a.",
        b"\x80\x04\x8e" + struct.pack("<Q", 1 << 62) + b"abc.",
        b"\x80\x04\x95" + struct.pack("<Q", 1 << 62) + b"N.",
        b"\x80\x02}r\xff\xff\xff\x7f.",
        b"\x80\x02B\xff\xff\xff\x7fabc.",
        b"\x80\x02" + b"]" * 1_200_000 + b".",
        b"\x80\x02" + b"(" * 20_000 + b"t" * 20_000 + b".",
    ],
    ids=range(15),
)
def test_nonsense_ends_in_a_user_error_within_bounded_memory(tmp_path, content):
    (tmp_path / "data_batch_1").write_bytes(content)
    tracemalloc.start()
    try:
        with pytest.raises(UserError):
            open_source(tmp_path)
        assert tracemalloc.get_traced_memory()[1] < 200_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.filterwarnings("ignore:invalid escape sequence")
def test_every_cut_and_many_flips_of_a_batch_are_survived(tmp_path):
    batch = {"data": np.zeros((2, 3072), np.uint8), "labels": [0, 1], "filenames": ["a", "b"]}
    content = pickle.dumps(batch, 2)
    head = content.index(bytes(100))
    file = tmp_path / "batch"
    generator = np.random.default_rng(0)
    for trial in range(400):
        changed = bytearray(content)
        if trial % 2:
            changed[int(generator.integers(0, head))] = int(generator.integers(0, 256))
        else:
            del changed[int(generator.integers(0, len(changed))) :]
        file.write_bytes(bytes(changed))
        try:
            assert isinstance(read_plain_pickle(file), dict)
        except UserError as error:
            assert str(file) in str(error)


@pytest.mark.parametrize("ending", ["pkl", "pyd", "pickle", "pth"])
def test_pickled_members_of_a_shard_are_left_alone(tmp_path, ending):
    marker = tmp_path / "it-ran"
    members = shard(0, 6)
    for index in range(6):
        members[f"{index:05d}.{ending}"] = hostile(str(marker))["os.system, protocol 2"]
        members[f"{index:05d}.image.{ending}"] = hostile(str(marker))["os.system, protocol 2"]
    write_tar(tmp_path / "x.tar", members)
    source = open_source(tmp_path)
    for split in source.splits.values():
        for index in range(len(split)):
            assert split.read(index).startswith(b"\x89PNG")
    assert "12 pickled member(s) were left alone" in source.notes[0]
    assert not marker.exists()
