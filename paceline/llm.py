"""LLM: the public face. A model, a drafter, and prompts in; the model's own answers out, sooner."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel

from paceline.batch import Batch
from paceline.config import parse_spec, require_range
from paceline.drafter import Drafter, check_vocabulary
from paceline.drafters import create, entry
from paceline.errors import CapacityError, ConfigError
from paceline.loading import eos_token_ids, load_model, load_tokenizer
from paceline.metrics import Stats, Timing
from paceline.model import CachedLM
from paceline.parallel import ParallelLM, check_columns
from paceline.parallel_ranks import Ranks, local_device
from paceline.selfcheck import check_if_unknown
from paceline.sequence import SamplingParams, Sequence
from paceline.text import Detokenizer, StopStrings
from paceline.verify import verify

_MAX_NODES = 256
_SPARE_NODES = 32  # cache positions set aside for draft nodes; a drafter with larger trees makes it grow once


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer.

    Attributes:
        text: decoded answer, cut before a stop string; "" without a tokenizer.
        token_ids: the answer's tokens, an end-of-sequence token included.
        finish_reason: "stop" (end-of-sequence or stop string) or "length".
    """

    text: str
    token_ids: list[int]
    finish_reason: str
    stats: Stats


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one step added to a streamed answer.

    Attributes:
        text: text that became certain; the chunks' texts joined are the completion's text.
        token_ids: tokens of this step.
        accepted: per token, whether it came from the draft.
        pieces: (text, accepted) per token with text, for displays; joined they are `text`.
        completion: the whole answer, with the last chunk.
    """

    text: str
    token_ids: list[int]
    accepted: list[bool]
    pieces: list[tuple[str, bool]]
    completion: Completion | None = None


class LLM:
    """A model that answers with drafts, in exactly its own words.

    Args:
        model: directory, hub id, or a loaded transformers model (put into eval mode).
        drafter: "name", "name:key=value,key=value", or a `Drafter`.
        draft_model: directory, hub id or loaded model, for the drafters that need one.
        tokenizer: directory, hub id or object; default the one beside `model`. Token-id prompts need none.
        dtype: "auto" (the checkpoint's), "float32", "bfloat16", "float16"; device: "auto", "cpu", "cuda", ...
        max_length: cap on prompt + answer, in tokens; default the model's context.
        max_batch: most sequences per forward; more prompts wait.
        max_nodes: most draft nodes verified per sequence and step.
        lookahead_parallel: True, or the `Ranks` that have been joined: share the work on every draft tree with the other
            processes of the run, each of which has its own copy of the model and makes the same calls.
    Raises:
        ConfigError: an unusable argument; UnsupportedModelError: a model that cannot be verified losslessly.
    """

    def __init__(
        self,
        model: str | Path | PreTrainedModel,
        drafter: str | Drafter = "none",
        draft_model: str | Path | PreTrainedModel | None = None,
        tokenizer: Any = None,
        dtype: str | torch.dtype = "auto",
        device: str = "auto",
        max_length: int | None = None,
        max_batch: int = 8,
        max_nodes: int = _MAX_NODES,
        lookahead_parallel: bool | Ranks = False,
    ) -> None:
        require_range("LLM", "max_batch", max_batch, 1)
        require_range("LLM", "max_nodes", max_nodes, 0)
        if max_length is not None:
            require_range("LLM", "max_length", max_length, 2)
        ranks = Ranks.join(device) if lookahead_parallel is True else lookahead_parallel or None
        if isinstance(drafter, str) and not entry(parse_spec(drafter)[0]).needs_draft_model:
            drafter = create(drafter)  # before a model is loaded: mistakes are told at once
        if ranks is not None and isinstance(drafter, Drafter):
            check_columns(drafter, ranks.size)
        loaded = load_model(model, dtype, device if ranks is None else local_device(device))
        self.tokenizer = load_tokenizer(tokenizer, model)
        self.model = CachedLM(loaded)
        check_if_unknown(self.model, loaded.config.model_type)
        self.eos_token_ids = eos_token_ids(loaded, self.tokenizer)
        self.max_length = min(max_length or self.model.context_length, self.model.context_length)
        self.max_batch = max_batch
        self.max_nodes = max_nodes
        if isinstance(drafter, str):
            draft = None if draft_model is None else load_model(draft_model, dtype, str(loaded.device))
            drafter = create(drafter, draft_model=draft)
        self.drafter = drafter
        check_vocabulary(drafter, self.model.vocab_size)
        drafter.check_tokenizer(self.tokenizer)
        self._parallel = None if ranks is None else ParallelLM(loaded, ranks, drafter, max_nodes)
        self.model = self._parallel or self.model
        self._step_seconds = 0.0

    def generate(
        self,
        prompts: str | Seq[str] | Seq[Seq[int]],
        params: SamplingParams | Seq[SamplingParams] | None = None,
    ) -> list[Completion]:
        """Answer all prompts, in their order.

        Args:
            prompts: one text, texts, or lists of token ids.
            params: for all, or one per prompt; default `SamplingParams()`.
        Raises:
            ConfigError, CapacityError: a prompt that cannot be used. Nothing has been started then.
        """
        seqs = self._sequences(prompts, params)
        batch = self._batch(seqs)
        completions: dict[int, Completion] = {}
        try:
            while batch.unfinished:
                for outcome in batch.step():
                    if outcome.seq.finish_reason is not None:
                        completions[outcome.seq.id] = self._completion(outcome.seq, batch.stats(outcome.seq))
        finally:
            batch.abort()
            self._step_seconds += batch.timing().step
        return [completions[seq.id] for seq in seqs]

    def stream(self, prompt: str | Seq[int], params: SamplingParams | None = None) -> Iterator[Chunk]:
        """Answer one prompt, a chunk per step. Closing the iterator frees everything it holds."""
        (seq,) = self._sequences([prompt], params)
        return self._stream(seq)

    def _stream(self, seq: Sequence) -> Iterator[Chunk]:
        batch = self._batch([seq])
        writer = _Writer(self.tokenizer, seq.stop)
        try:
            while batch.unfinished:
                for outcome in batch.step():
                    count = len(outcome.accepted)
                    flags = [place < count for place in range(len(outcome.new_token_ids))]
                    done = seq.finish_reason is not None
                    pieces = writer.write(outcome.new_token_ids, flags, done)
                    completion = self._completion(seq, batch.stats(seq)) if done else None
                    text = "".join(piece for piece, _ in pieces)
                    yield Chunk(text, outcome.new_token_ids, flags, pieces, completion)
        finally:
            batch.abort()
            self._step_seconds += batch.timing().step

    def chat(self, messages: Seq[Mapping[str, str]], params: SamplingParams | None = None) -> Completion:
        """Answer a conversation through the tokenizer's chat template."""
        return self.generate([self.chat_prompt(messages)], params)[0]

    def chat_prompt(self, messages: Seq[Mapping[str, str]]) -> list[int]:
        """Token ids of a conversation, ready for the answer; for `generate` and `stream`.

        Raises:
            ConfigError: no tokenizer, or one without a chat template.
        """
        if self.tokenizer is None or not getattr(self.tokenizer, "chat_template", None):
            raise ConfigError("this model's tokenizer has no chat template; use generate with a plain prompt.")
        ids = self.tokenizer.apply_chat_template(list(messages), add_generation_prompt=True, return_dict=False)
        return [int(i) for i in ids]

    @property
    def timing(self) -> Timing:
        """Where the time of all steps went since this object was built."""
        return Timing(self._step_seconds, self.model.forward_seconds, self.drafter.forward_seconds)

    def _batch(self, seqs: list[Sequence]) -> Batch:
        if seqs:
            slots = min(len(seqs), self.max_batch)
            self.model.reserve(slots, max(seq.max_length for seq in seqs) + min(self.max_nodes, _SPARE_NODES))
        if self._parallel is not None:
            self._parallel.check_requests(seqs, self.max_batch)
        verifier = verify if self._parallel is None else self._parallel.verify
        batch = Batch(self.model, self.drafter, self.max_batch, self.max_nodes, verifier)
        batch.add(seqs)
        return batch

    def _sequences(self, prompts: Any, params: SamplingParams | Seq[SamplingParams] | None) -> list[Sequence]:
        if isinstance(prompts, str):
            prompts = [prompts]
        if not isinstance(prompts, Seq):
            raise ConfigError(f"prompts is a {type(prompts).__name__}; pass a text, texts, or lists of token ids.")
        if prompts and isinstance(prompts[0], int):
            raise ConfigError("prompts is one list of token ids; pass a list of such lists: [[1, 2, 3]].")
        each = (
            [params or SamplingParams()] * len(prompts) if params is None or isinstance(params, SamplingParams) else list(params)
        )
        if len(each) != len(prompts):
            raise ConfigError(f"{len(each)} SamplingParams came for {len(prompts)} prompts; pass one for all, or one each.")
        return [self._sequence(place, prompt, one) for place, (prompt, one) in enumerate(zip(prompts, each, strict=True))]

    def _sequence(self, place: int, prompt: str | Seq[int], params: SamplingParams) -> Sequence:
        ids = self._token_ids(place, prompt)
        if not ids:
            raise ConfigError(f"prompt {place} is empty; pass at least one token.")
        if min(ids) < 0 or max(ids) >= self.model.vocab_size:
            raise ConfigError(
                f"prompt {place} has token ids from {min(ids)} to {max(ids)}; allowed are 0 to {self.model.vocab_size - 1}."
            )
        if len(ids) >= self.max_length:
            raise CapacityError(
                f"prompt {place} has {len(ids)} tokens and leaves no room for an answer; at most {self.max_length} tokens fit in"
                " all. Shorten it, or raise max_length if the model's context allows."
            )
        if params.stop and self.tokenizer is None:
            raise ConfigError("stop strings need a tokenizer; pass tokenizer=... to LLM.")
        stop = StopStrings(params.stop, self.tokenizer) if params.stop else None
        return Sequence(ids, params, eos_token_ids=self.eos_token_ids, max_length=self.max_length, stop=stop)

    def _token_ids(self, place: int, prompt: Any) -> list[int]:
        if isinstance(prompt, str):
            if self.tokenizer is None:
                raise ConfigError(f"prompt {place} is text and there is no tokenizer; pass token ids, or tokenizer=... to LLM.")
            return [int(i) for i in self.tokenizer(prompt)["input_ids"]]
        ids = prompt.tolist() if isinstance(prompt, torch.Tensor) else prompt
        if not isinstance(ids, Seq) or not all(isinstance(i, int) and not isinstance(i, bool) for i in ids):
            raise ConfigError(f"prompt {place} is neither text nor a list of integer token ids: {str(ids)[:60]!r}.")
        return list(ids)

    def _completion(self, seq: Sequence, stats: Stats) -> Completion:
        text = self.tokenizer.decode(seq.output_ids, skip_special_tokens=True) if self.tokenizer is not None else ""
        if seq.stop is not None:
            text = seq.stop.cut(text)
        return Completion(text, seq.output_ids, seq.finish_reason or "length", stats)


class _Writer:
    """Text of a stream: per token, nothing of a stop string, nothing that could still change."""

    def __init__(self, tokenizer: Any, stop: StopStrings | None) -> None:
        self._detokenizer = None if tokenizer is None else Detokenizer(tokenizer)
        self._stop = stop
        self._held: list[tuple[str, bool]] = []  # pieces that may be part of a stop string

    def write(self, token_ids: list[int], accepted: list[bool], last: bool) -> list[tuple[str, bool]]:
        """Pieces (text, accepted) that are certain now."""
        if self._detokenizer is None:
            return []
        pieces = self._held
        for token, flag in zip(token_ids, accepted, strict=True):
            pieces.append((self._detokenizer.push(token), flag))
        if last:
            pieces.append((self._detokenizer.flush(), False))
        pieces = [(text, flag) for text, flag in pieces if text]
        if self._stop is None:
            self._held = []
            return pieces
        text = "".join(piece for piece, _ in pieces)
        certain = len(self._stop.cut(text)) if last else len(text) - self._stop.held_back(text)
        ready, self._held = _split(pieces, certain)
        return ready


def _split(pieces: list[tuple[str, bool]], length: int) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """Cut a list of pieces after `length` characters."""
    head, tail = [], []
    for text, flag in pieces:
        if length > 0:
            head.append((text[:length], flag))
        if text[max(0, length) :]:
            tail.append((text[max(0, length) :], flag))
        length -= len(text)
    return head, tail
