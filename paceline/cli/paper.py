"""The commands `paceline paper NAME`: measure the tables and figures of a paper again, on your
models.
"""

from __future__ import annotations

from functools import partial

from cyclopts import App

from paceline.bench.papers.config import PaperConfig
from paceline.bench.papers.lookahead.options import LookaheadConfig
from paceline.bench.papers.ouroboros.options import OuroborosConfig
from paceline.bench.papers.specdec_pp.options import SpecDecConfig
from paceline.bench.papers.sssd.options import SssdConfig
from paceline.cli.files import ResultFiles
from paceline.cli.options import flattened, with_known_types
from paceline.cli.show import INTERRUPTED

for _kind in (LookaheadConfig, OuroborosConfig, SpecDecConfig, SssdConfig):
    flattened("Measuring")(with_known_types(_kind))

paper = App(name="paper", help="Measure the tables and figures of a paper again, on your models.")


@paper.command
def lookahead(
    *, config: LookaheadConfig = LookaheadConfig(), files: ResultFiles = ResultFiles()
) -> int:
    """Break the Sequential Dependency of LLM Inference Using Lookahead Decoding (2024)."""
    return _measure(config, files)


@paper.command
def ouroboros(
    *, config: OuroborosConfig = OuroborosConfig(), files: ResultFiles = ResultFiles()
) -> int:
    """Ouroboros: Generating Longer Drafts Phrase by Phrase for Faster Speculative Decoding
    (2024).
    """
    return _measure(config, files)


@paper.command(name="specdec_pp")
def specdec_pp(
    *, config: SpecDecConfig = SpecDecConfig(), files: ResultFiles = ResultFiles()
) -> int:
    """SpecDec++: Boosting Speculative Decoding via Adaptive Candidate Lengths (2024)."""
    return _measure(config, files)


@paper.command
def sssd(*, config: SssdConfig = SssdConfig(), files: ResultFiles = ResultFiles()) -> int:
    """SSSD: Simply-Scalable Speculative Decoding (2024)."""
    return _measure(config, files)


def _measure(config: PaperConfig, files: ResultFiles) -> int:
    """Measure a paper, show it and write the files asked for; return 130 if it was interrupted,
    and parts are missing.
    """
    from paceline.bench import draw_paper, paper_markdown, print_paper, run_paper, write_paper_json

    result = run_paper(config)
    print_paper(result, files.console())
    files.write(
        partial(write_paper_json, result),
        partial(draw_paper, result),
        partial(paper_markdown, result),
    )
    return 0 if result.complete else INTERRUPTED
