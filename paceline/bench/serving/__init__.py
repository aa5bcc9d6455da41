"""Compare drafters on a server with simultaneous users or random arrivals.

The drafters share one engine, and every answer is compared with plain decoding.

result = run_serving(ServingConfig(drafters=("sssd",), load=LoadOptions(users="1,8,32")))
print_table(result)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from paceline.util.lazy import lazy_attributes

if TYPE_CHECKING:
    from paceline.bench.serving.plot import write_png
    from paceline.bench.serving.report import markdown, print_table, read_json, write_json
    from paceline.bench.serving.result import ServingResult
    from paceline.bench.serving.run import run_serving
    from paceline.bench.serving.settings import LoadOptions, ServingConfig

# Modules are imported on first use: settings and the command line's help need no torch.
_MODULES = {
    "paceline.bench.serving.plot": ("write_png",),
    "paceline.bench.serving.report": ("markdown", "print_table", "read_json", "write_json"),
    "paceline.bench.serving.result": ("ServingResult",),
    "paceline.bench.serving.run": ("run_serving",),
    "paceline.bench.serving.settings": ("LoadOptions", "ServingConfig"),
}

__all__ = [
    "LoadOptions",
    "ServingConfig",
    "ServingResult",
    "markdown",
    "print_table",
    "read_json",
    "run_serving",
    "write_json",
    "write_png",
]

__getattr__ = lazy_attributes(__name__, _MODULES)
