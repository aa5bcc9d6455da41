"""Rows of a transformers batch as sequences: their processors, their stopping criteria and the
draws of `torch.multinomial`.
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
from paceline.core.request import Request, SamplingParams
from paceline.integrations.transformers.request import GenerateCall


class SharedNoise:
    """The draws of `torch.multinomial` over a batch whose rows are at different steps.

    `torch.multinomial(probs, 1)` is `argmax(probs / noise)` with exponential noise drawn for the
    whole batch. The noise of step t is drawn once, when the first row gets there, always in the
    order of t; each row takes its share when it is there.

    Args:
        batch: rows; device: where the probabilities are, whose default generator is used.
    """

    def __init__(self, batch: int, device: torch.device) -> None:
        self._batch = batch
        self._device = device
        self._live = set(range(batch))
        self._kept: dict[tuple[int, int], Tensor] = {}  # (row, step) -> [vocab]
        self._drawn = 0

    @property
    def kept(self) -> int:
        """Shares drawn and not yet taken."""
        return len(self._kept)

    def take(self, row: int, step: int, vocab: int) -> Tensor:
        """The noise [vocab] of one row at one step; every share can be taken once."""
        while self._drawn <= step:
            noise = torch.empty(self._batch, vocab, device=self._device).exponential_(1)
            for other in self._live:
                self._kept[other, self._drawn] = noise[other].clone()
            self._drawn += 1
        return self._kept.pop((row, step))

    def leave(self, row: int) -> None:
        """A row has ended: forget its shares."""
        self._live.discard(row)
        for key in [key for key in self._kept if key[0] == row]:
            del self._kept[key]


class RowRequest(Request):
    """One row of the batch: its prompt without the padding, decoded by the rules transformers
    prepared.

    Attributes:
        place: its index in the batch.
        padding: padding tokens before its prompt.
        scores, logits: what transformers would return for it, [1, vocab] per token; empty unless
            asked for.
    """

    def __init__(self, request: GenerateCall, place: int, noise: SharedNoise) -> None:
        self.place = place
        self.padding = request.padding[place]
        ids = request.input_ids[place : place + 1]
        new_tokens = request.max_length - request.width
        # Temperature 0 tells drafters to guess: what they propose is compared with the draw,
        # whatever its distribution.
        params = SamplingParams(max_new_tokens=new_tokens, temperature=0.0)
        super().__init__(
            ids[0, self.padding :].tolist(), params, eos_token_ids=request.eos_token_ids
        )
        self.scores: tuple[Tensor, ...] = ()
        self.logits: tuple[Tensor, ...] = ()
        self._request = request
        self._processed = Processed(
            _processors_of_row(request.processors, place, request.batch), ids
        )
        self._noise = noise
        self._asked = (-1, "")  # length and answer of the last end_reason

    @property
    def ids(self) -> Tensor:
        """[1, n]: padding, prompt and the tokens chosen so far, those not yet appended included."""
        return self._processed.ids

    @property
    def width(self) -> int:
        """Tokens in its row of the result: padding, prompt and answer."""
        return self.padding + len(self)

    def choose(self, logits: Tensor, most_likely: int) -> int:
        """Return the token transformers would choose next; NO_TOKEN where it would choose by NaN.

        Args:
            logits: [vocab] of the model after all tokens in `ids`.
            most_likely: their arg-max.
        """
        token = most_likely if self._request.plain else self._draw(self.process(logits))
        self._processed.extend([max(token, 0)])
        return token

    def process(self, logits: Tensor) -> Tensor:
        """Scores [1, vocab] of the token that follows `ids`; what is to be returned of them is
        kept.
        """
        raw = logits[None].to(device=self.ids.device, dtype=torch.float32, copy=True)
        scores = self._processed(raw)
        if self._request.keep_scores:
            self.scores += (scores,)
        if self._request.keep_logits:
            self.logits += (raw,)
        return scores

    def fill(self, token: int) -> None:
        """Lengthen `ids` by a padding token; the answer is not changed."""
        self._processed.extend([token])

    def end_reason(self, run: list[int]) -> str | None:
        """Why the row ends with the last token of `run`, by the stopping criteria, each asked
        once per token.
        """
        length = len(self) + len(run)
        if length != self._asked[0]:
            self._asked = (length, self._reason(run) or "")
        return self._asked[1] or None

    def _reason(self, run: list[int]) -> str | None:
        criteria = self._request.criteria
        scores = self.scores if self._request.keep_scores else None
        stop = bool(criteria(self.ids, scores).all()) if criteria else False
        return "stop" if stop else super().end_reason(run)

    def _draw(self, scores: Tensor) -> int:
        if not self._request.sampled:
            found = scores.argmax(-1, keepdim=True)
            return int(torch.where(scores.gather(-1, found).isnan(), NO_TOKEN, found))
        probs = scores.softmax(-1)
        if self._request.batch == 1:
            fine = (
                probs.isfinite().all()
            )  # torch.multinomial raises elsewhere, or ends all work on a GPU
            return int(
                torch.where(
                    fine, torch.multinomial(torch.where(fine, probs, 1.0), num_samples=1), NO_TOKEN
                )
            )
        step = self.ids.shape[1] - self._request.width
        token = int((probs[0] / self._noise.take(self.place, step, probs.shape[-1])).argmax())
        return NO_TOKEN if probs[0, token].isnan() else token


def _processors_of_row(
    processors: LogitsProcessorList, row: int, batch: int
) -> LogitsProcessorList:
    """The same processors for one row: those that remember the whole batch get a copy that
    remembers this row only.
    """
    if batch == 1:
        return processors
    mine = []
    for processor in processors:
        view = _VIEWS.get(type(processor))
        if view is not None:
            changes = view(processor, row, batch)
            processor = copy.copy(processor)
            vars(processor).update(changes)
        mine.append(processor)
    return LogitsProcessorList(mine)


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
