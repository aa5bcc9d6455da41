"""Validate prompts and sampling parameters, and convert them to requests."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core.media import EncodedPrompt, Media
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.errors import CapacityError, ConfigError
from paceline.media.prompts import MultimodalPrompt
from paceline.text.stop_strings import StopStrings
from paceline.text.tokens import text_ids, word_ids

if TYPE_CHECKING:
    from paceline.media.processor import MediaProcessor

Prompt = str | Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor | MultimodalPrompt
Prompts = str | Sequence[Prompt] | NDArray[np.integer[Any]] | torch.Tensor | MultimodalPrompt

_BYTES = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class InputProcessor:
    """Validates prompts and sampling parameters, and converts them to requests.

    Attributes:
        tokenizer: The model's tokenizer, or None.
        source: The caller's `model` argument, quoted in an error message if there is no tokenizer.
        vocab_size: Size of the model's vocabulary.
        eos_token_ids: Tokens that end an answer.
        max_length: Maximum number of tokens in the prompt and answer together.
        media: Encoder for prompts with images, videos or audio.
    """

    tokenizer: Any
    source: Any
    vocab_size: int
    eos_token_ids: list[int]
    max_length: int
    media: MediaProcessor

    def requests(self, prompts: Any, params: Any) -> list[Request]:
        """Convert prompts to requests, one per prompt.

        Args:
            prompts: A string or a list of strings; a list of token-id sequences (lists, tuples,
                arrays or tensors); a two-dimensional array of token ids; or prompts with images,
                videos or audio.
            params: One `SamplingParams` for all prompts, or a list with one per prompt; None means
                the defaults.
        Raises:
            ConfigError, CapacityError: A prompt or parameter cannot be used.
        """
        if isinstance(prompts, str | MultimodalPrompt | EncodedPrompt):
            prompts = [prompts]
        prompts = _plain(prompts)
        if not isinstance(prompts, Sequence) or isinstance(prompts, _BYTES):
            raise ConfigError(
                f"prompts: got a {type(prompts).__name__}; expected a text, texts, or lists of"
                " token ids."
            )
        if prompts and _is_id(prompts[0]):
            raise ConfigError(
                "prompts: got one list of token ids; expected a list of such lists, as [[1, 2, 3]]."
            )
        each = [self._checked(entry) for entry in _params_per_prompt(params, len(prompts))]
        return [
            self._request(index, prompt, entry)
            for index, (prompt, entry) in enumerate(zip(prompts, each, strict=True))
        ]

    def single(self, prompt: Any, params: Any) -> Request:
        """Convert a prompt to a request for a single answer.

        Raises:
            ConfigError: The prompt or a parameter cannot be used, or the parameters ask for several
                answers.
            CapacityError: See `requests`.
        """
        (request,) = self.requests([prompt], params)
        if request.params.n > 1:
            raise ConfigError(
                f"n: got {request.params.n} for a stream; expected 1. Open a stream for each seed,"
                " or use generate."
            )
        return request

    def request_groups(self, prompts: Any, params: Any) -> list[list[Request]]:
        """Convert each prompt to a list of requests, one per answer.

        Answer i uses seed + i. Arguments and errors are the same as for `requests`.
        """
        return [
            [first, *(self._sibling(first, number) for number in range(1, first.params.n))]
            for first in self.requests(prompts, params)
        ]

    def _sibling(self, first: Request, number: int) -> Request:
        params = replace(first.params, seed=first.params.seed + number, prompt_logprobs=None)
        return self._new_request(first.token_ids, params, first.media)

    def _new_request(
        self, ids: list[int], params: SamplingParams, media: Media | None = None
    ) -> Request:
        stop = (
            StopStrings(params.stop, self.tokenizer, ids, params.skip_special_tokens)
            if params.stop
            else None
        )
        request = Request(
            ids, params, eos_token_ids=self.eos_token_ids, max_length=self.max_length, stop=stop
        )
        request.media = media
        return request

    def _checked(self, params: SamplingParams) -> SamplingParams:
        """Convert strings in the parameters to token ids, and check all token ids."""
        words = [entry for entry in params.bad_words if isinstance(entry, str)]
        if words:
            if self.tokenizer is None:
                raise ConfigError(
                    "bad_words: got words and no tokenizer; expected both, or token ids. Pass"
                    " \0tokenizer=DIR\0."
                )
            spelled = {ids for word in words for ids in word_ids(self.tokenizer, word, "bad_words")}
            given = [entry for entry in params.bad_words if not isinstance(entry, str)]
            params = replace(params, bad_words=[*given, *sorted(spelled)])
        if isinstance(params.prediction, str):
            params = replace(params, prediction=self._predicted_ids(params.prediction))
        named = {
            "stop_token_ids": params.stop_token_ids,
            "logit_bias": params.logit_bias or (),
            "bad_words": [token for word in params.bad_words for token in word],
            "prediction": params.prediction,
        }
        for name, ids in named.items():
            highest = max(map(int, ids), default=0)
            if highest >= self.vocab_size:
                raise ConfigError(
                    f"{name}: got token id {highest}; expected 0 to {self.vocab_size - 1}. Leave"
                    " it out."
                )
        return params

    def _predicted_ids(self, text: str) -> list[int]:
        """Return the token ids of a predicted text.

        Raises:
            ConfigError: There is no tokenizer.
        """
        if self.tokenizer is None:
            raise ConfigError(
                "prediction: got text and no tokenizer; expected both, or token ids. Pass"
                " \0tokenizer=DIR\0."
            )
        return [int(id) for id in self.tokenizer(text, add_special_tokens=False)["input_ids"]]

    def _request(self, index: int, prompt: Any, params: SamplingParams) -> Request:
        if isinstance(prompt, MultimodalPrompt):
            prompt = self.media.encode_prompt(prompt, f"prompt {index}")
        ids = self._token_ids(index, prompt)
        if not ids:
            raise ConfigError(
                f"prompt {index}: got no token; expected at least one. Leave empty prompts out."
            )
        if min(ids) < 0 or max(ids) >= self.vocab_size:
            raise ConfigError(
                f"prompt {index}: got token ids from {min(ids)} to {max(ids)}; expected 0 to"
                f" {self.vocab_size - 1}."
            )
        if len(ids) + min(1, params.max_new_tokens) > self.max_length:
            raise CapacityError(
                f"prompt {index}: got {len(ids)} tokens, which leave no room for an answer;"
                f" expected fewer than {self.max_length}. Shorten it, or raise \0max_length\0 if"
                " the model's context allows."
            )
        if params.stop and self.tokenizer is None:
            raise ConfigError(
                "\0stop\0: got stop strings and no tokenizer; expected both. Pass"
                " \0tokenizer=DIR\0."
            )
        media = prompt.media if isinstance(prompt, EncodedPrompt) else None
        request = self._new_request(ids, params, media)
        if params.prompt_logprobs is not None:
            if media is not None:
                raise ConfigError(
                    f"prompt_logprobs: got {params.prompt_logprobs} for prompt {index}, which has"
                    " images, videos or audio; expected None, since the model computes those"
                    " tokens without logits. Leave it out."
                )
            request.prompt_logprobs = [None]
        return request

    def _token_ids(self, index: int, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                from paceline.model.tokenizer_loading import tokenizer_error

                raise ConfigError(
                    f"prompt {index}: got text and no tokenizer; expected token ids, or"
                    f" \0tokenizer=DIR\0.{tokenizer_error(self.source)}"
                )
            return text_ids(self.tokenizer, prompt, f"prompt {index}")
        ids = _plain(prompt)
        if not isinstance(ids, Sequence) or isinstance(ids, _BYTES) or not all(map(_is_id, ids)):
            raise ConfigError(
                f"prompt {index}: got {str(ids)[:60]!r}; expected a text or a list of integer"
                f" token ids.{_message_hint(ids)}"
            )
        return [operator.index(i) for i in ids]


def _plain(value: Any) -> Any:
    """Convert arrays and tensors to lists; return other values unchanged."""
    return value.tolist() if isinstance(value, torch.Tensor | np.ndarray) else value


def _is_id(value: Any) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool)


def _message_hint(prompt: Any) -> str:
    """Return advice for prompts that contain chat messages, or an empty string."""
    parts = prompt if isinstance(prompt, list | tuple) else [prompt]
    if not any(isinstance(part, Mapping) and "role" in part for part in parts):
        return ""
    return " For messages, call chat, or pass the token ids from chat_prompt(messages)."


def _params_per_prompt(params: Any, count: int) -> list[SamplingParams]:
    if params is None or isinstance(params, SamplingParams):
        return [params or SamplingParams()] * count
    if not isinstance(params, list | tuple) or not all(
        isinstance(entry, SamplingParams) for entry in params
    ):
        hint = " Write SamplingParams(**params)." if isinstance(params, Mapping) else ""
        raise ConfigError(
            f"params: got {str(params)[:60]!r}; expected SamplingParams, or a list with one per"
            f" prompt.{hint}"
        )
    if len(params) != count:
        raise ConfigError(
            f"got {len(params)} SamplingParams for {count} prompts; expected one for all, or one"
            " each."
        )
    return list(params)
