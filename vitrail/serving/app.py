"""The ASGI application: the routes, behind the middleware, with every error as JSON."""

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from vitrail.serving.errors import ApiError, ClientDisconnected, error_document, internal_error
from vitrail.serving.keys import ApiKeys
from vitrail.serving.middleware import RequestMiddleware
from vitrail.serving.routes import attention, inference_protocol, page, predictions
from vitrail.serving.routes.predictions import json_response
from vitrail.serving.service import Service
from vitrail.version import __version__

_CODES = {404: ("not_found", "there is no such address; GET /docs lists them"), 405: ("method_not_allowed", "")}


def create_app(service: Service, keys: ApiKeys) -> ASGIApp:
    """Returns the application of a server whose requests must carry one of `keys`, if there are any."""
    app = FastAPI(
        title="Vitrail",
        version=__version__,
        description="Vision Transformers behind HTTP: classes, features and attention of images.",
        lifespan=service.lifespan,
        # Ours need nothing from elsewhere; and a redirect would repeat the Host that a stranger sent.
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.service = service
    for each in (page, predictions, attention, inference_protocol):
        app.include_router(each.router)

    def error_response(error: ApiError, headers: dict[str, str] | None = None) -> Response:
        service.metrics.rejected.labels(error.code).inc()
        return json_response(error_document(error), error.status, {**error.headers, **(headers or {})})

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: Any) -> Response:
        return error_response(error)

    @app.exception_handler(ClientDisconnected)
    async def gone(request: Request, error: Any) -> Response:
        return Response(status_code=499)  # nobody reads it

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: Any) -> Response:
        first = error.errors()[0]
        message = f"{first['loc'][-1]}: {first['msg']}"
        return error_response(ApiError(422, "invalid_parameter", message))

    @app.exception_handler(HTTPException)
    async def not_routed(request: Request, error: Any) -> Response:
        code, message = _CODES.get(error.status_code, ("bad_request", ""))
        message = message or f"{request.method} is not allowed here"
        return error_response(ApiError(error.status_code, code, message), dict(error.headers or {}))

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Any) -> Response:
        return error_response(internal_error())  # the middleware has logged what it was

    return RequestMiddleware(app, service, keys)
