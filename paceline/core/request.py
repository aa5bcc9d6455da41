"""Define a request: its tokens, its counters and why it ended."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.core.sampling_params import SamplingParams
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.hidden_state_log import HiddenStateLog
    from paceline.core.processors import Processed
    from paceline.text.stop_strings import StopStrings

_ids = itertools.count()


@dataclass(slots=True)
class Counters:
    """Raw counts of one request; `paceline.core.metrics` has the formulas.

    The model, the engine and the drafter write them.
    """

    target_forwards: int = 0
    prefill_forwards: int = 0
    draft_forwards: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    cached_tokens: int = 0  # prompt tokens found in the cache at admission
    query_tokens: list[int] = field(default_factory=list)  # of each forward pass
    notes: dict[str, int] = field(default_factory=dict)  # counters of the drafter, by name

    def note(self, what: str) -> None:
        """Increase the drafter's counter `what` by one."""
        self.notes[what] = self.notes.get(what, 0) + 1


class Request:
    """A request in one model: its token ids and its slot in the KV cache.

    Attributes:
        token_ids: Tokens of prompt and answer.
        prompt_length: Number of prompt tokens.
        max_length: Length in tokens at which the request ends.
        eos_token_ids: Tokens that end it, `SamplingParams.stop_token_ids` included.
        cached: Number of leading tokens with keys and values in the model's cache.
        rotary_length: Text length that the rotary frequencies of the first tokens follow, for
            models whose frequencies depend on it. Later tokens follow the length up to themselves.
        slot: Slot in the KV cache; -1 before the model opens the request.
        finish_reason: "stop" or "length" once it has ended; None before.
        logprobs: Per token of the answer, if requested: token id -> log-probability, likeliest
            first.
        prompt_logprobs: Per token of the prompt computed so far: None for the first token, then as
            `logprobs`. None = not requested.
        states: Hidden states of the target for this request, if its drafter requested them in
            `start`.
        processed: Logits processors of the request, created at their first use.
        tainted: Keys or values may be NaN; the model clears the slot before it is reused.
        without_draft: The next step runs this request without a draft tree.
        failure: Error that ends this request, and no other, as its next token cannot be chosen.
    """

    def __init__(
        self,
        prompt_ids: list[int],
        params: SamplingParams,
        *,
        eos_token_ids: Iterable[int] = (),
        max_length: int | None = None,
        stop: StopStrings | None = None,
    ) -> None:
        self.id = next(_ids)
        self.token_ids = list(prompt_ids)
        self.prompt_length = len(prompt_ids)
        self.params = params
        self.eos_token_ids = frozenset(() if params.ignore_eos else eos_token_ids) | frozenset(
            params.stop_token_ids
        )
        end = self.prompt_length + params.max_new_tokens
        self.max_length = end if max_length is None else min(end, max_length)
        self.stop = stop
        self.finish_reason: str | None = None
        self.cached = 0
        self.rotary_length = self.prompt_length
        self.slot = -1
        self.counters = Counters()
        self.logprobs: list[dict[int, float]] = []
        self.prompt_logprobs: list[dict[int, float] | None] | None = None
        self.states: HiddenStateLog | None = None
        self.processed: Processed | None = None
        self.tainted = self.without_draft = False
        self.failure: Exception | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def output_ids(self) -> list[int]:
        """Tokens of the answer so far."""
        return self.token_ids[self.prompt_length :]

    @property
    def pending(self) -> int:
        """Tokens not yet in the cache: 1 while decoding, the rest of the prompt before."""
        return len(self.token_ids) - self.cached

    def ends_prefill(self, prefill_chunk: int) -> bool:
        """Return True if a pass with chunks of this size computes the newest token."""
        return self.pending <= prefill_chunk

    @property
    def prefill_only(self) -> bool:
        """True if the request ends after prefill and generates no tokens."""
        return self.params.max_new_tokens == 0

    @property
    def scoring(self) -> bool:
        """True if log-probabilities of prompt tokens are still missing."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_length

    @property
    def remaining(self) -> int:
        """Tokens that may still be emitted; a draft deeper than `remaining - 1` is wasted."""
        return self.max_length - len(self.token_ids)

    def end_reason(self, run: list[int]) -> str | None:
        """Return why the request ends with the last token of `run`, or None.

        The walks call it for every token of an accepted run, so no token follows an end.

        Args:
            run: Tokens that are about to be appended, the newest last.
        """
        if run[-1] in self.eos_token_ids:
            return "stop"
        if self.stop is not None and self._stopped(self.stop, run):
            return "stop"
        return "length" if len(run) >= self.remaining else None

    def _stopped(self, stop: StopStrings, run: list[int]) -> bool:
        try:
            return stop.ends(self.token_ids, run)
        except Exception as error:
            self.failure = self.failure or ConfigError(
                f"stop: got {error!r} from the tokenizer for token id {run[-1]}; expected its text."
                " Pass a tokenizer that has all tokens of the model, or leave stop out."
            )
            return True

    def append(self, run: list[int], logprobs: Iterable[dict[int, float]] = ()) -> None:
        """Append tokens that the target has chosen.

        Args:
            run: The tokens, in order.
            logprobs: Log-probabilities per token, if requested.
        """
        if run:
            self.finish_reason = self.end_reason(run)
            self.token_ids.extend(run)
            self.logprobs.extend(logprobs)
