"""The Open Inference Protocol, version 2 (KServe, Triton): tensors or image files in, logits or features out.

Tensors are in JSON, or raw behind the JSON as the binary tensor extension has it: the header
Inference-Header-Content-Length says where JSON ends and `binary_data_size` how long each tensor is.
"""

import json
import math
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response

from vitrail.inference.engines import FEATURES
from vitrail.serving.errors import ApiError
from vitrail.serving.models import ServedModel
from vitrail.serving.request_bodies import decode_base64, parse_request_json, read_body
from vitrail.serving.routes.predictions import json_response
from vitrail.serving.schemas import ERRORS, InferAnswer, ModelMetadata, ServerMetadata, infer_body
from vitrail.serving.service import get_service
from vitrail.tasks import task
from vitrail.version import __version__

router = APIRouter(prefix="/v2", tags=["open inference protocol"])
VERSION = "1"
"""The version of every model: one is served at a time."""
_HEADER = "Inference-Header-Content-Length"


@router.get("", responses={**ERRORS, 200: {"model": ServerMetadata}})
async def get_server_metadata() -> Response:
    """Describes the server."""
    return json_response({"name": "vitrail", "version": __version__, "extensions": ["binary_tensor_data"]})


@router.get("/health/live", responses=ERRORS)
async def get_live() -> Response:
    """Answers 200 as long as the process runs."""
    return json_response({"live": True})


@router.get("/health/ready", responses=ERRORS)
async def get_ready(request: Request) -> Response:
    """Answers 200 if every model has been warmed up and answers, and 503 if not, or while the server drains."""
    service = get_service(request)
    answers = service.ready() and not service.draining
    return json_response({"ready": answers}, 200 if answers else 503)


@router.get("/models/{name}", responses={**ERRORS, 200: {"model": ModelMetadata}})
@router.get("/models/{name}/versions/{version}", responses=ERRORS, include_in_schema=False)
async def get_model_metadata(request: Request, name: str, version: str = VERSION) -> Response:
    """Describes the inputs and outputs of a model."""
    served = _served(request, name, version)
    facts = served.engine.facts
    answered = task(facts.config.task).answer.output_shape(facts.config)
    shapes = {served.output: answered, FEATURES: (facts.features_width,)}
    return json_response(
        {
            "name": served.name,
            "versions": [VERSION],
            "platform": f"vitrail_{served.engine.name}",
            "inputs": [{"name": "images", "datatype": "FP32", "shape": [-1, *facts.input_shape]}],
            "outputs": [
                {"name": each, "datatype": "FP32", "shape": [-1, *shapes[each]]}
                for each in shapes
                if each in served.operations
            ],
        }
    )


@router.get("/models/{name}/ready", responses=ERRORS)
@router.get("/models/{name}/versions/{version}/ready", responses=ERRORS, include_in_schema=False)
async def get_model_ready(request: Request, name: str, version: str = VERSION) -> Response:
    """Answers 200 if the model has been warmed up and answers, and 503 if not."""
    served = _served(request, name, version)
    answers = get_service(request).ready(served)
    return json_response({"name": served.name, "ready": answers}, 200 if answers else 503)


@router.post("/models/{name}/infer", responses={**ERRORS, 200: {"model": InferAnswer}}, openapi_extra=infer_body())
@router.post("/models/{name}/versions/{version}/infer", responses=ERRORS, include_in_schema=False)
async def post_infer(request: Request, name: str, version: str = VERSION) -> Response:
    """Computes the output of the model's task (the default; `logits` for classes) and `features`.

    The input is `images`, FP32 [n, channels, rows, columns], prepared as the model wants them; or `image`, BYTES [n],
    image files in base64 (raw in the binary form).
    """
    service, served = get_service(request), _served(request, name, version)
    service.check_ready(served)
    document, tail = _split(await read_body(request), request.headers.get(_HEADER))
    wanted = _wanted(document, served)
    contents = _contents(document, tail, served, service.limits.max_images)
    outputs, raw = [], b""
    for output, binary in wanted:
        answers = await service.run(request, served, output, contents)
        for answer in answers:
            if isinstance(answer, ApiError):
                raise answer
        values = np.stack([answer.values for answer in answers]).astype("<f4")
        described: dict[str, Any] = {"name": output, "datatype": "FP32", "shape": list(values.shape)}
        if binary:
            described["parameters"] = {"binary_data_size": values.nbytes}
            raw += values.tobytes()
        else:
            described["data"] = values.ravel().tolist()
        outputs.append(described)
    answer: dict[str, Any] = {"model_name": served.name, "model_version": VERSION, "outputs": outputs}
    if document.get("id"):
        answer["id"] = str(document["id"])[:256]
    if not raw:
        return json_response(answer)
    head = json.dumps(answer, separators=(",", ":")).encode()
    return Response(head + raw, 200, {_HEADER: str(len(head))}, "application/octet-stream")


def _served(request: Request, name: str, version: str) -> ServedModel:
    if version != VERSION:
        raise ApiError(404, "no_such_version", f"the only version of a model is {VERSION}")
    return get_service(request).models.get(name)


