"""What the endpoints of one application share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from paceline.errors import ConfigError, did_you_mean
from paceline.llm import LLM
from paceline.serve.errors import ApiError
from paceline.serve.limits import AdmissionLimit
from paceline.serve.metrics import ServerMetrics
from paceline.serve.sampling import Sampler
from paceline.serve.settings import Settings
from paceline.serve.shutdown import ShutdownState
from paceline.serve.speculation import Speculations
from paceline.util.threads import Threads

T = TypeVar("T")


class Serving:
    """One model that is served.

    Attributes:
        names: under which it is known. began: when, in seconds since 1970.
    Raises:
        ConfigError: a model without tokenizer, or a drafter that cannot be made.
    """

    def __init__(self, llm: LLM, settings: Settings) -> None:
        if llm.tokenizer is None:
            raise ConfigError(
                "serve: got a model without tokenizer; expected one with. Pass tokenizer=... to"
                " LLM."
            )
        self.llm, self.settings = llm, settings
        self.names = settings.served_name or (llm.model.model.config.name_or_path or "model",)
        self.began = int(time.time())
        self.sampler = Sampler(
            llm,
            Speculations(llm.drafter.name, settings.allow_drafter),
            settings.ignore_generation_config,
        )
        self.gate = AdmissionLimit(settings.max_open)
        self.meter = ServerMetrics(llm, self.names[0])
        self.drain = ShutdownState()
        self._intake = Threads(1, "paceline-intake")  # a tokenizer is one thread's at a time

    def check_model(self, name: str | None) -> None:
        """Refuse a model that is not served.

        Raises:
            ApiError: with status 404.
        """
        if name is not None and name not in self.names:
            message = (
                f"model: got {name[:60]!r}; expected one that is"
                f" served.{did_you_mean(name[:60], self.names)}"
            )
            raise ApiError(404, message, "model", "model_not_found")

    def check_answers(self, count: int) -> None:
        """Refuse a request for too many answers.

        Raises:
            ConfigError: prompts times n are too many.
        """
        most = min(self.settings.max_answers, self.settings.max_open)
        if count > most:
            raise ConfigError(
                f"n: got {count} answers, prompts times n; expected at most {most}. Send several"
                " requests."
            )

    def check_prompt(self, ids: list[int], max_tokens: int = 1) -> None:
        """Refuse a prompt that is too long.

        Args:
            ids: of the prompt.
            max_tokens: most tokens of its answer; 0 lets the prompt fill the context.
        Raises:
            ApiError: with status 400 and the code that clients know.
        """
        most = self.llm.max_length - min(1, max_tokens)
        most = most if self.settings.max_prompt is None else min(most, self.settings.max_prompt)
        if len(ids) > most:
            raise ApiError(
                400,
                f"prompt: got {len(ids)} tokens; expected at most {most}. Shorten it.",
                "prompt",
                "context_length_exceeded",
            )

    async def aside(self, work: Callable[[], T]) -> T:
        """Do what takes time with texts, such as making tokens of them, while the event loop
        goes on.
        """
        return await asyncio.get_running_loop().run_in_executor(self._intake.executor, work)

    def close(self) -> None:
        """Let go of the thread."""
        self._intake.shutdown()
