"""Timed comparisons of drafters with each other and with transformers, on the same model object.

result = run_bench(BenchConfig("demo", drafters=("none", "prompt_lookup"), threads=1))
print_table(result)
"""

from __future__ import annotations

from paceline.bench.cost_scale import CostScale, enlarge
from paceline.bench.memory import memory_by_method
from paceline.bench.plot import write_png
from paceline.bench.prompts import Prompt, load_prompts
from paceline.bench.report import markdown, print_table, read_json, write_json
from paceline.bench.result import BenchResult
from paceline.bench.run import run_bench
from paceline.bench.settings import BenchConfig

__all__ = [
    "BenchConfig", "BenchResult", "CostScale", "Prompt", "enlarge", "load_prompts", "markdown",
    "memory_by_method", "print_table", "read_json",
    "run_bench", "write_json", "write_png",
]  # fmt: skip
