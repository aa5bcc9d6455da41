"""What the proposer is told: `additional_config["paceline"]`, and what it reads from vLLM's own
configuration.
"""

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
    """Attributes:
    drafter: spec of a drafter that learns from text alone, such as
    "sssd:datastore=/srv/history,update_datastore=true". length: auto = drafts are as long as they
    pay for what they cost | full = as long as they can be. idle: seconds without a step after which
    all requests count as finished; more than the longest step takes.
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
    """What is read from a `VllmConfig`.

    Attributes:
        most: tokens of the longest draft (`num_speculative_tokens`). context: tokens of a request
            (`max_model_len`).
        eos: tokens that end an answer. tokenizer: its name, None where vLLM runs without. leads:
            whether the drafts of this rank are used: vLLM asks every rank of a tensor-parallel
            group, and takes the first one's.
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
    """Refuse models with recurrent layers, whose answers speculation without drafts in every step
    makes wrong.

    vLLM keeps the state behind accepted draft tokens in another slot than a step without drafts
    reads. No release of vLLM is known to move it.

    Raises:
        ConfigError: the model of a `VllmConfig` is hybrid or has no attention at all.
    """
    model = config.model_config
    if model.is_hybrid or model.is_attention_free:
        raise ConfigError(
            f"model {model.model!r} has recurrent layers. vLLM reads a stale state there in a step"
            " without draft tokens that"
            " follows accepted ones (vllm-project/vllm#52942, in all releases up to 0.33), so"
            " answers would be wrong. Start vLLM"
            " without speculative_config for this model."
        )


def read_options(config: Any) -> ProposerOptions:
    """Return the options in a `VllmConfig`.

    Raises:
        ConfigError: an unknown one, or a value out of range.
    """
    given = (config.additional_config or {}).get("paceline", {})
    if not isinstance(given, dict):
        raise ConfigError(
            f"{_OWNER}: got {given!r}; expected an object, such as {{'drafter': 'sssd'}}."
        )
    return build_options(ProposerOptions, given, _OWNER)


def read_facts(config: Any) -> EngineFacts:
    """Return what a `VllmConfig` says of the engine."""
    model, parallel = config.model_config, config.parallel_config
    generation = model.try_get_generation_config() or {}
    named = getattr(model, "served_model_name", None) or model.model
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
        model=named if isinstance(named, str) else named[0],
        tokenizer=None if getattr(model, "skip_tokenizer_init", False) else model.tokenizer,
        revision=getattr(model, "tokenizer_revision", None),
        leads=parallel.rank % parallel.tensor_parallel_size == 0,
    )


def _ids(found: int | Iterable[int] | None) -> tuple[int, ...]:
    if found is None:
        return ()
    return (found,) if isinstance(found, int) else tuple(found)
