"""Who may ask: keys, and where the server listens."""

import re
import socket
import sys

import httpx
import pytest

from tests.serving.conftest import PlayedEngine, error_of, played, raw, running
from vitrail.cli import main
from vitrail.serving.address import open_listener
from vitrail.serving.keys import ApiKeys
from vitrail.serving.limits import Limits

KEY = "correct-horse-battery-staple"
OPEN = ["/", "/web/index.html", "/web/nothing", "/v2/health/live", "/v2/health/ready", "/favicon.ico"]


@pytest.fixture(scope="module")
def locked():
    with played(PlayedEngine(), Limits(), ApiKeys([KEY, "another-key-of-the-file"])) as found:
        yield found


class TestKeys:
    def routes(self, locked) -> list[tuple[str, str]]:
        """Every route of the schema, and those it leaves out."""
        key = {"Authorization": f"Bearer {KEY}"}
        paths = httpx.get(f"{locked.url}/openapi.json", headers=key).json()["paths"]
        named = [(verb, re.sub(r"{\w+}", "played", path)) for path, verbs in paths.items() for verb in verbs]
        return [
            *named,
            ("get", "/docs"),
            ("get", "/openapi.json"),
            ("get", "/nothing"),
            ("put", "/predict"),
            ("get", "/v2/models/played/versions/1"),
            ("get", "//"),
            ("get", "/v2/health/live/"),
            ("get", "/WEB/x"),
        ]

    @pytest.mark.parametrize(
        "headers",
        [
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": f"Basic {KEY}"},
            {"Authorization": f"Bearer {KEY}x"},
            {"Authorization": f"Bearer {KEY[:-1]}"},
            {"X-API-Key": ""},
            {"X-API-Key": "é" * 20},
        ],
    )
    def test_every_route_without_or_with_a_wrong_key_is_a_401(self, locked, headers):
        encoded = [(name.encode(), value.encode()) for name, value in headers.items()]
        tried = 0
        for verb, path in self.routes(locked):
            if path in OPEN:
                continue
            answer = httpx.request(verb, locked.url + path, headers=encoded)
            assert answer.status_code == 401, (verb, path)
            assert error_of(answer) == "unauthorized"
            assert answer.headers["WWW-Authenticate"] == "Bearer"
            tried += 1
        assert tried >= 15

    def test_health_and_the_pages_files_need_none(self, locked):
        for path in OPEN:
            assert httpx.get(locked.url + path).status_code in (200, 204, 404)

    @pytest.mark.parametrize("headers", [{"Authorization": f"Bearer {KEY}"}, {"X-API-Key": "another-key-of-the-file"}])
    def test_each_key_of_the_file_opens(self, locked, headers):
        assert httpx.get(f"{locked.url}/model", headers=headers).status_code == 200

    def test_path_tricks_open_nothing(self, locked):
        for path in ("/web/../model", "/web/%2e%2e/model", "/web/..%2fmodel", "/web//model", "/web/../../keys.py"):
            answer = raw(locked.port, f"GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n".encode())
            assert b" 404 " in answer.splitlines()[0], path
            assert b"num_heads" not in answer

    def test_comparison_looks_at_every_key(self, monkeypatch):
        seen = []
        compare = __import__("hmac").compare_digest
        monkeypatch.setattr("vitrail.serving.keys.hmac.compare_digest", lambda a, b: seen.append(1) or compare(a, b))
        assert ApiKeys([KEY, "b" * 20, "c" * 20]).accepts([(b"x-api-key", KEY.encode())])
        assert len(seen) == 3


def refused(capsys, *arguments: str) -> str:
    """What `vitrail serve` says when it ends at once, with 2."""
    with pytest.raises(SystemExit) as ended:
        main(["serve", *arguments])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) <= 2
    return said


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_beyond_loopback_without_a_key_is_refused(bundle, capsys, host):
    said = refused(capsys, str(bundle), "--host", host, "--port", "0")
    assert "--api-key-file" in said
    assert "--insecure" in said


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1"])
def test_at_loopback_it_needs_none(host):
    open_listener(host, 0, open_to_all=False).close()


def test_insecure_said_aloud_opens_it():
    with open_listener("0.0.0.0", 0, open_to_all=True) as listener:
        assert listener.getsockname()[0] == "0.0.0.0"


def test_with_a_key_file_it_listens_to_all_and_asks_for_the_key(bundle, tmp_path):
    (tmp_path / "keys").write_text(f"# for tests\n\n{KEY}\n")
    with running(tmp_path, str(bundle), "--host", "0.0.0.0", "--api-key-file", str(tmp_path / "keys")) as found:
        url = f"http://127.0.0.1:{found.port}"
        assert httpx.get(f"{url}/model").status_code == 401
        assert httpx.get(f"{url}/model", headers={"X-API-Key": KEY}).status_code == 200
        assert KEY not in found.log.read_text()


@pytest.mark.parametrize(
    ("text", "words"),
    [(None, "cannot be read"), ("", "no key"), ("# a comment\n", "no key"), ("short\n", "16"), ("a b" * 9, "spaces")],
)
def test_key_files_that_are_none(bundle, tmp_path, capsys, text, words):
    if text is not None:
        (tmp_path / "keys").write_text(text)
    said = refused(capsys, str(bundle), "--api-key-file", str(tmp_path / "keys"))
    assert words in said
    assert str(tmp_path / "keys") in said


def test_a_port_that_is_taken(bundle, capsys):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert "--port" in refused(capsys, str(bundle), "--port", str(taken.getsockname()[1]))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "at least one MODEL"),
        (("nowhere",), "nowhere"),
        (("BUNDLE", "BUNDLE"), "two models would be called"),
        (("BUNDLE", "--max-batch", "0"), "--max-batch"),
        (("BUNDLE", "--workers", "0"), "--workers"),
        (("BUNDLE", "--port", "99999999"), "--port"),
        (("BUNDLE", "--host", "no.such.host.invalid"), "--host"),
    ],
)
def test_what_the_user_can_fix_is_said_in_a_line(bundle, capsys, arguments, words):
    given = [each.replace("BUNDLE", str(bundle)) for each in arguments]
    assert words in refused(capsys, *given, *([] if "--port" in given else ["--port", "0"]))


@pytest.mark.parametrize("package", ["fastapi", "uvicorn", "python_multipart", "prometheus_client"])
def test_a_missing_package_is_said_with_the_remedy(bundle, capsys, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    assert 'pip install "vitrail[serve]"' in refused(capsys, str(bundle))
