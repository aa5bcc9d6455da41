"""paceline: the same answers from the same weights, sooner. Drafters guess, the model checks all
guesses in one forward.

from paceline import LLM, SamplingParams
llm = LLM("path/or/hub-id", drafter="prompt_lookup")
print(llm.generate("Once upon a time", SamplingParams(max_new_tokens=64))[0].text)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from paceline import demo

if TYPE_CHECKING:
    from paceline.core.drafter import Drafter, Outcome
    from paceline.core.request import SamplingParams
    from paceline.core.tree import DraftTree
    from paceline.drafters.scripted import ScriptedDrafter
    from paceline.llm import LLM, Chunk, Completion

__version__ = "0.1.0"
__all__ = [
    "LLM",
    "Chunk",
    "Completion",
    "DraftTree",
    "Drafter",
    "Outcome",
    "SamplingParams",
    "ScriptedDrafter",
    "__version__",
    "demo",
]

# imported when one of their names is asked for: a command that only says what is wrong should not
# wait for torch
_MODULES = {
    "paceline.llm": ("LLM", "Chunk", "Completion"),
    "paceline.drafters.scripted": ("ScriptedDrafter",),
    "paceline.core.drafter": ("Drafter", "Outcome"),
    "paceline.core.request": ("SamplingParams",),
    "paceline.core.tree": ("DraftTree",),
}


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'paceline' has no attribute {name!r}")
