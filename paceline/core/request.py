"""One sequence being decoded: its tokens, how they are to be chosen, what is left, and why it
ended.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from paceline.core import argument_checks
from paceline.core.argument_checks import is_int, is_number, require
from paceline.errors import ConfigError
from paceline.text.stop_strings import StopStrings
from paceline.util.options import PER_REQUEST

if TYPE_CHECKING:
    from paceline.core.hidden_state_log import HiddenStateLog
    from paceline.core.processors import Processed

_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    Attributes:
        max_new_tokens: upper bound of the answer's length; 0 feeds the prompt and generates
            nothing.
        temperature: 0 = greedy (arg-max); else logits are divided by it.
        top_k: keep the k most likely tokens; 0 = all.
        top_p: keep the smallest set of tokens whose probability reaches top_p; 1 = all.
        min_p: drop tokens less likely than min_p times the most likely one; 0 = none.
        repetition_penalty: divide positive and multiply negative logits of tokens already in prompt
            or answer; 1 = off.
        seed: the same seed gives the same text under every guess drafter and in any batch.
        stop: strings that end the answer, and may name special tokens; the text is cut before them.
        ignore_eos: go on after an end-of-sequence token.
        min_tokens: no token that ends the answer comes before so many others; stop strings end it
            even so.
        presence_penalty: subtracted from the logits of tokens that are in the answer already; -2 to
            2, 0 = off.
        frequency_penalty: subtracted from a token's logit for each time it is in the answer
            already; -2 to 2, 0 = off.
        stop_token_ids: tokens that end the answer, and are its last one, also with `ignore_eos`.
        logit_bias: token id -> what is added to its logit, -100 to 100; None = nothing.
        bad_words: what the answer must not contain: words, each as it begins a text and as it
            stands behind a space, or lists of token ids. The last token of one is forbidden where
            the answer ends with the others.
        logits_processors: transformers' `LogitsProcessor`s or other callables (ids [1, n], scores
            [1, vocab] in float32) -> scores [1, vocab], asked once for each token, in order, with
            prompt and answer before it. Each answer has a shallow copy of every processor, so that
            it may keep what it learns in its attributes.
        logprobs: report the log-probabilities of so many likeliest tokens in every place, and of
            the token that came, by the model's own logits (`Completion.logprobs`); None = none.
        prompt_logprobs: report the log-probabilities of this many likeliest tokens at every
            position of the prompt, and of the prompt's own token (`Completion.prompt_logprobs`);
            None = none. The model then computes the whole prompt, even if the cache holds its
            beginning.
        skip_special_tokens: leave special tokens out of the text. False writes them as the
            tokenizer spells them, the end-of-sequence token included.
        n: answers to give, with seed, seed + 1, ...; more than one needs a temperature
            (`Completion.outputs`).
        speculation: spec of the drafter of this request, such as "none" or "sssd:max_nodes=8"; None
            = the engine's own. It decides how soon the answer is there, not what it says.
        max_nodes: most draft nodes verified per step; None = as many as the engine allows.
        priority: requests with a smaller one get their place first, also one that another has;
            among equals the older does.

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
                is_number(value) and abs(value) <= argument_checks.MOST_PENALTY,
                name,
                value,
                "a number from -2 to 2, 0 = off",
            )
        self._check_request()

    def _check_request(self) -> None:
        """Check the options of single requests."""
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
        """Whether the most likely token is taken, no draw made."""
        return self.temperature == 0.0

    @property
    def adjusts(self) -> bool:
        """Whether logits are changed in a way that depends on the token or on those before it."""
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
    """Raw counts of one sequence, written by the model, the step and the drafter; formulas are
    in `paceline.core.metrics`.
    """

    target_forwards: int = 0
    prefill_forwards: int = 0
    draft_forwards: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    cached_tokens: int = 0  # found in the cache when it got its place
    fed: list[int] = field(default_factory=list)  # query tokens of each forward
    notes: dict[str, int] = field(default_factory=dict)  # what the drafter counts of its own

    def note(self, what: str) -> None:
        """Count one more of `what`."""
        self.notes[what] = self.notes.get(what, 0) + 1


class Request:
    """Token ids of one request in one model, with the place they have in that model's cache.

    Attributes:
        token_ids: prompt and answer.
        prompt_length: how many of them are the prompt.
        max_length: the length at which it ends, in tokens.
        eos_token_ids: the tokens that end it, `SamplingParams.stop_token_ids` included.
        cached: how many leading tokens have rows in the model's cache.
        rotary_length: the text length that the rotary frequencies of its first tokens follow, where
            they depend on one; those of a token further on follow the length up to that token.
        slot: the cache row this sequence owns; -1 before it is opened.
        finish_reason: "stop" | "length" once it has ended.
        logprobs: per token of the answer, where they are asked for: token id -> log-probability,
            likeliest first.
        prompt_logprobs: per token of the prompt so far, where they are asked for: None for the
            first token, then as `logprobs`. None = they are not asked for.
        states: the hidden states its tokens were chosen by, kept where its drafter has asked for
            them when it started.
        processed: its logits processors, made when they are first asked.
        tainted: keys or values of it may be NaN; its slot is cleared before others get it.
        without_draft: it is fed without a draft tree in the next step.
        failure: why its next token cannot be chosen, which ends this request and no other.
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
        wanted = self.prompt_length + params.max_new_tokens
        self.max_length = wanted if max_length is None else min(wanted, max_length)
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
        """The answer so far."""
        return self.token_ids[self.prompt_length :]

    @property
    def pending(self) -> int:
        """Tokens not yet in the cache: 1 while decoding, the rest of the prompt before."""
        return len(self.token_ids) - self.cached

    @property
    def fed_only(self) -> bool:
        """Whether the request ends once its prompt is fed: it generates no tokens."""
        return self.params.max_new_tokens == 0

    @property
    def scoring(self) -> bool:
        """Whether log-probabilities of prompt tokens are still missing."""
        return self.prompt_logprobs is not None and len(self.prompt_logprobs) < self.prompt_length

    @property
    def remaining(self) -> int:
        """How many tokens may still be emitted. A draft deeper than `remaining - 1` is wasted."""
        return self.max_length - len(self.token_ids)

    def end_reason(self, run: list[int]) -> str | None:
        """Why the sequence ends with the last token of `run`, tokens about to be appended; None if
        it goes on.

        Checked for every token of an accepted run, so that no token follows an end.
        """
        if run[-1] in self.eos_token_ids:
            return "stop"
        if self.stop is not None and self._stopped(self.stop, run):
            return "stop"
        return "length" if len(run) >= self.remaining else None

    def _stopped(self, stop: StopStrings, run: list[int]) -> bool:
        """Whether a stop string ends the sequence. An error of the tokenizer ends it as well,
        and no other.
        """
        try:
            return stop.ends(self.token_ids, run)
        except Exception as error:
            self.failure = self.failure or ConfigError(
                f"stop: got {error!r} from the tokenizer for token id {run[-1]}; expected its"
                " text. Pass a tokenizer that has"
                " all tokens of the model, or leave stop out."
            )
            return True

    def append(self, run: list[int], logprobs: Iterable[dict[int, float]] = ()) -> None:
        """Add tokens the target has chosen, with their log-probabilities where they are asked
        for.
        """
        if run:
            self.finish_reason = self.end_reason(run)
            self.token_ids.extend(run)
            self.logprobs.extend(logprobs)
