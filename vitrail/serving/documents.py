"""The shapes of requests and answers, for /openapi.json. Answers are not built from these: that would take longer."""

from typing import Any

from pydantic import BaseModel

from vitrail.serving.images import FORMATS
from vitrail.tasks import task, task_names
from vitrail.tasks.base import object_schema


class Error(BaseModel):
    code: str
    message: str


class ErrorAnswer(BaseModel):
    error: Error


class Embedding(BaseModel):
    name: str | None
    values: list[float] | None
    error: Error | None


class Embeddings(BaseModel):
    model: str
    embeddings: list[Embedding]
    milliseconds: float


class Attention(BaseModel):
    model: str
    grid: list[int]
    layers: list[int]
    head: int | str
    queries: list[int | str]
    attention: list[list[list[list[float]]]]


class AttentionMap(BaseModel):
    model: str
    grid: list[int]
    depth: int
    layers: list[str]
    num_heads: int
    averaged: bool
    coarse: bool
    prefix: bool
    attention: str
    scale: str
    rollout: str
    rollout_max: float
    distance: list[list[float]]
    image: str


class Positions(BaseModel):
    model: str
    grid: list[int]
    similarity: str
    minimum: float
    maximum: float


class Label(BaseModel):
    label: str
    description: str


class ServedModel(BaseModel):
    name: str
    architecture: str
    image_size: list[int]
    channels: int
    patch_pixels: int | None
    grid: list[int] | None
    depth: int | None
    num_heads: int | None
    num_classes: int
    prefix_tokens: int
    class_token: bool
    parameters: int
    features_width: int
    labels_shown: list[Label]
    engine: str
    attention: bool
    positions: bool


class LimitsAnswer(BaseModel):
    max_body_bytes: int
    max_pixels: int
    max_images: int
    formats: list[str]


class ModelsAnswer(BaseModel):
    models: list[ServedModel]
    limits: LimitsAnswer
    version: str


class Tensor(BaseModel):
    name: str
    shape: list[int]
    datatype: str
    data: list[Any] | None = None


class InferRequest(BaseModel):
    id: str | None = None
    inputs: list[Tensor]
    outputs: list[dict[str, Any]] | None = None


class InferAnswer(BaseModel):
    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[Tensor]


class ServerMetadata(BaseModel):
    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorAnswer, "description": "What is wrong with the request, as a code and a sentence"},
    503: {"model": ErrorAnswer, "description": "Too busy or not ready: try again after Retry-After seconds"},
    504: {"model": ErrorAnswer, "description": "No answer within the deadline"},
}

_BINARY = {"type": "string", "format": "binary"}


def predictions_answer() -> dict[str, Any]:
    """Describes what /predict answers: a row for each image, with the answer that the task of its model has."""
    text, number, nothing = {"type": "string"}, {"type": "number"}, {"type": "null"}
    error = {"anyOf": [object_schema({"code": text, "message": text}), nothing]}
    rows = [
        object_schema({"name": {"anyOf": [text, nothing]}, **task(name).answer.schema(), "error": error})
        for name in task_names()
    ]
    listed = {"type": "array", "items": rows[0] if len(rows) == 1 else {"anyOf": rows}}
    document = object_schema({"model": text, "predictions": listed, "milliseconds": number})
    return {"description": "A row for each image", "content": {"application/json": {"schema": document}}}


def image_body(many: bool) -> dict[str, Any]:
    """The body of a route that takes images: what `bodies.read_uploads` reads."""
    one = {"image": {"type": "string", "description": "base64 of an image file"}}
    several = {"images": {"type": "array", "minItems": 1, "items": {"type": "string"}}}
    choices = [{"type": "object", "properties": one, "required": ["image"]}]
    if many:
        choices.append({"type": "object", "properties": several, "required": ["images"]})
    files: dict[str, Any] = {"type": "array", "minItems": 1, "items": _BINARY} if many else _BINARY
    content: dict[str, Any] = {f"image/{each.lower()}": {"schema": _BINARY} for each in FORMATS}
    content["multipart/form-data"] = {"schema": {"type": "object", "properties": {"file": files}, "required": ["file"]}}
    content["application/json"] = {"schema": choices[0] if len(choices) == 1 else {"oneOf": choices}}
    return {"requestBody": {"required": True, "content": content}}


def infer_body() -> dict[str, Any]:
    return {
        "requestBody": {
            "required": True,
            "content": {
                "application/json": {
                    "schema": InferRequest.model_json_schema(ref_template="#/components/schemas/{model}")
                }
            },
        }
    }
