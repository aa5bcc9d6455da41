"""Papers whose tables and figures are measured again, on any model.

A paper is a line in `PAPERS` and a package: `options.py` has its configuration (a `PaperConfig`
with its own options), `result.py` a dataclass of what was measured, `run.py` `run(config,
**loaded)`, which measures, `tables.py` `sections(result)`, `plot.py` `draw(result, path)`. Each is
imported when it is needed.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from paceline.bench.papers.config import PaperConfig
from paceline.bench.papers.part import PaperResult
from paceline.errors import ConfigError, did_you_mean
from paceline.util.options import changed, flat

# name -> what its classes are called by, in `options.py` (...Config) and `result.py` (...Result)
PAPERS = {
    "lookahead": "Lookahead",
    "ouroboros": "Ouroboros",
    "specdec_pp": "SpecDec",
    "sssd": "Sssd",
}


def paper_part(name: str, part: str) -> Any:
    """Return a module of a paper's package: options, result, run, tables or plot.

    Raises:
        ConfigError: there is no such paper; the close match is named.
    """
    if name not in PAPERS:
        raise ConfigError(f"got paper {name!r}.{did_you_mean(name, PAPERS)}")
    return import_module(f"paceline.bench.papers.{name}.{part}")


def config_class(name: str) -> type[PaperConfig]:
    """Return the class of a paper's configuration."""
    return getattr(paper_part(name, "options"), f"{PAPERS[name]}Config")  # type: ignore[no-any-return]


def result_class(name: str) -> Any:
    """Return the class of what was measured of a paper."""
    return getattr(paper_part(name, "result"), f"{PAPERS[name]}Result")


def configure(name: str, **options: Any) -> PaperConfig:
    """Return the configuration of a paper, its options by their names alone: `configure("sssd",
    threads=1, limit=4)`.

    Raises:
        ConfigError: no such paper, an option that it does not have, or a value out of range.
    """
    default = config_class(name)()
    for option in options:
        having = [other for other in PAPERS if option in flat(config_class(other)())]
        if having and name not in having:
            raise ConfigError(
                f"paper {name}: got --{option.replace('_', '-')}, which only paper"
                f" {', '.join(having)} has a use for; expected"
                " its own options. Leave it out."
            )
    return changed(default, **options)


def run_paper(config: PaperConfig, **loaded: Any) -> PaperResult:
    """Measure a paper again. Ctrl-C ends it early and keeps what was measured.

    Args:
        config: of the paper's own class, see `configure`.
        loaded: `target`, `draft`, `tokenizer` and `progress`, as in `run_bench`.
    Raises:
        ConfigError, CapacityError, UnsupportedModelError: something cannot be run.
        KeyboardInterrupt: it was interrupted before anything had been measured.
    """
    return paper_part(config.paper, "run").run(config, **loaded)  # type: ignore[no-any-return]


def draw_paper(result: PaperResult, path: Path) -> None:
    """Draw the figures of a paper into a PNG file.

    Raises:
        ConfigError: matplotlib is not installed, or the file cannot be written.
    """
    paper_part(result.config.paper, "plot").draw(result, path)
