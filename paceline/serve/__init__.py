"""An OpenAI-compatible server over one `LLM`: `create_app(llm, Settings())` is a FastAPI
application. Needs the extra `serve`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from paceline.serve.settings import Settings

if TYPE_CHECKING:
    from paceline.serve.app import create_app

__all__ = ["Settings", "create_app"]


def __getattr__(name: str) -> Any:
    if (
        name == "create_app"
    ):  # imported when it is asked for: the command's help should not wait for torch
        from paceline.serve.app import create_app

        return create_app
    raise AttributeError(f"module 'paceline.serve' has no attribute {name!r}")
