"""Define the limits that a server sets for its clients."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.util.config import require_range


@dataclass(frozen=True, slots=True)
class LatencyBuckets:
    """Bucket bounds of the latency histograms, in seconds; vLLM's buckets.

    Attributes:
        first_token: Time to the first token.
        token_interval: Time between two steps of an answer, and time per token.
        request: Time of a request, and its time in the queue.
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
    """Settings of the waiting time in Retry-After.

    Attributes:
        num_recent: Number of finished answers from which the rate is estimated.
        max_seconds: Longest waiting time sent to a client, in seconds.
    """

    num_recent: int = 64
    max_seconds: int = 600


@dataclass(frozen=True, slots=True)
class ConnectionSettings:
    """Time limits of connections.

    Attributes:
        read_seconds: Time in which a client may read the rest of a stream after its request's time
            limit.
        close_seconds: Time for idle connections to close at shutdown.
    """

    read_seconds: float = 60.0
    close_seconds: int = 5


@dataclass(frozen=True, slots=True)
class Settings:
    """Set the limits of a server for its clients.

    Attributes:
        served_name: Names of the model in requests; repeatable; responses use the first. Default:
            the model's name.
        max_batch: Maximum answers generated at a time; at least 1.
        max_waiting: Maximum answers waiting for a slot; at least 0; further requests get status
            429.
        max_answers: Maximum answers per request (prompts times n); at least 1.
        max_prompt: Maximum tokens per prompt; at least 1. Default: what the model's context allows.
        max_body: Maximum size of a request, in KiB; at least 1.
        max_logprobs: Maximum top-k tokens reported per position; at least 0.
        timeout: Time limit per request in seconds, waiting included; at least 0; 0 disables it.
        allow_drafter: Drafter specs with files that requests may name; repeatable. Default: none.
        ignore_generation_config: Ignore sampling defaults of the model's generation_config.json:
            omitted fields then disable temperature scaling, top_k, top_p, min_p and
            repetition_penalty.

    Raises:
        ConfigError: A value is out of range.
    """

    served_name: tuple[str, ...] = ()
    max_batch: int = 8
    max_waiting: int = 1024
    max_answers: int = 128
    max_prompt: int | None = None
    max_body: int = 2048
    max_logprobs: int = 20
    timeout: float = 600.0
    allow_drafter: tuple[str, ...] = ()
    ignore_generation_config: bool = False

    def __post_init__(self) -> None:
        minima = {
            "max_batch": 1,
            "max_waiting": 0,
            "max_answers": 1,
            "max_body": 1,
            "max_logprobs": 0,
            "timeout": 0,
        }
        for name, low in minima.items():
            require_range("serve", name, getattr(self, name), low)
        if self.max_prompt is not None:
            require_range("serve", "max_prompt", self.max_prompt, 1)
        if "" in self.served_name:
            raise ConfigError(
                "serve: served_name: the name is empty. Leave the option out to use the model's"
                " name."
            )

    @property
    def max_open(self) -> int:
        """Return the maximum number of open answers, running or waiting."""
        return self.max_batch + self.max_waiting
