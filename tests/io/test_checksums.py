"""Checksums are those that `sha256sum` computes, and a fingerprint follows names and contents."""

import shutil
import subprocess

import pytest

from vitrail.errors import UserError
from vitrail.io.checksums import SUMS, digest, file_sha256, fingerprint, sum_line

ABC = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
"""The SHA-256 of "abc" in the standard, FIPS 180-4."""


def test_the_sum_of_the_standard(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert digest(tmp_path / "a") == file_sha256(tmp_path / "a") == ABC


@pytest.mark.skipif(shutil.which("sha256sum") is None, reason="no sha256sum here")
def test_sha256sum_reads_the_list(tmp_path):
    for name in ("a", "b c"):
        (tmp_path / name).write_text(name)
    (tmp_path / SUMS).write_text("".join(sum_line(tmp_path / name) for name in ("a", "b c")))
    command = ["sha256sum", "--check", "--strict", SUMS]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 0
    (tmp_path / "a").write_text("changed")
    assert subprocess.run(command, cwd=tmp_path, capture_output=True).returncode == 1


def test_a_fingerprint_follows_names_and_contents(tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "a").write_text("x")
    (folder / "b").write_text("y")
    (folder / "inner").mkdir()
    first = fingerprint(folder)
    assert first == fingerprint(folder) != fingerprint(folder / "a")
    (folder / "b").rename(folder / "c")
    assert fingerprint(folder) != first
    (folder / "c").rename(folder / "b")
    assert fingerprint(folder) == first
    (folder / "b").write_text("z")
    assert fingerprint(folder) != first


def test_what_cannot_be_read(tmp_path):
    with pytest.raises(UserError, match=r"gone: cannot be read: No such file"):
        digest(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        file_sha256(tmp_path / "gone")
