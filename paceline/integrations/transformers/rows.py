"""Represent the rows of a transformers batch as engine requests.

Rows use transformers' processors, stopping criteria and random draws.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers.generation import (
    EncoderNoRepeatNGramLogitsProcessor,
    EncoderRepetitionPenaltyLogitsProcessor,
    LogitsProcessorList,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SynthIDTextWatermarkLogitsProcessor,
)

from paceline.core.not_numbers import NO_TOKEN
from paceline.core.processors import Processed
from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.integrations.transformers.request import GenerateCall


class SharedNoise:
    """Reproduces the samples of `torch.multinomial`, one row at a time.

    `torch.multinomial(probs, 1)` equals `argmax(probs / noise)`, with exponential noise for the
    whole batch. This class draws the noise of one step at a time, as soon as the first row needs
    it. It stores the noise of the other rows until they need it.

    Args:
        batch: Number of rows.
        device: Device of the probabilities, whose default generator is used.
    """

    def __init__(self, batch: int, device: torch.device) -> None:
        self._batch = batch
        self._device = device
        self._live = set(range(batch))
        self._shares: dict[tuple[int, int], Tensor] = {}  # (row, step) -> [vocab]
        self._drawn = 0

    @property
    def num_shares(self) -> int:
        """Return the number of noise vectors that have been drawn but not yet used."""
        return len(self._shares)

    def take(self, row: int, step: int, vocab: int) -> Tensor:
        """Return a row's noise [vocab] for one step; each vector can be taken only once."""
        while self._drawn <= step:
            noise = torch.empty(self._batch, vocab, device=self._device).exponential_(1)
            for other in self._live:
                self._shares[other, self._drawn] = noise[other].clone()
            self._drawn += 1
        return self._shares.pop((row, step))

    def leave(self, row: int) -> None:
        """Discard the unused noise of a row that has ended."""
        self._live.discard(row)
        for key in [key for key in self._shares if key[0] == row]:
            del self._shares[key]


class RowRequest(Request):
    """A row of the batch: its unpadded prompt, and how its tokens are chosen.

    Attributes:
        place: Index of the row in the batch.
        padding: Number of padding tokens before the prompt.
        scores: Processed scores of each chosen token, [1, vocab]; empty if not requested.
        logits: Raw logits of each chosen token, [1, vocab]; empty if not requested.
    """

    def __init__(self, request: GenerateCall, index: int, noise: SharedNoise) -> None:
        self.place = index
        self.padding = request.padding[index]
        ids = request.input_ids[index : index + 1]
        new_tokens = request.max_length - request.width
        # With temperature 0, drafters propose their most likely tokens, which the verification
        # compares with the sampled tokens.
        params = SamplingParams(max_new_tokens=new_tokens, temperature=0.0)
        super().__init__(
            ids[0, self.padding :].tolist(), params, eos_token_ids=request.eos_token_ids
        )
        self.scores: tuple[Tensor, ...] = ()
        self.logits: tuple[Tensor, ...] = ()
        self._request = request
        self._processed = Processed(
            _processors_of_row(request.processors, index, request.batch), ids
        )
        self._noise = noise
        self._last_end = (-1, "")  # text length and result of the last call of `end_reason`

    @property
    def ids(self) -> Tensor:
        """Return the padding, the prompt and all chosen tokens, [1, n].

        The result includes tokens that the engine has not yet appended to the request.
        """
        return self._processed.ids

    @property
    def width(self) -> int:
        """Return the number of tokens in the row: padding, prompt and answer."""
        return self.padding + len(self)

    def choose(self, logits: Tensor, most_likely: int) -> int:
        """Return the token that transformers would choose; NO_TOKEN if logits are NaN.

        Args:
            logits: Logits after all tokens in `ids`; [vocab].
            most_likely: Argmax of the logits.
        """
        token = most_likely if self._request.plain else self._draw(self.process(logits))
        self._processed.extend([max(token, 0)])
        return token

    def process(self, logits: Tensor) -> Tensor:
        """Apply the logits processors, and store the scores and logits that are requested.

        Args:
            logits: Logits of the next token, [vocab].
        Returns:
            Scores of the next token, [1, vocab].
        """
        raw = logits[None].to(device=self.ids.device, dtype=torch.float32, copy=True)
        scores = self._processed(raw)
        if self._request.keep_scores:
            self.scores += (scores,)
        if self._request.keep_logits:
            self.logits += (raw,)
        return scores

    def fill(self, token: int) -> None:
        """Append a padding token to `ids`, without changing the answer."""
        self._processed.extend([token])

    def end_reason(self, run: list[int]) -> str | None:
        """Return why the row ends after the new tokens `run`; None if it continues.

        Each stopping criterion is evaluated once per token.
        """
        length = len(self) + len(run)
        if length != self._last_end[0]:
            self._last_end = (length, self._reason(run) or "")
        return self._last_end[1] or None

    def _reason(self, run: list[int]) -> str | None:
        criteria = self._request.criteria
        scores = self.scores if self._request.keep_scores else None
        stop = bool(criteria(self.ids, scores).all()) if criteria else False
        return "stop" if stop else super().end_reason(run)

    def _draw(self, scores: Tensor) -> int:
        if not self._request.sampled:
            best = scores.argmax(-1, keepdim=True)
            return int(torch.where(scores.gather(-1, best).isnan(), NO_TOKEN, best))
        probs = scores.softmax(-1)
        if self._request.batch == 1:
            is_finite = probs.isfinite().all()  # otherwise, torch.multinomial raises or aborts
            return int(
                torch.where(
                    is_finite,
                    torch.multinomial(torch.where(is_finite, probs, 1.0), num_samples=1),
                    NO_TOKEN,
                )
            )
        step = self.ids.shape[1] - self._request.width
        token = int((probs[0] / self._noise.take(self.place, step, probs.shape[-1])).argmax())
        return NO_TOKEN if probs[0, token].isnan() else token


