"""Check the limits that users set for an engine."""

from __future__ import annotations

from paceline.core.argument_checks import require
from paceline.util.config import require_count


def check_limits(
    max_batch: object,
    max_nodes: object,
    keep_prefixes: object,
    max_length: object,
    on_drafter_error: object,
) -> None:
    """Reject limits that no engine can keep; `paceline.llm.LLM` describes them.

    Raises:
        ConfigError: one of them is out of range.
    """
    require_count("LLM", "max_batch", max_batch, 1)
    require_count("LLM", "max_nodes", max_nodes, 0)
    require_count("LLM", "keep_prefixes", keep_prefixes, 0)
    choices = ("raise", "plain")
    require(on_drafter_error in choices, "on_drafter_error", on_drafter_error, "'raise' or 'plain'")
    if max_length is not None:
        require_count("LLM", "max_length", max_length, 2)
