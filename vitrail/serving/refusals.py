"""What a client is told when it does not get what it asked for: a status, a code, a sentence."""

from typing import Any


class Refusal(Exception):
    """Becomes `{"error": {"code": ..., "message": ...}}`; nothing else about what went wrong leaves the server."""

    def __init__(self, status: int, code: str, message: str, *, retry_after: int | None = None):
        super().__init__(message)
        self.status, self.code, self.message, self.retry_after = status, code, message, retry_after

    def to_json(self) -> dict[str, str]:
        return {"code": self.code, "message": self.message}

    @property
    def headers(self) -> dict[str, str]:
        if self.status == 408:
            return {"Connection": "close"}  # the rest of it is not waited for
        return {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


def document(refusal: Refusal) -> dict[str, Any]:
    return {"error": refusal.to_json()}


def busy(what: str) -> Refusal:
    return Refusal(503, "busy", f"{what}; try again in a second", retry_after=1)


def internal() -> Refusal:
    return Refusal(500, "internal", "something went wrong inside the server; its log says what, under the request id")
