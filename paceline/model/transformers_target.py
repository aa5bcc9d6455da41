"""Check that transformers runs an engine's target, and return it as a `CachedLM`."""

from __future__ import annotations

from paceline.errors import UnsupportedModelError
from paceline.model.cached_lm import CachedLM


def as_cached_lm(target: object) -> CachedLM:
    """Return the target if transformers runs it; otherwise, raise an error.

    Args:
        target: Target of an engine.
    Raises:
        UnsupportedModelError: Another library runs the target.
    """
    if isinstance(target, CachedLM):
        return target
    raise UnsupportedModelError(
        "got a model in llama.cpp; expected one that transformers runs. Use"
        " \0engine='transformers'\0."
    )
