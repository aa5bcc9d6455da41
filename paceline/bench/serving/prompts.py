"""What the clients ask: recorded prompts, alone or behind a long text."""

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
    """The name and token ids of every prompt in a context.

    Args:
        room: most tokens of one. drop: tokens left out of a long text's front, so that other ones
            begin otherwise.
    Raises:
        CapacityError: the context leaves no room for them.
    """
    return [
        (prompt.id, grown(prompts, place, load.tokens(context), tokenizer, room, drop))
        for place, prompt in enumerate(prompts)
    ]


def grown(
    prompts: Sequence[Prompt],
    place: int,
    tokens: int | None,
    tokenizer: Any,
    room: int,
    drop: int = 0,
) -> list[int]:
    """Token ids of a prompt, behind the texts of the others until there are `tokens` (None =
    alone).

    Raises:
        CapacityError: there is no room for so many.
    """
    if tokens is None:
        return shortened(encode(prompts[place], tokenizer), room)
    if tokens > room:
        raise CapacityError(
            f"bench: got prompts of {tokens} tokens, and the model's context leaves {room} for"
            " one; expected less. Choose a"
            " smaller medium, long, turn or intruders, or fewer new tokens."
        )
    text, others = prompts[place].text, islice(cycle(prompts), place + 1 + drop, None)
    while len(ids := encode(replace(prompts[place], text=text), tokenizer)) < tokens:
        text = f"{next(others).text}\n\n{text}"
    return shortened(ids, tokens)
