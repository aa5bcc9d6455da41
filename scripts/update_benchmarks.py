"""Write the tables and plots of the benchmark pages from results.

python scripts/update_benchmarks.py [RESULT.json ...]

The script first adds the summaries of the given results, as written by `paceline bench --json` or
`paceline paper --json`, to docs/results under their file names. It then writes each table between
the marks `<!-- table of NAME -->` and `<!-- end of table -->` in README.md and docs, and each plot
docs/img/NAME.svg.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import benchmark_agents as agents
import benchmark_gpu as gpu
import benchmark_models as models
import benchmark_serving as serving
import benchmark_tables as bench
from benchmark_data import RESULTS, used
from benchmark_exactness import exact_float32, exactness
from benchmark_overhead import step_overhead
from benchmark_packed import packed_answers, packed_llama_cpp
from benchmark_papers import paper_tables
from benchmark_plots import PLOTS
from benchmark_summaries import summary, write_summary
from docs_command_line import command_line, overview
from docs_llama_cpp import llama_cpp_answers, llama_cpp_costs, llama_cpp_tokens
from docs_models import (
    hybrid_speed,
    recurrence_times,
    survey_counts,
    survey_refused,
    survey_types,
)
from docs_tables import EXACT, HEAD, INVARIANCE, SINGLE, WITH_DRAFT, generated, options_reference
from invariance_results import KIND as COST
from invariance_results import cost_table, read_cost
from vllm_results import KIND as VLLM
from vllm_results import read_vllm, vllm_table

from paceline.report.documents import kind_of

ROOT = Path(__file__).resolve().parent.parent
sys.path.append(str(ROOT))  # `papers` is not installed
IMAGES = ROOT / "docs" / "img"
DISTURBED = "disturbed-costs"  # of scripts/disturbed_costs.py
TABLES: dict[str, Callable[[], str]] = {
    "auto-by-machine": bench.auto_by_machine,
    "setup": bench.setup,
    "single-requests": bench.single_requests,
    "over-transformers": bench.over_transformers,
    "per-forward": bench.per_forward,
    "batches": bench.batches,
    "texts": bench.texts,
    "contexts": bench.contexts,
    "sampled": bench.sampled,
    "random-text": bench.random_text,
    "draft-models": bench.draft_models,
    "draft-model-in-auto": bench.draft_model_in_auto,
    "exactness": exactness,
    "exact-float32": exact_float32,
    "nodes": bench.nodes,
    "beside-generate-batch": bench.beside_generate_batch,
    "commands": bench.commands,
    "repeats": models.repeats,
    "second-model": models.second_model,
    "fitted": models.fitted,
    "under-load": serving.under_load,
    "long-prompts-under-load": serving.long_prompts_under_load,
    "random-text-under-load": serving.random_text_under_load,
    "under-load-avx2": serving.under_load_avx2,
    "server-notes": serving.server_notes,
    "required-calls": agents.required_calls,
    "file-edits": agents.file_edits,
    "command-line": command_line,
    "commands-overview": overview,
    "drafter-options": options_reference,
    "model-survey-counts": survey_counts,
    "model-survey-types": survey_types,
    "model-survey-refused": survey_refused,
    "recurrence-times": recurrence_times,
    "hybrid-speed": hybrid_speed,
    "llama-cpp-answers": llama_cpp_answers,
    "llama-cpp-costs": llama_cpp_costs,
    "llama-cpp-tokens": llama_cpp_tokens,
    "packed-answers": packed_answers,
    "packed-llama-cpp": lambda: packed_llama_cpp("packed-llama-cpp"),
    "packed-llama-cpp-large": lambda: packed_llama_cpp("packed-llama-cpp-large"),
    "packed-llama-cpp-moe": lambda: packed_llama_cpp("packed-llama-cpp-moe"),
    "gpu-cards": gpu.cards,
    "gpu-speed": gpu.speed,
    "gpu-exactness": gpu.exactness,
    "gpu-forward": gpu.forward,
    "gpu-graph": gpu.graph,
    "gpu-attention": gpu.attention,
    "gpu-prediction": gpu.prediction,
    "gpu-speed-prediction": gpu.speed_prediction,
    "step-overhead": step_overhead,
    "vllm-single": lambda: serving.inside_vllm("batch1"),
    "vllm-batches": lambda: serving.inside_vllm("spec60", "maths60"),
    "vllm-preempted": lambda: serving.inside_vllm("batch16"),
    "vllm-adaptive": lambda: serving.inside_vllm("turns", "wave"),
    "vllm-bfloat16": lambda: serving.inside_vllm("bf16"),
}
_MARKED = re.compile(r"(<!-- table of ([\w-]+) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_COMMIT = re.compile(r", commit [0-9a-f]{40}( with local changes)?")  # stays in the results
_OUTSIDE = {
    "transformers": "transformers",
    "transformers:prompt_lookup": "transformers, prompt lookup",
    "transformers:assistant": "transformers, assisted",
}


def pages() -> Iterator[tuple[Path, str]]:
    """Yield every file with tables or plots, and the text that it should have."""
    for file in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        text = file.read_text(encoding="utf-8")
        if _MARKED.search(text):
            yield (
                file,
                _MARKED.sub(
                    lambda mark: f"{mark[1]}{_COMMIT.sub('', table(mark[2]))}\n{mark[3]}", text
                ),
            )
    for name, draw in PLOTS.items():
        yield IMAGES / f"{name}.svg", draw()


def shown_results() -> set[str]:
    """Return the names of the results that a table or a plot shows."""
    list(pages())
    return set(used)


def table(name: str) -> str:
    """Return the table with this name, or the table of the result with this name."""
    if name in TABLES:
        return TABLES[name]()
    from_code = generated(name, RESULTS)
    if from_code is not None:
        for runs in (EXACT, HEAD, INVARIANCE, SINGLE, WITH_DRAFT):
            used.update(runs.values())
        return from_code
    used.add(name)
    path = RESULTS / f"{name}.json"
    kind = kind_of(path)
    if kind == COST.name:
        return cost_table(read_cost(path))
    if kind == VLLM.name:
        return vllm_table(read_vllm(path))
    if name.startswith("paper-"):
        return paper_tables(name)
    content = json.loads(path.read_text(encoding="utf-8"))
    if kind == DISTURBED:
        return _disturbed_table(content)
    lines = [
        "| method | speed over transformers | median | tokens per forward pass | equal |",
        "|---|---:|---:|---:|---:|",
    ]
    rows = (f"| {' | '.join(_cells(method))} |" for method in content["summary"]["all"][1:])
    return "\n".join([*lines, *rows])


def _disturbed_table(result: dict[str, Any]) -> str:
    """Return the speed of `auto` by the load under which its cost curve was measured."""
    lines = [
        "| cost curve was measured | time spent waiting for a processor |"
        " speed of `auto` over plain decoding |",
        "|---|---:|---:|",
    ]
    for name, when in (
        ("disturbed", f"while {result['loops']} busy loops ran"),
        ("quiet", "after the loops had ended"),
    ):
        waited = result["curves"][name]["conditions"]["waited"]
        lines.append(
            f"| {when} | {'unknown' if waited is None else f'{waited:.0%}'} |"
            f" {result['speed_over_none'][name]:.2f} |"
        )
    setting = (
        f"{result['requests']} requests of {result['tokens']} new tokens each, measured after"
        f" {result['warm']} warm-up requests"
    )
    threads = f"{result['threads']} thread{'s' if result['threads'] > 1 else ''}"
    return "\n".join([*lines, "", f"*{result['model']}, bfloat16, {threads}; {setting}.*"])


def _cells(figures: dict[str, Any]) -> list[str]:
    name, per_forward = figures["method"], figures["tokens_per_forward"]
    return [
        _OUTSIDE.get(name) or f"paceline `{name}`",
        f"{figures['speedup']:.2f}",
        f"{figures['speedup_median']:.2f}",
        "" if per_forward is None else f"{per_forward:.2f}",
        f"{figures['equal']} of {figures['compared']}",
    ]


def main(results: list[str]) -> None:
    """Add the summaries of results, then write the tables and plots."""
    for result in map(Path, results):
        write_summary(summary(result), RESULTS / result.name)
    for file, text in pages():
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
