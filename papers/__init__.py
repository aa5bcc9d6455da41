"""Reproduce the tables and figures of published papers.

This package is not installed with paceline. Import it from the root of the repository.

print_paper(run_paper(configure("lookahead", threads=1)))
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.util.lazy import lazy_attributes

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

__getattr__ = lazy_attributes(__name__, _MODULES)
