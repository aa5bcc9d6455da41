"""Implement the command `paceline chat`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from paceline import demo
from paceline.cli.loading import build_llm
from paceline.cli.options import DEFAULT_DRAFTER, WITHOUT_MODEL, TargetModel, without
from paceline.cli.prompt_input import lines_of, require_standard_input
from paceline.cli.show import print_error, print_note, print_stream
from paceline.core.sampling_params import SamplingParams
from paceline.drafters import PLAIN
from paceline.errors import ConfigError, PacelineError, did_you_mean
from paceline.util.files import write_atomically
from paceline.util.options import ModelOptions

if TYPE_CHECKING:
    from paceline.llm import LLM

_HELP = {
    "/help": "show this list",
    "/reset": "start a new conversation; the system message stays",
    "/save FILE": "write the conversation as a JSON line, for `paceline generate --file` and"
    " `datastore build`",
    "/quit": "end the chat, like Ctrl-D",
}

_NAMES = [line.partition(" ")[0] for line in _HELP]


@dataclass(frozen=True, slots=True)
class _AdviceSettings:
    """Settings for the advice about drafters at the end of a chat.

    Attributes:
        min_tokens: Number of answer tokens that a chat needs before the drafter is compared with
            plain decoding.
        num_plain_tokens: Number of tokens that plain decoding generates for the comparison.
        min_speedup: Smallest speed-up of plain decoding over the drafter at which the chat prints
            advice. The value is above 1 because plain decoding is timed with a short context,
            which makes decoding faster.
    """

    min_tokens: int = 32
    num_plain_tokens: int = 16
    min_speedup: float = 1.1


_ADVICE = _AdviceSettings()


@dataclass(frozen=True, slots=True)
class ChatSampling(SamplingParams):
    """Sampling parameters with a default answer length for conversations."""

    max_new_tokens: int = 256


@dataclass(slots=True)
class Conversation:
    """A conversation with a model.

    Attributes:
        opening: Messages before the first question, such as the system message; /reset keeps them.
        messages: All messages so far.
        tokens, seconds: Total number of tokens and total time of all complete answers.
    """

    llm: LLM
    sampling: SamplingParams
    opening: list[dict[str, str]]
    messages: list[dict[str, str]] = field(init=False)
    tokens: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.messages = list(self.opening)
        # Raises if the model has no chat template.
        self.llm.chat_prompt([*self.opening, {"role": "user", "content": "-"}])

    def take(self, line: str) -> bool:
        """Run a command or answer a message; return False if the user quits.

        Raises:
            PacelineError: The line cannot be processed. The conversation does not change.
        """
        command, _, rest = line.strip().partition(" ")
        if command == "/quit":
            return False
        if command == "/help":
            for name, description in _HELP.items():
                print_note(f"{name:<11} {description}")
        elif command == "/reset":
            self.messages = list(self.opening)
            print_note("the conversation has been cleared")
        elif command == "/save":
            self._save(rest.strip())
        elif command[:1] == "/" and command[1:].isalpha() and not line.startswith(" "):
            raise ConfigError(
                f"unknown command {command}.{did_you_mean(command, _NAMES)} Put a space before it"
                " to send it as a message."
            )
        elif command:
            self._answer(line)
        return True

    def _answer(self, line: str) -> None:
        messages = [*self.messages, {"role": "user", "content": line}]
        answer = print_stream(
            self.llm.stream(self.llm.chat_prompt(messages), self.sampling), end="\n"
        )
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        if answer.stats is not None:
            self.tokens += answer.stats.new_tokens
            self.seconds += answer.stats.seconds

    def advice(self) -> str | None:
        """Decode a few tokens without drafts; return a hint if decoding is then faster.

        There is no hint for drafters with a draft budget, because the budget pauses drafting
        automatically.
        """
        if (
            self.tokens < _ADVICE.min_tokens
            or self.llm.drafter.name == PLAIN
            or self.llm.drafter.budget
        ):
            return None
        sampling = SamplingParams(_ADVICE.num_plain_tokens, ignore_eos=True, speculation=PLAIN)
        (completion,) = self.llm.generate(
            [self.llm.chat_prompt([{"role": "user", "content": "-"}])], sampling
        )
        plain, drafted = (
            completion.stats.new_tokens / completion.stats.seconds,
            self.tokens / self.seconds,
        )
        if drafted * _ADVICE.min_speedup > plain:
            return None
        name = self.llm.drafter.name
        choice = f"--drafter {PLAIN} is faster here, or try {DEFAULT_DRAFTER}"
        return f"{name} gave {drafted:.1f} tokens/s, plain decoding {plain:.1f}: {choice}"

    def _save(self, name: str) -> None:
        if not name:
            raise ConfigError(
                "/save: the file name is missing. Write, for example, /save talk.jsonl."
            )
        write_atomically(
            Path(name).expanduser(), f"{json.dumps({'messages': self.messages})}\n".encode()
        )
        print_note(f"wrote {name}")


def chat(
    model: TargetModel = demo.NAME,
    /,
    *,
    drafter: str = DEFAULT_DRAFTER,
    system: str | None = None,
    models: Annotated[ModelOptions, WITHOUT_MODEL] = ModelOptions(),
    sampling: Annotated[ChatSampling, without("ignore_eos")] = ChatSampling(),
) -> None:
    """Chat with a model in the terminal.

    The terminal shows accepted draft tokens in green. Ctrl-C stops an answer. Ctrl-D or /quit ends
    the chat. /help lists the commands.

    Example: paceline chat smollm2 --system "Answer in one sentence."

    Args:
        drafter: Drafter spec of the form name:key=value,key=value; see `paceline drafters`.
        system: System message. Default: none.
    """
    require_standard_input()
    opening = [{"role": "system", "content": system}] if system else []
    llm = build_llm(replace(models, model=model), drafter, keep_prefixes=1)
    conversation = Conversation(llm, sampling, opening)
    print_note(f"{model} with {drafter}. /help lists the commands; /quit ends the chat.")
    read, on_terminal, running = lines_of(_NAMES), sys.stdin.isatty(), True
    while running:
        try:
            line = read()
            running = line is not None and conversation.take(line)
        except PacelineError as error:  # for example, the conversation exceeds the context
            print_error(error)
        except KeyboardInterrupt:
            if not on_terminal:
                raise
            print_note("Ctrl-D or /quit ends the chat")
    advice = conversation.advice()
    if advice is not None:
        print_note(advice)
