"""Files, folders, globs, lists and archives become inputs, lazily; what is wrong with one is told in its own row."""

import io
import os
import tarfile
import weakref
import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from tests.inference.conftest import encoded
from vitrail.data import inputs
from vitrail.data.decode import BadImage
from vitrail.data.inputs import find_pictures, from_memory
from vitrail.errors import UserError


def names(found) -> list[str]:
    return [each.path for each in found]


def reasons(found) -> dict[str, str]:
    result = {}
    for each in found:
        try:
            each.read()
        except BadImage as error:
            result[each.path] = str(error)
    return result


def make_tar(path, members: dict[str, bytes], mode: str = "w") -> None:
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def test_folders_are_walked_in_order_and_only_images_count(photos):
    (photos / ".hidden.png").write_bytes(b"")
    (photos / "loop").symlink_to(photos)
    found = names(find_pictures([photos]))
    assert len(found) == 12
    assert found == sorted(found)
    assert found[0] == f"{photos}/n0/00.png"


def test_files_are_taken_whatever_their_name_and_globs_take_images(photos):
    assert names(find_pictures([photos / "readme.txt"])) == [str(photos / "readme.txt")]
    assert len(names(find_pictures([f"{photos}/n0/*.png"]))) == 2
    inner = photos / "n0" / "deep"
    inner.mkdir()
    (inner / "00.png").write_bytes(encoded(1))
    for pattern in ("**", "**/*", "**/*.*g", "*"):
        assert sorted(names(find_pictures([f"{photos}/{pattern}"]))) == sorted(names(find_pictures([photos]))), pattern
    odd = photos / "a[1].png"
    odd.write_bytes(encoded(1))
    assert names(find_pictures([odd])) == [str(odd)]


def test_what_is_asked_for_and_not_there_is_said_at_once(tmp_path):
    with pytest.raises(UserError, match=r"nowhere\.jpg: there is no such file"):
        find_pictures([tmp_path / "nowhere.jpg"])
    with pytest.raises(UserError, match="nothing matches"):
        find_pictures([f"{tmp_path}/*.jpg"])


def test_of_many_pictures_in_memory_one_that_is_not_there_has_a_row(photos, tmp_path):
    found = list(from_memory([photos / "n0" / "00.png", tmp_path / "gone.jpg", f"{photos}/n1/*.png"]))
    assert len(found) == 4
    assert list(reasons(found)) == [str(tmp_path / "gone.jpg")]
    with pytest.raises(UserError, match="there is no such file"):
        list(from_memory(tmp_path / "gone.jpg"))


def test_one_picture_is_told_from_several(photos):
    one = np.zeros((8, 8, 3), np.uint8)
    single = [photos / "n0" / "00.png", encoded(1), Image.fromarray(one), one, torch.zeros(3, 8, 8), one[None], [one]]
    single.append(inputs.Prepared(torch.zeros(1, 3, 8, 8)))
    assert [inputs.several(each) for each in single] == [False] * len(single)
    many = [photos, f"{photos}/*", "photos.zip", [one, one], np.stack([one, one]), torch.zeros(2, 3, 8, 8), iter([one])]
    many.append(inputs.Prepared(torch.zeros(2, 3, 8, 8)))
    assert [inputs.several(each) for each in many] == [True] * len(many)


def test_inputs_that_are_put_back_are_let_go_of():
    taken = [inputs.Input(str(number), bytes) for number in range(3)]
    kept = [weakref.ref(each) for each in taken]
    again = inputs.put_back(taken, iter([inputs.Input("3", bytes)]))
    assert next(again).path == "0"
    taken.clear()
    assert [each() is None for each in kept] == [True, False, False]
    assert names(again) == ["1", "2", "3"]


def test_a_list_on_stdin_is_read_line_by_line(photos):
    lines = io.BytesIO(os.fsencode(f"{photos}/n0/00.png\r\n\n{photos}/gone.jpg\n{photos}/n1"))
    found = list(find_pictures(["-"], lines))
    assert names(found)[:2] == [f"{photos}/n0/00.png", f"{photos}/gone.jpg"]
    assert len(found) == 2 + 4
    assert reasons(found)[f"{photos}/gone.jpg"] == "cannot be read: No such file or directory"


