"""Errors as OpenAI's clients expect them: a status, and {"error": {message, type, param, code}}."""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse, Response

from paceline.errors import CapacityError, ConfigError, PacelineError

_TYPES = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
_CLOSED = 499  # nobody reads it; it stands in the log
_NAMED = re.compile(r"(\w+)(?: \d+|(?:\.\w+)+)?: ")
_KINDS = {
    "str",
    "int",
    "float",
    "bool",
    "none",
    "dict",
    "list",
    "is-instance",
}  # how pydantic names the kinds of a value
_log = logging.getLogger("paceline.serve")


class ErrorDetail(BaseModel):
    """What is wrong: a message, its kind, the field it is about and a code, where there is one."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorBody(BaseModel):
    """The body of every answer with a status from 400 on."""

    error: ErrorDetail


class ApiError(Exception):
    """What a request is refused or ended with.

    Args:
        status: of the answer. param: the field it is about. code: OpenAI's word for it, where
            clients look for one.
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
    def of(error: BaseException) -> ApiError:
        """What a client is told of an error."""
        match error:
            case ApiError():
                return error
            case CapacityError():
                return ApiError(400, str(error), code="context_length_exceeded")
            case ConfigError():
                named = _NAMED.match(str(error))
                return ApiError(400, str(error), named[1] if named else None)
            case TimeoutError():
                return ApiError(
                    504,
                    "got no answer in time; expected one. Ask for fewer tokens, or raise the"
                    " server's timeout.",
                )
            case MemoryError():
                return ApiError(
                    503, "got too little memory for this request; expected more. Try again later."
                )
            case PacelineError():
                _log.error("request ended by %s: %s", type(error).__name__, error)
                return ApiError(500, str(error))
        _log.error("request ended by %s", type(error).__name__, exc_info=error)
        return ApiError(
            500, f"got {type(error).__name__} inside the server; expected none. See its log."
        )

    @property
    def body(self) -> ErrorBody:
        """As JSON says it; half a surrogate pair, which a request may hold, cannot be written,
        and is escaped.
        """
        kind = _TYPES.get(
            self.status, "invalid_request_error" if self.status < 500 else "server_error"
        )
        message = self.message.encode("utf-8", "backslashreplace").decode()
        return ErrorBody(
            error=ErrorDetail(message=message, type=kind, param=self.param, code=self.code)
        )

    def response(self) -> Response:
        """The answer that says it."""
        headers = None if self.headers is None else dict(self.headers)
        return JSONResponse(self.body.model_dump(), self.status, headers)


def handle_errors(app: FastAPI) -> None:
    """Let an application answer every error in this form."""

    def told(request: Request, error: ApiError) -> Response:
        request.state.error = error.message  # for the log
        return error.response()

    async def ours(request: Request, error: Exception) -> Response:
        return told(request, ApiError.of(error))

    async def of_the_framework(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        message = (
            f"{request.method} {request.url.path}: got {error.detail!r}; expected a request as in"
            " the server's /openapi.json."
        )
        return told(request, ApiError(error.status_code, message, headers=error.headers))

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        return told(request, _refusal(error.errors()))

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=_CLOSED)

    for kind in (ApiError, PacelineError, TimeoutError, MemoryError, Exception):
        app.add_exception_handler(kind, ours)
    app.add_exception_handler(HTTPException, of_the_framework)
    app.add_exception_handler(RequestValidationError, invalid)
    app.add_exception_handler(ClientDisconnect, gone)


def _refusal(errors: Any) -> ApiError:
    """One sentence for the first field that is wrong, with all that it may be."""
    first = errors[0]
    place = first["loc"][1:2]
    if first["type"] == "json_invalid":
        return ApiError(
            400,
            f"body: got no JSON, {first['ctx']['error']}, at character {first['loc'][-1]};"
            " expected an object.",
        )
    name = ".".join(str(part) for part in first["loc"][1:] if _is_place(part)) or "body"
    param = str(place[0]) if place else None
    if first["type"] == "missing":
        return ApiError(400, f"{name}: got nothing; expected a value. Add it.", param)
    alike = dict.fromkeys(_expected(one) for one in errors if one["loc"][1:2] == place)
    shown = repr(first["input"])
    shown = shown if len(shown) <= 60 else f"{shown[:60]}..."
    return ApiError(400, f"{name}: got {shown}; expected {' or '.join(list(alike)[:4])}.", param)


def _is_place(part: Any) -> bool:
    """Whether it is a field or an index, and not the name of one of the kinds that a value may
    be of.
    """
    return isinstance(part, int) or (part.isidentifier() and part.islower() and part not in _KINDS)


def _expected(error: Mapping[str, Any]) -> str:
    message = str(error["msg"])
    for opening in ("Input should be ", "Value error, "):
        message = message.removeprefix(opening)
    return message
