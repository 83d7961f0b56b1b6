"""POST /predict and POST /embed."""

import json
import time
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from vitrail.inference.engines import FEATURES
from vitrail.serving.errors import ApiError
from vitrail.serving.models import ServedModel
from vitrail.serving.request_bodies import Upload, read_uploads
from vitrail.serving.schemas import ERRORS, EmbeddingsAnswer, image_body, predictions_answer
from vitrail.serving.service import get_service
from vitrail.tasks import task
from vitrail.tasks.answers import AnswerOptions

router = APIRouter(tags=["images"])
ModelName = Annotated[str | None, Query(description="The model's name; the first one where none is given")]
Top = Annotated[int, Query(ge=1, le=1000, description="How many of the most likely classes are returned")]


@router.post("/predict", responses={**ERRORS, 200: predictions_answer()}, openapi_extra=image_body(many=True))
async def post_predictions(request: Request, model: ModelName = None, top: Top = 5) -> Response:
    """Predicts what is in one or several images. In a request of several, a bad image fails alone."""
    served, uploads, answers, milliseconds = await _run(request, model)
    facts, asked = served.engine.facts, AnswerOptions(top)
    answer, meaning = task(facts.config.task).answer, facts.meaning
    rows = []
    for upload, output, bad in _with_errors(uploads, answers):
        said = answer.prediction(None, None if bad else output, None, meaning, asked).to_json()
        own = {key: value for key, value in said.items() if key not in ("path", "error")}
        rows.append({"name": upload.name, **own, "error": bad})
    return json_response({"model": served.name, "predictions": rows, "milliseconds": milliseconds})


@router.post("/embed", responses={**ERRORS, 200: {"model": EmbeddingsAnswer}}, openapi_extra=image_body(many=True))
async def post_embeddings(request: Request, model: ModelName = None) -> Response:
    """Computes the features of one or several images: what the model's head is given."""
    served, uploads, answers, milliseconds = await _run(request, model, FEATURES)
    rows = [
        {"name": upload.name, "values": None if bad else answer.tolist(), "error": bad}
        for upload, answer, bad in _with_errors(uploads, answers)
    ]
    return json_response({"model": served.name, "embeddings": rows, "milliseconds": milliseconds})


async def _run(
    request: Request, model: str | None, output: str | None = None
) -> tuple[ServedModel, list[Upload], list[Any], float]:
    """Returns the model, the images, an answer or ApiError for each, and the milliseconds that took.

    The error of a single image is raised.
    """
    service, began = get_service(request), time.perf_counter()
    served = service.models.get(model)
    what = output or served.output
    served.operation(what)
    service.check_ready(served)
    uploads = await read_uploads(request, service.limits.max_images)
    answers = await service.run(request, served, what, [upload.content for upload in uploads])
    if len(answers) == 1 and isinstance(answers[0], ApiError):
        raise answers[0]
    return served, uploads, answers, round((time.perf_counter() - began) * 1000, 2)


def _with_errors(uploads: list[Upload], answers: list[Any]) -> list[tuple[Upload, Any, dict[str, str] | None]]:
    return [
        (upload, answer, answer.to_json() if isinstance(answer, ApiError) else None)
        for upload, answer in zip(uploads, answers, strict=True)
    ]


def json_response(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Returns a document as an answer in JSON. It takes less time than FastAPI's own."""
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode(), status, headers, "application/json")
