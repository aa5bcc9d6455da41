"""The SSSD paper measured again as plain values, for programs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from paceline.bench.paper_lines import figures_of, ratio
from paceline.bench.paper_sssd_acceptance import PAPER_TEMPERATURES, change_of_accepted
from paceline.bench.paper_sssd_tables import PAPER_BUDGET, PAPER_BUDGET_SIZE
from paceline.bench.sssd_answers import temperature_name
from paceline.bench.sssd_costs import BATCHES, CostStudy
from paceline.bench.sssd_replays import NOTHING, Study
from paceline.bench.sssd_roofline import ASCEND, LLAMA_2_7B, free_budget
from paceline.bench.sssd_speed import COSTS, TIMED, best, by_the_clock, drafter, speeds

if TYPE_CHECKING:
    from paceline.bench.paper_sssd import SssdResult


def summary(result: SssdResult) -> dict[str, Any]:
    """Every table and figure."""
    told = result.vocabularies
    return {
        "table_1": _table_1(result.costs),
        "free_budget": {
            "paper": {"equation": free_budget(LLAMA_2_7B.hidden, ASCEND), "text": PAPER_BUDGET, "s_q": PAPER_BUDGET_SIZE},
            "here": result.costs and free_budget(result.costs.shapes.hidden, result.costs.peak, result.costs.shapes.width),
        },
        "figure_2": {f"batch {batch}": _figure_2(result, batch) for batch in BATCHES},
        "figure_3": [dataclasses.asdict(one) for one in result.costs.split()] if result.costs else [],
        "figure_4": _curves(result.replays or NOTHING),
        "section_4_2": {
            "measured": _temperatures(result.temperatures or NOTHING),
            "paper": {temperature_name(temperature): change for temperature, change in PAPER_TEMPERATURES.items()},
        },
        "figure_5": told and {
            "vocabularies": told.sizes, "characters": told.characters, "datastores": told.store_tokens,
            "curves": _curves(told.study),
        },
    }  # fmt: skip


def _table_1(costs: CostStudy | None) -> dict[str, Any] | None:
    if costs is None:
        return None
    return {"model": costs.label, "shapes": dataclasses.asdict(costs.shapes), "peak": dataclasses.asdict(costs.peak)}


def _figure_2(result: SssdResult, batch: int) -> dict[str, Any]:
    found, part = speeds(result, batch), by_the_clock(result, batch)
    clock = []
    for size in TIMED:
        method = drafter(size, result.store)
        figures = figures_of(part, method)
        clock.append(
            {
                "s_q": size, "speedup": ratio(part, method), "cpu_speedup": ratio(part, method, processor=True),
                "compression": figures and figures.tokens_per_forward,
            }
        )  # fmt: skip
    top = {kind: best(found, kind) for kind in COSTS}
    return {
        "points": [{**dataclasses.asdict(one), "products": {kind: one.product(kind) for kind in COSTS}} for one in found],
        "best": {kind: one and one.size for kind, one in top.items()},
        "by_the_clock": clock,
    }


def _curves(study: Study) -> dict[str, Any]:
    """Tokens per step and microseconds per step, by set, method and s_q."""
    found: dict[str, Any] = {}
    for row in study.rows:
        curve = found.setdefault(row.traces, {}).setdefault(row.drafter, {})
        point = {"tokens_per_step": row.result.tokens_per_step, "microseconds_per_step": row.result.microseconds_per_step}
        curve[str(row.result.max_nodes + 1)] = point
    return found


def _temperatures(study: Study) -> dict[str, Any]:
    return {
        name: {
            method: {str(size): _point(study, method, size, name) for size in study.sizes[1:]} for method in study.methods
        }
        for name in study.answers
    }  # fmt: skip


def _point(study: Study, method: str, size: int, name: str) -> dict[str, float | None]:
    rate, change = study.rate(method, size, name), change_of_accepted(study, method, size, name)
    return {"tokens_per_step": rate, "change": change}
