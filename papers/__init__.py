"""Measure the tables and figures of published papers again.

This package is evidence about paceline, not part of it: import it from the root of the repository.

print_paper(run_paper(configure("lookahead", threads=1)))
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from papers.config import PaperConfig
    from papers.part import PaperResult
    from papers.registry import PAPERS, configure, draw_paper, run_paper
    from papers.report import paper_markdown, print_paper, read_paper_json, write_paper_json

# Modules are imported on first use: settings and the command line's help need no torch.
_MODULES = {
    "papers.config": ("PaperConfig",),
    "papers.part": ("PaperResult",),
    "papers.registry": ("PAPERS", "configure", "draw_paper", "run_paper"),
    "papers.report": ("paper_markdown", "print_paper", "read_paper_json", "write_paper_json"),
}

__all__ = [
    "PAPERS", "PaperConfig", "PaperResult", "configure", "draw_paper", "paper_markdown",
    "print_paper", "read_paper_json", "run_paper", "write_paper_json",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
