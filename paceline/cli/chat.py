"""The command `paceline chat`."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from paceline.cli.loading import DEFAULT_DRAFTER, build_llm
from paceline.cli.options import without
from paceline.cli.prompt_input import lines_of, require_standard_input
from paceline.cli.show import print_error, print_note, print_stream
from paceline.core.request import SamplingParams
from paceline.drafters import PLAIN
from paceline.errors import ConfigError, PacelineError, did_you_mean
from paceline.util.files import write_atomically
from paceline.util.options import ModelOptions

if TYPE_CHECKING:
    from paceline.llm import LLM

_HELP = {
    "/help": "show this list",
    "/reset": "forget the conversation, but not the system message",
    "/save FILE": "write the conversation as a line of JSON, as `paceline generate --file` and"
    " `datastore build` read it",
    "/quit": "leave, as Ctrl-D does",
}
_ENOUGH = 32  # tokens of answers, before a drafter is judged
_TRIED = 16  # tokens of plain decoding it is held against
_CLEARLY = 1.1  # a short text is decoded a little faster
_NAMES = [line.partition(" ")[0] for line in _HELP]


@dataclass(frozen=True, slots=True)
class ChatSampling(SamplingParams):
    """Sampling with the default length of an answer in a conversation."""

    max_new_tokens: int = 256


@dataclass(slots=True)
class Conversation:
    """A talk with a model.

    Attributes:
        opening: what comes before the first question, and stays.
        messages: all that was said.
        tokens, seconds: of the answers that came to their end.
    """

    llm: LLM
    sampling: SamplingParams
    opening: list[dict[str, str]]
    messages: list[dict[str, str]] = field(init=False)
    tokens: int = 0
    seconds: float = 0.0

    def __post_init__(self) -> None:
        self.messages = list(self.opening)
        self.llm.chat_prompt(
            [*self.opening, {"role": "user", "content": "-"}]
        )  # without a chat template it is refused here

    def take(self, line: str) -> bool:
        """Do what a line says, or answer it; return whether the conversation goes on.

        Raises:
            PacelineError: it cannot be done; the conversation stays as it was.
        """
        command, _, rest = line.strip().partition(" ")
        if command == "/quit":
            return False
        if command == "/help":
            for name, what in _HELP.items():
                print_note(f"{name:<11} {what}")
        elif command == "/reset":
            self.messages = list(self.opening)
            print_note("the conversation is forgotten")
        elif command == "/save":
            self._save(rest.strip())
        elif command[:1] == "/" and command[1:].isalpha() and not line.startswith(" "):
            raise ConfigError(
                f"got {command}.{did_you_mean(command, _NAMES)} A space before it makes it a"
                " message."
            )
        elif command:
            self._answer(line)
        return True

    def _answer(self, line: str) -> None:
        asked = [*self.messages, {"role": "user", "content": line}]
        shown = print_stream(self.llm.stream(self.llm.chat_prompt(asked), self.sampling), end="\n")
        self.messages = [*asked, {"role": "assistant", "content": shown.text}]
        if shown.stats is not None:
            self.tokens += shown.stats.new_tokens
            self.seconds += shown.stats.seconds

    def advice(self) -> str | None:
        """Return what to say at the end, if plain decoding would have been faster; it is tried on a
        few tokens.

        A drafter with a budget rests by itself where it does not pay.
        """
        if self.tokens < _ENOUGH or self.llm.drafter.name == PLAIN or self.llm.drafter.budget:
            return None
        few = SamplingParams(_TRIED, ignore_eos=True, speculation=PLAIN)
        (tried,) = self.llm.generate(
            [self.llm.chat_prompt([{"role": "user", "content": "-"}])], few
        )
        plain, drafted = tried.stats.new_tokens / tried.stats.seconds, self.tokens / self.seconds
        if drafted * _CLEARLY > plain:
            return None
        name = self.llm.drafter.name
        choice = f"--drafter {PLAIN} is faster here, or try {DEFAULT_DRAFTER}"
        return f"{name} gave {drafted:.1f} tokens/s, plain decoding {plain:.1f}: {choice}"

    def _save(self, name: str) -> None:
        if not name:
            raise ConfigError(
                "/save: got no name; expected that of a file. Write /save talk.jsonl."
            )
        write_atomically(
            Path(name).expanduser(), f"{json.dumps({'messages': self.messages})}\n".encode()
        )
        print_note(f"wrote {name}")


def chat(
    *,
    drafter: str = DEFAULT_DRAFTER,
    system: str | None = None,
    models: ModelOptions = ModelOptions(),
    sampling: Annotated[ChatSampling, without("ignore_eos")] = ChatSampling(),
) -> None:
    """Hold a conversation with the model. On a terminal accepted draft tokens are green; /help
    lists the commands.

    Ctrl-C stops an answer. Ctrl-D or /quit leaves.

    Args:
        drafter: name:key=value,key=value; see `paceline drafters`.
        system: system message.
    """
    require_standard_input()
    opening = [{"role": "system", "content": system}] if system else []
    conversation = Conversation(build_llm(models, drafter, keep_prefixes=1), sampling, opening)
    print_note(f"{models.model} with {drafter}. /help lists the commands, /quit leaves.")
    read, on_terminal, goes_on = lines_of(_NAMES), sys.stdin.isatty(), True
    while goes_on:
        try:
            line = read()
            goes_on = line is not None and conversation.take(line)
        except (
            PacelineError
        ) as error:  # such as a conversation that outgrew the context: say so, and go on
            print_error(error)
        except KeyboardInterrupt:
            if not on_terminal:
                raise
            print_note("Ctrl-D or /quit leaves")
    advice = conversation.advice()
    if advice is not None:
        print_note(advice)
