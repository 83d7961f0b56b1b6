"""POST /predict and POST /embed."""

import json
import time
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response

from vitrail.inference.engines import FEATURES
from vitrail.serving.errors import ApiError
from vitrail.serving.models import ServedModel
from vitrail.serving.request_bodies import Upload, read_uploads
from vitrail.serving.schemas import ERRORS, EmbeddingsAnswer, image_body, predictions_answer
from vitrail.serving.service import get_service
from vitrail.tasks import task
from vitrail.tasks.answers import AnswerOptions, Row, ServedOptions

router = APIRouter(tags=["images"])
ModelName = Annotated[str | None, Query(description="The model's name; the first one where none is given")]
MaskForm = Annotated[
    Literal["rle", "png", "none"],
    Query(description="How masks are sent: rle: run lengths by class; png: a PNG in base64; none: only the shares"),
]
MOST_CELLS = 1 << 31
"""The most scores that are computed for one image whose answer lies in its pixels: classes times pixels."""
Top = Annotated[int, Query(ge=1, le=1000, description="How many of the most likely classes are returned")]


@router.post("/predict", responses={**ERRORS, 200: predictions_answer()}, openapi_extra=image_body(many=True))
async def post_predictions(request: Request, model: ModelName = None, top: Top = 5, mask: MaskForm = "rle") -> Response:
    """Predicts what is in one or several images. In a request of several, a bad image fails alone."""
    began = time.perf_counter()
    served, uploads, answers, _ = await _run(request, model)
    facts, asked = served.engine.facts, AnswerOptions(top)
    form = ServedOptions(mask)
    answer, meaning = task(facts.config.task).answer, facts.meaning

    def described(output: Any) -> Row:
        """Turns what the model computed of one image, or an error, into its part of the document."""
        if isinstance(output, ApiError):
            return answer.served(answer.prediction(None, None, None, meaning, asked), meaning, form)
        said = answer.prediction(None, output.values, None, meaning, asked, output.frame)
        return answer.served(said, meaning, form)

    rows = []
    checked = [too_large(served, each) for each in answers]
    if len(checked) == 1 and isinstance(checked[0][0], ApiError):
        raise checked[0][0]
    for upload, (output, size) in zip(uploads, checked, strict=True):
        # Answers in the pixels of a large picture take long: they are made beside the event loop, a few at a time.
        own = await get_service(request).apart(described, output) if size else described(output)
        rows.append({"name": upload.name, **own, "error": output.to_json() if isinstance(output, ApiError) else None})
    milliseconds = round((time.perf_counter() - began) * 1000, 2)
    return json_response({"model": served.name, "predictions": rows, "milliseconds": milliseconds})


def too_large(served: ServedModel, output: Any) -> tuple[Any, int]:
    """Returns what was computed of an image, and how many scores its answer takes; an ApiError in its place if they are
    too many."""
    if isinstance(output, ApiError) or output.frame is None:
        return output, 0
    config = served.engine.facts.config
    cells = task(config.task).answer.cells(config.num_classes, output.frame.size)
    if cells <= MOST_CELLS:
        return output, cells
    pixels = MOST_CELLS // config.num_classes
    message = f"the image is too large for an answer in its pixels: this model can answer for {pixels:,} of them"
    return ApiError(413, "image_too_large", message), 0


@router.post("/embed", responses={**ERRORS, 200: {"model": EmbeddingsAnswer}}, openapi_extra=image_body(many=True))
async def post_embeddings(request: Request, model: ModelName = None) -> Response:
    """Computes the features of one or several images: what the model's head is given."""
    served, uploads, answers, milliseconds = await _run(request, model, FEATURES)
    rows = [
        {"name": upload.name, "values": None if bad else answer.values.tolist(), "error": bad}
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
