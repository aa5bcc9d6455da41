"""Timed comparisons of drafters with each other and with transformers, on the same model object.

result = run_bench(BenchConfig("demo", drafters=("none", "prompt_lookup"), threads=1))
print_table(result)
print_paper(run_paper(PaperConfig("lookahead", threads=1)))
"""

from __future__ import annotations

from paceline.bench.cost_scale import CostScale, enlarge
from paceline.bench.memory import memory_by_method
from paceline.bench.paper import PAPERS, PaperConfig, PaperResult, run_paper
from paceline.bench.paper_report import paper_markdown, print_paper, read_paper_json, write_paper_json
from paceline.bench.plot import write_png
from paceline.bench.prompts import Prompt, load_prompts
from paceline.bench.report import markdown, print_table, read_json, write_json
from paceline.bench.result import BenchResult
from paceline.bench.run import run_bench
from paceline.bench.settings import BenchConfig

__all__ = [
    "PAPERS", "BenchConfig", "BenchResult", "CostScale", "PaperConfig", "PaperResult", "Prompt", "enlarge", "load_prompts",
    "markdown", "memory_by_method", "paper_markdown", "print_paper", "print_table", "read_json", "read_paper_json",
    "run_bench", "run_paper", "write_json", "write_paper_json", "write_png",
]  # fmt: skip
