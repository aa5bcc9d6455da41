"""Generate text faster with speculative decoding, without changing the answers.

A drafter proposes tokens, and the target model verifies all of them in one forward pass.

from paceline import LLM, SamplingParams
llm = LLM("path/or/hub-id", drafter="prompt_lookup")
print(llm.generate("Once upon a time", SamplingParams(max_new_tokens=64))[0].text)
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline import demo
    from paceline.core.drafter import Drafter, Outcome
    from paceline.core.sampling_params import SamplingParams
    from paceline.core.tree import DraftTree
    from paceline.draft_budget.settings import DraftBudgetSettings
    from paceline.drafters.scripted import ScriptedDrafter
    from paceline.llm import LLM, Chunk, Completion
    from paceline.media.prompts import MultimodalPrompt

__version__ = "0.2.0"
__all__ = [
    "LLM",
    "Chunk",
    "Completion",
    "DraftBudgetSettings",
    "DraftTree",
    "Drafter",
    "MultimodalPrompt",
    "Outcome",
    "SamplingParams",
    "ScriptedDrafter",
    "__version__",
    "demo",
]

# Imported on first use: a command that only reports a mistake should not wait for torch.
_MODULES = {
    "paceline.llm": ("LLM", "Chunk", "Completion"),
    "paceline.draft_budget.settings": ("DraftBudgetSettings",),
    "paceline.drafters.scripted": ("ScriptedDrafter",),
    "paceline.core.drafter": ("Drafter", "Outcome"),
    "paceline.core.sampling_params": ("SamplingParams",),
    "paceline.core.tree": ("DraftTree",),
    "paceline.media.prompts": ("MultimodalPrompt",),
}


def __getattr__(name: str) -> Any:
    if name == "demo":
        return import_module("paceline.demo")
    for module, names in _MODULES.items():
        if name in names:
            from paceline.util.garbage_collection import collection_paused

            with collection_paused():
                return getattr(import_module(module), name)
    raise AttributeError(f"module 'paceline' has no attribute {name!r}")
