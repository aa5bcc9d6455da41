"""The commands that answer: `paceline generate` and `paceline chat`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated, Any

from cyclopts import Parameter
from rich.text import Text

from paceline.cli.loading import build_llm
from paceline.cli.options import ParallelOptions, without
from paceline.cli.parallel import joined_ranks, refuse_standard_input
from paceline.cli.reading import read_line, read_prompt, require_standard_input
from paceline.cli.show import out, print_error, print_note, print_stream, summary, write
from paceline.common.options import ModelOptions
from paceline.engine.sequence import SamplingParams
from paceline.errors import PacelineError

_DRAFTER = "auto"


@dataclass(frozen=True, slots=True)
class ChatSampling(SamplingParams):
    """Sampling with the default length of an answer in a conversation."""

    max_new_tokens: int = 256


def generate(
    *prompts: Annotated[str, Parameter(name="PROMPTS", required=True)],
    drafter: str = _DRAFTER,
    chat: bool = False,
    models: ModelOptions = ModelOptions(),
    sampling: SamplingParams = SamplingParams(),
    parallel: ParallelOptions = ParallelOptions(),
) -> int:
    """Answer prompts; a single one is streamed, several run as a batch.

    Args:
        prompts: one or more prompts; '-' reads one from standard input.
        drafter: name:key=value,key=value; see `paceline drafters`.
        chat: wrap each prompt in the chat template.
    """
    with joined_ranks(parallel, models.device) as ranks:
        refuse_standard_input(parallel.lookahead_parallel, prompts)
        texts = [read_prompt() if text == "-" else text for text in prompts]
        llm = build_llm(models, drafter, ranks)
        asked: list[Any] = [llm.chat_prompt([{"role": "user", "content": text}]) for text in texts] if chat else texts
        if len(asked) == 1:
            return 0 if print_stream(llm.stream(asked[0], sampling)).complete else 130
        for text, completion in zip(texts, llm.generate(asked, sampling), strict=True):
            out.rule(Text(text.strip().splitlines()[0][:60] if text.strip() else ""), align="left")
            write(f"{completion.text}\n")
            print_note(summary(completion))
        return 0


def chat(
    *,
    drafter: str = _DRAFTER,
    system: str | None = None,
    models: ModelOptions = ModelOptions(),
    sampling: Annotated[ChatSampling, without("stop", "ignore_eos")] = ChatSampling(),
) -> None:
    """Talk to the model. Drafted-and-accepted tokens are green. Ctrl-C stops an answer, Ctrl-D or /quit leaves.

    Args:
        drafter: name:key=value,key=value; see `paceline drafters`.
        system: system message.
    """
    require_standard_input()
    llm = build_llm(models, drafter)
    opening = [{"role": "system", "content": system}] if system else []
    llm.chat_prompt([*opening, {"role": "user", "content": "-"}])  # a model without a chat template is refused here
    messages = list(opening)
    print_note(f"{models.model} with {drafter}. /reset forgets the conversation, /quit leaves.")
    while True:
        try:
            text = _next_line()
        except PacelineError as error:
            print_error(error)
            continue
        except (EOFError, KeyboardInterrupt):
            return
        if text is None or text.strip() == "/quit":
            return
        if text.strip() == "/reset":
            messages = list(opening)
        elif text.strip():
            messages.append({"role": "user", "content": text})
            try:
                answer = print_stream(llm.stream(llm.chat_prompt(messages), sampling), end="\n").text
            except PacelineError as error:  # the conversation outgrew the context: say so, and go on
                messages.pop()
                print_error(error)
                continue
            messages.append({"role": "assistant", "content": answer})


def _next_line() -> str | None:
    if sys.stdin is not None and sys.stdin.isatty():
        return out.input("[bold]> [/bold]")
    return read_line()
