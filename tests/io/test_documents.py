"""What a JSON or text file may be is bounded in one place: size, encoding, nesting and numbers; all else is refused."""

import ast
import json
import os
import time
from pathlib import Path

import pytest

from vitrail.errors import UserError, is_out_of_memory, printable
from vitrail.io.documents import DEEPEST, parse_json, read_document, read_json, read_text
from vitrail.io.files import json_text

PACKAGE = Path(__file__).parents[2] / "vitrail"
READERS = {"io/documents.py", "serving/request_bodies.py", "checkpoints/published.py", "data/decode_pool.py"}
"""What calls json itself: the one place, and what reads no files of others: the bodies of requests, the package's own
table, and what the package's own decoding processes say."""


def test_json_there_and_back(tmp_path):
    document = {"name": "é", "values": [1, 2.5, None]}
    (tmp_path / "a.json").write_text(json_text(document), encoding="utf-8")
    assert read_json(tmp_path / "a.json") == document
    assert "é" in json_text(document), "as people read it"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1]", "must hold a JSON object, not a list"),
        (b"{", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"\xff", "is not UTF-8 text"),
        ("{}".encode("utf-16"), "is not UTF-8 text"),
        (b"[" * 200_000, "not valid JSON: it is nested too deeply"),
        (b'{"a": NaN}', "not valid JSON: NaN is no number"),
        (b'{"a": [-Infinity]}', "not valid JSON: -Infinity is no number"),
        (b'{"a": 1e999}', "not valid JSON: 1e999 is too large a number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b'{"a": ' + b"9" * 400 + b".5}", "not valid JSON: 9+ is too large a number"),
        (b'{"a\\ud800": 1}', "not valid JSON"),
        (b'{"a": ["\\uDfff"]}', "not valid JSON"),
        (None, "cannot be read: No such file"),
    ],
    ids=lambda each: str(each)[:30],
)
def test_what_is_no_json_object_is_a_user_error(tmp_path, content, message):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"a\.json: {message}") as caught:
        read_json(path)
    assert len(str(caught.value)) < 300 + len(str(path)), "a sentence, whatever the file holds"


@pytest.mark.parametrize(("depth", "fits"), [(DEEPEST, True), (DEEPEST + 1, False)])
def test_what_is_nested_deeper_than_is_allowed_is_refused(tmp_path, depth, fits):
    path = tmp_path / "a.json"
    path.write_text('{"a": ' * (depth - 1) + "{}" + "}" * (depth - 1))
    if fits:
        assert json.dumps(read_json(path)) == path.read_text()
        return
    with pytest.raises(UserError, match=f"nested more than {DEEPEST} deep"):
        read_json(path)


def test_numbers_of_a_measurement_need_not_be_finite(tmp_path):
    (tmp_path / "a.json").write_text('{"loss": NaN, "most": 1e999, "name": "1e999"}')
    assert str(read_json(tmp_path / "a.json", finite=False)) == "{'loss': nan, 'most': inf, 'name': '1e999'}"


def test_text_that_looks_suspicious_and_is_not_is_read():
    document = {"1e999": ["e" + "9" * 400, 1e300, -1e-320, "\U0001f600", 10**308]}
    assert parse_json(json.dumps(document), "a") == document
    assert parse_json(json.dumps(document, ensure_ascii=False).encode(), "a") == document


def test_a_huge_file_is_refused_unread(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"{}")
    os.truncate(path, 2**40)  # sparse: it takes no room
    began = time.process_time()
    for read in (read_json, read_document, read_text):
        with pytest.raises(UserError, match=r"a\.json: is larger than 64 MB"):
            read(path)
    assert time.process_time() - began < 1


def test_a_file_without_an_end_is_read_no_further_than_it_may_be():
    with pytest.raises(UserError, match="/dev/zero: is larger than 1 KB"):
        read_text(Path("/dev/zero"), 2**10)


def test_a_file_may_be_as_large_as_is_allowed(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"x" * 1024)
    assert read_text(tmp_path / "a.txt", 1024) == "x" * 1024
    with pytest.raises(UserError):
        read_text(tmp_path / "a.txt", 1023)


def test_nothing_else_in_the_package_reads_json():
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            name = node.func if isinstance(node, ast.Call) else None
            owner = name.value if isinstance(name, ast.Attribute) and name.attr in ("load", "loads") else None
            if isinstance(owner, ast.Name) and owner.id == "json":
                found.add(path.relative_to(PACKAGE).as_posix())
    assert found == READERS


def test_a_message_can_be_printed_and_moves_no_cursor():
    assert printable("a\x1b[2Jb\tc\udcff\x9b é 猫") == "a\\x1b[2Jb\\tc\\udcff\\x9b é 猫"
    assert printable("two\nlines") == "two\nlines"


def test_a_lack_of_memory_is_told_from_other_errors():
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes"))
    assert is_out_of_memory(OSError(12, "Cannot allocate memory"))
    assert is_out_of_memory(ImportError("libtorch.so: failed to map segment from shared object"))
    assert not is_out_of_memory(RuntimeError("the shapes do not fit"))
    assert not is_out_of_memory(ValueError("cannot allocate"))
