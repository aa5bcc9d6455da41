"""What a server allows its clients."""

from __future__ import annotations

from dataclasses import dataclass

from paceline.errors import ConfigError
from paceline.util.config import require_range


@dataclass(frozen=True, slots=True)
class Settings:
    """What a server allows its clients.

    Attributes:
        served_name: names of the model in requests, repeatable; the first is the one in answers.
            Default: the model's.
        max_batch: answers that are worked on at a time; as many as the `LLM` takes into a forward.
        max_waiting: answers that wait for a place behind them; more are refused with status 429.
        max_answers: most answers of one request: prompts times n.
        max_prompt: most tokens of a prompt; default: what the model's context leaves.
        max_body: most KiB of a request.
        max_logprobs: most likely tokens that are reported in a place.
        timeout: seconds a request may take, waiting included; 0 = as long as it needs.
        allow_drafter: drafters with files among their options, which requests may then name,
            repeatable.
        ignore_generation_config: temperature, top_k, top_p, min_p and repetition_penalty that a
            request leaves out are 1, 0, 1, 0 and 1, whatever the model's own generation_config.json
            says.

    Raises:
        ConfigError: a value out of range.
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
        least = {
            "max_batch": 1,
            "max_waiting": 0,
            "max_answers": 1,
            "max_body": 1,
            "max_logprobs": 0,
            "timeout": 0,
        }
        for name, low in least.items():
            require_range("serve", name, getattr(self, name), low)
        if self.max_prompt is not None:
            require_range("serve", "max_prompt", self.max_prompt, 1)
        if "" in self.served_name:
            raise ConfigError(
                "serve: served_name: got an empty one; expected a name. Leave it out."
            )

    @property
    def max_open(self) -> int:
        """Answers that are worked on or wait, over all clients."""
        return self.max_batch + self.max_waiting
