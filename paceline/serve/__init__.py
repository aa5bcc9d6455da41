"""Serve one `LLM` over an OpenAI-compatible HTTP API.

`create_app(llm, Settings())` returns a FastAPI application. The server needs the packages of the
`serve` extra.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.serve.settings import Settings

if TYPE_CHECKING:
    from paceline.serve.app import create_app

__all__ = ["Settings", "create_app"]


def __getattr__(name: str) -> Any:
    if name == "create_app":  # imported lazily, so that the command's help does not import torch
        from paceline.serve.app import create_app

        return create_app
    raise AttributeError(f"module 'paceline.serve' has no attribute {name!r}")
