"""Define error responses in the format that OpenAI clients expect."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from paceline.errors import CapacityError, ConfigError, PacelineError
from paceline.serve.protocol_settings import CLIENT_CLOSED, MESSAGES_PATH

_TYPES: dict[int, str] = {
    HTTPStatus.UNAUTHORIZED: "authentication_error",
    HTTPStatus.NOT_FOUND: "not_found_error",
    HTTPStatus.REQUEST_ENTITY_TOO_LARGE: "request_too_large",
    HTTPStatus.TOO_MANY_REQUESTS: "rate_limit_error",
    HTTPStatus.SERVICE_UNAVAILABLE: "overloaded_error",
    HTTPStatus.GATEWAY_TIMEOUT: "timeout_error",
}
_FIELD_IN_MESSAGE = re.compile(r"(\w+)(?: \d+|(?:\.\w+)+)?: ")
# Names that pydantic uses for errors, and for the alternatives in a union.
_BOUND_ERRORS = {"greater_than", "greater_than_equal", "less_than", "less_than_equal"}
_OBJECT_ERRORS = {"dict_type", "model_type", "model_attributes_type"}
_ALTERNATIVES = {
    "str",
    "int",
    "float",
    "bool",
    "none",
    "dict",
    "list",
    "is-instance",
}
_log = logging.getLogger("paceline.serve")


class ErrorDetail(BaseModel):
    """Describes an error: message, type, request field and code."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """Body of every error response (status 400 or above)."""

    error: ErrorDetail


class ApiError(Exception):
    """An error that the server reports to the client with an HTTP status.

    Args:
        status: HTTP status of the response.
        message: Text for the client: what happened and how to fix it.
        param: Name of the invalid request field; None if no single field is invalid.
        code: OpenAI's error code, if clients expect one.
        headers: Additional HTTP headers of the response.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.code, self.headers = (
            status,
            message,
            param,
            code,
            headers,
        )

    @staticmethod
    def from_exception(error: BaseException) -> ApiError:
        """Convert any exception to an error response, and log unexpected exceptions."""
        match error:
            case ApiError():
                return error
            case CapacityError():
                return ApiError(400, str(error), code="context_length_exceeded")
            case ConfigError():
                match = _FIELD_IN_MESSAGE.match(str(error))
                return ApiError(400, str(error), match[1] if match else None)
            case TimeoutError():
                return ApiError(
                    504,
                    "The answer exceeded the time limit. Request fewer tokens, or raise --timeout.",
                )
            case MemoryError():
                return ApiError(
                    503, "The server has too little memory for this request. Try again later."
                )
            case PacelineError():
                _log.error("request ended by %s: %s", type(error).__name__, error)
                return ApiError(500, str(error))
        _log.error("request ended by %s", type(error).__name__, exc_info=error)
        return ApiError(
            500, f"Internal server error: {type(error).__name__}. The server's log has the details."
        )

    @property
    def body(self) -> ErrorBody:
        """Return the JSON body, with invalid surrogates in the message escaped."""
        kind = _TYPES.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        message = self.message.encode("utf-8", "backslashreplace").decode()
        return ErrorBody(
            error=ErrorDetail(message=message, type=kind, param=self.param, code=self.code)
        )

    def response(self, path: str = "") -> Response:
        """Return the HTTP response.

        Args:
            path: Path of the request. For the path of the Messages API, the body also contains a
                `type` field.
        """
        headers = None if self.headers is None else dict(self.headers)
        kind = {"type": "error"} if path == MESSAGES_PATH else {}
        return JSONResponse({**kind, **self.body.model_dump()}, self.status, headers)


def handle_errors(app: FastAPI) -> None:
    """Make an application report all errors in the format that API clients expect."""

    def respond_with(request: Request, error: ApiError) -> Response:
        request.state.error = error.message  # for the log
        return error.response(request.url.path)

    async def package_error(request: Request, error: Exception) -> Response:
        return respond_with(request, ApiError.from_exception(error))

    async def framework_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = (
            f"{request.method} {request.url.path}: got {error.detail!r}; expected a request as in"
            f" the server's /openapi.json.{_versioned_path_hint(request)}"
        )
        return respond_with(request, ApiError(error.status_code, message, headers=error.headers))

    async def validation_error(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return respond_with(request, _refusal(error.errors()))

    async def disconnected(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_CLOSED)

    for kind in (ApiError, PacelineError, TimeoutError, MemoryError, Exception):
        app.add_exception_handler(kind, package_error)
    app.add_exception_handler(HTTPException, framework_error)
    app.add_exception_handler(RequestValidationError, validation_error)
    app.add_exception_handler(ClientDisconnect, disconnected)


def _versioned_path_hint(request: Request) -> str:
    """Return a sentence about base_url if the path lacks only /v1, or ""."""
    versioned = f"/v1{request.url.path}"
    if versioned not in request.app.openapi()["paths"]:
        return ""
    return f" The path is {versioned}: the client's base_url must end in /v1."


def _refusal(errors: Any) -> ApiError:
    """Convert pydantic's errors to one error about the first invalid field.

    The message states which values the field accepts. If the field has a union type, the message
    refers to the alternative that comes closest to accepting the value.

    Args:
        errors: List of errors from `RequestValidationError.errors()`.
    """
    if errors[0]["type"] == "json_invalid":
        return ApiError(
            400,
            f"body: invalid JSON at character {errors[0]['loc'][-1]}:"
            f" {errors[0]['ctx']['error']}. Send a JSON object.",
        )
    field = errors[0]["loc"][1:2]
    of_field = [(_path(error), error) for error in errors if error["loc"][1:2] == field]
    path, first_error = max(of_field, key=lambda entry: len(entry[0]))
    name = ".".join(path) or "body"
    param = str(field[0]) if field else None
    if first_error["type"] == "missing":
        return ApiError(400, f"{name}: the field is missing. Add it.", param)
    if isinstance(first_error["input"], bytes):  # FastAPI parses only bodies declared as JSON
        return ApiError(
            400,
            "body: the request does not declare JSON. Send a JSON object with the header"
            " Content-Type: application/json.",
        )
    alternatives = dict.fromkeys(_expected(error) for other, error in of_field if other == path)
    shown = repr(first_error["input"])
    shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
    return ApiError(
        400, f"{name}: got {shown}; expected {' or '.join(list(alternatives)[:4])}.", param
    )


def _path(error: Mapping[str, Any]) -> list[str]:
    """Return the path to an invalid value: field names and list indices.

    Pydantic's names for the alternatives in a union are removed from the path.
    """
    return [
        str(part)
        for part in error["loc"][1:]
        if isinstance(part, int)
        or (part.isidentifier() and part.islower() and part not in _ALTERNATIVES)
    ]


def _expected(error: Mapping[str, Any]) -> str:
    """Describe the accepted values of an invalid field, without pydantic's jargon."""
    kind, message = error["type"], str(error["msg"])
    for opening in ("Input should be ", "Value error, "):
        message = message.removeprefix(opening)
    if kind in _OBJECT_ERRORS:
        return "an object"
    if kind == "too_short":
        return f"at least {error['ctx']['min_length']} entry"
    return f"a number {message}" if kind in _BOUND_ERRORS else message
