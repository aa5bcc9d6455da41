"""Define the state that all endpoints of a server share."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from paceline.errors import ConfigError, did_you_mean
from paceline.llm import LLM
from paceline.parsing.answer_format import AnswerFormat
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
    """State of a server: its model, limits, metrics and shutdown state.

    Args:
        llm: Model to serve.
        settings: Limits on client requests.
    Attributes:
        names: Names that requests may use for the model.
        answer_format: Format of the model's reasoning and tool calls.
        began: Start time of the server, in seconds since 1970.
    Raises:
        ConfigError: The model has no tokenizer, the spec of an allowed drafter is invalid, or the
            name of a parser is unknown.
    """

    def __init__(self, llm: LLM, settings: Settings) -> None:
        if llm.tokenizer is None:
            raise ConfigError("serve: the model has no tokenizer. Pass \0tokenizer=DIR\0.")
        self.llm, self.settings = llm, settings
        self.names = settings.served_name or (llm.model.model.config.name_or_path or "model",)
        self.began = int(time.time())
        self.sampler = Sampler(
            llm,
            Speculations(llm.drafter.name, settings.allow_drafter, llm.has_draft_model),
            settings.ignore_generation_config,
        )
        self.answer_format = AnswerFormat(
            llm.tokenizer, settings.tool_call_parser, settings.reasoning_parser
        )
        self.gate = AdmissionLimit(settings.max_open)
        self.meter = ServerMetrics(llm, self.names[0])
        self.drain = ShutdownState()
        self._intake = Threads(1, "paceline-intake")  # a tokenizer is not thread-safe

    def check_model(self, name: str | None) -> None:
        """Raise an error if a request names a model that the server does not have.

        Raises:
            ApiError: The model is unknown (status 404).
        """
        if name is not None and name not in self.names:
            message = f"model: {name[:60]!r} is not served.{did_you_mean(name[:60], self.names)}"
            raise ApiError(404, message, "model", "model_not_found")

    def check_answers(self, count: int) -> None:
        """Raise an error if a request asks for too many answers.

        Raises:
            ConfigError: The number of prompts times n exceeds the limit.
        """
        max_answers = min(self.settings.max_answers, self.settings.max_open)
        if count > max_answers:
            raise ConfigError(
                f"n: got {count} answers (prompts times n); expected at most {max_answers}. Split"
                " the request."
            )

    def check_prompt(self, ids: list[int], max_tokens: int = 1) -> None:
        """Raise an error if a prompt is too long.

        Args:
            ids: Token ids of the prompt.
            max_tokens: Maximum number of tokens in the answer. With 0, the prompt may fill the
                whole context; otherwise, it must leave space for one token.
        Raises:
            ApiError: The prompt is too long (status 400, code "context_length_exceeded").
        """
        max_prompt_tokens = self.llm.max_length - min(1, max_tokens)
        max_prompt_tokens = (
            max_prompt_tokens
            if self.settings.max_prompt is None
            else min(max_prompt_tokens, self.settings.max_prompt)
        )
        if len(ids) > max_prompt_tokens:
            raise ApiError(
                400,
                f"prompt: got {len(ids)} tokens; expected at most {max_prompt_tokens}. Shorten it.",
                "prompt",
                "context_length_exceeded",
            )

    async def run_in_thread(self, work: Callable[[], T]) -> T:
        """Run `work`, such as tokenisation, in a thread, off the event loop."""
        return await asyncio.get_running_loop().run_in_executor(self._intake.executor, work)

    def close(self) -> None:
        """Stop the thread that runs the tokenizer."""
        self._intake.shutdown()
