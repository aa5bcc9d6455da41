"""Tables of the page about llama.cpp."""

from __future__ import annotations

from benchmark_data import load


def llama_cpp_answers() -> str:
    """Return how many answers differ from plain decoding, from `paceline verify --json`."""
    content = load("llama-cpp-answers")
    heads = ("batch", "tokens per answer", "differing answers", "accepted tokens")
    lines = [f"| drafter | {' | '.join(heads)} | tokens per forward |"]
    lines.append("|---|" + "---:|" * (1 + len(heads)))
    for row in content["drafters"]:
        lines.append(
            f"| `{row['drafter']}` | {row['batch']} | {row['tokens']} |"
            f" {row['differing']} of {row['answers']} |"
            f" {row['accepted_tokens']} | {row['tokens_per_forward']:.2f} |"
        )
    setup = (
        f"SmolLM2-135M-Instruct (Q4_1) in {content['library']}, {content['answers']} questions"
        f" from GSM8K, on one thread of an {content['processor']} processor. The engine verifies"
        f" all drafts, up to {content['max_nodes']} nodes per step."
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
    ratios = " and ".join(
        ", ".join(f"{drafted / plain:.3f}" for plain, drafted in zip(*each.values(), strict=True))
        + f" with batch size {batch}"
        for batch, each in answers["seconds"].items()
    )
    setup = (
        f"Processor time of SmolLM2-135M-Instruct (Q4_1) in {content['library']} after a text of"
        f" 256 tokens, on one thread of an {content['processor']} processor. Committing the"
        f" accepted tokens of a draft tree of 16 nodes with 9 leaves takes {commit:.2f} ms. Copying"
        f" the sequence of a request to the front of the cache takes {move:.1f} ms. Three runs on a"
        f" busy machine compared `auto` with plain decoding. Each run had {answers['prompts']}"
        f" answers of {answers['tokens']} tokens, half of them for prompts that ask for repetitive"
        " text. In the three runs, the processor time of `auto`, divided by that of plain decoding,"
        f" was {ratios}."
    )
    return "\n".join([*lines, "", setup])


def llama_cpp_tokens() -> str:
    """Return the tokens per forward pass in both engines, from `scripts/llama_cpp_tokens.py`."""
    content = load("llama-cpp-tokens")
    lines = ["| drafter | llama.cpp | transformers | ratio |", "|---|---:|---:|---:|"]
    for row in content["drafters"]:
        first, second = (
            row[engine]["tokens_per_forward"] for engine in ("llama.cpp", "transformers")
        )
        lines.append(f"| `{row['drafter']}` | {first:.3f} | {second:.3f} | {first / second:.3f} |")
    setup = (
        f"Both engines ran the same {content['prompts']} texts of {content['tokens']} tokens with"
        f" the same Q4_1 file ({content['library']}). The engines verified all drafts, up to"
        f" {content['max_nodes']} nodes per step."
    )
    return "\n".join([*lines, "", setup])
