"""A .pth file may ask for little to be hashed, which is checked before it is read; what PyTorch writes passes."""

import io
import pickle
import zipfile
from pathlib import Path

import pytest
import torch

from tests.fuzz.corpus import archive_of_300_gb, bundle_of_300_gb, pickled_pairs, tensor_of_300_gb, zipped
from vitrail.checkpoints.files import read_tensors
from vitrail.checkpoints.load import load
from vitrail.checkpoints.pickles import DEEPEST_TUPLE, MOST_REPEATED, check_pickle
from vitrail.errors import UserError

HERE = Path("a.pth")


def test_the_tuples_are_what_pytorch_would_hash(tmp_path):
    """With few levels PyTorch reads the file, so its unpickler does come to the hash."""
    zipped(tmp_path, pickled_pairs(10))
    ((key, value),) = torch.load(tmp_path / "a.pth", weights_only=True).items()
    assert value == 1
    for _ in range(10):
        first, second = key
        assert first is second
        key = first
    assert key == ()


@pytest.mark.parametrize("levels", [5, 10, 15])
def test_a_few_levels_pass(levels):
    check_pickle(HERE, io.BytesIO(pickled_pairs(levels)))


@pytest.mark.parametrize("levels", [22, 40, 100])
def test_what_doubles_with_each_level_is_refused(levels):
    assert 2**levels > MOST_REPEATED
    with pytest.raises(UserError, match=r"a.pth: .* its tuples repeat or nest without end; refused unread"):
        check_pickle(HERE, io.BytesIO(pickled_pairs(levels)))


def test_a_wide_tuple_in_wide_tuples_is_refused():
    wide = b"\x80\x02})q\x00" + b"".join(b"(" + b"h%c" % n * 900 + b"tq%c" % (n + 1) for n in range(3))
    with pytest.raises(UserError, match="repeat or nest"):
        check_pickle(HERE, io.BytesIO(wide + b"K\x01s."))


def nested(levels: int) -> bytes:
    return b"\x80\x02})" + b"\x85" * (levels - 1) + b"K\x01s."


def test_the_depth_of_tuples_is_bounded():
    check_pickle(HERE, io.BytesIO(nested(DEEPEST_TUPLE)))
    with pytest.raises(UserError, match="repeat or nest"):
        check_pickle(HERE, io.BytesIO(nested(DEEPEST_TUPLE + 1)))


def test_all_pickles_of_an_old_file_are_looked_at(tmp_path):
    torch.save({}, tmp_path / "a.pth", _use_new_zipfile_serialization=False)
    good, empty = (tmp_path / "a.pth").read_bytes(), pickle.dumps({}, 2)
    (tmp_path / "a.pth").write_bytes(good.replace(empty, pickled_pairs(22)))
    with pytest.raises(UserError, match="repeat or nest"):
        read_tensors(tmp_path / "a.pth")


@pytest.mark.parametrize("old", [False, True])
def test_what_training_writes_is_read(tmp_path, old):
    """The state of an optimizer holds one tuple for all parameters, and tensors may be there twice."""
    model = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(200)))
    optimizer = torch.optim.AdamW([{"params": [each]} for each in model.parameters()])
    model(torch.zeros(1, 4)).sum().backward()
    optimizer.step()
    state = model.state_dict()
    document = {"model": state, "again": state, "optimizer": optimizer.state_dict(), "epoch": 3}
    torch.save(document, tmp_path / "a.pth", _use_new_zipfile_serialization=not old)
    tensors = read_tensors(tmp_path / "a.pth").tensors
    assert tensors.keys() == state.keys()
    assert all(torch.equal(tensors[name], state[name]) for name in state)


def test_members_of_an_archive_are_looked_at_whatever_their_folder(tmp_path):
    with zipfile.ZipFile(tmp_path / "a.pth", "w") as archive:
        archive.writestr("other/DATA.PKL", pickled_pairs(22))
    with pytest.raises(UserError, match="repeat or nest"):
        read_tensors(tmp_path / "a.pth")


@pytest.mark.parametrize("case", [tensor_of_300_gb, bundle_of_300_gb, archive_of_300_gb])
def test_a_file_larger_than_the_free_memory_is_refused_unread(tmp_path, case):
    source = case(tmp_path)[1]
    with pytest.raises(UserError, match=r"has 322,122,547,\d+ bytes, and [\d,]+ bytes of memory are free"):
        load(source)


def test_the_free_memory_may_be_told(tmp_path, monkeypatch):
    torch.save({"x": torch.zeros(1000)}, tmp_path / "a.pth")
    monkeypatch.setenv("VITRAIL_MEMORY", "1kB")
    with pytest.raises(UserError, match="1,000 bytes of memory are free"):
        read_tensors(tmp_path / "a.pth")
    monkeypatch.setenv("VITRAIL_MEMORY", "1MB")
    assert read_tensors(tmp_path / "a.pth").tensors["x"].shape == (1000,)
