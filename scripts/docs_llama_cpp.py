"""Tables of the page about llama.cpp."""

from __future__ import annotations

from benchmark_data import load


def llama_cpp_answers() -> str:
    """Return how many answers differ from plain decoding, from `paceline verify --json`."""
    content = load("llama-cpp-answers")
    lines = ["| drafter | batch | differing answers | accepted tokens | tokens per forward |"]
    lines.append("|---|---:|---:|---:|---:|")
    for row in content["drafters"]:
        lines.append(
            f"| `{row['drafter']}` | {row['batch']} | {row['differing']} of {row['answers']} |"
            f" {row['accepted_tokens']} | {row['tokens_per_forward']:.2f} |"
        )
    setup = (
        f"SmolLM2-135M-Instruct (Q4_1) in {content['library']}, {content['answers']} questions of"
        f" GSM8K, {content['tokens']} tokens each, on one thread of an {content['processor']}"
        f" processor. All drafts are verified, up to {content['max_nodes']} nodes per step."
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
    *first, last = (
        f"{drafted / plain:.2f}"
        for plain, drafted in zip(*answers["seconds"].values(), strict=True)
    )
    setup = (
        f"Processor time of SmolLM2-135M-Instruct (Q4_1) in {content['library']} after a text of"
        f" 256 tokens, on one thread of an {content['processor']} processor. A commit of 16 nodes"
        f" with 9 leaves takes {commit:.2f} ms, and copying the sequence to the front of the cache"
        f" takes {move:.1f} ms. In three runs with {answers['prompts']} answers each, on a busy"
        f" machine, `auto` took {', '.join(first)} and {last} times as much processor time as"
        " plain decoding."
    )
    return "\n".join([*lines, "", setup])
