"""Define the limits that a server imposes on clients."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.util.config import require_range


@dataclass(frozen=True, slots=True)
class LatencyBuckets:
    """Bucket bounds of the latency histograms, in seconds, as in vLLM.

    Attributes:
        first_token: Bounds for the time to the first token.
        token_interval: Bounds for the time between two steps of an answer, and for the time per
            token.
        request: Bounds for the duration of a request, and for its time in the queue.
    """

    first_token: tuple[float, ...] = (
        0.001,
        0.005,
        0.01,
        0.02,
        0.04,
        0.06,
        0.08,
        0.1,
        0.25,
        0.5,
        0.75,
        1.0,
        2.5,
        5.0,
        7.5,
        10.0,
        20.0,
        40.0,
        80.0,
        160.0,
        640.0,
        2560.0,
    )
    token_interval: tuple[float, ...] = (
        0.001,
        0.0025,
        0.005,
        0.01,
        0.025,
        0.05,
        0.075,
        0.1,
        0.15,
        0.2,
        0.3,
        0.4,
        0.5,
        0.75,
        1.0,
        2.5,
        5.0,
        7.5,
        10.0,
        20.0,
        40.0,
        80.0,
    )
    request: tuple[float, ...] = (
        0.3,
        0.5,
        0.8,
        1.0,
        1.5,
        2.0,
        2.5,
        5.0,
        10.0,
        15.0,
        20.0,
        30.0,
        40.0,
        50.0,
        60.0,
        120.0,
        240.0,
        480.0,
        960.0,
        1920.0,
        7680.0,
    )


@dataclass(frozen=True, slots=True)
class RetrySettings:
    """Settings for the Retry-After header, which a busy server sends to clients.

    Attributes:
        num_recent: Number of recent answers from which the server estimates the waiting time.
        max_seconds: Maximum value of the header, in seconds.
    """

    num_recent: int = 64
    max_seconds: int = 600


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Time limits for client connections.

    Attributes:
        read_seconds: Number of seconds after the request's time limit during which the client can
            still read the rest of a stream.
        close_seconds: Time limit in seconds for closing idle connections at shutdown.
    """

    read_seconds: float = 60.0
    close_seconds: int = 5


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a server for all requests, such as limits and parsers.

    Attributes:
        served_name: Name that requests may use for the model; repeatable. If the model has several
            names, responses contain the first one. Default: the model's name.
        max_batch: Maximum number of answers generated at a time; at least 1.
        max_waiting: Maximum number of answers that may wait for a slot; at least 0. The server
            rejects further requests with status 429.
        max_answers: Maximum number of answers per request (prompts times n); at least 1.
        max_prompt: Maximum number of tokens per prompt; at least 1. Default: limited only by the
            model's context length.
        max_body: Maximum size of a request body, in KiB; at least 1.
        max_logprobs: Maximum number of top-k tokens reported per position; at least 0.
        timeout: Time limit per request in seconds, including waiting time; at least 0; 0 disables
            the limit.
        allow_drafter: Additional drafter spec that requests may select, even if it uses files;
            repeatable. Default: none.
        tool_call_parser: Format in which the model writes tool calls, such as hermes; 'auto'
            detects it from the chat template.
        reasoning_parser: Markers around the model's reasoning: think, harmony, gemma4, mistral or
            seed_oss; 'auto' detects them from the chat template; 'none' leaves reasoning in the
            text.
        max_stored_responses: Maximum number of answers from /v1/responses that later requests may
            continue; at least 0. The server drops the oldest answers first.
        ignore_generation_config: Ignore the sampling defaults in the model's
            generation_config.json. Without them, temperature defaults to 1, and top_k,
            top_p, min_p and repetition_penalty are off by default.

    Raises:
        ConfigError: A value is out of range.
    """

    served_name: tuple[str, ...] = ()
    max_batch: int = 8
    max_waiting: int = 1024
    max_answers: int = 128
    max_prompt: int | None = None
    max_body: int = 20480  # enough for several phone photos as base64 data URLs
    max_logprobs: int = 20
    timeout: float = 600.0
    allow_drafter: tuple[str, ...] = ()
    tool_call_parser: str = "auto"
    reasoning_parser: str = "auto"
    max_stored_responses: int = 256
    ignore_generation_config: bool = False

    def __post_init__(self) -> None:
        minima = {
            "max_batch": 1,
            "max_waiting": 0,
            "max_answers": 1,
            "max_body": 1,
            "max_logprobs": 0,
            "max_stored_responses": 0,
            "timeout": 0,
        }
        for name, low in minima.items():
            require_range("serve", name, getattr(self, name), low)
        if self.max_prompt is not None:
            require_range("serve", "max_prompt", self.max_prompt, 1)
        if "" in self.served_name:
            raise ConfigError(
                "\0serve: served_name\0: the name is empty. Leave the option out to use the model's"
                " name."
            )

    @property
    def max_open(self) -> int:
        """Return the maximum number of open answers, both running and waiting."""
        return self.max_batch + self.max_waiting
