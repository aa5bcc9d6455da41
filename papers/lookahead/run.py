"""Reproduce the lookahead paper: first the methods of its tables, then figure 4."""

from __future__ import annotations

from typing import Any

from paceline import demo
from paceline.bench.run import RunOptions, run_bench
from paceline.drafters.lookahead.drafter import LookaheadOptions
from paceline.util.config import build_options, parse_spec
from papers.config import TimeLimit
from papers.lookahead.options import LookaheadConfig
from papers.lookahead.paper_settings import (
    DRAFT,
    MIN_NODES,
    TABLE_3,
    TABLE_6,
    TABLES_SHARE,
    spec_of,
)
from papers.lookahead.result import LookaheadResult
from papers.part import PLAIN, BenchPart


def run(config: LookaheadConfig, **loaded: Any) -> LookaheadResult:
    """Time the methods of the tables, and then the settings of figure 4.

    See `papers.registry.run_paper`.
    """
    time = TimeLimit(config.max_seconds)
    has_draft = (
        config.models.draft_model is not None
        or config.models.model == demo.NAME
        or loaded.get("draft") is not None
    )
    methods = dict.fromkeys(line.method for line in (*TABLE_3, *TABLE_6) if line.method is not None)
    names = [name for name in methods if has_draft or name != DRAFT]
    tables = figure = None
    try:
        tables = _part("tables", config, names, loaded, max_seconds=time.left(TABLES_SHARE))
        if tables.complete:
            names = [
                PLAIN,
                *(
                    spec_of(n, w, w, published=published)
                    for published in (True, False)
                    for n, w in config.settings
                ),
            ]
            figure = _part(
                "figure",
                config,
                names,
                loaded,
                max_seconds=time.left(),
                cost_scale=None,
                draft_cost_scale=None,
            )
    except KeyboardInterrupt:  # Ctrl-C during loading
        if tables is None:
            raise
    return LookaheadResult(config, tables, figure)


def spec_nodes(spec: str) -> int:
    """Return the maximum tree size of a lookahead drafter; 0 for other drafters."""
    name, options = parse_spec(spec)
    return build_options(LookaheadOptions, options, spec).max_nodes if name == "lookahead" else 0


def _part(
    label: str, config: LookaheadConfig, names: list[str], loaded: dict[str, Any], **changes: Any
) -> BenchPart:
    nodes = max(MIN_NODES, config.max_new_tokens, *(spec_nodes(name) for name in names))
    return BenchPart.of(
        label,
        run_bench(
            config.run_of(names, max_nodes=nodes, **changes),
            **loaded,
            options=RunOptions(budget=False),
        ),
    )
