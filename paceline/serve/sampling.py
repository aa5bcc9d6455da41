"""Convert the fields of a request to `SamplingParams`."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from paceline.core.sampling_params import SamplingParams
from paceline.errors import ConfigError
from paceline.llm import LLM
from paceline.serve.protocol_settings import NUM_SEEDS
from paceline.serve.requests import GenerationRequest, ResponseFormat
from paceline.serve.speculation import Speculations

# Sampling defaults that the server, like vLLM, reads from the model's generation_config.json.
_FROM_MODEL = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")
# Request fields that have the same names in `SamplingParams`.
_SAME_NAME = (
    "temperature",
    "top_p",
    "min_p",
    "repetition_penalty",
    "stop",
    "presence_penalty",
    "frequency_penalty",
    "min_tokens",
    "ignore_eos",
    "stop_token_ids",
    "bad_words",
    "priority",
    "skip_special_tokens",
)


class Sampler:
    """Converts the fields of requests to sampling parameters.

    Args:
        llm: Model to serve.
        speculations: Drafters that requests may select.
        ignore_generation_config: Whether to ignore the sampling defaults in the model's
            generation_config.json.
    """

    def __init__(
        self, llm: LLM, speculations: Speculations, ignore_generation_config: bool
    ) -> None:
        self._llm = llm
        self._speculations = speculations
        own = {} if ignore_generation_config else llm.model.model.generation_config.to_diff_dict()
        self.defaults = {"temperature": 1.0} | {
            name: own[name] for name in _FROM_MODEL if own.get(name) is not None
        }

    def params(
        self,
        request: GenerationRequest,
        max_tokens: int,
        logprobs: int | None,
        prompt_logprobs: int | None = None,
    ) -> SamplingParams:
        """Return a request's sampling parameters, without the response format.

        Args:
            request: Body of the request.
            max_tokens: Maximum number of tokens per answer. The model's context length is an
                additional limit.
            logprobs: Number of top-k tokens to report per position of an answer; None reports no
                log-probabilities.
            prompt_logprobs: Number of top-k tokens to report per position of the prompt; None
                (default) reports no log-probabilities.
        Raises:
            ConfigError: A value is out of range.
        """
        spec, max_nodes = self._speculations.spec(request.speculation)
        max_new_tokens = min(max_tokens, self._llm.max_length)
        fields = {name: getattr(request, name) for name in _SAME_NAME} | {
            "top_k": None if request.top_k is None else max(request.top_k, 0),
            "max_nodes": max_nodes,
            "logprobs": logprobs,
            "prompt_logprobs": prompt_logprobs,
        }
        first_seed = secrets.randbelow(NUM_SEEDS) if request.seed is None else request.seed
        values: dict[str, Any] = self.defaults | {
            name: value for name, value in fields.items() if value is not None
        }
        return SamplingParams(
            max_new_tokens,
            speculation=spec,
            logit_bias=_bias(request.logit_bias),
            n=request.n or 1,
            seed=first_seed,
            **values,
        )


def response_schema(response_format: ResponseFormat | None) -> Mapping[str, Any] | None:
    """Return the JSON schema that a response format requires; None allows any text.

    Raises:
        ConfigError: The schema is missing.
    """
    if response_format is None or response_format.type == "text":
        return None
    if response_format.type == "json_object":
        return {"type": "object"}
    if response_format.json_schema is None:
        raise ConfigError(
            'response_format: the schema is missing. Add {"json_schema": {"schema": ...}}.'
        )
    return response_format.json_schema.schema_


def params_of_answers(params: SamplingParams) -> list[SamplingParams]:
    """Return separate parameters, with different seeds, for the n answers to a prompt."""
    return [replace(params, seed=params.seed + number, n=1) for number in range(params.n)]


def _bias(logit_bias: Mapping[str, float] | None) -> dict[int, float] | None:
    if logit_bias is None:
        return None
    invalid = next((key for key in logit_bias if not (key.isascii() and key.isdigit())), None)
    if invalid is not None:
        raise ConfigError(
            f"logit_bias: got token {invalid!r}; expected token ids, such as {{'42': -5}}. Correct"
            " it."
        )
    return {int(key): bias for key, bias in logit_bias.items()}
