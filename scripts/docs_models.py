"""Write the tables of model types from `scripts/survey_models.py`, and recurrence times."""

from __future__ import annotations

from collections import Counter

from benchmark_data import load

_NAME = "model-survey"
_OUTCOMES = {
    "trees": "draft trees, one forward pass for a batch",
    "chains": "chains, one request per forward pass",
    "uncached": "exact; `generate` differs from decoding without a cache",
    "refused": "rejected",
    "wrong": "answers differ",
    "not built": "not tested",
}
# Short forms of messages, by words that occur in them.
_REASONS = {
    "logits of a draft": "Draft logits differ from those of plain forward passes",
    "with an indexer": "An indexer selects keys, and its cache cannot be rolled back",
    "by blocks": "Keys are selected by blocks, and the cache cannot be rolled back",
    "has no key/value cache": "No KV cache, so drafts save nothing",
    "in a cache class of its own": "Recurrent states in a cache class that serves one request",
    "outside transformers' cache layers": "Recurrent states outside transformers' cache layers",
    "run a draft chain": "The forward method cannot run a draft chain",
    "run a draft tree": "The forward method cannot run a draft tree",
}


def survey_counts() -> str:
    """Return how many model types are exact, refused or not tested."""
    content = load(_NAME)
    counts = Counter(row["outcome"] for row in content["rows"])
    lines = ["| result | model types |", "|---|---:|"]
    lines += [f"| {words} | {counts[name]} |" for name, words in _OUTCOMES.items() if counts[name]]
    lines.append(f"| all causal types in transformers | {len(content['rows'])} |")
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
        "CPU time of one forward pass, relative to a single token. The models have 8 layers, as"
        f" wide as in a model with 0.8 B parameters, in {content['dtype']} on one thread of an"
        f" {content['processor']} processor. paceline also computes the matrix products."
    )
    return "\n".join([*lines, "", setup])


def hybrid_speed() -> str:
    """Return what `auto` saves on a hybrid model, from `scripts/hybrid_speed.py`."""
    content = load("hybrid-speed")
    times = content["ms_per_token"]
    lines = [
        "| run | plain, ms per token | `auto`, ms per token | speed-up |",
        "|---:|---:|---:|---:|",
    ]
    for run, ratio in enumerate(content["speedups"]):
        plain, drafted = times["none"][run], times["auto"][run]
        lines.append(f"| {run + 1} | {plain:.1f} | {drafted:.1f} | {ratio:.2f}x |")
    setup = (
        "LFM2 with 8 layers of width 1024, trained on the task at width 128 and then enlarged"
        f" ({content['parameters'] / 1e6:.0f} M parameters), in {content['dtype']} on one thread of"
        f" an {content['processor']} processor, CPU time. Each run has 12 new texts;"
        f" {content['equal_answers']} of {content['answers']} answers are equal."
    )
    return "\n".join([*lines, "", setup])


def survey_refused() -> str:
    """Return the other model types by reason."""
    by_reason: dict[str, list[str]] = {}
    for outcome in ("refused", "wrong", "not built"):
        for row in _rows(outcome):
            by_reason.setdefault(_reason(row), []).append(row["model_type"])
    ordered = sorted(by_reason.items(), key=lambda entry: (-len(entry[1]), entry[1]))
    return "\n".join(
        f"- {reason}: {', '.join(f'`{name}`' for name in names)}." for reason, names in ordered
    )


def _rows(outcome: str) -> list[dict[str, str]]:
    return [row for row in load(_NAME)["rows"] if row["outcome"] == outcome]


def _reason(row: dict[str, str]) -> str:
    """Return a short form of the message that a model type was refused with.

    Raises:
        ValueError: The message has no short form.
    """
    if row["outcome"] == "not built":
        return "Not tested, because transformers cannot build a small model"
    for words, reason in _REASONS.items():
        if words in row["reason"]:
            return reason
    raise ValueError(f"{row['model_type']}: got {row['reason']!r}; add a short form to _REASONS.")
