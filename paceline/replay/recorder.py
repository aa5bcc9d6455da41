"""Answer prompts with a model, and record the answers in a file.

You can continue an interrupted run. You can use any drafter, because drafts do not change an
answer, with one exception: rounding in bfloat16 can swap two tokens with nearly equal logits. The
file therefore contains the drafter's name. `paceline.recorded_answers` describes the file.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TextColumn,
    TimeRemainingColumn,
)

from paceline.core.sampling_params import SamplingParams
from paceline.datastore.fingerprint import fingerprint_of
from paceline.errors import CapacityError, ConfigError
from paceline.llm import LLM, Completion
from paceline.model.identity import model_identity
from paceline.recorded_answers.lines import RecordedAnswer
from paceline.recorded_answers.writing import writing
from paceline.replay.keeping import KeepsTop
from paceline.replay.replay_settings import MAX_TOP, MIN_PROMPT_TOKENS
from paceline.report.progress import progress_bar
from paceline.report.prompts import Prompt, encode, shortened
from paceline.util.config import require_range
from paceline.util.files import digest_of
from paceline.util.options import flat


@dataclass(frozen=True, slots=True)
class RecordingPrompt:
    """A prompt as token ids, with the id and category from its file.

    Attributes:
        id: Name of the prompt.
        category: Category of the prompt.
        prompt_ids: Token ids of the prompt, including the chat template.
        cut: Whether tokens in the middle were removed because the prompt was too long.
    """

    id: str
    category: str
    prompt_ids: list[int]
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Recorded:
    """Counts from a completed run of `record_answers`.

    Attributes:
        count: Number of answers in the file.
        new: Number of answers that this run added.
        tokens: Number of tokens in the new answers.
        seconds: Time that the run took, in seconds.
        cut: Number of prompts that were shortened because they were too long.
    """

    count: int
    new: int
    tokens: int
    seconds: float
    cut: int = 0


@dataclass(frozen=True, slots=True)
class RecordOptions:
    """Options for `record_answers`.

    Attributes:
        batch: Number of prompts that are answered and written together, at least 1.
        model: Model name to store in the file, together with the model's fingerprint.
        drafter: Drafter spec to store in the file. Default: the drafter's name.
        top: Number of the target's top-k tokens to record per position, from 0 to 64. Replays
            require these tokens for drafters that learn from them. 0 records none.

    Raises:
        ConfigError: A value is out of range.
    """

    batch: int = 8
    model: str = ""
    drafter: str | None = None
    top: int = 0

    def __post_init__(self) -> None:
        require_range("record", "batch", self.batch, 1)
        require_range("record", "top", self.top, 0, MAX_TOP)


def record_answers(
    path: str | Path,
    llm: LLM,
    questions: Sequence[RecordingPrompt],
    params: SamplingParams,
    options: RecordOptions | None = None,
    progress: bool = False,
) -> Recorded:
    """Answer all prompts, and write the answers to a new or an unfinished file.

    Args:
        path: File for the answers. The function writes the answers in batches, so an interruption
            loses at most one batch.
        llm: Engine that answers the prompts.
        questions: Prompts to answer.
        params: Sampling parameters for all answers. The seed for prompt number n is
            `params.seed` + n.
        options: Batch size, names to store, and number of top-k tokens. Default: `RecordOptions()`.
        progress: Whether to show a progress bar on standard error.
    Raises:
        ConfigError: `questions` is empty. Also raised if the existing file is damaged, was recorded
            with different settings, or contains something other than recorded answers, or if
            another process is writing to it.
    """
    options = options or RecordOptions()
    if not questions:
        raise ConfigError(
            "record: got no prompts; expected at least one. Name a file that contains prompts."
        )
    batch, top = options.batch, min(options.top, llm.model.vocab_size)
    settings = _settings(llm, options, params, questions) | ({"top": top} if top else {})
    tokens = 0
    with writing(path, settings, len(questions), batch) as file, _keeping(llm, top) as keeper:
        begin, first = time.perf_counter(), file.done
        with progress_bar(*_columns(), shown=progress) as bar:
            task = bar.add_task("", total=len(questions), completed=first)
            for start in range(first, len(questions), batch):
                group = questions[start : start + batch]
                prompt_ids = [question.prompt_ids for question in group]
                completions = answer(llm, prompt_ids, params, start)
                answers = [_recorded(*pair) for pair in zip(group, completions, strict=True)]
                file.write(answers, () if keeper is None else keeper.taken())
                tokens += sum(len(completion.token_ids) for completion in completions)
                bar.update(task, completed=file.done)
        cut = sum(question.cut for question in questions)
        seconds = time.perf_counter() - begin
        return Recorded(len(questions), len(questions) - first, tokens, seconds, cut)


def _settings(
    llm: LLM,
    options: RecordOptions,
    params: SamplingParams,
    questions: Sequence[RecordingPrompt],
) -> dict[str, Any]:
    """Return the settings that two runs must share to write to the same file."""
    target = llm.model.model
    return {
        "model": options.model,
        "model_fingerprint": model_identity(target)[0],
        "tokenizer": fingerprint_of(llm.tokenizer),
        "vocab_size": llm.model.vocab_size,
        "dtype": str(target.dtype).removeprefix("torch."),
        "drafter": llm.drafter.name if options.drafter is None else options.drafter,
        "sampling": flat(params),
        "prompts": digest_of({"questions": list(map(_identity, questions))}),
    }


def _columns() -> tuple[ProgressColumn, ...]:
    return (
        TextColumn("recording"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("answers"),
        TimeRemainingColumn(),
    )


@contextmanager
def _keeping(llm: LLM, top: int) -> Iterator[KeepsTop | None]:
    """Wrap the engine's drafter in `KeepsTop` during a `with` block, if `top` > 0."""
    if not top:
        yield None
        return
    inner = llm.drafter
    keeper = KeepsTop(inner, top)
    llm.change_drafter(keeper)
    try:
        yield keeper
    finally:
        llm.change_drafter(inner)


