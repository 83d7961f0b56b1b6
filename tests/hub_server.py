"""A local server that speaks the hub's protocol, for the real client."""

import hashlib
import importlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from huggingface_hub import constants

from vitrail.checkpoints.published import Published

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class Hub:
    """Serves the folders under `root` as model repositories: root/owner/name/FILE."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch):
        self.root, self._patch = root, patch
        self.asked: list[str] = []
        """METHOD path, in order."""
        self.stated: dict[str, str] = {}
        """Digests that the hub states in place of the true ones, by file name."""
        self.pause, self.chunk = 0.0, 1 << 20
        """Seconds before every chunk of a file, and its bytes."""
        self.status = 200
        """What is answered to everything, where it is not 200."""

    def environment(self, **values: str) -> None:
        """Set environment variables that the client reads, here and in processes started from here."""
        for name, value in values.items():
            self._patch.setenv(name, value)
        importlib.reload(constants)  # it reads them when it is imported

    def repository(self, name: str) -> Path:
        folder = self.root / name
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def downloads(self) -> list[str]:
        """The names of the files that were fetched."""
        asked = (line.split(" ", 1) for line in self.asked)
        return [path.rpartition("/")[2] for method, path in asked if method == "GET" and "/resolve/" in path]

    def digest(self, file: Path) -> str:
        """As the hub states it: SHA-256 of large files, git's SHA-1 of the others."""
        if file.name in self.stated:
            return self.stated[file.name]
        content = file.read_bytes()
        if file.suffix == ".json":
            return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        return hashlib.sha256(content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    hub: Hub

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = self.path.split("?")[0]
        self.hub.asked.append(f"{self.command} {path}")
        parts = path.strip("/").split("/")
        if self.hub.status != 200:
            return self.reply(self.hub.status, b"")
        if parts[:2] == ["api", "models"]:
            return self.information("/".join(parts[2:4]))
        file = self.hub.root / "/".join(parts[:2]) / "/".join(parts[4:])
        if len(parts) < 5 or parts[2] != "resolve" or not file.is_file():
            return self.reply(404, b"", {"X-Error-Code": "EntryNotFound"})
        return self.reply(200, file.read_bytes(), {"ETag": f'"{self.hub.digest(file)}"', "X-Repo-Commit": COMMIT})

    def information(self, name: str) -> None:
        folder = self.hub.root / name
        if not folder.is_dir():
            return self.reply(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        files = []
        for path in sorted(folder.iterdir()):
            facts = {"rfilename": path.name, "size": path.stat().st_size, "blobId": self.hub.digest(path)}
            if path.suffix != ".json":
                facts["lfs"] = {"sha256": self.hub.digest(path), "size": path.stat().st_size, "pointerSize": 130}
            files.append(facts)
        card = {"license": "mit"}
        document = {"id": name, "sha": COMMIT, "siblings": files, "private": False, "tags": [], "cardData": card}
        return self.reply(200, json.dumps({**document, "downloads": 0}).encode(), {"Content-Type": "application/json"})

    def reply(self, status: int, content: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "HEAD":
            return
        slow = "/resolve/" in self.path
        for start in range(0, len(content), self.hub.chunk):
            time.sleep(self.hub.pause * slow)
            try:
                self.wfile.write(content[start : start + self.hub.chunk])
            except OSError:  # the client went away
                return

    def log_message(self, *_: object) -> None:
        pass


def serve(folder: Path):
    """A hub for a fixture: the client's settings, in this process and those it starts, lead to it."""
    with pytest.MonkeyPatch.context() as patch:
        hub = Hub(folder / "repositories", patch)
        server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (Handler,), {"hub": hub}))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            patch.delenv(name, raising=False)
        address = f"http://127.0.0.1:{server.server_port}"
        hub.environment(HF_ENDPOINT=address, HF_HUB_CACHE=str(folder / "cache"), NO_PROXY="127.0.0.1")
        yield hub
        server.shutdown()
        server.server_close()
    importlib.reload(constants)


def write_like_published(weights: Published, folder: Path) -> Path:
    """Random weights of the model's true size, in the layout that timm's repositories have on the hub."""
    from safetensors.torch import save_file

    from vitrail.models.build import create

    model = create(weights.name, num_classes=weights.num_classes, image_size=weights.image_size)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.02 * torch.randn(parameter.shape))
    folder.mkdir(parents=True)
    save_file(model.state_dict(), folder / weights.file)
    facts = {
        "tag": weights.id.partition(".")[2],
        "input_size": [3, weights.image_size, weights.image_size],
        "fixed_input_size": True,
        "interpolation": weights.resample,
        "crop_pct": weights.crop_fraction,
        "crop_mode": weights.crop,
        "mean": list(weights.mean),
        "std": list(weights.std),
        "num_classes": weights.num_classes,
        "first_conv": "patch_embed.proj",
        "classifier": "head",
    }
    document = {"architecture": weights.id.partition(".")[0], "num_classes": weights.num_classes}
    document |= {"num_features": model.config.width, "global_pool": "token", "pretrained_cfg": facts}
    (folder / "config.json").write_text(json.dumps(document, indent=2))
    return folder
