"""hf:owner/name through the real client, against a local server that speaks the hub's protocol."""

import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import torch

import vitrail
from tests.conftest import pictures, toy
from vitrail.checkpoints.convert import convert
from vitrail.errors import UserError

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """Serves the folders under `repos` as model repositories; yields (folder, paths asked for)."""
    root, asked = tmp_path / "repos", []

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self):
            self.answer(body=False)

        def do_GET(self):
            self.answer(body=True)

        def answer(self, body: bool):
            path = self.path.split("?")[0]
            asked.append(path)
            parts = path.strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                return self.listing("/".join(parts[2:4]), "tree" in parts, body)
            file = root / "/".join(parts[:2]) / "/".join(parts[4:])
            if len(parts) < 5 or parts[2] != "resolve" or not file.is_file():
                return self.reply(404, b"", {"X-Error-Code": "EntryNotFound"}, body)
            content = file.read_bytes()
            tag = hashlib.sha256(content).hexdigest()
            return self.reply(200, content, {"ETag": f'"{tag}"', "X-Repo-Commit": COMMIT}, body)

        def listing(self, name: str, tree: bool, body: bool):
            folder = root / name
            if not folder.is_dir():
                return self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"}, body)
            sizes = {path.name: path.stat().st_size for path in folder.iterdir()}
            if tree:
                document = [{"type": "file", "path": k, "size": v, "oid": "0" * 40} for k, v in sizes.items()]
            else:
                files = [{"rfilename": name} for name in sizes]
                document = {"id": name, "sha": COMMIT, "siblings": files, "private": False, "tags": [], "downloads": 0}
            return self.reply(200, json.dumps(document).encode(), {"Content-Type": "application/json"}, body)

        def reply(self, status: int, content: bytes, headers: dict[str, str], body: bool):
            self.send_response(status)
            for name, value in {"Content-Length": str(len(content)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if body:
                self.wfile.write(content)

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    from huggingface_hub import constants

    endpoint = f"http://127.0.0.1:{server.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", endpoint)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", endpoint + "/{repo_id}/resolve/{revision}/{filename}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("huggingface_hub.hf_api.api.endpoint", endpoint)
    yield root, asked
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("layout", ["bundle", "timm", "huggingface"])
def test_every_folder_layout(hub, tmp_path, layout):
    root, asked = hub
    model = toy()
    vitrail.save(model, tmp_path / "bundle")
    convert(tmp_path / "bundle", root / "someone" / "tiny-vit", layout, check=False)
    (root / "someone/tiny-vit/evil.py").write_text("raise SystemExit")
    again = vitrail.load("hf:someone/tiny-vit")
    with torch.no_grad():
        assert torch.equal(again(pictures(model)), model(pictures(model)))
    assert not any("evil" in path for path in asked), "code is never fetched"


def test_pickled_weights_only_where_there_is_nothing_better(hub, tmp_path):
    root, asked = hub
    model = toy()
    vitrail.save(model, tmp_path / "bundle")
    convert(tmp_path / "bundle", tmp_path / "hf", "huggingface", check=False)
    folder = root / "someone" / "old-vit"
    folder.mkdir(parents=True)
    (folder / "config.json").write_bytes((tmp_path / "hf/config.json").read_bytes())
    from safetensors.torch import load_file

    torch.save(load_file(tmp_path / "hf/model.safetensors"), folder / "pytorch_model.bin")
    again = vitrail.load("hf:someone/old-vit")
    assert again.config.width == model.config.width
    assert any(path.endswith("pytorch_model.bin") for path in asked)


def test_a_missing_repository_is_a_sentence(hub):
    with pytest.raises(UserError, match="hf:no/body"):
        vitrail.load("hf:no/body")


@pytest.mark.parametrize("name", ["hf:", "hf:onlyname", "hf:../../etc/passwd", "hf:a/b/c"])
def test_names_that_are_none(name):
    with pytest.raises(UserError, match="hf:owner/name"):
        vitrail.load(name)
