"""List the papers that can be reproduced with any model, and run a reproduction.

Every paper has an entry in `PAPERS` and a package with five modules. `options.py` defines the
configuration (a `PaperConfig`), and `result.py` a dataclass with the results. `run.py` defines
`run(config, **loaded)`, `tables.py` defines `sections(result)`, and `plot.py` defines `draw(result,
path)`. Each module is imported when it is first needed.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from paceline.errors import ConfigError, did_you_mean
from paceline.util.options import changed, flat
from papers.config import PaperConfig
from papers.part import PaperResult

# Paper -> prefix of its classes in `options.py` (...Config) and `result.py` (...Result).
PAPERS = {
    "lookahead": "Lookahead",
    "ouroboros": "Ouroboros",
    "specdec_pp": "SpecDec",
    "sssd": "Sssd",
}


def paper_part(name: str, part: str) -> Any:
    """Import a module of a paper's package: options, result, run, tables or plot.

    Raises:
        ConfigError: The paper is unknown; the message names the closest match.
    """
    if name not in PAPERS:
        raise ConfigError(f"got paper {name!r}.{did_you_mean(name, PAPERS)}")
    return import_module(f"papers.{name}.{part}")


def config_class(name: str) -> type[PaperConfig]:
    """Return the class of a paper's configuration."""
    return getattr(paper_part(name, "options"), f"{PAPERS[name]}Config")  # type: ignore[no-any-return]


def result_class(name: str) -> Any:
    """Return the class of a paper's results."""
    return getattr(paper_part(name, "result"), f"{PAPERS[name]}Result")


def configure(name: str, **options: Any) -> PaperConfig:
    """Return the configuration of a paper with the given options.

    Example: `configure("sssd", threads=1, limit=4)`.

    Raises:
        ConfigError: The paper or an option is unknown, or a value is out of range.
    """
    default = config_class(name)()
    for option in options:
        papers = [other for other in PAPERS if option in flat(config_class(other)())]
        if papers and name not in papers:
            raise ConfigError(
                f"paper {name}: --{option.replace('_', '-')} is an option of paper"
                f" {', '.join(papers)} only. Leave it out."
            )
    return changed(default, **options)


def run_paper(config: PaperConfig, **loaded: Any) -> PaperResult:
    """Reproduce a paper; after Ctrl-C, return the measurements so far.

    Args:
        config: Configuration for the paper; see `configure`.
        loaded: `target`, `draft`, `tokenizer` and `progress`, as in `run_bench`.
    Raises:
        ConfigError, CapacityError, UnsupportedModelError: Part of the reproduction cannot be run.
        KeyboardInterrupt: Ctrl-C was pressed before anything was measured.
    """
    return paper_part(config.paper, "run").run(config, **loaded)  # type: ignore[no-any-return]


def draw_paper(result: PaperResult, path: Path) -> None:
    """Plot a paper's figures as a PNG file.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    paper_part(result.config.paper, "plot").draw(result, path)
