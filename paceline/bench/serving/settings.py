"""What a load bench does: a frozen dataclass, checked when it is made, and the command line that
repeats it.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Literal

from paceline.bench.settings import command_words
from paceline.drafters import PLAIN, entry
from paceline.errors import ConfigError
from paceline.util.config import parse_spec, require_range
from paceline.util.options import ModelOptions, PromptOptions, flat

CONTEXTS = ("short", "medium", "long")
Transport = Literal["http", "direct"]
_LEAST_REQUESTS = 8  # of a load, where nothing is said


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _number(name: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ConfigError(f"{name}: got {word!r}; expected numbers, separated by commas.") from None


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """How much a server has to do.

    Attributes:
        users: how many at a time, each of whom asks again when it has its answer; separated by
            commas.
        rates: requests that come at random, as shares of what the server answers without
            speculation; separated by commas.
        contexts: out of short (a prompt alone), medium and long (text before it); separated by
            commas.
        medium: tokens of a medium prompt.
        long: tokens of a long prompt.
        requests: of a load; 0 = two per user, at least 8.
        transport: http: a server on a port of its own in this process; direct: the engine's own
            asyncio calls.
        turn: tokens before the second turn of a chat, whose first token is timed with and without
            prefix reuse; 0 = leave out.
        intruders: tokens of prompts that arrive while an answer is streamed, whose gaps are timed;
            0 = leave out.
        soak: minutes of mixed load with aborted answers, whose memory is recorded; 0 = leave out.

    Raises:
        ConfigError: a value out of range.
    """

    users: str = "1,8,32"
    rates: str = ""
    contexts: str = "short"
    medium: int = 1000
    long: int = 3000
    requests: int = 0
    transport: Transport = "http"
    turn: int = 0
    intruders: int = 0
    soak: float = 0.0

    def __post_init__(self) -> None:
        for name in ("medium", "long"):
            require_range("load", name, getattr(self, name), 8)
        for name in ("requests", "turn", "intruders", "soak"):
            require_range("load", name, getattr(self, name), 0)
        if min(self.user_counts) < 1:
            raise ConfigError(
                f"users: got {self.users!r}; expected numbers of at least 1, as 1,8,32."
            )
        if any(not 0 < share <= 2 for share in self.shares):
            raise ConfigError(
                f"rates: got {self.rates!r}; expected shares above 0 and at most 2, as 0.5,0.9."
            )
        unknown = [name for name in self.context_names if name not in CONTEXTS]
        if unknown or not self.context_names:
            raise ConfigError(
                f"contexts: got {self.contexts!r}; expected some of {', '.join(CONTEXTS)}."
            )

    @property
    def user_counts(self) -> list[int]:
        """The numbers of users, as they came."""
        return [int(_number("users", word)) for word in _words(self.users)] or [0]

    @property
    def shares(self) -> list[float]:
        """The rates, as shares of the capacity."""
        return [_number("rates", word) for word in _words(self.rates)]

    @property
    def context_names(self) -> list[str]:
        """The contexts, as they came."""
        return _words(self.contexts)

    def count(self, users: int) -> int:
        """Requests of a load of so many users."""
        return self.requests or max(_LEAST_REQUESTS, 2 * users)

    def tokens(self, context: str) -> int | None:
        """Tokens of prompts of that context; None = as long as they are."""
        return {"short": None, "medium": self.medium, "long": self.long}[context]


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """One run of the load bench.

    Attributes:
        models: the models; "demo" brings its draft along.
        selection: the prompts, see `load_prompts`.
        drafters: specs, each of which answers every load; plain decoding is always the first.
        load: how much there is to do.
        max_new_tokens: longest answer; all are greedy.
        max_nodes: most draft nodes verified per request and step.
        repeats: passes over every load.

    Raises:
        ConfigError: a value out of range.
    """

    models: ModelOptions = ModelOptions()
    selection: PromptOptions = PromptOptions()
    drafters: tuple[str, ...] = ()
    load: LoadOptions = LoadOptions()
    max_new_tokens: int = 128
    max_nodes: int = 256
    repeats: int = 1

    def __post_init__(self) -> None:
        for name, least in (("max_new_tokens", 2), ("max_nodes", 1), ("repeats", 1)):
            require_range("bench", name, getattr(self, name), least)
        for spec in self.drafters:
            entry(parse_spec(spec)[0])
        object.__setattr__(
            self, "drafters", (PLAIN, *(spec for spec in self.drafters if spec != PLAIN))
        )
        if len(set(self.drafters)) < len(self.drafters):
            raise ConfigError(
                f"bench: got {', '.join(self.drafters)}; expected every drafter once."
            )

    def command(self) -> str:
        """Return the `paceline bench` command line of this run; options at their defaults are
        left out.
        """
        words = command_words(flat(self), flat(ServingConfig()), always=("model", "drafters"))
        return shlex.join(["paceline", "bench", "--serve", *words])
