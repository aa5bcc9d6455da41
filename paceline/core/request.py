"""Define a request: its tokens, its counters and the reason it ended."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from paceline.core.sampling_params import SamplingParams
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.hidden_state_log import HiddenStateLog
    from paceline.core.media import Media
    from paceline.core.processors import Processed
    from paceline.core.token_counts import TokenCounts
    from paceline.text.stop_strings import StopStrings

_ids = itertools.count()


@dataclass(slots=True)
class Counters:
    """Raw counts for one request; `paceline.core.metrics` defines the formulas.

    The model, the engine and the drafter update these counts.
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
    """A request to one model: its token ids and its slot in the KV cache.

    Attributes:
        token_ids: Tokens in the prompt and the answer.
        prompt_length: Number of prompt tokens.
        max_length: Length at which the request ends, in tokens.
        eos_token_ids: Tokens that end the request, including `SamplingParams.stop_token_ids`.
        cached: Number of leading tokens whose keys and values are in the model's cache.
        rotary_length: Text length n, in models whose rotary frequencies depend on text length. The
            first n tokens use the frequencies for n. A later token uses the frequencies for the
            text length up to that token.
        media: Images, videos and audio in the prompt; None for text only.
        position_offset: Number added to the index of a token after the last image to get the
            token's position; 0 without images.
        slot: Slot in the KV cache; -1 before the model opens the request.
        finish_reason: "stop" or "length" once the request has ended; None before.
        logprobs: For each token of the answer, if requested: token id -> log-probability, most
            likely first.
        prompt_logprobs: For each prompt token computed so far, a mapping like those in `logprobs`;
            None for the first token. The whole attribute is None unless the request asks for these
            log-probabilities.
        states: The target's hidden states for this request, if its drafter requested them in
            `start`.
        processed: The request's logits processors, created on first use.
        token_counts: Counts of the request's tokens, on the device; None if no penalty needs them.
        tainted: Whether cached keys or values may be NaN; the model then clears the slot before
            reuse.
        without_draft: Whether the next step decodes this request without a draft tree.
        failure: Error that ends this request because no next token can be chosen; otherwise None.
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
        self.media: Media | None = None
        self.position_offset = 0
        self.slot = -1
        self.counters = Counters()
        self.logprobs: list[dict[int, float]] = []
        self.prompt_logprobs: list[dict[int, float] | None] | None = None
        self.states: HiddenStateLog | None = None
        self.processed: Processed | None = None
        self.token_counts: TokenCounts | None = None
        self.tainted = self.without_draft = False
        self.failure: Exception | None = None

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def output_ids(self) -> list[int]:
        """Tokens in the answer so far."""
        return self.token_ids[self.prompt_length :]

    @property
    def pending(self) -> int:
        """Number of uncached tokens: 1 in decoding; in prefill, the rest of the prompt."""
        return len(self.token_ids) - self.cached

    def ends_prefill(self, prefill_chunk: int) -> bool:
        """Return True if the next prefill chunk includes the newest token."""
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
        """Number of tokens still allowed; drafts deeper than `remaining - 1` are useless."""
        return self.max_length - len(self.token_ids)

    def end_reason(self, run: list[int]) -> str | None:
        """Return why the last token of `run` ends the request; None if it does not.

        Verification calls this method for every accepted token, so nothing is appended after the
        end.

        Args:
            run: Tokens about to be appended, in order.
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
                f"\0stop\0: got {error!r} from the tokenizer for token id {run[-1]}; expected its"
                " text. Pass a tokenizer that has all tokens of the model, or leave stop out."
            )
            return True

    def append(self, run: list[int], logprobs: Iterable[dict[int, float]] = ()) -> None:
        """Append tokens chosen by the target.

        Args:
            run: Tokens in order.
            logprobs: Log-probabilities for each token, if requested.
        """
        if run:
            self.finish_reason = self.end_reason(run)
            self.token_ids.extend(run)
            self.logprobs.extend(logprobs)
