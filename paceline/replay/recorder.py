"""Recording a model's own answers: prompts in, a file of `paceline.common.answers` out, which an interrupted run continues.

Guesses never change an answer, so any drafter may make it; the settings name the drafter all the same, as in bfloat16 near ties
may fall otherwise behind another one.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from collections.abc import Sequence as ListLike
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

from paceline.common.answers import RecordedAnswer, writing
from paceline.common.config import require_range
from paceline.common.files import digest_of
from paceline.common.options import flat
from paceline.datastore.fingerprint import fingerprint_of
from paceline.engine.identity import model_identity
from paceline.engine.sequence import SamplingParams
from paceline.errors import CapacityError, ConfigError
from paceline.llm import LLM, Completion
from paceline.replay.keeping import KeepsTop
from paceline.report.progress import progress_bar
from paceline.report.prompts import Prompt, encode, shortened

_LEAST_ROOM = 8  # context tokens for a prompt
_MOST_TOP = 64


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt as token ids, under the id and category of its file. `cut`: it was too long, and has lost its middle."""

    id: str
    category: str
    prompt_ids: list[int]
    cut: bool = False


@dataclass(frozen=True, slots=True)
class Recorded:
    """What a run of `record_answers` did.

    Attributes:
        count: answers in the file, which is finished. new: those of this run. tokens: of the new ones.
        cut: prompts that were too long, and cut.
        seconds: that the new ones took.
    """

    count: int
    new: int
    tokens: int
    seconds: float
    cut: int = 0


def record_answers(
    path: str | Path, llm: LLM, questions: ListLike[Question], params: SamplingParams, *, batch: int = 8, model: str = "",
    drafter: str | None = None, top: int = 0, progress: bool = False,
) -> Recorded:  # fmt: skip
    """Answer all questions into a file; one that an interruption left unfinished is continued.

    Args:
        path: the file. A batch at a time is appended; an interruption of any kind loses at most the batch under way.
        params: of all answers; question number n has seed + n.
        batch: questions answered together, and written together.
        model: name to note beside the model's fingerprint.
        drafter: spec to note; default the drafter's name.
        top: most likely tokens of the target to keep at every place, for replays of drafters that learn from them; 0 = none.
        progress: whether to show a bar on standard error.
    Raises:
        ConfigError: no question, or a file that is of other settings, damaged, being written, or another one.
    """
    require_range("record", "batch", batch, 1)
    require_range("record", "top", top, 0, _MOST_TOP)
    if not questions:
        raise ConfigError("record: got no prompt; expected at least one. Name a file that has some.")
    target, top = llm.model.model, min(top, llm.model.vocab_size)
    settings = {
        "model": model, "model_fingerprint": model_identity(target)[0], "tokenizer": fingerprint_of(llm.tokenizer),
        "vocab_size": llm.model.vocab_size, "dtype": str(target.dtype).removeprefix("torch."),
        "drafter": llm.drafter.name if drafter is None else drafter, "sampling": flat(params),
        "prompts": digest_of({"questions": list(map(_identity, questions))}), **({"top": top} if top else {}),
    }  # fmt: skip
    columns = (TextColumn("recording"), BarColumn(), MofNCompleteColumn(), TextColumn("answers"), TimeRemainingColumn())
    tokens = 0
    with writing(path, settings, len(questions), batch) as file, _keeping(llm, top) as keeper:
        begin, first = time.perf_counter(), file.done
        with progress_bar(*columns, shown=progress) as bar:
            task = bar.add_task("", total=len(questions), completed=first)
            for start in range(first, len(questions), batch):
                group = questions[start : start + batch]
                completions = answer(llm, [question.prompt_ids for question in group], params, start)
                answers = [_recorded(*pair) for pair in zip(group, completions, strict=True)]
                file.write(answers, () if keeper is None else keeper.taken())
                tokens += sum(len(completion.token_ids) for completion in completions)
                bar.update(task, completed=file.done)
        cut = sum(question.cut for question in questions)
        return Recorded(len(questions), len(questions) - first, tokens, time.perf_counter() - begin, cut)


@contextmanager
def _keeping(llm: LLM, top: int) -> Iterator[KeepsTop | None]:
    """Let the engine's drafter keep the most likely tokens while this is open, if any are wanted."""
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


def answer(llm: LLM, prompts: ListLike[list[int]], params: SamplingParams, first: int) -> list[Completion]:
    """Answer prompts number `first`, `first` + 1, ... of a recording; number n has seed + n."""
    return llm.generate(prompts, [replace(params, seed=params.seed + number) for number in range(first, first + len(prompts))])


def encode_prompts(prompts: ListLike[Prompt], llm: LLM, max_new_tokens: int, context: int | None = None) -> list[Question]:
    """Return prompts as token ids; one too long to leave room for its answer keeps its beginning and its end.

    Args:
        context: tokens of prompt and answer; default those of the model.
    Raises:
        CapacityError: hardly any room is left for prompts. ConfigError: no tokenizer, or a prompt without tokens.
    """
    if llm.tokenizer is None:
        raise ConfigError("record: got a model without a tokenizer; expected one for prompts of text. Pass tokenizer=... to LLM.")
    require_range("record", "max_new_tokens", max_new_tokens, 1)
    context = llm.max_length if context is None else context
    room = context - max_new_tokens
    if room < _LEAST_ROOM:
        raise CapacityError(
            f"max_new_tokens: got {max_new_tokens} with a context of {context} tokens, which leaves {room} for prompts;"
            f" expected at least {_LEAST_ROOM}. Reduce max_new_tokens."
        )
    whole = [(prompt, encode(prompt, llm.tokenizer)) for prompt in prompts]
    return [Question(prompt.id, prompt.category, shortened(ids, room), len(ids) > room) for prompt, ids in whole]


def _identity(question: Question) -> dict[str, Any]:
    return {"id": question.id, "category": question.category, "prompt_ids": question.prompt_ids}


def _recorded(question: Question, completion: Completion) -> RecordedAnswer:
    return RecordedAnswer(question.id, question.category, question.prompt_ids, completion.token_ids, completion.finish_reason)
