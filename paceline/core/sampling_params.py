"""Define and validate the options of a request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from typing import Any

from paceline.core import argument_checks
from paceline.core.argument_checks import is_count, is_int, is_number, is_within, require
from paceline.core.settings import MAX_PENALTY

# Field metadata for options that apply to an individual request but not to a run over many
# requests.
PER_REQUEST = {"per_request": True}

# Options whose values `argument_checks` converts.
_NORMALISED = ("stop_token_ids", "logit_bias", "bad_words", "logits_processors", "prediction")

_Check = tuple[str, Callable[[Any], bool], str]  # option, condition, description of valid values


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Options for one request: sampling, length, stop conditions and reported values.

    Attributes:
        max_new_tokens: Maximum number of tokens in an answer; at least 0. With 0, the model
            processes the prompt but generates no tokens.
        temperature: Sampling temperature, by which the logits are divided; at least 0. With 0,
            decoding is greedy (argmax).
        top_k: Keep the k most likely tokens; at least 0; 0 keeps all.
        top_p: Keep the smallest set of tokens whose total probability reaches top_p; above 0, at
            most 1; 1 keeps all.
        min_p: Drop tokens whose probability is below min_p times the highest probability; from 0 to
            1; 0 drops none.
        repetition_penalty: For tokens already in the prompt or answer, divide positive logits and
            multiply negative logits by this number; above 0; 1 disables the penalty.
        seed: Random seed. The same seed produces the same text in any batch and with any drafter,
            unless the drafter samples its drafts.
        stop: Strings that end the answer. The answer does not include the stop string. Stop strings
            may be special tokens. Default: none.
        ignore_eos: Continue after an end-of-sequence token.
        min_tokens: Minimum number of tokens in an answer before an end-of-sequence token may end
            it; at least 0. Stop strings may end the answer earlier.
        presence_penalty: Number subtracted from the logits of tokens already in the answer; from
            -2 to 2; 0 disables the penalty.
        frequency_penalty: Number subtracted from a token's logit for each occurrence of the token
            in the answer; from -2 to 2; 0 disables the penalty.
        stop_token_ids: Tokens that end the answer, even with `ignore_eos`. The stop token is the
            last token of the answer.
        logit_bias: Value to add to the logit of each listed token id; from -100 to 100. Default:
            none.
        bad_words: Words or lists of token ids that the answer must not contain. A word is banned
            at the start of the text and after a space. If the answer ends with all but the last
            token of a banned word or list, that last token cannot come next.
        logits_processors: transformers' `LogitsProcessor`s or callables (ids [1, n], scores
            float32 [1, vocab]) -> scores [1, vocab]. For each new token, all processors run once,
            in order, on the prompt and the answer before that token. Each answer uses its own
            shallow copy of every processor, so a processor may keep state in its attributes.
        logprobs: Number of most likely tokens to report for each token of the answer, with their
            log-probabilities (`Completion.logprobs`). The chosen token is also reported. The
            log-probabilities come from the model's own logits. Default: none.
        prompt_logprobs: Number of most likely tokens to report for each token of the prompt, with
            their log-probabilities (`Completion.prompt_logprobs`). The model then computes the
            whole prompt, even if the beginning of the prompt is cached. Default: none.
        skip_special_tokens: Omit special tokens from the text. With False, they appear as the
            tokenizer spells them, including the end-of-sequence token.
        n: Number of answers (`Completion.outputs`). The answers use the seeds `seed`, `seed + 1`
            and so on. A number above 1 needs a temperature above 0.
        speculation: Drafter spec for this request, such as "none" or "sssd:max_nodes=8"; None uses
            the engine's drafter. The drafter changes the speed, not the distribution of answers.
        prediction: Token ids or text that the answer is expected to contain, such as the text to
            edit. The drafter `auto` drafts from the prediction, and other drafters ignore it. The
            answer does not change.
            Default: none.
        max_nodes: Maximum number of draft nodes verified per step; None means as many as the
            engine allows.
        priority: Requests with a lower number receive a slot first and may preempt others; the
            older request wins a tie.

    The logits are changed in this order: logit_bias, repetition_penalty, frequency_penalty,
    presence_penalty, bad_words, min_tokens, logits_processors, temperature, top_k, top_p, min_p.

    Raises:
        ConfigError: A value is outside its range.
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
    prediction: str | Sequence[int] = field(default=(), metadata=PER_REQUEST)
    max_nodes: int | None = field(default=None, metadata=PER_REQUEST)
    priority: int = field(default=0, metadata=PER_REQUEST)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", argument_checks.stop_strings(self.stop))
        for name in _NORMALISED:
            object.__setattr__(self, name, getattr(argument_checks, name)(getattr(self, name)))
        for name, is_valid, expected in chain(self._value_checks(), self._request_checks()):
            require(is_valid(getattr(self, name)), name, getattr(self, name), expected)

    def _value_checks(self) -> Iterator[_Check]:
        yield "max_new_tokens", is_count, "an integer of at least 0"
        yield "temperature", partial(is_within, low=0.0), "0 (greedy) or a positive number"
        yield "top_k", is_count, "0 (off) or a positive integer"
        yield (
            "top_p",
            lambda value: is_within(value, 0.0, 1.0) and value > 0,
            "above 0 and at most 1 (off)",
        )
        yield "min_p", partial(is_within, low=0.0, high=1.0), "from 0 (off) to 1"
        yield (
            "repetition_penalty",
            lambda value: is_number(value) and value > 0,
            "a positive number, 1 = off",
        )
        yield "seed", is_int, "an integer"
        for name in ("ignore_eos", "skip_special_tokens"):
            yield name, lambda value: isinstance(value, bool), "True or False"
        yield (
            "min_tokens",
            lambda value: is_count(value) and value <= self.max_new_tokens,
            "an integer from 0 to \0max_new_tokens\0",
        )
        for name in ("presence_penalty", "frequency_penalty"):
            yield (
                name,
                partial(is_within, low=-MAX_PENALTY, high=MAX_PENALTY),
                f"a number from {-MAX_PENALTY:g} to {MAX_PENALTY:g}, 0 = off",
            )

    def _request_checks(self) -> Iterator[_Check]:
        for name in ("logprobs", "prompt_logprobs"):
            yield name, _is_optional_count, "an integer of at least 0, or None"
        yield "n", lambda value: is_int(value) and value >= 1, "an integer of at least 1"
        yield (
            "n",
            lambda value: value == 1 or not self.greedy,
            "1 with temperature 0, where all answers are the same",
        )
        yield (
            "speculation",
            lambda value: value is None or (isinstance(value, str) and value.strip() != ""),
            "a drafter's spec, such as 'none' or 'sssd:max_nodes=8', or None",
        )
        yield "max_nodes", _is_optional_count, "an integer of at least 0, or None"
        yield "priority", is_int, "an integer; smaller goes first"

    @property
    def greedy(self) -> bool:
        """True if every token is the most likely one, without sampling."""
        return self.temperature == 0.0

    @property
    def adjusts(self) -> bool:
        """True if options such as penalties or bad words change individual logits."""
        return bool(
            self.repetition_penalty != 1.0
            or self.presence_penalty
            or self.frequency_penalty
            or self.min_tokens
            or self.logit_bias
            or self.bad_words
        )


def _is_optional_count(value: object) -> bool:
    return value is None or is_count(value)
