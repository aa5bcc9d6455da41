"""Tables of the pages on servers under load and on vLLM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmark_data import MACHINES, PLAIN, RESULTS, load, markdown, used
from vllm_results import VllmRun, read_vllm

from paceline.report.tables import Column, Table


def under_load() -> str:
    """Return throughput and waiting times of a server by the number of users."""
    return _load_table(("smollm2-serve-bf16-amx", "smollm2-serve-64-bf16-amx"))


def long_prompts_under_load() -> str:
    """Return the same with longer prompts."""
    return _load_table(("smollm2-serve-long-bf16-amx",))


def random_text_under_load() -> str:
    """Return the same with prompts of random tokens."""
    return _load_table(("smollm2-serve-random-bf16-amx",))


def under_load_avx2() -> str:
    """Return throughput and waiting times on a processor with AVX2 only."""
    return _load_table(("smollm2-serve-bf16-avx2",))


def server_notes() -> str:
    """Return what the other measurements of a server found."""
    return "\n".join(
        f"- {machine}: {note}"
        for study in ("duties", "soak")
        for suffix, machine in MACHINES.items()
        for note in load(f"smollm2-serve-{study}-bf16-{suffix}").get("notes", ())
        if "prompts, so" not in note
    )


@dataclass(frozen=True, slots=True)
class VllmRow:
    """Figures of a drafter in a run inside vLLM.

    Attributes:
        prompts: Names of the prompt files.
        batch: Requests at a time.
        method: Name of the drafter.
        accepted: Accepted draft tokens per step and request.
        speed: Tokens per second over those without speculation.
        equal: Answers that are identical to plain decoding, of all.
    """

    prompts: str
    batch: int
    method: str
    accepted: float
    speed: float
    equal: str


def vllm_rows(name: str) -> list[VllmRow]:
    """Return the drafters of a run, such as "batch16"."""
    path = RESULTS / f"smollm2-vllm-{name}.json"
    if not path.exists():
        path = path.with_stem(f"{path.stem}-fp32")
    used.add(path.stem)
    result = read_vllm(path)
    prompts = ", ".join(dict.fromkeys(part.prompts_of for part in result.parts))
    plain = [part for part in result.parts if part.method == PLAIN]
    rows = []
    for method in dict.fromkeys(part.method for part in result.parts):
        parts = [part for part in result.parts if part.method == method]
        rows.append(
            VllmRow(
                prompts.replace("_", " "),
                result.batch,
                method,
                sum(part.accepted for part in parts) / max(1, sum(part.steps for part in parts)),
                _speed(parts) / _speed(plain),
                f"{sum(part.equal for part in parts)} of {sum(part.prompts for part in parts)}",
            )
        )
    return rows


def inside_vllm(*names: str) -> str:
    """Return acceptance and throughput of drafters in vLLM."""
    columns = [
        Column("prompts", left=True),
        Column("batch"),
        Column("drafter", left=True),
        Column("accepted per step", ".2f"),
        Column("speed", ".2f"),
        Column("identical to plain decoding"),
    ]
    rows = [
        (row.prompts, f"{row.batch}", row.method, row.accepted, row.speed, row.equal)
        for name in names
        for row in vllm_rows(name)
    ]
    return markdown(Table.of("", columns, rows))


def _speed(parts: Sequence[VllmRun]) -> float:
    return sum(part.tokens for part in parts) / sum(part.processor for part in parts)


def _load_table(names: Sequence[str]) -> str:
    rows = []
    for name in names:
        by_load: dict[str, dict[str, dict[str, Any]]] = {}
        for row in load(name)["summary"]:
            by_load.setdefault(_load_name(row["load"]), {})[row["drafter"]] = row
        for label, drafters in by_load.items():
            plain, drafted = drafters[PLAIN], drafters["auto"]
            rows.append(
                (
                    label,
                    plain["throughput"],
                    drafted["throughput"],
                    drafted["throughput"] / plain["throughput"],
                    f"{plain['first_p50'] / 1000:.1f} / {drafted['first_p50'] / 1000:.1f}",
                    f"{plain['end_p50']:.1f} / {drafted['end_p50']:.1f}",
                    f"{drafted['equal']} of {drafted['compared']}",
                )
            )
    columns = [
        Column("load", left=True),
        Column("plain, tokens/s", ".1f"),
        Column("`auto`, tokens/s", ".1f"),
        Column("speed", ".2f"),
        Column("first token, s"),
        Column("whole answer, s"),
        Column("identical"),
    ]
    return markdown(Table.of("", columns, rows))


def _load_name(load: dict[str, Any]) -> str:
    users = (
        f"{load['level']:g} user{'s' if load['level'] > 1 else ''}"
        if load["kind"] == "closed"
        else f"random arrivals, {load['level']:.0%} of capacity"
    )
    context = {"short": "", "medium": ", 1,000-token prompts", "long": ", 3,000-token prompts"}
    return users + context[load["context"]]
