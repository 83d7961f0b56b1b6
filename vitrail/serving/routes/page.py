"""The page and its files, the description of the models (GET /model), metrics, and the description of the API."""

import base64
import hashlib
import html
import mimetypes
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request, Response

from vitrail.serving import metrics
from vitrail.serving.errors import ApiError
from vitrail.serving.middleware import POLICY
from vitrail.serving.routes.predictions import json_response
from vitrail.serving.schemas import ERRORS, ModelsAnswer
from vitrail.serving.service import get_service
from vitrail.version import __version__

router = APIRouter()
FOLDER = Path(__file__).parent.parent / "web"
_TYPES = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 50rem; margin: 2rem auto; padding: 0 1rem; }
code, th { font-family: ui-monospace, monospace; font-weight: 600; } .verb { color: #14648c; }
section { border-top: 1px solid #8884; padding: .5rem 0; }
th { text-align: left; padding-right: 1rem; vertical-align: top; }
@media (prefers-color-scheme: dark) { body { background: #16181c; color: #e6e6e6; } .verb, a { color: #7cc4ea; } }
"""


@cache
def page_files(folder: Path = FOLDER) -> dict[str, tuple[bytes, str, str]]:
    """Reads the page's folder: (content, type, tag) of each file by its name. Requests never touch the file system."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            content = path.read_bytes()
            kind = _TYPES.get(path.suffix) or mimetypes.guess_type(path.name)[0] or "application/octet-stream"
            kind += "; charset=utf-8" if kind.startswith("text/") else ""
            tag = f'"{hashlib.sha256(content).hexdigest()[:24]}"'
            found[path.relative_to(folder).as_posix()] = (content, kind, tag)
    return found


def _file(request: Request, name: str) -> Response:
    if name not in page_files():
        raise ApiError(404, "not_found", "the page has no such file")
    content, kind, tag = page_files()[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}  # kept by browsers, but asked about each time
    if tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    return Response(content, 200, headers, kind)


@router.get("/", include_in_schema=False)
async def get_page(request: Request) -> Response:
    """Returns the page."""
    return _file(request, "index.html")


@router.get("/web/{name:path}", include_in_schema=False)
async def get_page_file(request: Request, name: str) -> Response:
    """Returns a file that the page consists of."""
    return _file(request, name)


@router.get("/favicon.ico", include_in_schema=False)
async def get_favicon() -> Response:
    """Says that there is no favicon: the page names its own icon."""
    return Response(status_code=204)


@router.get("/model", responses={**ERRORS, 200: {"model": ModelsAnswer}}, tags=["server"])
async def get_models(request: Request) -> Response:
    """Lists the models that are served, the one that answers by default first, and the limits on a request."""
    service = get_service(request)
    described = [served.describe() for served in service.models]
    return json_response({"models": described, "limits": service.limits.to_json(), "version": __version__})


@router.get(
    "/metrics", tags=["server"], responses={**ERRORS, 200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
)
async def get_metrics(request: Request) -> Response:
    """Returns the metrics in Prometheus's text format."""
    return Response(get_service(request).metrics.text(), media_type=metrics.CONTENT_TYPE)


@router.get("/openapi.json", include_in_schema=False)
async def get_openapi(request: Request) -> Response:
    """Returns the description of the API for programs."""
    return json_response(request.app.openapi())


@router.get("/docs", include_in_schema=False)
async def get_docs(request: Request) -> Response:
    """Returns the description of the API for people, in one page that loads nothing else."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = POLICY.replace("style-src 'self'", f"style-src 'sha256-{digest}'")
    return Response(
        draw_docs(request.app.openapi()), 200, {"Content-Security-Policy": policy}, "text/html; charset=utf-8"
    )


def draw_docs(schema: dict[str, Any]) -> str:
    """Returns the HTML page for an OpenAPI document."""
    sections = [
        _section(path, verb, operation) for path, verbs in schema["paths"].items() for verb, operation in verbs.items()
    ]
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Vitrail API</title>'
        f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head><body>'
        f"<h1>Vitrail {html.escape(__version__)}</h1><p>{html.escape(schema['info']['description'])} "
        f'For programs: <a href="/openapi.json">/openapi.json</a>.</p>{"".join(sections)}</body></html>'
    )


def _section(path: str, verb: str, operation: dict[str, Any]) -> str:
    rows = [
        (each["name"], f"{each.get('description', '')} {_default(each)}".strip())
        for each in operation.get("parameters", [])
    ]
    if body := operation.get("requestBody"):
        rows.append(("body", ", ".join(body["content"])))
    table = "".join(f"<tr><th>{html.escape(name)}</th><td>{html.escape(words)}</td></tr>" for name, words in rows)
    words = html.escape(operation.get("description", operation.get("summary", "")))
    return (
        f'<section><h2><code><span class="verb">{verb.upper()}</span> {html.escape(path)}</code></h2>'
        f"<p>{words}</p><table>{table}</table></section>"
    )


def _default(parameter: dict[str, Any]) -> str:
    value = parameter.get("schema", {}).get("default")
    return "" if value is None else f"(default {value})"