def answer(
    llm: LLM, prompts: Sequence[list[int]], params: SamplingParams, first: int
) -> list[Completion]:
    """Answer prompts with a different seed for each: prompt number n uses seed + n.

    Args:
        llm: Engine that answers the prompts.
        prompts: Token ids of each prompt.
        params: Sampling parameters, whose seed is that of prompt number 0.
        first: Number of the first prompt in `prompts`.
    """
    numbers = range(first, first + len(prompts))
    return llm.generate(prompts, [replace(params, seed=params.seed + number) for number in numbers])


def encode_prompts(
    prompts: Sequence[Prompt], llm: LLM, max_new_tokens: int, context: int | None = None
) -> list[RecordingPrompt]:
    """Encode prompts as token ids, and shorten those that leave no room for an answer.

    A shortened prompt consists of its first 4 tokens and as many of its last tokens as fit.

    Args:
        prompts: Prompts to encode.
        llm: Engine whose tokenizer and context length apply.
        max_new_tokens: Number of tokens that must fit into the context after each prompt.
        context: Maximum number of tokens in the prompt and answer together. Default: the model's
            context length.
    Raises:
        CapacityError: The context is so short that it leaves fewer than 8 tokens for a prompt.
        ConfigError: The model has no tokenizer, or a prompt has no tokens.
    """
    if llm.tokenizer is None:
        raise ConfigError(
            "record: the model has no tokenizer, but the prompts are text. Pass \0tokenizer=DIR\0."
        )
    require_range("record", "max_new_tokens", max_new_tokens, 1)
    context = llm.max_length if context is None else context
    room = context - max_new_tokens
    if room < MIN_PROMPT_TOKENS:
        raise CapacityError(
            f"\0max_new_tokens\0: got {max_new_tokens} with a context of {context} tokens, which"
            f" leaves {room} for prompts; expected at least {MIN_PROMPT_TOKENS}. Reduce"
            " \0max_new_tokens\0."
        )
    encoded = [(prompt, encode(prompt, llm.tokenizer)) for prompt in prompts]
    return [
        RecordingPrompt(prompt.id, prompt.category, shortened(ids, room), len(ids) > room)
        for prompt, ids in encoded
    ]


def _identity(question: RecordingPrompt) -> dict[str, Any]:
    return {"id": question.id, "category": question.category, "prompt_ids": question.prompt_ids}


def _recorded(question: RecordingPrompt, completion: Completion) -> RecordedAnswer:
    return RecordedAnswer(
        question.id,
        question.category,
        question.prompt_ids,
        completion.token_ids,
        completion.finish_reason,
    )