def test_names_that_are_no_text_are_read(tmp_path):
    (tmp_path / os.fsdecode(b"\xff\xfe.png")).write_bytes(encoded(1))
    (found,) = find_pictures([tmp_path])
    assert found.read() == encoded(1)


def test_folders_devices_and_pipes_are_not_read_as_pictures(tmp_path):
    os.mkfifo(tmp_path / "pipe.png")
    (tmp_path / "null.png").symlink_to("/dev/null")
    said = reasons(find_pictures([tmp_path]))
    assert said == {str(tmp_path / name): "is not a regular file" for name in ("null.png", "pipe.png")}


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tgz", "tar.bz2", "tar.xz"])
def test_tar_archives_are_streamed(tmp_path, ending):
    path = tmp_path / f"photos.{ending}"
    members = {"a/1.png": encoded(1), "a/readme.txt": b"no", "../../2.png": encoded(2), "a/._1.png": b"resource fork"}
    make_tar(path, members, {"tar": "w", "tgz": "w:gz"}.get(ending, f"w:{ending[4:]}"))
    found = list(find_pictures([path]))
    assert names(found) == [f"{path}::a/1.png", f"{path}::../../2.png"]
    assert [each.read() for each in found] == [encoded(1), encoded(2)]
    assert sorted(each.name for each in tmp_path.iterdir()) == [path.name]  # nothing was unpacked


def test_zip_archives_are_read_and_bad_members_have_rows(tmp_path):
    path = tmp_path / "photos.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("1.png", encoded(1))
        archive.writestr("2.png", b"\0" * 1000)
        archive.writestr("notes/", b"")
    damaged = path.read_bytes().replace(encoded(1)[:0] + b"2.png", b"3.png", 1)  # the two headers of a member disagree
    path.write_bytes(damaged)
    found = list(find_pictures([path]))
    assert names(found) == [f"{path}::1.png", f"{path}::2.png"]
    assert list(reasons(found)) == [f"{path}::2.png"]


def test_members_that_unpack_to_too_much_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(inputs, "MAX_MEMBER_BYTES", 1 << 20)
    bomb = b"\0" * (5 << 20)
    make_tar(tmp_path / "bomb.tar.gz", {"0.png": bomb, "1.png": encoded(1)}, "w:gz")
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("0.png", bomb)
        archive.writestr("1.png", encoded(1))
    for name in ("bomb.tar.gz", "bomb.zip"):
        found = list(find_pictures([tmp_path / name]))
        assert len(found) == 2
        assert reasons(found) == {f"{tmp_path / name}::0.png": "is larger than 1 MB, the limit inside archives"}


@pytest.mark.parametrize("name", ["cut.tar", "cut.tar.gz", "cut.zip", "empty.tar", "empty.zip"])
def test_damaged_archives_give_what_they_can_and_a_row(tmp_path, name):
    path = tmp_path / name
    if name.endswith("zip"):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("1.png", encoded(1))
    else:
        make_tar(path, {"1.png": encoded(1), "2.png": encoded(2)}, "w:gz" if name.endswith("gz") else "w")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) * 2 // 5] if name.startswith("cut") else b"")
    found = list(find_pictures([path]))
    assert reasons(found)
    assert all(each.path.startswith(str(path)) for each in found)


def test_a_long_tar_is_read_in_constant_memory(tmp_path):
    path = tmp_path / "long.tar"
    make_tar(path, {f"{place}.png": b"x" for place in range(500)})
    with tarfile.open(path, "r|*") as probe:
        probe.next()
        assert hasattr(probe, "members")  # what `_tar` clears
    stream = find_pictures([path])
    assert sum(1 for _ in stream) == 500


def test_python_values_of_every_kind_are_pictures(photos):
    array = np.zeros((8, 9, 3), np.uint8)
    tensor = torch.zeros(3, 8, 9)
    values = [str(photos / "n0"), photos / "n1" / "01.jpg", encoded(1), Image.fromarray(array), array, tensor]
    assert len(list(from_memory(values))) == 4 + 5
    assert len(list(from_memory(np.zeros((5, 8, 9, 3), np.uint8)))) == 5
    (one,) = from_memory(tensor)
    assert one.read().shape == (8, 9, 3)
    with pytest.raises(UserError, match="a float is not a picture"):
        list(from_memory([1.5]))
