"""paceline: the same answers from the same weights, sooner. Drafters guess, the model checks all guesses in one forward.

from paceline import LLM, SamplingParams
llm = LLM("path/or/hub-id", drafter="prompt_lookup")
print(llm.generate("Once upon a time", SamplingParams(max_new_tokens=64))[0].text)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline import demo
from paceline.drafters.scripted import ScriptedDrafter
from paceline.engine.drafter import Drafter, Outcome
from paceline.engine.sequence import SamplingParams
from paceline.engine.tree import DraftTree

if TYPE_CHECKING:
    from paceline.llm import LLM, Chunk, Completion

__version__ = "0.1.0"
__all__ = [
    "LLM", "Chunk", "Completion", "DraftTree", "Drafter", "Outcome", "SamplingParams", "ScriptedDrafter", "__version__", "demo",
]  # fmt: skip

_NEEDS_TORCH = {"LLM", "Chunk", "Completion"}


def __getattr__(name: str) -> Any:
    # Drafters, trees and replay work without torch; the engine is imported when it is asked for.
    if name in _NEEDS_TORCH:
        return getattr(import_module("paceline.llm"), name)
    raise AttributeError(f"module 'paceline' has no attribute {name!r}")
