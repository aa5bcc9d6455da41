"""Generate user prompts with a chat model, as in Magpie (Xu et al. 2024).

The model's input is its chat template up to the start of the user's turn. The model then generates
the user's message. Record answers to such prompts if you have no prompts from real users.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from paceline.core.sampling_params import SamplingParams
from paceline.errors import ConfigError
from paceline.llm import LLM
from paceline.replay.recorder import answer
from paceline.replay.replay_settings import MAX_TRIES
from paceline.report.progress import progress_bar
from paceline.report.prompts import Prompt
from paceline.text.conversations import around_question
from paceline.util.config import require_range

CATEGORY = "made-up"


@dataclass(frozen=True, slots=True)
class MadeUp:
    """The prompts that `make_up` has collected so far.

    Attributes:
        prompts: Accepted prompts, without duplicates.
        tries: Number of texts that the model has generated, including rejected ones.
    """

    prompts: list[Prompt]
    tries: int


def make_up(
    llm: LLM, count: int, params: SamplingParams, batch: int = 32, progress: bool = False
) -> Iterator[MadeUp]:
    """Generate prompts with a model, and yield all prompts so far after every batch.

    The function rejects a text if the text is empty, repeats an earlier text, or does not end
    within `params.max_new_tokens`. It stops after `4 * count` texts, even if it has accepted fewer
    than `count` prompts.

    Args:
        llm: Engine with a chat model.
        count: Number of prompts to generate.
        params: Sampling parameters. Text number n uses `params.seed` + n.
        batch: Number of texts that the model generates at the same time.
        progress: Whether to show a progress bar on standard error.
    Raises:
        ConfigError: `params` is greedy, so all texts would be the same. Also raised if the model
            has no chat template, or if every text was rejected.
    """
    require_range("prompts", "count", count, 1)
    require_range("prompts", "batch", batch, 1)
    if params.temperature == 0:
        raise ConfigError(
            "\0prompts: temperature\0: got 0, which makes all prompts the same; expected more than"
            " 0. Set 1."
        )
    opening, params = _opening(llm, params)
    numbers: dict[str, int] = {}  # text -> its number
    with progress_bar(shown=progress) as bar:
        task = bar.add_task("prompts", total=count)
        for first in range(0, MAX_TRIES * count, batch):
            tries = min(batch, MAX_TRIES * count - first)
            completions = answer(llm, [opening] * tries, params, first)
            for number, completion in enumerate(completions, first):
                text = completion.text.strip()
                if completion.finish_reason == "stop" and text and len(numbers) < count:
                    numbers.setdefault(text, number)
            bar.update(task, completed=len(numbers))
            prompts = [
                Prompt(f"{CATEGORY}/{number}", CATEGORY, text) for text, number in numbers.items()
            ]
            yield MadeUp(prompts, first + tries)
            if len(numbers) == count:
                return
    if not numbers:
        raise ConfigError(
            f"prompts: none of {MAX_TRIES * count} texts ended within {params.max_new_tokens}"
            " tokens. Raise \0max_new_tokens\0, or write prompts yourself."
        )


def _opening(llm: LLM, params: SamplingParams) -> tuple[list[int], SamplingParams]:
    """Return the tokens that begin a user's turn, and parameters that stop after it."""
    if not getattr(llm.tokenizer, "chat_template", None):
        raise ConfigError("prompts: the model has no chat template. Use a chat model.")
    before, after = around_question(llm.tokenizer, "prompts")
    ids = [int(token) for token in llm.tokenizer(before, add_special_tokens=False)["input_ids"]]
    if not ids:
        raise ConfigError(
            "prompts: the chat template writes nothing before the first user message, so the model"
            " has no text to continue. Use another model."
        )
    ends = (after.strip(),) if after.strip() else ()
    return ids, replace(params, stop=(*params.stop, *ends))
