"""The command `paceline chat`."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Annotated

from paceline.cli.loading import DEFAULT_DRAFTER, build_llm
from paceline.cli.options import without
from paceline.cli.reading import read_line, require_standard_input
from paceline.cli.show import out, print_error, print_note, print_stream
from paceline.common.options import ModelOptions
from paceline.engine.sequence import SamplingParams
from paceline.errors import PacelineError


@dataclass(frozen=True, slots=True)
class ChatSampling(SamplingParams):
    """Sampling with the default length of an answer in a conversation."""

    max_new_tokens: int = 256


def chat(
    *,
    drafter: str = DEFAULT_DRAFTER,
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
