"""Prompts that a chat model makes up itself: it goes on where its template has a user begin (Magpie, Xu et al. 2024).

So answers can be recorded of a model whose users' prompts nobody has collected.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from paceline.common.config import require_range
from paceline.common.conversations import around_question
from paceline.engine.sequence import SamplingParams
from paceline.errors import ConfigError
from paceline.llm import LLM
from paceline.replay.recorder import answer
from paceline.report.progress import progress_bar
from paceline.report.prompts import Prompt

CATEGORY = "made-up"
_TRIES = 4  # for each prompt that is wanted


@dataclass(frozen=True, slots=True)
class MadeUp:
    """What a run of `make_up` has. Attributes: prompts: all different. tries: texts that were begun for them."""

    prompts: list[Prompt]
    tries: int


def make_up(llm: LLM, count: int, params: SamplingParams, batch: int = 32, progress: bool = False) -> Iterator[MadeUp]:
    """Let a model make up prompts; yields what there is after every batch, `count` at last, or fewer after four tries for each.

    A text that does not end within `params.max_new_tokens`, says nothing, or was there before, is left out.

    Args:
        params: how they are sampled; text number n has seed + n.
        batch: texts written together.
    Raises:
        ConfigError: greedy `params`, which would say the same each time; a model without a chat template.
    """
    require_range("prompts", "count", count, 1)
    require_range("prompts", "batch", batch, 1)
    if params.temperature == 0:
        raise ConfigError("prompts: temperature: got 0, with which all are the same; expected more. Set 1.")
    opening, params = _opening(llm, params)
    found: dict[str, int] = {}  # text: its number
    with progress_bar(shown=progress) as bar:
        task = bar.add_task("prompts", total=count)
        for first in range(0, _TRIES * count, batch):
            tries = min(batch, _TRIES * count - first)
            for number, made in enumerate(answer(llm, [opening] * tries, params, first), first):
                text = made.text.strip()
                if made.finish_reason == "stop" and text and len(found) < count:
                    found.setdefault(text, number)
            bar.update(task, completed=len(found))
            yield MadeUp([Prompt(f"{CATEGORY}/{number}", CATEGORY, text) for text, number in found.items()], first + tries)
            if len(found) == count:
                return
    if not found:
        raise ConfigError(
            f"prompts: got none of {_TRIES * count} texts that ended within {params.max_new_tokens} tokens; expected some. Raise"
            " max_new_tokens, or write prompts yourself."
        )


def _opening(llm: LLM, params: SamplingParams) -> tuple[list[int], SamplingParams]:
    """Return the ids before a question, and `params` that end with it."""
    if not getattr(llm.tokenizer, "chat_template", None):
        raise ConfigError("prompts: got a model without a chat template; expected one that was taught to chat.")
    before, behind = around_question(llm.tokenizer, "prompts")
    ids = [int(token) for token in llm.tokenizer(before, add_special_tokens=False)["input_ids"]]
    if not ids:
        raise ConfigError("prompts: got a chat template with nothing before a question; expected a beginning to go on from.")
    ends = (behind.strip(),) if behind.strip() else ()
    return ids, replace(params, stop=(*params.stop, *ends))
