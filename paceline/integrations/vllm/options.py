"""Read the proposer's options and the properties of vLLM's engine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from paceline.errors import ConfigError
from paceline.util.config import build_options, require_range

LENGTHS = ("auto", "full")
_OWNER = "additional_config['paceline']"


@dataclass(frozen=True, slots=True)
class ProposerOptions:
    """Options for the proposer, from `additional_config["paceline"]`.

    Attributes:
        drafter: Spec of a drafter that needs only the text, such as
            "sssd:datastore=/srv/history,update_datastore=true".
        length: "auto" (default) chooses the draft lengths that maximise the expected number of
            tokens per second; "full" always uses the longest draft.
        idle: Number of seconds without a step after which all requests count as finished. The
            value must exceed the duration of the longest step.
    """

    drafter: str = "sssd"
    length: str = "auto"
    idle: float = 10.0

    def __post_init__(self) -> None:
        if self.length not in LENGTHS:
            raise ConfigError(
                f"{_OWNER}: length: got {self.length!r}; expected one of {', '.join(LENGTHS)}."
            )
        require_range(_OWNER, "idle", self.idle, 0.01)


@dataclass(frozen=True, slots=True)
class EngineFacts:
    """Properties of vLLM's engine, read from a `VllmConfig`.

    Attributes:
        most: Maximum number of draft tokens per request (`num_speculative_tokens`).
        context: Maximum number of tokens per request (`max_model_len`).
        vocab_size: Vocabulary size.
        eos: Ids of the tokens that end an answer.
        model: Served model name.
        tokenizer: Name of the tokenizer; None if vLLM runs without one.
        revision: Revision of the tokenizer.
        leads: Whether vLLM uses the drafts from this rank. vLLM calls every rank in a
            tensor-parallel group, but uses only the drafts from the first rank.
    """

    most: int
    context: int
    vocab_size: int
    eos: frozenset[int]
    model: str
    tokenizer: str | None
    revision: str | None
    leads: bool


def refuse_recurrent(config: Any) -> None:
    """Reject models with recurrent layers.

    When vLLM accepts draft tokens, it stores the recurrent state in one slot. If the next step has
    no draft tokens, vLLM reads the state from a different slot, and answers would be wrong. No vLLM
    release is known to move the state between these slots.

    Raises:
        ConfigError: The model in the `VllmConfig` is hybrid or has no attention layers.
    """
    model = config.model_config
    if model.is_hybrid or model.is_attention_free:
        raise ConfigError(
            f"model {model.model!r} has recurrent layers. If a step without draft tokens follows a"
            " step with accepted ones, vLLM reads a stale recurrent state (vllm-project/vllm#52942,"
            " in all releases up to 0.33), so answers would be wrong. Start vLLM without"
            " speculative_config for this model."
        )


def read_options(config: Any) -> ProposerOptions:
    """Read the proposer's options from a `VllmConfig`.

    Raises:
        ConfigError: An option is unknown or out of range.
    """
    given = (config.additional_config or {}).get("paceline", {})
    if not isinstance(given, dict):
        raise ConfigError(
            f"{_OWNER}: got {given!r}; expected an object, such as {{'drafter': 'sssd'}}."
        )
    return build_options(ProposerOptions, given, _OWNER)


def read_facts(config: Any) -> EngineFacts:
    """Read the properties of the engine from a `VllmConfig`."""
    model, parallel = config.model_config, config.parallel_config
    generation = model.try_get_generation_config() or {}
    served_names = getattr(model, "served_model_name", None) or model.model
    return EngineFacts(
        most=config.speculative_config.num_speculative_tokens,
        context=model.max_model_len,
        vocab_size=model.get_vocab_size(),
        eos=frozenset(
            (
                *_ids(generation.get("eos_token_id")),
                *_ids(getattr(model.hf_config, "eos_token_id", None)),
            )
        ),
        model=served_names if isinstance(served_names, str) else served_names[0],
        tokenizer=None if getattr(model, "skip_tokenizer_init", False) else model.tokenizer,
        revision=getattr(model, "tokenizer_revision", None),
        leads=parallel.rank % parallel.tensor_parallel_size == 0,
    )


def _ids(token_ids: int | Iterable[int] | None) -> tuple[int, ...]:
    if token_ids is None:
        return ()
    return (token_ids,) if isinstance(token_ids, int) else tuple(token_ids)
