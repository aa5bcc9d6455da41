"""Write the tables of model types from `scripts/survey_models.py`, and recurrence times."""

from __future__ import annotations

import re
from collections import Counter

from benchmark_data import load

_NAME = "model-survey"
_OUTCOMES = {
    "trees": "draft trees, one forward pass for a batch",
    "chains": "chains, one request per forward pass",
    "uncached": "exact; `generate` differs from decoding without a cache",
    "refused": "refused",
    "wrong": "answers differ",
    "not built": "not tested",
}
_CLASS = re.compile(r"^\w+(?= (keeps|selects|cannot|has|is|runs|computes|needs)\b)")


def survey_counts() -> str:
    """Return how many model types are exact, refused or not tested."""
    content = load(_NAME)
    counts = Counter(row["outcome"] for row in content["rows"])
    lines = ["| result | model types |", "|---|---:|"]
    lines += [f"| {words} | {counts[name]} |" for name, words in _OUTCOMES.items() if counts[name]]
    lines.append(f"| all causal types of transformers | {len(content['rows'])} |")
    versions = content["versions"]
    return "\n".join(
        [
            *lines,
            "",
            f"transformers {versions['transformers']}, torch {versions['torch']}, float32.",
        ]
    )


def survey_types() -> str:
    """Return the exact model types, by how drafts are verified."""
    lines = []
    for outcome in ("trees", "chains", "uncached"):
        names = [row["model_type"] for row in _rows(outcome)]
        words = _OUTCOMES[outcome]
        types = ", ".join(f"`{name}`" for name in names)
        lines.append(f"- {words[0].upper()}{words[1:]}: {types}.")
    return "\n".join(lines)


def recurrence_times() -> str:
    """Return the time of passes of recurrent models, from `scripts/recurrence_times.py`."""
    content = load("recurrence-times")
    lines = ["| recurrence | computed by | 1 token | 4 tokens | 8 tokens | 16 tokens |"]
    lines.append("|---|---|---:|---:|---:|---:|")
    for name, ways in content["models"].items():
        for way, times in ways.items():
            ratios = " | ".join(f"{times['relative'][count]:.2f}" for count in ("4", "8", "16"))
            lines.append(f"| {name} | {way} | {times['one_token_ms']:.0f} ms | {ratios} |")
    setup = (
        "CPU time of one forward pass relative to one token. The models have 8 layers at the widths"
        f" of a model with 0.8 B parameters, in {content['dtype']} on one thread of an"
        f" {content['processor']} processor. paceline also computes the matrix products."
    )
    return "\n".join([*lines, "", setup])


def survey_refused() -> str:
    """Return the other model types with the reason."""
    by_reason: dict[str, list[str]] = {}
    for outcome in ("refused", "wrong", "not built"):
        for row in _rows(outcome):
            by_reason.setdefault(_reason(row), []).append(row["model_type"])
    lines = ["| model types | reason |", "|---|---|"]
    for reason, names in sorted(by_reason.items(), key=lambda entry: (-len(entry[1]), entry[1])):
        lines.append(f"| {', '.join(f'`{name}`' for name in names)} | {reason} |")
    return "\n".join(lines)


def _rows(outcome: str) -> list[dict[str, str]]:
    return [row for row in load(_NAME)["rows"] if row["outcome"] == outcome]


def _reason(row: dict[str, str]) -> str:
    """Return a reason in a table cell: the first clause, without the class's name."""
    if row["outcome"] == "not built":
        return "Not tested: transformers builds no small model of this type."
    if "logits of a draft" in row["reason"]:
        return "Logits of a draft differ from those of plain forward passes."
    reason = _CLASS.sub("It", row["reason"]).partition("; ")[0].partition(". Use ")[0]
    reason = re.sub(r"(run a draft \w+): .*", r"\1", reason)
    return f"{reason.replace('|', ' ').rstrip('.')}."
