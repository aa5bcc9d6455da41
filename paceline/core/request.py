"""Define a request: its tokens, its sampling parameters and why it ended."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.core import argument_checks
from paceline.core.argument_checks import is_int, is_number, require
from paceline.core.settings import MAX_PENALTY
from paceline.errors import ConfigError

if TYPE_CHECKING:
    from paceline.core.hidden_state_log import HiddenStateLog
    from paceline.core.processors import Processed
    from paceline.text.stop_strings import StopStrings

# Field metadata of options that a single request has and a run over many requests has not.
PER_REQUEST = {"per_request": True}

_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Options of one request: token choice, length, stop conditions, reports.

    Attributes:
        max_new_tokens: Maximum tokens of an answer; at least 0; 0 computes the prompt and generates
            nothing.
        temperature: Divisor of the logits; at least 0; 0 is greedy (argmax).
        top_k: Keep the k most likely tokens; at least 0; 0 keeps all.
        top_p: Keep the smallest set of tokens whose probability reaches top_p; above 0, at most 1;
            1 keeps all.
        min_p: Drop tokens less likely than min_p times the most likely one; from 0 to 1; 0 drops
            none.
        repetition_penalty: Divide positive and multiply negative logits of tokens in prompt or
            answer by this number; above 0; 1 disables it.
        seed: Random seed. The same seed gives the same text with every drafter that does not draw
            its guesses, in any batch.
        stop: Strings that end the answer; the text is cut before them. Special tokens are allowed.
            Default: none.
        ignore_eos: Continue after an end-of-sequence token.
        min_tokens: Minimum tokens of an answer before a token may end it; at least 0. Stop strings
            may end it earlier.
        presence_penalty: Number subtracted from the logits of tokens already in the answer; from -2
            to 2; 0 disables it.
        frequency_penalty: Number subtracted from a token's logit for each time it is in the answer;
            from -2 to 2; 0 disables it.
        stop_token_ids: Tokens that end the answer, also with `ignore_eos`. The token is the
            answer's last one.
        logit_bias: Token id -> value added to its logit, -100 to 100; None = nothing.
        bad_words: Words or lists of token ids that the answer must not contain. A word is banned at
            the start of a text and after a space. The sampler forbids the last token of an entry
            where the answer ends with the others.
        logits_processors: transformers' `LogitsProcessor`s or callables (ids [1, n], scores float32
            [1, vocab]) -> scores [1, vocab]. They run once per token, in order, with prompt and
            answer before it. Each answer gets a shallow copy of every processor, so a processor may
            keep state in its attributes.
        logprobs: Number of likeliest tokens whose log-probabilities are reported per token of the
            answer, besides the chosen token, by the model's own logits (`Completion.logprobs`).
            None = no report.
        prompt_logprobs: The same number for every token of the prompt
            (`Completion.prompt_logprobs`). The model then computes the whole prompt, even if the
            cache holds its beginning. None = no report.
        skip_special_tokens: Leave special tokens out of the text. False writes them as the
            tokenizer spells them, the end-of-sequence token included.
        n: Number of answers, with seed, seed + 1, ...; more than one needs a temperature
            (`Completion.outputs`).
        speculation: Drafter spec of this request, such as "none" or "sssd:max_nodes=8"; None =
            the engine's drafter. It changes the speed, not the text.
        max_nodes: Most draft nodes verified per step; None = as many as the engine allows.
        priority: Requests with a smaller number get a slot first and may preempt others; ties go to
            the older request.

    The logits are changed in this order: logit_bias, repetition_penalty, frequency_penalty,
    presence_penalty, bad_words, min_tokens, logits_processors, temperature, top_k, top_p, min_p.

    Raises:
        ConfigError: a value outside its range.
    """

    max_new_tokens: int = 128
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    min_tokens: int = 0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop_token_ids: Sequence[int] = field(default=(), metadata=PER_REQUEST)
    logit_bias: Mapping[int, float] | None = field(default=None, hash=False, metadata=PER_REQUEST)
    bad_words: Sequence[str | Sequence[int]] = field(default=(), metadata=PER_REQUEST)
    logits_processors: Sequence[Callable[..., Any]] = field(
        default=(), hash=False, metadata=PER_REQUEST
    )
    logprobs: int | None = field(default=None, metadata=PER_REQUEST)
    prompt_logprobs: int | None = field(default=None, metadata=PER_REQUEST)
    skip_special_tokens: bool = field(default=True, metadata=PER_REQUEST)
    n: int = field(default=1, metadata=PER_REQUEST)
    speculation: str | None = field(default=None, metadata=PER_REQUEST)
    max_nodes: int | None = field(default=None, metadata=PER_REQUEST)
    priority: int = field(default=0, metadata=PER_REQUEST)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", argument_checks.stop_strings(self.stop))
        for name in ("stop_token_ids", "logit_bias", "bad_words", "logits_processors"):
            object.__setattr__(self, name, getattr(argument_checks, name)(getattr(self, name)))
        require(
            is_int(self.max_new_tokens) and self.max_new_tokens >= 0,
            "max_new_tokens",
            self.max_new_tokens,
            "an integer of at least 0",
        )
        require(
            is_number(self.temperature) and self.temperature >= 0,
            "temperature",
            self.temperature,
            "0 (greedy) or a positive number",
        )
        require(
            is_int(self.top_k) and self.top_k >= 0,
            "top_k",
            self.top_k,
            "0 (off) or a positive integer",
        )
        require(
            is_number(self.top_p) and 0 < self.top_p <= 1,
            "top_p",
            self.top_p,
            "above 0 and at most 1 (off)",
        )
        require(
            is_number(self.min_p) and 0 <= self.min_p <= 1, "min_p", self.min_p, "from 0 (off) to 1"
        )
        require(
            is_number(self.repetition_penalty) and self.repetition_penalty > 0,
            "repetition_penalty",
            self.repetition_penalty,
            "a positive number, 1 = off",
        )
        require(is_int(self.seed), "seed", self.seed, "an integer")
        self._check_length_and_penalties()
        self._check_request()

    def _check_length_and_penalties(self) -> None:
        for name in ("ignore_eos", "skip_special_tokens"):
            require(
                isinstance(getattr(self, name), bool), name, getattr(self, name), "True or False"
            )
        require(
            is_int(self.min_tokens) and 0 <= self.min_tokens <= self.max_new_tokens,
            "min_tokens",
            self.min_tokens,
            "an integer from 0 to max_new_tokens",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            value = getattr(self, name)
            require(
                is_number(value) and abs(value) <= MAX_PENALTY,
                name,
                value,
                "a number from -2 to 2, 0 = off",
            )

    def _check_request(self) -> None:
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            require(
                value is None or (is_int(value) and value >= 0),
                name,
                value,
                "an integer of at least 0, or None",
            )
        require(is_int(self.n) and self.n >= 1, "n", self.n, "an integer of at least 1")
        require(
            self.n == 1 or not self.greedy,
            "n",
            self.n,
            "1 with temperature 0, where all answers are the same",
        )
        require(
            self.speculation is None
            or (isinstance(self.speculation, str) and self.speculation.strip() != ""),
            "speculation",
            self.speculation,
            "a drafter's spec, such as 'none' or 'sssd:max_nodes=8', or None",
        )
        require(
            self.max_nodes is None or (is_int(self.max_nodes) and self.max_nodes >= 0),
            "max_nodes",
            self.max_nodes,
            "an integer of at least 0, or None",
        )
        require(is_int(self.priority), "priority", self.priority, "an integer; smaller goes first")

    @property
    def greedy(self) -> bool:
        """True if the most likely token is taken without a random draw."""
        return self.temperature == 0.0

    @property
    def adjusts(self) -> bool:
        """True if options change single logits (bias, penalties, bad words, min_tokens)."""
        return bool(
            self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
            or self.min_tokens
            or self.logit_bias
            or self.bad_words
        )


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
