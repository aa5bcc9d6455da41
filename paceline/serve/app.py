"""Build the FastAPI application of the server."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from contextlib import asynccontextmanager

from fastapi import FastAPI

from paceline import __version__
from paceline.llm import LLM
from paceline.serve.about import about_routes
from paceline.serve.chat import chat_routes
from paceline.serve.completions import completion_routes
from paceline.serve.errors import ErrorBody, handle_errors
from paceline.serve.limits import BodyLimitMiddleware
from paceline.serve.page import page_routes
from paceline.serve.protocols.messages import message_routes
from paceline.serve.protocols.responses import response_routes
from paceline.serve.request_log import ApiKeyMiddleware, RequestLogMiddleware
from paceline.serve.serving import Serving
from paceline.serve.settings import Settings

_KIB = 1024


def create_app(llm: LLM, settings: Settings = Settings(), api_keys: Iterable[str] = ()) -> FastAPI:
    """Build a FastAPI application that serves a model.

    The `Serving` object of the application is available as `app.state.serving`.

    Args:
        llm: Model to serve; it must have a tokenizer.
        settings: Limits on client requests.
        api_keys: Valid API keys. Every API request must send one of them. Default: requests need
            no key.
    Raises:
        ConfigError: The model has no tokenizer.
    """
    serving = Serving(llm, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None, None]:
        yield
        serving.close()

    refused = {"model": ErrorBody, "description": "The request was refused or ended early."}
    app = FastAPI(
        title="paceline",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
        responses={"4XX": refused, "5XX": refused},
    )
    app.state.serving = serving
    handle_errors(app)
    for routes in (
        completion_routes,
        chat_routes,
        response_routes,
        message_routes,
        about_routes,
    ):
        app.include_router(routes(serving))
    keys = tuple(api_keys)
    app.include_router(page_routes(serving, wants_key=bool(keys)))
    app.add_middleware(BodyLimitMiddleware, max_bytes=settings.max_body * _KIB)
    app.add_middleware(ApiKeyMiddleware, keys=keys)
    app.add_middleware(RequestLogMiddleware, serving=serving)  # outermost, to see every request
    return app