def _split(body: bytes, header_length: str | None) -> tuple[dict[str, Any], bytes]:
    length = len(body)
    if header_length is not None:
        if not header_length.isascii() or not header_length.isdigit() or int(header_length[:12]) > len(body):
            raise _bad(f"{_HEADER} must be a number of bytes within the body")
        length = int(header_length)
    document = parse_request_json(body[:length])
    if not isinstance(document, dict):
        raise _bad('the request must be a JSON object with "inputs"')
    return document, body[length:]


def _wanted(document: dict[str, Any], served: ServedModel) -> list[tuple[str, bool]]:
    """Returns the names of the outputs that are asked for, each with whether it is sent raw."""
    parameters = document.get("parameters")
    binary = isinstance(parameters, dict) and parameters.get("binary_data_output") is True
    outputs = document.get("outputs")
    if not outputs:
        return [(served.output if served.output in served.operations else FEATURES, binary)]
    if (
        not isinstance(outputs, list)
        or not all(isinstance(each, dict) for each in outputs)
        or len(outputs) > 2  # the task's, and the features
    ):
        raise _bad('"outputs" must be a list of objects with a name')
    found, known = [], (served.output, FEATURES)
    for each in outputs:
        if each.get("name") not in known:
            raise _bad(f"there is no output {str(each.get('name'))[:64]!r}; there are {', '.join(known)}")
        served.operation(each["name"])
        own = each.get("parameters")
        own = own if isinstance(own, dict) else {}
        if own.get("classification"):
            raise _bad("the classification extension is not supported; POST /predict gives the most likely classes")
        found.append((each["name"], bool(own.get("binary_data", binary))))
    return found


def _contents(document: dict[str, Any], tail: bytes, served: ServedModel, most: int) -> list[Any]:
    inputs = document.get("inputs")
    if not isinstance(inputs, list) or len(inputs) != 1 or not isinstance(inputs[0], dict):
        raise _bad('"inputs" must be a list with one tensor: images (FP32), or image (BYTES)')
    given = inputs[0]
    shape, kind = given.get("shape"), given.get("datatype")
    if not isinstance(shape, list) or not all(type(side) is int and 0 <= side <= 2**31 for side in shape) or not shape:
        raise _bad('"shape" must be a list of whole numbers')
    expected = {("images", "FP32"): [shape[0], *served.engine.facts.input_shape], ("image", "BYTES"): shape[:1]}
    wanted = expected.get((given.get("name"), kind))  # pyright: ignore[reportArgumentType]
    if wanted is None:
        raise _bad("the input must be images (FP32), or image (BYTES)")
    if shape != wanted and not (kind == "BYTES" and math.prod(shape) == shape[0]):
        raise _bad(f"the model {served.name!r} takes {given['name']} of shape {[-1, *wanted[1:]]}, not {shape[:8]}")
    if not 1 <= shape[0] <= most:
        raise ApiError(413, "too_many_images", f"a request holds 1 to {most} images, not {shape[0]}")
    raw = _raw(given, tail)
    if kind == "BYTES":
        return _files(given, raw, shape[0])
    return list(_numbers(given, raw, shape))


def _raw(given: dict[str, Any], tail: bytes) -> bytes | None:
    parameters = given.get("parameters")
    size = parameters.get("binary_data_size") if isinstance(parameters, dict) else None
    if size is None:
        if tail:
            raise _bad("there are bytes after the JSON, but no input has a binary_data_size")
        return None
    if type(size) is not int or size != len(tail):
        raise _bad(f"binary_data_size must be the {len(tail)} bytes after the JSON")
    return tail


def _numbers(given: dict[str, Any], raw: bytes | None, shape: list[int]) -> np.ndarray:
    count = math.prod(shape)
    if raw is None:
        try:
            with np.errstate(over="ignore"):
                values = np.asarray(given.get("data"), dtype=np.float32)
        except (ValueError, TypeError, OverflowError) as error:
            raise _bad('"data" must be a list of numbers') from error
    elif len(raw) != 4 * count:
        raise _bad(f"the shape {shape} needs {4 * count} bytes, but there are {len(raw)}")
    else:
        values = np.frombuffer(raw, "<f4").astype(np.float32)
    if values.size != count or values.ndim < 1:
        raise _bad(f"the shape {shape} needs {count} numbers, but there are {values.size}")
    if not np.isfinite(values).all():
        raise _bad("the numbers must be finite in 32 bits")
    return values.reshape(shape)


def _files(given: dict[str, Any], raw: bytes | None, count: int) -> list[bytes]:
    if raw is None:
        data = given.get("data")
        if not isinstance(data, list) or len(data) != count:
            raise _bad(f'"data" must be a list of {count} images in base64')
        return [decode_base64(each) for each in data]
    files, start = [], 0
    while start < len(raw):
        stop = start + 4 + int.from_bytes(raw[start : start + 4], "little")
        if stop > len(raw) or len(files) == count:
            raise _bad("the lengths of the BYTES elements do not fit the data")
        files.append(raw[start + 4 : stop])
        start = stop
    if len(files) != count:
        raise _bad(f"the shape says {count} images, but there are {len(files)}")
    return files


def _bad(message: str) -> ApiError:
    return ApiError(400, "bad_request", message)
