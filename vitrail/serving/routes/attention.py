"""POST /attention, POST /attention/map and GET /model/NAME/positions."""

import asyncio
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Query, Request, Response

from vitrail.serving.attention import AttentionRequest, AttentionResult, overlay_png
from vitrail.serving.errors import ApiError
from vitrail.serving.models import ServedModel
from vitrail.serving.request_bodies import read_uploads
from vitrail.serving.routes.predictions import ModelName, json_response
from vitrail.serving.schemas import ERRORS, AttentionAnswer, AttentionMapAnswer, PositionSimilarityAnswer, image_body
from vitrail.serving.service import get_service

router = APIRouter(tags=["attention"])
_NUMBER = r"-?\d{1,6}"
Layer = Annotated[str, Query(pattern=rf"^(all|{_NUMBER})$", description="all, or a number from 0; -1 is the last")]
HeadParameter = Annotated[
    str, Query(pattern=rf"^(mean|rollout|{_NUMBER})$", description="mean, rollout, or a number from 0")
]
QueryName = Annotated[
    str,
    Query(pattern=rf"^(class|all|{_NUMBER})$", description="class: what the classifier reads; a patch; or all patches"),
]
Format = Annotated[Literal["json", "png"], Query(description="json: numbers; png: one map over the image")]
_PNG = {"model": AttentionAnswer, "content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}}


@router.post("/attention", responses={**ERRORS, 200: _PNG}, openapi_extra=image_body(many=False))
async def post_attention(
    request: Request,
    model: ModelName = None,
    layer: Layer = "-1",
    head: HeadParameter = "mean",
    query: QueryName = "class",
    format: Format = "json",  # noqa: A002  it is the parameter's name
) -> Response:
    """Shows where the model looks: in a layer and head, or by rollout over all layers, from one query patch or all.

    `attention[layer][query][row][column]` are shares of 1 over the patches; rollout has one map for all layers.
    """
    wanted = AttentionRequest(
        None if layer == "all" else int(layer),
        head if head in ("mean", "rollout") else int(head),  # pyright: ignore[reportArgumentType]
        query if query in ("class", "all") else int(query),  # pyright: ignore[reportArgumentType]
    )
    if format == "png" and (query == "all" or (layer == "all" and head != "rollout")):
        raise ApiError(422, "invalid_parameter", "a picture shows one map: choose one layer and one query")
    served, answer = await _run(request, model, wanted)
    if format == "png":
        return Response(await asyncio.to_thread(overlay_png, answer), media_type="image/png")
    document = await asyncio.to_thread(_document, served, answer, wanted)
    return json_response(document)


@router.post(
    "/attention/map", responses={**ERRORS, 200: {"model": AttentionMapAnswer}}, openapi_extra=image_body(many=False)
)
async def post_attention_map(request: Request, model: ModelName = None) -> Response:
    """Returns all attention of an image in one document for a page: base64 of uint8 [layers][heads][queries][patches].

    Queries are the class token, where there is one (`prefix`), and the patches; each row is scaled by its own largest
    value, which `scale` has (float16, the same without the last axis). Where that is too much, heads are averaged
    (`averaged`), and the grid made coarser (`coarse`). `rollout` is uint8 [patches], `distance` in pixels, `image` PNG.
    """
    served, answer = await _run(request, model, None)
    return json_response({"model": served.name, **answer})


@router.get("/model/{name}/positions", responses={**ERRORS, 200: {"model": PositionSimilarityAnswer}})
async def get_position_similarity(request: Request, name: str) -> Response:
    """Compares the embeddings of any two positions: base64 of uint8 [patches][patches], cosine -1 to 1."""
    served = get_service(request).models.get(name)
    if served.network is None:
        raise ApiError(404, "no_positions", f"the model {name[:64]!r} has no positions that can be looked at")
    return json_response({"model": served.name, **await asyncio.to_thread(lambda: served.position_similarity)})


async def _run(request: Request, model: str | None, wanted: AttentionRequest | None) -> tuple[ServedModel, Any]:
    service = get_service(request)
    served = service.models.get(model)
    served.operation("attention")
    service.check_ready(served)
    (upload,) = await read_uploads(request, 1)
    return served, await service.run_one(request, served, "attention", (upload.content, wanted))


def _document(served: ServedModel, answer: AttentionResult, wanted: AttentionRequest) -> dict[str, Any]:
    return {
        "model": served.name,
        "grid": list(answer.maps.shape[2:]),
        "layers": answer.layers,
        "head": wanted.head,
        "queries": answer.queries,
        "attention": np.round(answer.maps.astype(np.float64), 7).tolist(),
    }
