"""Check the limits that users set on an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from paceline.core.argument_checks import is_number, require
from paceline.engine.settings import CACHE_MEMORY_SHARE, GIB
from paceline.errors import ConfigError
from paceline.util.config import require_count
from paceline.util.machine import available_memory

if TYPE_CHECKING:
    from paceline.engine.target_loading import LoadedModel


def check_limits(
    max_batch: object,
    max_nodes: object,
    keep_prefixes: object,
    max_length: object,
    on_drafter_error: object,
) -> None:
    """Reject invalid values of the limits that are arguments of `paceline.llm.LLM`.

    Raises:
        ConfigError: A limit is out of range.
    """
    require_count("LLM", "max_batch", max_batch, 1)
    require_count("LLM", "max_nodes", max_nodes, 0)
    require_count("LLM", "keep_prefixes", keep_prefixes, 0)
    choices = ("raise", "plain")
    require(on_drafter_error in choices, "on_drafter_error", on_drafter_error, "'raise' or 'plain'")
    if max_length is not None:
        require_count("LLM", "max_length", max_length, 2)


def checked_length(max_length: int | None, context: int) -> int:
    """Return the maximum number of tokens per request.

    Args:
        max_length: The user's limit in tokens; None means the model's context length.
        context: Context length of the model, in tokens.
    Raises:
        ConfigError: The limit exceeds the context length.
    """
    if max_length is not None and max_length > context:
        raise ConfigError(
            f"\0LLM: max_length\0: got {max_length}; expected at most {context}, the model's"
            " context length. Lower it, or leave it out."
        )
    return context if max_length is None else max_length


def max_cache_bytes(model: LoadedModel, cache_gib: float | None) -> int | None:
    """Return the maximum size of a loaded model's KV cache, in bytes.

    Args:
        model: The loaded model.
        cache_gib: Limit in GiB; None means most of the available memory.
    Returns:
        Number of bytes, or None if the available memory is unknown.
    Raises:
        ConfigError: `cache_gib` is not a positive number.
    """
    if cache_gib is not None:
        if not is_number(cache_gib) or cache_gib <= 0:
            raise ConfigError(
                f"\0cache_gib\0: got {cache_gib!r}; expected a positive number of GiB, or None."
            )
        return int(cache_gib * GIB)
    available = (
        torch.cuda.mem_get_info(model.device)[0]
        if model.device.type == "cuda"
        else available_memory()
    )
    return int(CACHE_MEMORY_SHARE * available) or None
