"""The images in a request's body: raw bytes, multipart files, or base64 in JSON."""

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from python_multipart.multipart import parse_options_header

from vitrail.serving.refusals import ClientGone, Refusal

_LONGEST_NAME = 255
_MOST_PART_HEADERS = 16 << 10
_MOST_VALUES = 4_000_000
_FIELD = "file"


@dataclass(frozen=True)
class Upload:
    name: str | None
    """The file's own, for the answer alone: nothing is written anywhere."""
    content: bytes


async def read_body(request: Request) -> bytes:
    """All of it, in memory. The gate has wrapped `receive`: too much, or too slow, ends in a Refusal there."""
    encoding = request.headers.get("content-encoding", "identity")
    if encoding != "identity":
        raise Refusal(
            415, "unsupported_encoding", f"Content-Encoding {encoding[:40]!r} is not supported: send it as it is"
        )
    chunks = []
    while True:
        message = await request.receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        chunks.append(message.get("body", b""))
        if not message.get("more_body", False):
            return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def read_uploads(request: Request, most: int) -> list[Upload]:
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    if kind.startswith(b"image/") or kind == b"application/octet-stream":
        found = [Upload(None, await read_body(request))]
    elif kind == b"multipart/form-data":
        found = from_multipart(await read_body(request), options.get(b"boundary", b""), most)
    elif kind == b"application/json":
        found = from_json(parse_json(await read_body(request)), most)
    else:
        raise Refusal(
            415,
            "unsupported_media_type",
            "send the image's bytes (Content-Type image/jpeg, image/png ...), multipart/form-data with a field "
            '"file", or application/json with "image" in base64',
        )
    if not found:
        raise Refusal(400, "no_image", "there is no image in the request")
    return found


def from_multipart(body: bytes, boundary: bytes, most: int) -> list[Upload]:
    """The files of a form, by splitting at the boundary: the body is whole, so nothing has to be parsed bytewise."""
    if not 1 <= len(boundary) <= 70:
        raise Refusal(400, "bad_multipart", "the multipart boundary must have 1 to 70 characters")
    # A form may have a few fields besides the files; they are passed over.
    parts = (b"\r\n" + body).split(b"\r\n--" + boundary, 2 * most + 16)
    if len(parts) < 2 or not parts[-1].startswith(b"--"):
        if len(parts) > 2 * most + 16:
            raise _too_many(most)
        raise Refusal(
            400, "bad_multipart", "the multipart body does not end with its boundary: it is damaged or cut off"
        )
    found = []
    for part in parts[1:-1]:
        head, separator, content = part.partition(b"\r\n\r\n")
        if not separator or len(head) > _MOST_PART_HEADERS:
            raise Refusal(400, "bad_multipart", "a part of the multipart body has no headers")
        options = _disposition(head)
        if options.get(b"name") in (_FIELD.encode(), b"files", b"image", b"images"):
            found.append(Upload(_file_name(options.get(b"filename")), content))
    if not found:
        raise Refusal(400, "no_image", f'the form has no field "{_FIELD}" with an image')
    if len(found) > most:
        raise _too_many(most)
    return found


def _disposition(head: bytes) -> dict[bytes, bytes]:
    for line in head.split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name.strip().lower() == b"content-disposition":
            return parse_options_header(value.strip())[1]
    return {}


def _file_name(given: bytes | None) -> str | None:
    text = (given or b"").decode("utf-8", errors="replace")
    return "".join(each for each in text if each.isprintable())[:_LONGEST_NAME] or None


def parse_json(body: bytes) -> Any:
    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    # Everything stands still while JSON is parsed, and a value takes many times the memory of its text.
    if sum(body.count(mark) for mark in (b",", b"[", b"{")) > _MOST_VALUES:
        raise Refusal(413, "too_many_values", f"the JSON has more than {_MOST_VALUES:,} values: send them as binary")
    try:
        return json.loads(body, parse_constant=refuse)
    except (ValueError, RecursionError) as error:
        raise Refusal(400, "bad_json", "the body is not valid JSON") from error


def from_json(document: Any, most: int) -> list[Upload]:
    if not isinstance(document, dict) or ("image" in document) == ("images" in document):
        raise Refusal(400, "bad_json", 'the JSON must be an object with "image" (base64), or "images" (a list of them)')
    images = [document["image"]] if "image" in document else document["images"]
    if not isinstance(images, list):
        raise Refusal(400, "bad_json", '"images" must be a list of images in base64')
    if len(images) > most:
        raise _too_many(most)
    return [Upload(None, decode_base64(image)) for image in images]


def decode_base64(text: Any) -> bytes:
    """Addresses are never fetched: whatever is not base64, with or without `data:image/...;base64,`, is refused."""
    if not isinstance(text, str):
        raise Refusal(400, "bad_json", "an image must be a string of base64")
    if text.startswith("data:"):
        text = text.partition(",")[2]
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise Refusal(
            400, "bad_base64", "an image is not valid base64 (addresses are not fetched: send the image)"
        ) from error


def _too_many(most: int) -> Refusal:
    return Refusal(413, "too_many_images", f"there are more than {most} images in one request")
