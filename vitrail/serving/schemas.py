"""The forms of requests and answers, for /openapi.json. Answers are not built from these: that would take longer."""

from typing import Any

from pydantic import BaseModel

from vitrail.serving.limits import DEFAULT_FORMATS
from vitrail.tasks import task, task_names
from vitrail.tasks.answers import object_schema


class ErrorBody(BaseModel):
    """An error: a code for programs, and a sentence for people."""

    code: str
    message: str


class ErrorAnswer(BaseModel):
    """The answer to a request that failed."""

    error: ErrorBody


class EmbeddingRow(BaseModel):
    """The features of one image, or what is wrong with it."""

    name: str | None
    values: list[float] | None
    error: ErrorBody | None


class EmbeddingsAnswer(BaseModel):
    """The answer of POST /embed: a row for each image, in their order."""

    model: str
    embeddings: list[EmbeddingRow]
    milliseconds: float


class AttentionAnswer(BaseModel):
    """The answer of POST /attention: `attention[layer][query][row][column]` are shares of 1 over the patches."""

    model: str
    grid: list[int]
    layers: list[int]
    head: int | str
    queries: list[int | str]
    attention: list[list[list[list[float]]]]


class AttentionMapAnswer(BaseModel):
    """The answer of POST /attention/map, which describes the fields."""

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


class PositionSimilarityAnswer(BaseModel):
    """The answer of GET /model/NAME/positions: base64 of uint8 [patches][patches], from minimum to maximum."""

    model: str
    grid: list[int]
    similarity: str
    minimum: float
    maximum: float


class LabelDescription(BaseModel):
    """A class: its label, and words for people."""

    label: str
    description: str


class LegendEntry(LabelDescription):
    """A class that is drawn in a picture, and its colour as CSS has it."""

    colour: str


class ModelDescription(BaseModel):
    """A model that is served."""

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
    labels_shown: list[LabelDescription]
    engine: str
    legend: list[LegendEntry] | None
    attention: bool
    positions: bool


class LimitsAnswer(BaseModel):
    """Limits on one request, and the image formats that are read."""

    max_body_bytes: int
    max_pixels: int
    max_images: int
    formats: list[str]


class ModelsAnswer(BaseModel):
    """The answer of GET /model."""

    models: list[ModelDescription]
    limits: LimitsAnswer
    version: str


class InferTensor(BaseModel):
    """A tensor of the Open Inference Protocol."""

    name: str
    shape: list[int]
    datatype: str
    data: list[Any] | None = None


class InferRequest(BaseModel):
    """A request of the Open Inference Protocol."""

    id: str | None = None
    inputs: list[InferTensor]
    outputs: list[dict[str, Any]] | None = None


class InferAnswer(BaseModel):
    """The answer of the Open Inference Protocol."""

    model_name: str
    model_version: str
    id: str | None = None
    outputs: list[InferTensor]


class ServerMetadata(BaseModel):
    """The server, as the Open Inference Protocol describes it."""

    name: str
    version: str
    extensions: list[str]


class TensorMetadata(BaseModel):
    """An input or output of a model, as the Open Inference Protocol describes it."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(BaseModel):
    """A model, as the Open Inference Protocol describes it."""

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
    """Describes the body of a route that takes one image, or `many`: what `request_bodies.read_uploads` reads."""
    one = {"image": {"type": "string", "description": "base64 of an image file"}}
    several = {"images": {"type": "array", "minItems": 1, "items": {"type": "string"}}}
    choices = [{"type": "object", "properties": one, "required": ["image"]}]
    if many:
        choices.append({"type": "object", "properties": several, "required": ["images"]})
    files: dict[str, Any] = {"type": "array", "minItems": 1, "items": _BINARY} if many else _BINARY
    content: dict[str, Any] = {f"image/{each}": {"schema": _BINARY} for each in DEFAULT_FORMATS}
    content["multipart/form-data"] = {"schema": {"type": "object", "properties": {"file": files}, "required": ["file"]}}
    content["application/json"] = {"schema": choices[0] if len(choices) == 1 else {"oneOf": choices}}
    return {"requestBody": {"required": True, "content": content}}


def infer_body() -> dict[str, Any]:
    """Describes the body of the Open Inference Protocol's infer route."""
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
