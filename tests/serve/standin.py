from types import SimpleNamespace

from paceline.engine.metrics import Stats
from paceline.llm import LLM

if not hasattr(LLM, "load"):
    LLM.load = property(
        lambda self: SimpleNamespace(
            waiting=0,
            running=0,
            cache_usage=0.0,
            prompt_tokens=0,
            prefix_hits=0,
            preemptions=0,
            drafter_failures=0,
            new_tokens=0,
            drafted_tokens=0,
            accepted_tokens=0,
            forwards=0,
            finished=0,
            aborted=0,
        )
    )
    Stats.cached_tokens = 0