def _processors_of_row(
    processors: LogitsProcessorList, row: int, batch: int
) -> LogitsProcessorList:
    """Return the logits processors for one row; processors with state are copied."""
    if batch == 1:
        return processors
    row_processors = []
    for processor in processors:
        view = _VIEWS.get(type(processor))
        if view is not None:
            changes = view(processor, row, batch)
            processor = copy.copy(processor)
            vars(processor).update(changes)
        row_processors.append(processor)
    return LogitsProcessorList(row_processors)


def _one_padding_length(processor: Any, row: int, batch: int) -> dict[str, Any]:
    lengths = processor.prompt_ignore_length
    return {"prompt_ignore_length": lengths[row : row + 1]} if isinstance(lengths, Tensor) else {}


def _one_prompt(processor: Any, row: int, batch: int) -> dict[str, Any]:
    prompts = processor.encoder_input_ids
    prompt = row * prompts.shape[0] // batch  # several rows per prompt with num_return_sequences
    return {"encoder_input_ids": prompts[prompt : prompt + 1]}


def _one_prompts_ngrams(processor: Any, row: int, batch: int) -> dict[str, Any]:
    return {
        "generated_ngrams": [processor.generated_ngrams[row * processor.batch_size // batch]],
        "batch_size": 1,
    }


def _one_batch_id(processor: Any, row: int, batch: int) -> dict[str, Any]:
    allowed = processor._prefix_allowed_tokens_fn
    return {"_prefix_allowed_tokens_fn": lambda _, ids: allowed(row, ids)}


def _own_state(processor: Any, row: int, batch: int) -> dict[str, Any]:
    return {}


_VIEWS: dict[type, Callable[[Any, int, int], dict[str, Any]]] = {
    RepetitionPenaltyLogitsProcessor: _one_padding_length,
    EncoderRepetitionPenaltyLogitsProcessor: _one_prompt,
    EncoderNoRepeatNGramLogitsProcessor: _one_prompts_ngrams,
    PrefixConstrainedLogitsProcessor: _one_batch_id,
    SynthIDTextWatermarkLogitsProcessor: _own_state,
}
