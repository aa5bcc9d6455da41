"""One sequence being decoded: its tokens, how they are to be chosen, what is left, and why it ended."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from paceline.common.options import PER_REQUEST
from paceline.common.tokens import is_text
from paceline.engine.text import StopStrings
from paceline.errors import ConfigError

_ids = itertools.count()


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are chosen and when it ends.

    Attributes:
        max_new_tokens: upper bound of the answer's length, at least 1.
        temperature: 0 = greedy (arg-max); else logits are divided by it.
        top_k: keep the k most likely tokens; 0 = all.
        top_p: keep the smallest set of tokens whose probability reaches top_p; 1 = all.
        min_p: drop tokens less likely than min_p times the most likely one; 0 = none.
        repetition_penalty: divide positive and multiply negative logits of tokens already in prompt or answer; 1 = off.
        seed: the same seed gives the same text under every guess drafter and in any batch.
        stop: strings that end the answer; the text is cut before them. One string or None will do.
        ignore_eos: go on after an end-of-sequence token.
        speculation: spec of the drafter of this request, such as "none", "auto" or "sssd:nodes=8"; None = the engine's own. It
            decides how soon the answer is there, not what it says.
        max_nodes: most draft nodes verified per step; None = as many as the engine allows.

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
    speculation: str | None = field(default=None, metadata=PER_REQUEST)
    max_nodes: int | None = field(default=None, metadata=PER_REQUEST)

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _stop_strings(self.stop))
        _require(_is_int(self.max_new_tokens) and self.max_new_tokens >= 1, "max_new_tokens", self.max_new_tokens,
                 "an integer of at least 1")  # fmt: skip
        _require(_is_number(self.temperature) and self.temperature >= 0, "temperature", self.temperature,
                 "0 (greedy) or a positive number")  # fmt: skip
        _require(_is_int(self.top_k) and self.top_k >= 0, "top_k", self.top_k, "0 (off) or a positive integer")
        _require(_is_number(self.top_p) and 0 < self.top_p <= 1, "top_p", self.top_p, "above 0 and at most 1 (off)")
        _require(_is_number(self.min_p) and 0 <= self.min_p <= 1, "min_p", self.min_p, "from 0 (off) to 1")
        _require(_is_number(self.repetition_penalty) and self.repetition_penalty > 0, "repetition_penalty",
                 self.repetition_penalty, "a positive number, 1 = off")  # fmt: skip
        _require(_is_int(self.seed), "seed", self.seed, "an integer")
        _require(isinstance(self.ignore_eos, bool), "ignore_eos", self.ignore_eos, "True or False")
        _require(self.speculation is None or (isinstance(self.speculation, str) and self.speculation.strip() != ""),
                 "speculation", self.speculation, "a drafter's spec, such as 'none' or 'sssd:nodes=8', or None")  # fmt: skip
        _require(self.max_nodes is None or (_is_int(self.max_nodes) and self.max_nodes >= 0), "max_nodes", self.max_nodes,
                 "an integer of at least 0, or None")  # fmt: skip

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken, no draw made."""
        return self.temperature == 0.0


@dataclass(slots=True)
class Counters:
    """Raw counts of one sequence, written by the model, the step and the drafter; formulas are in `paceline.engine.metrics`."""

    target_forwards: int = 0
    prefill_forwards: int = 0
    draft_forwards: int = 0
    drafted_tokens: int = 0
    accepted_tokens: int = 0
    fed: list[int] = field(default_factory=list)  # query tokens of each forward
    notes: dict[str, int] = field(default_factory=dict)  # what the drafter counts of its own

    def note(self, what: str) -> None:
        """Count one more of `what`."""
        self.notes[what] = self.notes.get(what, 0) + 1


class Sequence:
    """Token ids of one request in one model, with the place they have in that model's cache.

    Attributes:
        token_ids: prompt and answer.
        prompt_length: how many of them are the prompt.
        max_length: the length at which it ends, in tokens.
        cached: how many leading tokens have rows in the model's cache.
        slot: the cache row this sequence owns; -1 before it is opened.
        finish_reason: "stop" | "length" once it has ended.
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
        self.eos_token_ids = frozenset() if params.ignore_eos else frozenset(eos_token_ids)
        wanted = self.prompt_length + params.max_new_tokens
        self.max_length = wanted if max_length is None else min(wanted, max_length)
        self.stop = stop
        self.finish_reason: str | None = None
        self.cached = 0
        self.slot = -1
        self.counters = Counters()

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
    def remaining(self) -> int:
        """How many tokens may still be emitted. A draft deeper than `remaining - 1` is wasted."""
        return self.max_length - len(self.token_ids)

    def end_reason(self, run: list[int]) -> str | None:
        """Why the sequence ends with the last token of `run`, tokens about to be appended; None if it goes on.

        Checked for every token of an accepted run, so that no token follows an end.
        """
        if run[-1] in self.eos_token_ids:
            return "stop"
        if self.stop is not None and self.stop.ends(self.output_ids + run):
            return "stop"
        return "length" if len(run) >= self.remaining else None

    def append(self, run: list[int]) -> None:
        """Add tokens the target has chosen."""
        if run:
            self.finish_reason = self.end_reason(run)
            self.token_ids.extend(run)


def _stop_strings(value: object) -> tuple[str, ...]:
    if value is None or isinstance(value, str):
        value = () if value is None else (value,)
    texts = tuple(value) if isinstance(value, Iterable) and not isinstance(value, Mapping | bytes) else (value,)
    _require(all(is_text(text) and text for text in texts), "stop", value, "non-empty strings, or None")
    return texts


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _require(fine: bool, name: str, value: object, expected: str) -> None:
    if not fine:
        raise ConfigError(f"{name}: got {value!r}; expected {expected}.")
