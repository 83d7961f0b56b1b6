"""Errors that a client is told: a status, a code for programs, and a sentence for people."""

from typing import Any


class ApiError(Exception):
    """An error whose status, code and message are the answer to a request.

    Nothing else about what went wrong leaves the server. With `retry_after` the client is told to try again after so
    many seconds; with `close` the connection ends after the answer, and the rest of the request is not read.
    """

    def __init__(self, status: int, code: str, message: str, *, retry_after: int | None = None, close: bool = False):
        super().__init__(message)
        self.status, self.code, self.message = status, code, message
        self.retry_after, self.close = retry_after, close

    def to_json(self) -> dict[str, str]:
        """Returns code and message, as they stand in the answer."""
        return {"code": self.code, "message": self.message}

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer that only this error has."""
        found = {"Connection": "close"} if self.close else {}
        return found if self.retry_after is None else {**found, "Retry-After": str(self.retry_after)}


class ClientDisconnected(Exception):
    """Ends the work on a request whose client has left."""


def error_document(error: ApiError) -> dict[str, Any]:
    """Returns the body of the answer: `{"error": {"code": ..., "message": ...}}`."""
    return {"error": error.to_json()}


def busy_error(reason: str) -> ApiError:
    """Returns the error 503 for a server that has no room, and for what."""
    return ApiError(503, "busy", f"{reason}; try again in a second", retry_after=1)


def internal_error() -> ApiError:
    """Returns the error 500 for a bug of ours, which says nothing about it."""
    return ApiError(500, "internal", "something went wrong inside the server; its log says what, under the request id")
