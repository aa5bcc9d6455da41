"""Hold the answers of a load bench as clients received them, and compute figures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from paceline.bench.environment import Environment
from paceline.bench.serving.settings import ServingConfig
from paceline.bench.serving.studies import Intrusion, SecondTurn, Soak, percentile
from paceline.core.metrics import Timing
from paceline.drafters import PLAIN


@dataclass(frozen=True, slots=True)
class TimedAnswer:
    """An answer with its timing, in seconds since the request was sent.

    Attributes:
        prompt: Id of the prompt.
        prompt_tokens, new_tokens: Numbers of tokens.
        first: Time of the first chunk.
        last: Time of the last chunk.
        gaps: Times between chunks. A chunk holds the tokens of one step.
        equal: Whether the answer equals plain decoding's first answer to the same prompt. None for
            that answer itself.
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
        """Return the mean seconds between tokens: (last - first) / (tokens - 1)."""
        return (self.last - self.first) / max(1, self.new_tokens - 1)


@dataclass(frozen=True, slots=True)
class LoadLevel:
    """The load of one measurement.

    Attributes:
        context: Name of the prompts' context.
        kind: "closed": `level` users, who send the next request when they have an answer.
            "poisson": random arrivals, `level` times as many as the server answers without
            speculation.
        level: Number of users, or share of the capacity.
        rate: Requests per second for "poisson"; 0 for "closed".
    """

    context: str
    kind: Literal["closed", "poisson"]
    level: float
    rate: float = 0.0

    @property
    def name(self) -> str:
        """Return the name of the load in reports."""
        return (
            f"{self.level:g} user{'s' if self.level > 1 else ''}"
            if self.kind == "closed"
            else f"{self.level:.0%} of capacity"
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """A load with one drafter.

    Attributes:
        load: The load.
        drafter: Spec of the drafter.
        repeat: Index of the pass.
        seconds: Time from the first request to the last token.
        cpu_seconds: Processor time of this process, with clients and server.
        timing: Times of the engine; None if unknown (on an accelerator).
        answers: The answers.
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
    """The figures of one drafter under one load, over all repeats.

    Times are in milliseconds, except `end_*`, in seconds.

    Attributes:
        load: The load.
        drafter: Spec of the drafter.
        answers: Number of answers.
        throughput: New tokens per second.
        speedup: Ratio to the throughput of plain decoding.
        cost: Milliseconds of the machine per token, 1000 / throughput.
        latency: Users times `cost`, prefill included. None for random arrivals.
        first_p50: Median time to the first chunk of an answer.
        first_p99: 99th percentile of the same time.
        gap_p50, gap_p99: Time between chunks.
        token_p50, token_p99: Mean time between the tokens of an answer.
        end_p50, end_p99: Time to the last chunk.
        overhead: Share of the engine's steps that is neither forward nor drafting.
        equal: Answers that equal plain decoding.
        compared: Answers compared.
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
class ServingResult:
    """A finished or interrupted run.

    Attributes:
        config: Its configuration.
        environment: The machine and the versions.
        complete: Whether it was not interrupted.
        target: Name of the model.
        dtype: Data type of the model.
        invariant: Whether batch invariance was guaranteed (`LLM.invariance`).
        cells: All loads with all drafters.
        turn, intrusion, soak: Further measurements; None if not configured.
        invariance: Reason for `invariant`; empty in files of earlier versions.
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
    invariance: str = ""

    @property
    def loads(self) -> list[LoadLevel]:
        """Return the loads in their order."""
        return list(dict.fromkeys(cell.load for cell in self.cells))

    def figures(self) -> list[LoadFigures]:
        """Return the figures of every drafter under every load."""
        return [
            self._figures(load, drafter)
            for load in self.loads
            for drafter in self.config.drafters
            if any((cell.load, cell.drafter) == (load, drafter) for cell in self.cells)
        ]

    def _figures(self, load: LoadLevel, drafter: str) -> LoadFigures:
        cells = [cell for cell in self.cells if (cell.load, cell.drafter) == (load, drafter)]
        plain = [cell for cell in self.cells if (cell.load, cell.drafter) == (load, PLAIN)]
        answers = [answer for cell in cells for answer in cell.answers]
        timing = sum((cell.timing for cell in cells if cell.timing is not None), Timing())
        rate = throughput(cells)
        firsts, ends, each = (
            [select(answer) for answer in answers] for select in (_first, _last, _per_token)
        )
        gaps = [gap for answer in answers for gap in answer.gaps] or [0.0]
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
            equal=sum(answer.equal is True for answer in answers),
            compared=sum(answer.equal is not None for answer in answers),
        )


def throughput(cells: Iterable[Cell]) -> float:
    """Return the new tokens per second over cells, which ran one after the other."""
    measured = list(cells)
    return sum(answer.new_tokens for cell in measured for answer in cell.answers) / sum(
        cell.seconds for cell in measured
    )


def _first(answer: TimedAnswer) -> float:
    return answer.first


def _last(answer: TimedAnswer) -> float:
    return answer.last


def _per_token(answer: TimedAnswer) -> float:
    return answer.per_token
