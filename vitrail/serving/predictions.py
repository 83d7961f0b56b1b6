"""POST /predict and POST /embed."""

import json
import time
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from vitrail.inference.engines.facts import Facts
from vitrail.serving.bodies import Upload, read_uploads
from vitrail.serving.documents import ERRORS, Embeddings, Predictions, image_body
from vitrail.serving.models import Served
from vitrail.serving.refusals import Refusal
from vitrail.serving.service import service_of

router = APIRouter(tags=["images"])
ModelName = Annotated[str | None, Query(description="The model's name; the first one where none is given")]
Top = Annotated[int, Query(ge=1, le=1000, description="So many of the most likely classes")]


@router.post("/predict", responses={**ERRORS, 200: {"model": Predictions}}, openapi_extra=image_body(many=True))
async def predict(request: Request, model: ModelName = None, top: Top = 5) -> Response:
    """The most likely classes of one or several images. In a request of several, a bad image fails alone."""
    served, uploads, answers, milliseconds = await _run(request, model, "logits")
    rows = [
        {"name": upload.name, "top": [] if bad else guesses(answer, served.engine.facts, top), "error": bad}
        for upload, answer, bad in _with_errors(uploads, answers)
    ]
    return json_response({"model": served.name, "predictions": rows, "milliseconds": milliseconds})


@router.post("/embed", responses={**ERRORS, 200: {"model": Embeddings}}, openapi_extra=image_body(many=True))
async def embed(request: Request, model: ModelName = None) -> Response:
    """The features of one or several images: what the model's head is given."""
    served, uploads, answers, milliseconds = await _run(request, model, "features")
    rows = [
        {"name": upload.name, "values": None if bad else answer.tolist(), "error": bad}
        for upload, answer, bad in _with_errors(uploads, answers)
    ]
    return json_response({"model": served.name, "embeddings": rows, "milliseconds": milliseconds})


async def _run(request: Request, model: str | None, what: str) -> tuple[Served, list[Upload], list[Any], float]:
    service, began = service_of(request), time.perf_counter()
    served = service.models.get(model)
    served.lane(what)
    service.accepting(served)
    uploads = await read_uploads(request, service.limits.max_images)
    answers = await service.answers(request, served, what, [upload.content for upload in uploads])
    if len(answers) == 1 and isinstance(answers[0], Refusal):
        raise answers[0]
    return served, uploads, answers, round((time.perf_counter() - began) * 1000, 2)


def _with_errors(uploads: list[Upload], answers: list[Any]) -> list[tuple[Upload, Any, dict[str, str] | None]]:
    return [
        (upload, answer, answer.to_json() if isinstance(answer, Refusal) else None)
        for upload, answer in zip(uploads, answers, strict=True)
    ]


def guesses(logits: np.ndarray, facts: Facts, top: int) -> list[dict[str, Any]]:
    """As `vitrail predict` gives them: softmax, and of equal scores the earlier class first."""
    scores = np.exp(logits - logits.max(), dtype=np.float64)
    scores /= scores.sum()
    found = []
    for index in np.argsort(-logits, kind="stable")[:top]:
        label, description = facts.label(int(index))
        found.append({"label": label, "description": description, "score": float(scores[index])})
    return found


def json_response(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    text = json.dumps(document, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return Response(text.encode(), status, headers, "application/json")
