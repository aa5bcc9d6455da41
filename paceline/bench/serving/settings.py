"""Define the settings of a load benchmark, and the command line that repeats it."""

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
_MIN_REQUESTS = 8  # of a load, by default


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _number(name: str, word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise ConfigError(
            f"\0{name}\0: got {word!r}; expected numbers, separated by commas."
        ) from None


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """The loads under which a server is measured.

    Attributes:
        users: Numbers of simultaneous users, separated by commas; each at least 1. Each user waits
            for an answer before sending the next request.
        rates: Arrival rates of random requests, as multiples of the server's capacity without
            speculation; separated by commas; each above 0, at most 2. Default: none.
        contexts: Context lengths of the prompts, separated by commas: short, medium or long. With
            short, the command sends each prompt unchanged. With medium or long, it inserts other
            prompts before each prompt.
        medium: Number of tokens in a medium prompt; at least 8.
        long: Number of tokens in a long prompt; at least 8.
        requests: Number of requests per load; at least 0. With 0, each user sends two requests, and
            at least eight are sent in total.
        max_batch: Maximum number of answers that the server generates at a time; at least 0.
            Further requests wait. With 0, the maximum is the largest number of users.
        transport: 'http' starts a server in this process; 'direct' uses the engine's asyncio calls.

    Raises:
        ConfigError: A value is out of range.
    """

    users: str = "1,8,32"
    rates: str = ""
    contexts: str = "short"
    medium: int = 1000
    long: int = 3000
    requests: int = 0
    max_batch: int = 0
    transport: Transport = "http"

    def __post_init__(self) -> None:
        for name in ("medium", "long"):
            require_range("load", name, getattr(self, name), 8)
        for name in ("requests", "max_batch"):
            require_range("load", name, getattr(self, name), 0)
        if min(self.user_counts) < 1:
            raise ConfigError(
                f"\0users\0: got {self.users!r}; expected numbers of at least 1, such as 1,8,32."
            )
        if any(not 0 < share <= 2 for share in self.shares):
            raise ConfigError(
                f"\0rates\0: got {self.rates!r}; expected shares above 0 and at most 2, such as"
                " 0.5,0.9."
            )
        unknown = [name for name in self.context_names if name not in CONTEXTS]
        if unknown or not self.context_names:
            raise ConfigError(
                f"\0contexts\0: got {self.contexts!r}; expected one or more of"
                f" {', '.join(CONTEXTS)}."
            )

    @property
    def user_counts(self) -> list[int]:
        """Return the numbers of simultaneous users, in the order given in the option."""
        return [int(_number("users", word)) for word in _words(self.users)] or [0]

    @property
    def shares(self) -> list[float]:
        """Return the arrival rates, as shares of the capacity."""
        return [_number("rates", word) for word in _words(self.rates)]

    @property
    def context_names(self) -> list[str]:
        """Return the names of the context lengths, in the order given in the option."""
        return _words(self.contexts)

    @property
    def batch(self) -> int:
        """Return the maximum number of answers that the server generates at a time."""
        return self.max_batch or max(self.user_counts)

    def count(self, users: int) -> int:
        """Return the number of requests to send under a load."""
        return self.requests or max(_MIN_REQUESTS, 2 * users)

    def tokens(self, context: str) -> int | None:
        """Return how many tokens a prompt has at a context length; None for "short"."""
        return {"short": None, "medium": self.medium, "long": self.long}[context]


@dataclass(frozen=True, slots=True)
class ServingConfig:
    """Configuration of a load benchmark.

    Attributes:
        models: Models; "demo" includes its draft model.
        selection: Selection of prompts; see `load_prompts`.
        drafters: Drafter specs. The benchmark measures each drafter under every load. Plain
            decoding always comes first.
        load: Loads on the server.
        max_new_tokens: Maximum number of tokens per answer; all answers are greedy.
        max_nodes: Maximum number of draft nodes verified per request and step.
        repeats: Number of times that every load is measured.

    Raises:
        ConfigError: A value is out of range.
    """

    models: ModelOptions = ModelOptions()
    selection: PromptOptions = PromptOptions()
    drafters: tuple[str, ...] = ()
    load: LoadOptions = LoadOptions()
    max_new_tokens: int = 128
    max_nodes: int = 256
    repeats: int = 1

    def __post_init__(self) -> None:
        for name, minimum in (("max_new_tokens", 2), ("max_nodes", 1), ("repeats", 1)):
            require_range("bench", name, getattr(self, name), minimum)
        for spec in self.drafters:
            entry(parse_spec(spec)[0])
        object.__setattr__(
            self, "drafters", (PLAIN, *(spec for spec in self.drafters if spec != PLAIN))
        )
        if len(set(self.drafters)) < len(self.drafters):
            raise ConfigError(
                f"bench: got {', '.join(self.drafters)}; expected each drafter only once."
            )

    def command(self) -> str:
        """Return the `paceline bench` command line for this run, omitting defaults."""
        values = flat(self)
        model = values.pop("model")
        words = command_words(values, flat(ServingConfig()), always=("drafters",))
        return shlex.join(["paceline", "bench", model, "--serve", *words])
