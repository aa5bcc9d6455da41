"""Compare drafters with each other and with transformers on one model object.

result = run_bench(BenchConfig(ModelOptions("demo", threads=1), drafters=("none", "prompt_lookup")))
print_table(result)
print_paper(run_paper(configure("lookahead", threads=1)))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paceline.bench.cost_scale import enlarge
    from paceline.bench.memory import memory_by_method
    from paceline.bench.papers.config import PaperConfig
    from paceline.bench.papers.part import PaperResult
    from paceline.bench.papers.registry import PAPERS, configure, draw_paper, run_paper
    from paceline.bench.papers.report import (
        paper_markdown,
        print_paper,
        read_paper_json,
        write_paper_json,
    )
    from paceline.bench.plot import write_png
    from paceline.bench.report import markdown, print_table, read_json, write_json
    from paceline.bench.result import BenchResult
    from paceline.bench.run import RunOptions, run_bench
    from paceline.bench.settings import BenchConfig, CostScale
    from paceline.report.prompts import Prompt, load_prompts
    from paceline.util.options import ModelOptions, PromptOptions

# Modules are imported on first use: settings and the command line's help need no torch.
_MODULES = {
    "paceline.bench.cost_scale": ("enlarge",),
    "paceline.bench.memory": ("memory_by_method",),
    "paceline.bench.papers.config": ("PaperConfig",),
    "paceline.bench.papers.part": ("PaperResult",),
    "paceline.bench.papers.registry": ("PAPERS", "configure", "draw_paper", "run_paper"),
    "paceline.bench.papers.report": (
        "paper_markdown",
        "print_paper",
        "read_paper_json",
        "write_paper_json",
    ),
    "paceline.bench.plot": ("write_png",),
    "paceline.bench.report": ("markdown", "print_table", "read_json", "write_json"),
    "paceline.bench.result": ("BenchResult",),
    "paceline.bench.run": ("RunOptions", "run_bench"),
    "paceline.bench.settings": ("BenchConfig", "CostScale"),
    "paceline.util.options": ("ModelOptions", "PromptOptions"),
    "paceline.report.prompts": ("Prompt", "load_prompts"),
}

__all__ = [
    "PAPERS", "BenchConfig", "BenchResult", "CostScale", "ModelOptions", "PaperConfig",
    "PaperResult", "Prompt", "PromptOptions", "RunOptions", "configure", "draw_paper",
    "enlarge", "load_prompts", "markdown", "memory_by_method", "paper_markdown", "print_paper",
    "print_table", "read_json", "read_paper_json", "run_bench", "run_paper", "write_json",
    "write_paper_json", "write_png",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
