"""Reproduce the Ouroboros paper: methods, matches, and the orders of table 4."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from paceline.bench.models import load_models
from paceline.bench.run import RunOptions, run_bench
from paceline.report.prompts import Prompt, load_prompts
from papers.config import TimeLimit
from papers.order_settings import TASK_SIZE
from papers.orders import Order, by_task, in_turn, shuffled
from papers.ouroboros.matches import study
from papers.ouroboros.options import OuroborosConfig
from papers.ouroboros.paper_settings import (
    COLD,
    MATCH_GAMMA,
    MATCHES_SHARE,
    METHODS,
    TABLES_SHARE,
    WARM,
)
from papers.ouroboros.result import OuroborosResult, orders_of
from papers.part import BenchPart

_DRAFTERS = (COLD, WARM)


def run(config: OuroborosConfig, **loaded: Any) -> OuroborosResult:
    """Time the methods, count matching tokens, and time several orders of the prompts.

    Tables 1 and 4 use the first `limit` prompts of every category, but at most 20; they ignore
    `every`. See `papers.registry.run_paper`.

    Raises:
        ConfigError: There is no draft model.
    """
    time = TimeLimit(config.max_seconds)
    # each run enlarges the models itself
    plain = config.run_of(METHODS, cost_scale=None, draft_cost_scale=None)
    models = load_models(plain, *(loaded.get(name) for name in ("target", "draft", "tokenizer")))
    progress = loaded.get("progress", True)
    shared = {
        "target": models.target,
        "draft": models.draft,
        "tokenizer": models.tokenizer,
        "progress": progress,
    }
    timed = config.run_of(METHODS, max_seconds=time.left(TABLES_SHARE))
    result = OuroborosResult(
        config,
        BenchPart.of(
            "tables 2 and 3", run_bench(timed, **shared, options=RunOptions(budget=False))
        ),
    )
    if not result.methods.complete:
        return result
    try:
        tasks = by_task(
            load_prompts(config.selection.prompts),
            min(TASK_SIZE, config.selection.limit or TASK_SIZE),
        )
        new_tokens, seconds = config.max_new_tokens + MATCH_GAMMA, time.left(MATCHES_SHARE)
        counted = config.run_of(("none",), max_new_tokens=new_tokens, max_seconds=seconds)
        result = dataclasses.replace(
            result, matches=study(counted, models, in_turn(tasks, 1), MATCH_GAMMA, progress)
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
    except KeyboardInterrupt:  # Ctrl-C during preparations
        pass
    return result


def _size(result: OuroborosResult, tasks: int, most: int, left: float) -> int:
    """Return the number of prompts per task that the remaining time allows.

    All orders use the same prompts, so that their results are comparable.
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
    """Measure and yield one order after another, until one is interrupted.

    An interrupted order is not yielded, because it has too few prompts for a comparison.
    """
    timed = config.run_of(_DRAFTERS, baselines=(), max_seconds=0.0)
    for consecutive in orders_of(size):
        prompts = (
            shuffled(tasks, config.seed) if consecutive is None else in_turn(tasks, consecutive)
        )
        part = BenchPart.of(
            "table 4", run_bench(timed, prompts=prompts, **shared, options=RunOptions(budget=False))
        )
        if not part.complete:
            return
        yield Order(consecutive, part)
