"""Tables of the GGUF guide: answers of packed models, and speed next to llama.cpp."""

from __future__ import annotations

from typing import Any

from benchmark_data import load


def packed_answers() -> str:
    """Return how many answers of packed models differ from those of converted models."""
    content = load("packed-answers")
    lines = [
        "| file | drafters | batch sizes | answers | differing answers |",
        "|---|---|---|---:|---:|",
    ]
    files: dict[str, list[dict[str, Any]]] = {}
    for row in content["rows"]:
        files.setdefault(row["file"], []).append(row)
    for file, rows in files.items():
        drafters = ", ".join(f"`{name}`" for name in dict.fromkeys(row["drafter"] for row in rows))
        batches = ", ".join(map(str, sorted({row["batch"] for row in rows})))
        answers, different = (sum(row[key] for row in rows) for key in ("answers", "different"))
        lines.append(f"| `{file}` | {drafters} | {batches} | {answers:,} | {different} |")
    return "\n".join(lines)


def packed_llama_cpp(name: str) -> str:
    """Return speed and memory next to llama.cpp, from `scripts/compare_llama_cpp.py`.

    Args:
        name: Name of the results file.
    """
    content = load(name)
    lines = [
        "| threads | batch size | library | drafter | tokens per second"
        " | speed relative to llama.cpp | peak memory | equal answers |",
        "|---:|---:|---|---|---:|---:|---:|---:|",
    ]
    plain: dict[tuple[int, int], float] = {}
    for row in content["rows"]:
        speed = row["tokens"] / row["seconds"]
        # llama.cpp without drafts comes first.
        base = plain.setdefault((row["threads"], row["batch"]), speed)
        lines.append(
            f"| {row['threads']} | {row['batch']} | {row['side']} | {row['method']} | {speed:.0f} |"
            f" {speed / base:.2f} | {row['peak_bytes'] / 1e6:.0f} MB |"
            f" {row['equal_answers']} of {content['prompts']} |"
        )
    return "\n".join(lines)
