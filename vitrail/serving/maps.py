"""POST /attention, POST /attention/map and GET /model/NAME/positions."""

import asyncio
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from vitrail.serving.attention import Answer, Question, overlay_png, positions
from vitrail.serving.bodies import read_uploads
from vitrail.serving.documents import ERRORS, Attention, AttentionMap, Positions, image_body
from vitrail.serving.models import Served
from vitrail.serving.predictions import ModelName, json_response
from vitrail.serving.refusals import Refusal
from vitrail.serving.service import service_of

router = APIRouter(tags=["attention"])
_NUMBER = r"-?\d{1,6}"
Layer = Annotated[str, Query(pattern=rf"^(all|{_NUMBER})$", description="all, or a number from 0; -1 is the last")]
Head = Annotated[str, Query(pattern=rf"^(mean|rollout|{_NUMBER})$", description="mean, rollout, or a number from 0")]
Asks = Annotated[
    str,
    Query(pattern=rf"^(class|all|{_NUMBER})$", description="class: what the classifier reads; a patch; or all patches"),
]
Format = Annotated[Literal["json", "png"], Query(description="json: numbers; png: one map over the image")]
_PNG = {"model": Attention, "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}}


@router.post("/attention", responses={**ERRORS, 200: _PNG}, openapi_extra=image_body(many=False))
async def attention(
    request: Request,
    model: ModelName = None,
    layer: Layer = "-1",
    head: Head = "mean",
    query: Asks = "class",
    format: Format = "json",  # noqa: A002  it is the parameter's name
) -> Response:
    """Where the model looks: of a layer and a head, or by rollout over all layers, from one query patch or all.

    `attention[layer][query][row][column]` are shares of 1 over the patches; rollout has one map for all layers.
    """
    asked = Question(
        None if layer == "all" else int(layer),
        head if head in ("mean", "rollout") else int(head),  # pyright: ignore[reportArgumentType]
        query if query in ("class", "all") else int(query),  # pyright: ignore[reportArgumentType]
    )
    if format == "png" and (query == "all" or (layer == "all" and head != "rollout")):
        raise Refusal(422, "invalid_parameter", "a picture shows one map: choose one layer and one query")
    served, answer = await _run(request, model, asked)
    if format == "png":
        return Response(await asyncio.to_thread(overlay_png, answer), media_type="image/png")
    document = await asyncio.to_thread(_document, served, answer, asked)
    return json_response(document)


@router.post("/attention/map", responses={**ERRORS, 200: {"model": AttentionMap}}, openapi_extra=image_body(many=False))
async def attention_map(request: Request, model: ModelName = None) -> Response:
    """All of an image's attention in one document for a page: base64 of uint8 [layers][heads][queries][patches].

    Queries are the class token, where there is one (`prefix`), and the patches; each row is scaled by its own largest
    value, which `scale` has (float16, the same without the last axis). Where that is too much, heads are averaged
    (`averaged`), and the grid made coarser (`coarse`). `rollout` is uint8 [patches], `distance` in pixels, `image` PNG.
    """
    served, answer = await _run(request, model, None)
    return json_response({"model": served.name, **answer})


@router.get("/model/{name}/positions", responses={**ERRORS, 200: {"model": Positions}})
async def position_map(request: Request, name: str) -> Response:
    """How alike the embeddings of any two positions are: base64 of uint8 [patches][patches], cosine -1 to 1."""
    served = service_of(request).models.get(name)
    if served.network is None:
        raise Refusal(404, "no_positions", f"the model {name[:64]!r} has no positions that can be looked at")
    return json_response({"model": served.name, **await asyncio.to_thread(positions, served.network)})


async def _run(request: Request, model: str | None, asked: Question | None) -> tuple[Served, Any]:
    service = service_of(request)
    served = service.models.get(model)
    served.lane("attention")
    service.accepting(served)
    (upload,) = await read_uploads(request, 1)
    return served, await service.one(request, served, "attention", (upload.content, asked))


def _document(served: Served, answer: Answer, asked: Question) -> dict[str, Any]:
    return {
        "model": served.name,
        "grid": list(answer.maps.shape[2:]),
        "layers": answer.layers,
        "head": asked.head,
        "queries": answer.queries,
        "attention": np.round(answer.maps.astype(np.float64), 7).tolist(),
    }
