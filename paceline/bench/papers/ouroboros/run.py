"""Measures the Ouroboros paper: the methods of tables 2 and 3 and figure 5, matches, and the
orders of table 4.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from paceline.bench.models import load_models
from paceline.bench.papers.config import TimeLimit
from paceline.bench.papers.orders import TASK_SIZE, Order, by_task, in_turn, shuffled
from paceline.bench.papers.ouroboros.matches import study
from paceline.bench.papers.ouroboros.options import OuroborosConfig
from paceline.bench.papers.ouroboros.result import OuroborosResult, orders_of
from paceline.bench.papers.ouroboros.tables import COLD, MATCH_GAMMA, METHODS, WARM
from paceline.bench.papers.part import BenchPart
from paceline.bench.run import run_bench
from paceline.report.prompts import Prompt, load_prompts

_TABLES_SHARE = 0.55  # of the time
_MATCHES_SHARE = 0.65  # of the time, what came before included; the rest is table 4's
_DRAFTERS = (COLD, WARM)


def run(config: OuroborosConfig, **loaded: Any) -> OuroborosResult:
    """Time the methods, count matches, then time the orders; see
    `paceline.bench.papers.registry.run_paper`.

    The prompts of tables 1 and 4 are the first ones of every category, `limit` of each, and 20 at
    most; `every` does not apply to them.

    Raises:
        ConfigError: there is no draft model.
    """
    time = TimeLimit(config.max_seconds)
    plain = config.run_of(
        METHODS, cost_scale=None, draft_cost_scale=None
    )  # runs enlarge the models themselves
    models = load_models(plain, *(loaded.get(name) for name in ("target", "draft", "tokenizer")))
    progress = loaded.get("progress", True)
    shared = {
        "target": models.target,
        "draft": models.draft,
        "tokenizer": models.tokenizer,
        "progress": progress,
    }
    timed = config.run_of(METHODS, max_seconds=time.left(_TABLES_SHARE))
    result = OuroborosResult(
        config, BenchPart.of("tables 2 and 3", run_bench(timed, **shared, budget=False))
    )
    if not result.methods.complete:
        return result
    try:
        tasks = by_task(
            load_prompts(config.selection.prompts),
            min(TASK_SIZE, config.selection.limit or TASK_SIZE),
        )
        new_tokens, seconds = config.max_new_tokens + MATCH_GAMMA, time.left(_MATCHES_SHARE)
        asked = config.run_of(("none",), max_new_tokens=new_tokens, max_seconds=seconds)
        result = dataclasses.replace(
            result, matches=study(asked, models, in_turn(tasks, 1), MATCH_GAMMA, progress)
        )
        result = dataclasses.replace(
            result, size=_size(result, len(tasks), max(map(len, tasks)), time.left())
        )
        tasks = [task[: result.size] for task in tasks]
        for order in (
            _orders(config, tasks, result.size, shared)
            if result.matches and result.matches.complete
            else ()
        ):
            result = dataclasses.replace(result, orders=(*result.orders, order))
    except KeyboardInterrupt:  # while something was being prepared
        pass
    return result


def _size(result: OuroborosResult, tasks: int, most: int, left: float) -> int:
    """Prompts per task that the seconds left allow; all orders have the same ones, so that they
    can be compared.
    """
    cold = result.methods.method(COLD)
    if not left or cold is None or not cold.seconds:
        return most
    each = cold.seconds / cold.answers * len(_DRAFTERS) * result.config.repeats
    return max(
        (size for size in range(1, most + 1) if len(orders_of(size)) * tasks * size * each <= left),
        default=1,
    )


def _orders(
    config: OuroborosConfig, tasks: list[list[Prompt]], size: int, shared: dict[str, Any]
) -> Iterator[Order]:
    """Measure one order after the other, up to the first that is interrupted; that one has too
    few prompts to be compared.
    """
    timed = config.run_of(_DRAFTERS, baselines=(), max_seconds=0.0)
    for consecutive in orders_of(size):
        prompts = (
            shuffled(tasks, config.seed) if consecutive is None else in_turn(tasks, consecutive)
        )
        part = BenchPart.of("table 4", run_bench(timed, prompts=prompts, **shared, budget=False))
        if not part.complete:
            return
        yield Order(consecutive, part)
