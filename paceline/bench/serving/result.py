"""Store the answers of a load benchmark, and compute figures from them."""

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
    """An answer with its timing, in seconds since the request was sent.

    Attributes:
        prompt: Id of the prompt.
        prompt_tokens, new_tokens: Number of tokens in the prompt and in the answer.
        first: Time of the first chunk.
        last: Time of the last chunk.
        gaps: Times between consecutive chunks. A chunk contains the tokens of one step.
        equal: Whether the answer equals plain decoding's first answer to the same prompt; None for
            that first answer itself.
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
        context: Name of the prompts' context length.
        kind: "closed" for `level` users, each of whom waits for an answer before sending the next
            request. "poisson" for random arrivals, at `level` times the request rate that the
            server reaches without speculation.
        level: Number of users, or arrival rate as a share of the server's capacity.
        rate: Requests per second for "poisson"; 0 for "closed".
    """

    context: str
    kind: Literal["closed", "poisson"]
    level: float
    rate: float = 0.0

    @property
    def name(self) -> str:
        """Return the name of the load for reports."""
        return (
            f"{self.level:g} user{'s' if self.level > 1 else ''}"
            if self.kind == "closed"
            else f"{self.level:.0%} of capacity"
        )


@dataclass(frozen=True, slots=True)
class Cell:
    """The result of running one drafter under one load.

    Attributes:
        load: Requests that the clients send.
        drafter: Spec of the drafter.
        repeat: Index of the repetition.
        seconds: Time from the first request to the last token.
        cpu_seconds: Processor time of this process, including clients and server.
        timing: Time that the engine spent in each phase; None if unknown, as on an accelerator.
        answers: Answers that were received.
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

    The times to the last chunk (`end_*`) are in seconds, all other times in milliseconds.

    Attributes:
        load: Load of the measurements.
        drafter: Spec of the drafter.
        answers: Number of answers.
        throughput: New tokens per second.
        speedup: Throughput divided by the throughput of plain decoding.
        cost: Machine time per token in milliseconds: 1000 / throughput.
        latency: Mean time per token for one user, including prefill (number of users * `cost`);
            None for random arrivals.
        first_p50: Median time to the first chunk of an answer.
        first_p99: 99th percentile of the time to the first chunk.
        gap_p50: Median time between chunks.
        gap_p99: 99th percentile of the time between chunks.
        token_p50: Median over all answers of the mean time between an answer's tokens.
        token_p99: 99th percentile over all answers of the mean time between an answer's tokens.
        end_p50: Median time to the last chunk.
        end_p99: 99th percentile of the time to the last chunk.
        overhead: Share of the step time that is not spent in target forward passes or in drafting.
        equal: Number of answers that equal the answers of plain decoding.
        compared: Number of answers that were compared with the answers of plain decoding.
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
    """The result of a finished or interrupted load benchmark.

    Attributes:
        config: Configuration of the run.
        environment: The machine and the software versions.
        complete: Whether the run was completed without interruption.
        target: Name of the model.
        dtype: Data type of the model.
        invariant: Whether batch invariance was guaranteed (`LLM.invariance`).
        cells: Measurements of all loads with all drafters.
        invariance: Why `invariant` is true or false; empty in files from earlier versions.
        weights: Format of the model's weights; "" if the checkpoint's weights are used unchanged.
    """

    config: ServingConfig
    environment: Environment
    complete: bool
    target: str
    dtype: str
    invariant: bool
    cells: tuple[Cell, ...]
    invariance: str = ""
    weights: str = ""

    @property
    def loads(self) -> list[LoadLevel]:
        """Return all measured loads without duplicates, in the order of `cells`."""
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


def percentile(values: Sequence[float], share: float) -> float:
    """Return a percentile of the values, by the nearest-rank method.

    Args:
        values: At least one value.
        share: Share of the values that are less than or equal to the result; 0.5 is the median.
    """
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def throughput(cells: Iterable[Cell]) -> float:
    """Return the number of new tokens per second over all measurements in `cells`."""
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
