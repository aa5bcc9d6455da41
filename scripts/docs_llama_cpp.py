"""Tables of the page about llama.cpp."""

from __future__ import annotations

from collections.abc import Iterable

from benchmark_data import load


def llama_cpp_answers() -> str:
    """Return how many answers differ from plain decoding, from `paceline verify --json`."""
    content = load("llama-cpp-answers")
    heads = ("batch size", "tokens per answer", "differing answers", "accepted draft tokens")
    lines = [f"| drafter | {' | '.join(heads)} | tokens per forward pass |"]
    lines.append("|---|" + "---:|" * (1 + len(heads)))
    for row in content["drafters"]:
        lines.append(
            f"| `{row['drafter']}` | {row['batch']} | {row['tokens']} |"
            f" {row['differing']} of {row['answers']} |"
            f" {row['accepted_tokens']} | {row['tokens_per_forward']:.2f} |"
        )
    setup = (
        f"SmolLM2-135M-Instruct (Q4_1) answered {content['answers']} questions from GSM8K in"
        f" {content['library']}, on one thread of an {content['processor']} processor. The engine"
        f" verified all drafts, with at most {content['max_nodes']} nodes per step."
    )
    return "\n".join([*lines, "", setup])


def llama_cpp_costs() -> str:
    """Return the times of forward passes, from `scripts/llama_cpp_costs.py`."""
    content = load("llama-cpp-costs")
    times = content["forward_ms"]
    counts = list(next(iter(times.values())))
    heads = " | ".join(f"{count} row{'s' * (count != '1')}" for count in counts)
    lines = [f"| forward pass | {heads} |", "|---|" + "---:|" * len(counts)]
    for name, row in times.items():
        lines.append(f"| {name} | " + " | ".join(f"{row[count]:.1f} ms" for count in counts) + " |")
    commit, move = content["bookkeeping_ms"].values()
    answers = content["answers"]
    ratios = ", and ".join(
        f"{_span(each.values())} times as long with batch size {batch}"
        for batch, each in answers["seconds"].items()
    )
    setup = (
        f"SmolLM2-135M-Instruct (Q4_1) ran in {content['library']} on one thread of an"
        f" {content['processor']} processor. The table shows the processor time of a forward pass"
        " after a text of 256 tokens. If a draft tree has 16 nodes and 9 leaves, committing"
        f" its accepted tokens takes {commit:.2f} ms. Copying a request's sequence to the front of"
        f" the cache takes {move:.1f} ms.\n\n"
        "Three runs on a busy machine compared the processor time of `auto` and of plain decoding."
        f" In each run, the model generated {answers['prompts']} answers of {answers['tokens']}"
        " tokens. Half of the prompts asked for repetitive text. Compared with plain decoding,"
        f" the processor time of `auto` was {ratios}."
    )
    return "\n".join([*lines, "", setup])


def _span(seconds: Iterable[list[float]]) -> str:
    """Return the range of the ratios between drafted and plain decoding.

    Args:
        seconds: Times of plain decoding in each run, and times with drafts in each run.
    """
    ratios = [drafted / plain for plain, drafted in zip(*seconds, strict=True)]
    return f"{min(ratios):.3f} to {max(ratios):.3f}"


def llama_cpp_tokens() -> str:
    """Return the tokens per forward pass in both engines, from `scripts/llama_cpp_tokens.py`."""
    content = load("llama-cpp-tokens")
    lines = ["| drafter | llama.cpp | default engine | ratio |", "|---|---:|---:|---:|"]
    for row in content["drafters"]:
        first, second = (
            row[engine]["tokens_per_forward"] for engine in ("llama.cpp", "transformers")
        )
        lines.append(f"| `{row['drafter']}` | {first:.3f} | {second:.3f} | {first / second:.3f} |")
    setup = (
        f"Both engines generated the same {content['prompts']} texts of {content['tokens']} tokens"
        f" with the same Q4_1 file ({content['library']}). The engines verified all drafts, with"
        f" at most {content['max_nodes']} nodes per step."
    )
    return "\n".join([*lines, "", setup])
