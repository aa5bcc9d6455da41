"""Build the clients' prompts: recorded prompts, alone or after a long text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import cycle, islice
from typing import Any

from paceline.bench.serving.settings import LoadOptions
from paceline.errors import CapacityError
from paceline.report.prompts import Prompt, encode, shortened


def prompts_of(
    context: str,
    load: LoadOptions,
    prompts: Sequence[Prompt],
    tokenizer: Any,
    room: int,
    drop: int = 0,
) -> list[tuple[str, list[int]]]:
    """Return the id and the token ids of every prompt, at one context length.

    To reach the context length, the function prepends other prompts to each prompt.

    Args:
        context: Name of the context length: short, medium or long.
        load: Load options, which define the context lengths.
        prompts: Recorded prompts.
        tokenizer: Tokenizer of the model.
        room: Maximum number of tokens per prompt.
        drop: Number of prompts to skip when choosing the prompts to prepend. Different numbers
            result in texts with different beginnings.
    Raises:
        CapacityError: The model's context has no room for the prompts.
    """
    return [
        (prompt.id, grown(prompts, index, load.tokens(context), tokenizer, room, drop))
        for index, prompt in enumerate(prompts)
    ]


def grown(
    prompts: Sequence[Prompt],
    index: int,
    tokens: int | None,
    tokenizer: Any,
    room: int,
    drop: int = 0,
) -> list[int]:
    """Return a prompt's ids, after prepending other prompts to reach `tokens` ids.

    Args:
        prompts: All recorded prompts.
        index: Index of the prompt to return.
        tokens: Number of ids to return. With None, nothing is prepended, and the prompt is
            shortened to `room` ids if necessary.
        tokenizer: Tokenizer of the model.
        room: Maximum number of ids.
        drop: Number of prompts to skip when choosing the prompts to prepend.
    Raises:
        CapacityError: `tokens` exceeds `room`.
    """
    if tokens is None:
        return shortened(encode(prompts[index], tokenizer), room)
    if tokens > room:
        raise CapacityError(
            f"bench: got prompts of {tokens} tokens, but the model's context has room for only"
            f" {room}. Lower medium or long, or the number of new tokens."
        )
    text, others = prompts[index].text, islice(cycle(prompts), index + 1 + drop, None)
    while len(ids := encode(replace(prompts[index], text=text), tokenizer)) < tokens:
        text = f"{next(others).text}\n\n{text}"
    return shortened(ids, tokens)
