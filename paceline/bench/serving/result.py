"""What a load bench leaves: every answer as its client saw it, and the figures drawn from them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from paceline.bench.environment import Environment
from paceline.bench.serving.settings import ServingConfig
from paceline.core.metrics import Timing
from paceline.drafters import PLAIN


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """One answer. Times in seconds after the request.

    Attributes:
        first: when its first piece came. last: when its last one came.
        gaps: between pieces; a piece has as many tokens as the step that made it.
        equal: it says what plain decoding said first to that prompt; None = that is this one.
    """

    prompt: str
    prompt_tokens: int
    new_tokens: int
    first: float
    last: float
    gaps: tuple[float, ...]
    equal: bool | None

    @property
    def per_token(self) -> float:
        """Seconds between tokens, on average: (last - first) / (tokens - 1)."""
        return (self.last - self.first) / max(1, self.new_tokens - 1)


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """How much there was to do at a time.

    Attributes:
        kind: closed: `level` users, who ask again when they have their answer. poisson: requests at
            random times, `level` times as many as the server answers without speculation.
        rate: requests per second of the latter; 0 = closed.
    """

    context: str
    kind: Literal["closed", "poisson"]
    level: float
    rate: float = 0.0

    @property
    def name(self) -> str:
        """What reports call it."""
        return (
            f"{self.level:g} user{'s' if self.level > 1 else ''}"
            if self.kind == "closed"
            else f"{self.level:.0%} of capacity"
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """One load under one drafter.

    Attributes:
        seconds: from the first request to the last token. cpu_seconds: of this process, clients and
            server included.
        timing: where the engine's time went; None where that is not known (on an accelerator).
    """

    load: LoadLevel
    drafter: str
    repeat: int
    seconds: float
    cpu_seconds: float
    timing: Timing | None
    answers: tuple[TimedAnswer, ...]


@dataclass(frozen=True, slots=True)
class LoadFigures:
    """One drafter under one load, all repeats together. Times in milliseconds, except `end_*`, in
    seconds.

    Attributes:
        throughput: new tokens per second. speedup: that over plain decoding's.
        cost: milliseconds of the machine per token, 1000 / throughput. latency: users times that,
            as the paper has it (section 4.4: batch size / throughput), prefill included; None
            without a number of users.
        first_*: to the first piece of an answer. gap_*: between pieces. token_*: per answer,
            between tokens on average.
        end_*: to the last piece.
        overhead: share of the engine's steps that is neither forward nor drafting.
        equal, compared: answers that say what plain decoding says.
    """

    load: LoadLevel
    drafter: str
    answers: int
    throughput: float
    speedup: float | None
    cost: float
    latency: float | None
    first_p50: float
    first_p99: float
    gap_p50: float
    gap_p99: float
    token_p50: float
    token_p99: float
    end_p50: float
    end_p99: float
    overhead: float | None
    equal: int
    compared: int


@dataclass(frozen=True, slots=True)
class SecondTurn:
    """Seconds to the first token of a chat's second turn, with the first turn's cache and without.

    Attributes:
        before: tokens before the turn's own text.
        reused, afresh: seconds; reused_tokens, afresh_tokens: how many tokens of the prompt were in
            the cache.
    """

    before: int
    reused: tuple[float, ...]
    reused_tokens: tuple[int, ...]
    afresh: tuple[float, ...]
    afresh_tokens: tuple[int, ...]

    @property
    def ratio(self) -> float:
        """How many times sooner it is there, by the medians."""
        return percentile(self.afresh, 0.5) / percentile(self.reused, 0.5)


@dataclass(frozen=True, slots=True)
class Intrusion:
    """Gaps of a running stream in seconds, alone and while prompts of `tokens` arrive, of which
    `begun` got a place.
    """

    tokens: int
    begun: int
    alone: tuple[float, ...]
    beside: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """The 99th percentile of the latter over that of the former."""
        return percentile(self.beside, 0.99) / percentile(self.alone, 0.99)


@dataclass(frozen=True, slots=True)
class Soak:
    """A long mixed load.

    Attributes:
        resident: (seconds since the beginning, bytes of memory of this process), in order.
        answers, aborted: how many ended, and how many were left by their clients.
        left_open: sequences the engine still held at the end.
    """

    resident: tuple[tuple[float, int], ...]
    answers: int
    aborted: int
    left_open: int

    @property
    def growth(self) -> float:
        """Memory of the last quarter over that of the second, on average: the first one fills
        caches.
        """
        bytes_ = [size for _, size in self.resident]
        quarter = max(1, len(bytes_) // 4)
        return _mean(bytes_[-quarter:]) / _mean(bytes_[quarter : 2 * quarter] or bytes_)


@dataclass(frozen=True, slots=True)
class ServingResult:
    """A finished, or interrupted, run. `target`: name of the model; `dtype`: of it; `invariant`:
    see `LLM.invariance`.
    """

    config: ServingConfig
    environment: Environment
    complete: bool
    target: str
    dtype: str
    invariant: bool
    cells: tuple[Cell, ...]
    turn: SecondTurn | None = None
    intrusion: Intrusion | None = None
    soak: Soak | None = None
    invariance: str = ""  # why `invariant` or why not; files of earlier versions do not say

    @property
    def loads(self) -> list[LoadLevel]:
        """The loads, as they came."""
        return list(dict.fromkeys(cell.load for cell in self.cells))

    def figures(self) -> list[LoadFigures]:
        """Every drafter under every load."""
        return [
            self._figures(load, drafter)
            for load in self.loads
            for drafter in self.config.drafters
            if any((cell.load, cell.drafter) == (load, drafter) for cell in self.cells)
        ]

    def _figures(self, load: LoadLevel, drafter: str) -> LoadFigures:
        mine = [cell for cell in self.cells if (cell.load, cell.drafter) == (load, drafter)]
        plain = [cell for cell in self.cells if (cell.load, cell.drafter) == (load, PLAIN)]
        answers = [answer for cell in mine for answer in cell.answers]
        timing = sum((cell.timing for cell in mine if cell.timing is not None), Timing())
        rate = throughput(mine)
        firsts, ends, each = (
            [pick(one) for one in answers] for pick in (_first, _last, _per_token)
        )
        gaps = [gap for one in answers for gap in one.gaps] or [0.0]
        return LoadFigures(
            load=load,
            drafter=drafter,
            answers=len(answers),
            throughput=rate,
            speedup=rate / throughput(plain) if plain else None,
            cost=1000 / rate,
            latency=1000 * load.level / rate if load.kind == "closed" else None,
            first_p50=1000 * percentile(firsts, 0.5),
            first_p99=1000 * percentile(firsts, 0.99),
            gap_p50=1000 * percentile(gaps, 0.5),
            gap_p99=1000 * percentile(gaps, 0.99),
            token_p50=1000 * percentile(each, 0.5),
            token_p99=1000 * percentile(each, 0.99),
            end_p50=percentile(ends, 0.5),
            end_p99=percentile(ends, 0.99),
            overhead=timing.overhead_share if timing.step > 0 else None,
            equal=sum(one.equal is True for one in answers),
            compared=sum(one.equal is not None for one in answers),
        )


def throughput(cells: Iterable[Cell]) -> float:
    """New tokens per second over cells, which ran one after the other."""
    kept = list(cells)
    return sum(one.new_tokens for cell in kept for one in cell.answers) / sum(
        cell.seconds for cell in kept
    )


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest of the values that so large a share does not exceed (nearest rank)."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _first(answer: TimedAnswer) -> float:
    return answer.first


def _last(answer: TimedAnswer) -> float:
    return answer.last


def _per_token(answer: TimedAnswer) -> float:
    return answer.per_token


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
