"""The application: routes, and every error as JSON."""

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from vitrail.serving import maps, page, predictions, protocol
from vitrail.serving.gate import Gate
from vitrail.serving.keys import Keys
from vitrail.serving.predictions import json_response
from vitrail.serving.refusals import ClientGone, Refusal, document, internal
from vitrail.serving.service import Service
from vitrail.version import __version__

_CODES = {404: ("not_found", "there is no such address; GET /docs lists them"), 405: ("method_not_allowed", "")}


def create_app(service: Service, keys: Keys) -> ASGIApp:
    app = FastAPI(
        title="Vitrail",
        version=__version__,
        description="Vision Transformers behind HTTP: classes, features and attention of images.",
        lifespan=service.life,
        # Ours need nothing from elsewhere; and a redirect would repeat the Host that a stranger sent.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    for each in (page, predictions, maps, protocol):
        app.include_router(each.router)

    def refuse(refusal: Refusal, headers: dict[str, str] | None = None) -> Response:
        service.metrics.rejected.labels(refusal.code).inc()
        return json_response(document(refusal), refusal.status, {**refusal.headers, **(headers or {})})

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Any) -> Response:
        return refuse(error)

    @app.exception_handler(ClientGone)
    async def gone(request: Request, error: Any) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: Any) -> Response:
        first = error.errors()[0]
        message = f"{first['loc'][-1]}: {first['msg']}"
        return refuse(Refusal(422, "invalid_parameter", message))

    @app.exception_handler(HTTPException)
    async def not_routed(request: Request, error: Any) -> Response:
        code, message = _CODES.get(error.status_code, ("bad_request", ""))
        message = message or f"{request.method} is not allowed here"
        return refuse(Refusal(error.status_code, code, message), dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Any) -> Response:
        return refuse(internal())  # the gate logs what it was

    return Gate(app, service, keys)
