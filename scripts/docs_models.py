"""Write the tables of model types from `scripts/survey_models.py`, and recurrence times."""

from __future__ import annotations

from collections import Counter

from benchmark_data import load

_NAME = "model-survey"
_OUTCOMES = {
    "trees": "drafts are verified as trees, with one forward pass per batch",
    "chains": "drafts are verified as chains, with one forward pass per request",
    "uncached": "answers equal those without a KV cache, but not those of `generate`",
    "refused": "rejected",
    "wrong": "answers differ",
    "not built": "not tested",
}
# Short forms of messages, by words that occur in them.
_REASONS = {
    "logits of a draft": "Models whose draft logits differ from those of plain decoding",
    "with an indexer": "Models whose indexer has a cache that cannot be rolled back",
    "by blocks": "Models that select blocks of keys and whose cache cannot be rolled back",
    "has no key/value cache": "Models without a KV cache, which drafting cannot make faster",
    "in a cache class of its own": "Models that store recurrent states in a cache for one request",
    "outside transformers' cache layers": "Models with recurrent states outside cache layers",
    "run a draft chain": "Models whose forward method cannot run a draft chain",
    "run a draft tree": "Models whose forward method cannot run a draft tree",
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
        "The column *1 token* shows the CPU time of a forward pass over one token. The other"
        " columns show CPU times divided by the time for one token. The models have 8 layers, as"
        " wide as the layers of a model with 0.8 billion parameters. The models ran in"
        f" {content['dtype']} on one thread of an {content['processor']} processor. In the"
        " rows *paceline*, paceline's kernels computed the matrix products as well."
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
        "The times are CPU times of LFM2 with 8 layers of width 1024"
        f" ({content['parameters'] / 1e6:.0f} M parameters), in {content['dtype']} on one thread of"
        f" an {content['processor']} processor. For this test, the model was"
        f" trained at width 128 to repeat such lines, and was then enlarged. Each run uses 12 new"
        f" texts. With drafting, {content['equal_answers']} of"
        f" {content['answers']} answers are the same as without drafting."
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
        return "Models that were not tested, because transformers cannot build a small version"
    for words, reason in _REASONS.items():
        if words in row["reason"]:
            return reason
    raise ValueError(f"{row['model_type']}: got {row['reason']!r}; add a short form to _REASONS.")
