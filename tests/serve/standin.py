from dataclasses import field, make_dataclass

from paceline.engine.metrics import Stats
from paceline.llm import LLM

_COUNTS = (
    "waiting running prompt_tokens prefix_hits preemptions drafter_failures new_tokens drafted_tokens accepted_tokens forwards"
    " finished aborted"
)
if not hasattr(LLM, "load"):
    Load = make_dataclass(
        "Load", [("cache_usage", float, field(default=0.0)), *[(name, int, field(default=0)) for name in _COUNTS.split()]]
    )
    LLM.load = property(lambda self: Load())
    Stats.cached_tokens = 0
