"""Compare drafters with each other and with transformers, using one loaded model.

result = run_bench(BenchConfig(ModelOptions("demo", threads=1), drafters=("none", "prompt_lookup")))
print_table(result)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.util.lazy import lazy_attributes

if TYPE_CHECKING:
    from paceline.bench.cost_scale import enlarge
    from paceline.bench.plot import write_png
    from paceline.bench.report import markdown, print_table, read_json, write_json
    from paceline.bench.result import BenchResult
    from paceline.bench.run import RunOptions, run_bench
    from paceline.bench.settings import BenchConfig, CostScale
    from paceline.report.prompts import Prompt, load_prompts
    from paceline.util.options import ModelOptions, PromptOptions

# Modules are imported on first use, because the settings and the command-line help need no torch.
_MODULES = {
    "paceline.bench.cost_scale": ("enlarge",),
    "paceline.bench.plot": ("write_png",),
    "paceline.bench.report": ("markdown", "print_table", "read_json", "write_json"),
    "paceline.bench.result": ("BenchResult",),
    "paceline.bench.run": ("RunOptions", "run_bench"),
    "paceline.bench.settings": ("BenchConfig", "CostScale"),
    "paceline.util.options": ("ModelOptions", "PromptOptions"),
    "paceline.report.prompts": ("Prompt", "load_prompts"),
}

__all__ = [
    "BenchConfig", "BenchResult", "CostScale", "ModelOptions", "Prompt", "PromptOptions",
    "RunOptions", "enlarge", "load_prompts", "markdown", "print_table",
    "read_json", "run_bench", "write_json", "write_png",
]  # fmt: skip

__getattr__ = lazy_attributes(__name__, _MODULES)
