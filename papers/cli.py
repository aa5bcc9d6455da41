"""Define the commands `paceline paper NAME`."""

from __future__ import annotations

from functools import partial
from typing import Annotated

from paceline import demo
from paceline.cli.commands import COMMANDS
from paceline.cli.files import ResultFiles
from paceline.cli.main import new_app
from paceline.cli.options import WITHOUT_MODEL, TargetModel, flattened, with_known_types
from paceline.cli.show import INTERRUPTED
from paceline.util.options import changed
from papers.config import PaperConfig
from papers.lookahead.options import LookaheadConfig
from papers.ouroboros.options import OuroborosConfig
from papers.specdec_pp.options import SpecDecConfig
from papers.sssd.options import SssdConfig

for _kind in (LookaheadConfig, OuroborosConfig, SpecDecConfig, SssdConfig):
    flattened("Measuring")(with_known_types(_kind))

app = new_app("paceline paper", COMMANDS["paper"])


@app.command
def lookahead(
    model: TargetModel = demo.NAME,
    /,
    *,
    config: Annotated[LookaheadConfig, WITHOUT_MODEL] = LookaheadConfig(),
    files: ResultFiles = ResultFiles(),
) -> int:
    """Reproduce "Break the Sequential Dependency ... Using Lookahead Decoding" (2024)."""
    return _measure(changed(config, model=model), files)


@app.command
def ouroboros(
    model: TargetModel = demo.NAME,
    /,
    *,
    config: Annotated[OuroborosConfig, WITHOUT_MODEL] = OuroborosConfig(),
    files: ResultFiles = ResultFiles(),
) -> int:
    """Reproduce "Ouroboros: Generating Longer Drafts Phrase by Phrase" (2024)."""
    return _measure(changed(config, model=model), files)


@app.command(name="specdec_pp")
def specdec_pp(
    model: TargetModel = demo.NAME,
    /,
    *,
    config: Annotated[SpecDecConfig, WITHOUT_MODEL] = SpecDecConfig(),
    files: ResultFiles = ResultFiles(),
) -> int:
    """Reproduce "SpecDec++: Boosting ... via Adaptive Candidate Lengths" (2024)."""
    return _measure(changed(config, model=model), files)


@app.command
def sssd(
    model: TargetModel = demo.NAME,
    /,
    *,
    config: Annotated[SssdConfig, WITHOUT_MODEL] = SssdConfig(),
    files: ResultFiles = ResultFiles(),
) -> int:
    """Reproduce "SSSD: Simply-Scalable Speculative Decoding" (2024)."""
    return _measure(changed(config, model=model), files)


def _measure(config: PaperConfig, files: ResultFiles) -> int:
    """Reproduce a paper, print the results and write the requested files."""
    from papers import draw_paper, paper_markdown, print_paper, run_paper, write_paper_json

    result = run_paper(config)
    print_paper(result, files.console())
    files.write(
        partial(write_paper_json, result),
        partial(draw_paper, result),
        partial(paper_markdown, result),
    )
    return 0 if result.complete else INTERRUPTED
