"""From the fields of a request to `SamplingParams`, and what stands for those it leaves out."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from paceline import grammars
from paceline.core.request import SamplingParams
from paceline.errors import ConfigError
from paceline.llm import LLM
from paceline.serve.requests import GenerationRequest, ResponseFormat
from paceline.serve.speculation import Speculations

_FROM_MODEL = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty")  # as vLLM takes them
_SEEDS = 2**32


class Sampler:
    """Makes the parameters of requests.

    Args:
        ignore_generation_config: as in `Settings`.
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
        asked: GenerationRequest,
        max_tokens: int,
        logprobs: int | None,
        prompt_logprobs: int | None = None,
    ) -> list[SamplingParams]:
        """Return the parameters of each of the n answers to a prompt. Compiles a grammar, where one
        is asked for.

        Args:
            max_tokens: most tokens of an answer; more than the model's context are cut to it.
            logprobs, prompt_logprobs: as in `SamplingParams`.
        Raises:
            ConfigError: a value outside its range.
        """
        spec, max_nodes = self._speculations.spec(asked.speculation)
        max_new_tokens = min(max_tokens, self._llm.max_length)
        given = {
            "temperature": asked.temperature,
            "top_k": None if asked.top_k is None else max(asked.top_k, 0),
            "top_p": asked.top_p,
            "min_p": asked.min_p,
            "repetition_penalty": asked.repetition_penalty,
            "stop": asked.stop,
            "presence_penalty": asked.presence_penalty,
            "frequency_penalty": asked.frequency_penalty,
            "min_tokens": asked.min_tokens,
            "ignore_eos": asked.ignore_eos,
            "stop_token_ids": asked.stop_token_ids,
            "bad_words": asked.bad_words,
            "priority": asked.priority,
            "max_nodes": max_nodes,
            "logprobs": logprobs,
            "prompt_logprobs": prompt_logprobs,
            "skip_special_tokens": asked.skip_special_tokens,
        }
        first = secrets.randbelow(_SEEDS) if asked.seed is None else asked.seed
        values: dict[str, Any] = self.defaults | {
            name: value for name, value in given.items() if value is not None
        }
        params = SamplingParams(
            max_new_tokens,
            speculation=spec,
            logit_bias=_bias(asked.logit_bias),
            n=asked.n or 1,
            seed=first,
            **values,
        )
        processors = self._grammar(asked.response_format)
        return [_one(params, first + number, processors) for number in range(params.n)]

    def _grammar(self, asked: ResponseFormat | None) -> list[Callable[..., Any]]:
        """The processors that keep an answer to what it is to be.

        Raises:
            ConfigError: a schema that cannot be compiled.
        """
        if asked is None or asked.type == "text":
            return []
        if asked.type == "json_object":
            return [grammars.json_object(self._llm.tokenizer, self._llm.eos_token_ids)]
        if asked.json_schema is None:
            raise ConfigError(
                'response_format: got json_schema without one; expected {"json_schema": {"schema":'
                " ...}}. Add it."
            )
        return [
            grammars.json_schema(
                self._llm.tokenizer, asked.json_schema.schema_, self._llm.eos_token_ids
            )
        ]


def _bias(asked: Mapping[str, float] | None) -> dict[int, float] | None:
    if asked is None:
        return None
    wrong = next((key for key in asked if not (key.isascii() and key.isdigit())), None)
    if wrong is not None:
        raise ConfigError(
            f"logit_bias: got token {wrong!r}; expected token ids, such as {{'42': -5}}. Correct"
            " it."
        )
    return {int(key): bias for key, bias in asked.items()}


def _one(params: SamplingParams, seed: int, processors: list[Callable[..., Any]]) -> SamplingParams:
    """Those of one answer, which has a stream of its own."""
    return replace(params, seed=seed, n=1, logits_processors=processors)
