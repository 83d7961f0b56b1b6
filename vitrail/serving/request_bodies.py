"""Reads the images out of a request's body: raw bytes, multipart files, or base64 in JSON."""

import base64
import binascii
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fastapi import Request
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from vitrail.serving.errors import ApiError, ClientDisconnected

if TYPE_CHECKING:
    from python_multipart.multipart import MultipartCallbacks

_LONGEST_NAME = 255
_MOST_VALUES = 4_000_000
_FIELD = "file"


@dataclass(frozen=True)
class Upload:
    """One image file of a request."""

    name: str | None
    """The name that the client gave the file. It stands in the answer and is used for nothing else."""
    content: bytes
    """The bytes of the file, not looked at yet."""


async def read_body(request: Request) -> bytes:
    """Reads the whole body into memory. The middleware raises an ApiError where it is too large or too slow."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise ApiError(
            415, "unsupported_encoding", f"Content-Encoding {encoding[:40]!r} is not supported: send it as it is"
        )
    chunks = []
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def read_uploads(request: Request, most: int) -> list[Upload]:
    """Reads the images of a request, one to `most` of them, in the form that its Content-Type says."""
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind.startswith(b"image/") or kind == b"application/octet-stream":
        found = [Upload(None, await read_body(request))]
    elif kind == b"multipart/form-data":
        found = from_multipart(await read_body(request), options.get(b"boundary", b""), most)
    elif kind == b"application/json":
        found = from_json(parse_request_json(await read_body(request)), most)
    else:
        raise ApiError(
            415,
            "unsupported_media_type",
            "send the image's bytes (Content-Type image/jpeg, image/png ...), multipart/form-data with a field "
            '"file", or application/json with "image" in base64',
        )
    if not found:
        raise ApiError(400, "no_image", "there is no image in the request")
    return found


def from_multipart(body: bytes, boundary: bytes, most: int) -> list[Upload]:
    """Returns the files of a form, at most `most`."""
    if not 1 <= len(boundary) <= 70:
        raise ApiError(400, "bad_multipart", "the multipart boundary must have 1 to 70 characters")
    form = _Form(most)
    try:
        parser = MultipartParser(boundary, form.callbacks())
        parser.write(body)
    except FormParserError as error:
        message = "the multipart body is damaged: it has no boundary, or a part without headers or with too many"
        raise ApiError(400, "bad_multipart", message) from error
    if not form.complete:
        raise ApiError(
            400, "bad_multipart", "the multipart body does not end with its boundary: it is damaged or cut off"
        )
    if not form.found:
        raise ApiError(400, "no_image", f'the form has no field "{_FIELD}" with an image')
    if len(form.found) > most:
        raise _too_many(most)
    return form.found


class _Form:
    """Collects the files of a form from the calls of python-multipart's parser."""

    def __init__(self, most: int) -> None:
        self.found: list[Upload] = []
        self.complete = False
        self._parts_left = 2 * most + 16  # a form may have a few other fields, which are passed over
        self._most = most
        self._header: list[bytes] = []
        self._value: list[bytes] = []
        self._options: dict[bytes, bytes] = {}
        self._content: list[bytes] = []

    def callbacks(self) -> "MultipartCallbacks":
        """Returns what the parser calls."""
        return {
            "on_part_begin": self._begin_part,
            "on_header_field": lambda data, start, end: self._header.append(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.append(data[start:end]),
            "on_header_end": self._end_header,
            "on_part_data": lambda data, start, end: self._content.append(data[start:end]),
            "on_part_end": self._end_part,
            "on_end": self._end,
        }

    def _begin_part(self) -> None:
        self._parts_left -= 1
        if self._parts_left < 0:
            raise _too_many(self._most)
        self._options, self._content = {}, []

    def _end_header(self) -> None:
        if b"".join(self._header).strip().lower() == b"content-disposition":
            self._options = parse_options_header(b"".join(self._value).strip())[1]
        self._header, self._value = [], []

    def _end_part(self) -> None:
        if self._options.get(b"name") in (_FIELD.encode(), b"files", b"image", b"images"):
            self.found.append(Upload(_file_name(self._options.get(b"filename")), b"".join(self._content)))

    def _end(self) -> None:
        self.complete = True


def _file_name(given: bytes | None) -> str | None:
    text = (given or b"").decode("utf-8", errors="replace")
    return "".join(each for each in text if each.isprintable())[:_LONGEST_NAME] or None


def parse_request_json(body: bytes) -> Any:
    """Parses a body as JSON, or raises an ApiError where it is none, or of too many values."""

    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    # The event loop waits while JSON is parsed, and a value takes many times the memory of its text.
    if sum(body.count(mark) for mark in (b",", b"[", b"{")) > _MOST_VALUES:
        raise ApiError(413, "too_many_values", f"the JSON has more than {_MOST_VALUES:,} values: send them as binary")
    try:
        return json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise ApiError(400, "bad_json", "the body is not valid JSON") from error


def from_json(document: Any, most: int) -> list[Upload]:
    """Returns the images of `{"image": BASE64}` or `{"images": [BASE64, ...]}`, at most `most`."""
    if not isinstance(document, dict) or ("image" in document) == ("images" in document):
        raise ApiError(
            400, "bad_json", 'the JSON must be an object with "image" (base64), or "images" (a list of them)'
        )
    images = [document["image"]] if "image" in document else document["images"]
    if not isinstance(images, list):
        raise ApiError(400, "bad_json", '"images" must be a list of images in base64')
    if len(images) > most:
        raise _too_many(most)
    return [Upload(None, decode_base64(image)) for image in images]


def decode_base64(text: Any) -> bytes:
    """Decodes base64, with or without `data:image/...;base64,` before it. Addresses are refused and never fetched."""
    if not isinstance(text, str):
        raise ApiError(400, "bad_json", "an image must be a string of base64")
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ApiError(
            400, "bad_base64", "an image is not valid base64 (addresses are not fetched: send the image)"
        ) from error


def _too_many(most: int) -> ApiError:
    return ApiError(413, "too_many_images", f"there are more than {most} images in one request")
