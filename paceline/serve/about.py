"""Define the endpoints for models, health and metrics."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response

from paceline.serve.responses import Health, Model, ModelList
from paceline.serve.serving import Serving


def about_routes(serving: Serving) -> APIRouter:
    """Build the routes of the endpoints for models, health and metrics."""
    router = APIRouter()
    models = [
        Model(id=name, created=serving.began, max_model_len=serving.llm.max_length)
        for name in serving.names
    ]

    @router.get("/v1/models")
    async def list_models() -> ModelList:
        """List the names under which clients can request the model."""
        return ModelList(data=models)

    @router.get("/v1/models/{name:path}")
    async def get_model(name: str) -> Model:
        """Describe the served model with the given name."""
        serving.check_model(name)
        return next(model for model in models if model.id == name)

    @router.get("/health", responses={503: {"model": Health}})
    async def health(response: Response) -> Health:
        """Report the server's health: status 200, or 503 during shutdown."""
        if serving.drain.begun:
            response.status_code = 503
        return Health(status="draining" if serving.drain.begun else "ok", open=serving.gate.open)

    @router.get(
        "/metrics",
        response_class=Response,
        responses={200: {"content": {CONTENT_TYPE_PLAIN_0_0_4: {}}}},
    )
    async def metrics() -> Response:
        """Report all metrics in the text format of Prometheus."""
        return Response(serving.meter.exposition(), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    return router
