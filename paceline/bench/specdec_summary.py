"""The SpecDec++ paper measured again as plain values, for programs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from paceline.bench import paper_specdec_tables as tables
from paceline.bench.paper_lines import PLAIN, figures_of, ratio
from paceline.bench.specdec_costs import pareto_front
from paceline.bench.specdec_picks import ALL, fronts, measured_picks
from paceline.bench.specdec_sweep import ORACLE, Family, families

if TYPE_CHECKING:
    from paceline.bench.paper_specdec import SpecDecResult
    from paceline.bench.specdec_picks import Pick

_ORACLE = Family(ORACLE, {ORACLE: ORACLE})


def summary(result: SpecDecResult) -> dict[str, Any]:
    """Every table and figure."""
    heads = result.config.head
    return {
        "section_2_1": _oracle(result),
        "table_2": {
            "measured": [dataclasses.asdict(one) for one in result.times],
            "used": result.pair_times,
            "paper": tables.TABLE_2,
        },
        "figure_4": {
            name or ALL: {one.name: _front(result, one.methods, name) for one in (*families(heads), _ORACLE)}
            for name in (None, *result.counts.sets)
        },
        "fronts": [dataclasses.asdict(one) for one in fronts(result.counts, heads)],
        "table_1": {
            "expected": [_pick(one) for one in tables.expected(result)],
            "measured": [_pick(one) for one in measured_picks(result.timed, heads)] if result.timed else [],
            "paper": [_pick(one) for one in tables.TABLE_1],
        },
        "heads": [dataclasses.asdict(one) for one in (*result.heads, *result.grid_heads)],
    }


def _oracle(result: SpecDecResult) -> list[dict[str, Any]]:
    part = result.timed_part
    rows = []
    for name, method in tables.milestones(result).items():
        figures, theirs = figures_of(part, method), tables.SECTION_2_1.get(name)
        rows.append(
            {
                "label": name,
                "method": method,
                "verification_rate": figures and figures.verification_rate,
                "discard_rate": figures and figures.discard_rate,
                "expected_tokens_per_second": tables.expected_rate(result, method),
                "tokens_per_second": figures and figures.tokens_per_second,
                "speedup": ratio(part, method, PLAIN),
                "paper": theirs and {"verification_rate": theirs[0], "tokens_per_second": theirs[1]},
            }
        )
    return rows


def _front(result: SpecDecResult, methods: dict[str, str], name: str | None) -> list[dict[str, Any]]:
    points = result.counts.points(methods.values(), name)
    best = {point.method for point in pareto_front(points)}
    return [{**dataclasses.asdict(point), "on_front": point.method in best} for point in points]


def _pick(pick: Pick) -> dict[str, Any]:
    return {**dataclasses.asdict(pick), "gain": pick.gain(pick.head), "auto_gain": pick.gain(pick.auto)}
