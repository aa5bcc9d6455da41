"""Read the results in docs/results, and note which of them a page shows."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

from paceline.report.tables import Table

RESULTS = Path(__file__).parent.parent / "docs" / "results"
MACHINES = {
    "amx": "Xeon AMX",
    "dots": "EPYC AVX512-BF16",
    "dots-two-cores": "EPYC AVX512-BF16 (2)",
    "avx2": "EPYC AVX2",
}
PLAIN = "none"
DRAFTERS = ("auto", "sssd", "prompt_lookup", "lookahead", "token_recycling")
BATCHES = (1, 8, 32)
_MODELS = {
    "smollm2 (135 M)": "SmolLM2-135M-Instruct",
    "gemma-3-270m-q4_k_m.gguf (268 M)": "Gemma 3 270M (base)",
    "smollm2, cost-scaled 1728x30 (1041 M)": (
        "SmolLM2-135M-Instruct padded to the cost of a 1B model"
    ),
}
_OUTSIDE = {
    "transformers": "transformers",
    "transformers:prompt_lookup": "transformers, prompt lookup",
    "transformers:assistant": "transformers, assisted generation",
    "transformers:generate_batch": "transformers, continuous batching",
}


used = set[str]()  # results that a table or a plot shows


def load(name: str) -> dict[str, Any]:
    """Return a summary, which then counts as used; an empty one if there is none."""
    used.add(name)
    return read(name)


@cache
def read(name: str) -> dict[str, Any]:
    """Return the summary of this name without noting it."""
    path = RESULTS / f"{name}.json"
    content: dict[str, Any] = json.loads(path.read_text("utf-8")) if path.exists() else {}
    return content


def figures(name: str, method: str, category: str | None = None) -> dict[str, Any]:
    """Return the figures of a method in a bench run; empty if the method did not run."""
    summary = load(name).get("summary", {"all": [], "categories": {}})
    rows = summary["categories"].get(category, []) if category else summary["all"]
    return next((row for row in rows if row["method"] == method), {})


def over(name: str, method: str, base: str = PLAIN, category: str | None = None) -> float | None:
    """Return the ratio of a method's tokens per second to that of another method."""
    speeds = [figures(name, which, category).get("tokens_per_second") for which in (method, base)]
    return speeds[0] / speeds[1] if speeds[0] and speeds[1] else None


def machines_of(pattern: str) -> dict[str, str]:
    """Return the machines with a result; `pattern` has "{}" for the machine."""
    return {suffix: name for suffix, name in MACHINES.items() if load(pattern.format(suffix))}


def shown(method: str) -> str:
    """Return the name of a method as readers know it."""
    return _OUTSIDE.get(method) or ("plain decoding" if method == PLAIN else f"`{method}`")


def all_names() -> list[str]:
    """Return the names of all results."""
    return sorted(path.stem for path in RESULTS.glob("*.json"))


def caption(names: Iterable[str]) -> str:
    """Return model, data type, answers and tokens of the runs; list each value once."""
    runs = [run for name in names if (run := load(name))]

    def several(values: Iterable[object]) -> str:
        return " or ".join(str(value) for value in dict.fromkeys(values))

    def span(values: list[int]) -> str:
        low, high = min(values), max(values)
        return f"{low}" if low == high else f"{low} to {high}"

    sampling = [run["config"]["sampling"] for run in runs]
    heat = several(
        "greedy decoding" if not entry["temperature"] else f"temperature {entry['temperature']:g}"
        for entry in sampling
    )
    parts = [
        several(_MODELS.get(run["target"], run["target"]) for run in runs),
        several(run["dtype"] for run in runs),
        f"{several(run['environment']['threads'] for run in runs)} thread",
        heat,
        f"{span([run['summary']['all'][0]['answers'] for run in runs])} answers per method",
        _token_limit([entry["max_new_tokens"] for entry in sampling]),
    ]
    return f"\n\n*{'; '.join(parts)}.*"


def _token_limit(limits: list[int]) -> str:
    """Return the limit of new tokens, or its range over the runs."""
    low, high = min(limits), max(limits)
    if low == high:
        return f"at most {low} new tokens"
    return f"a limit of {low} to {high} new tokens, depending on the run"


def shell(command: str) -> str:
    """Return a command broken into lines of at most 96 characters."""
    return " \\\n".join(
        textwrap.wrap(
            command, 94, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False
        )
    )


def markdown(table: Table) -> str:
    """Return a table as Markdown."""
    return "\n".join(table.markdown()).strip()
