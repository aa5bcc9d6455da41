"""Ouroboros (Zhao et al. 2024): tables 1 to 4 and figures 3 and 5 (figure 4 is table 2 on other prompts)."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.bench import paper_ouroboros_tables as tables
from paceline.bench.locality import CONSECUTIVE, OF, Order, by_task, in_turn, scaled, shuffled
from paceline.bench.matches import Matches, MatchStudy, study
from paceline.bench.models import Models, load_models
from paceline.bench.paper import PaperConfig, Part, Section
from paceline.bench.paper_lines import seconds_left, summary_row
from paceline.bench.prompts import Prompt, load_prompts
from paceline.bench.run import run_bench

_TABLES_SHARE = 0.55  # of the time
_MATCHES_SHARE = 0.65  # of the time, what came before included; the rest is table 4's
_DRAFTERS = (tables.COLD, tables.WARM)


@dataclass(frozen=True, slots=True)
class OuroborosResult:
    """What was measured; empty is what came after an interruption.

    Attributes:
        methods: of tables 2 and 3 and figure 5. matches: of table 1 and figure 3.
        size: prompts per task of table 4; orders: its runs.
    """

    config: PaperConfig
    methods: Part
    matches: MatchStudy | None = None
    size: int = 1
    orders: tuple[Order, ...] = ()

    @property
    def parts(self) -> list[Part]:
        """The runs there were."""
        return [self.methods, *(order.part for order in self.orders)]

    @property
    def title(self) -> str:
        """Of the paper."""
        return "Ouroboros (Zhao et al., 2024)"

    @property
    def complete(self) -> bool:
        """Whether all of it was measured."""
        counted = self.matches is not None and self.matches.complete
        return self.methods.complete and counted and len(self.orders) == len(_consecutive(self.size))

    def sections(self) -> list[Section]:
        """Every table and figure in the order of the paper."""
        return [
            tables.table_1(self.matches), tables.figure_3(self.matches), tables.table_2(self.methods),
            tables.table_3(self.methods), tables.figure_5(self.methods), tables.table_4(self.orders, self.size),
        ]  # fmt: skip

    def summary(self) -> dict[str, Any]:
        """The same as plain values."""
        return {
            "table_1": {
                "gamma": tables.MATCH_GAMMA,
                "tasks": [_plain(one) for one in tables.tasks_of(self.matches)],
                "paper": {name: {"prefix": pair[0], "equal": pair[1]} for name, pair in tables.TABLE_1_PAPER.items()},
            },
            "table_2": [summary_row(self.methods, line, tables.TABLE_2_COLUMNS) for line in tables.TABLE_2],
            "table_3": [
                summary_row(self.methods, line, ("tokens_per_second", "speedup"), tables.NOTHING) for line in tables.TABLE_3
            ],
            "figure_5": [
                {"suffixes": k, "published": published, "tokens_per_second": figures and figures.tokens_per_second}
                for published in (True, False)
                for k in tables.SUFFIXES
                for figures in [self.methods.method(tables.figure_5_spec(k, published))]
            ],
            "table_4": tables.locality_summary(self.orders, self.size),
        }

    def draw(self, path: Path) -> None:
        """All of it on one page."""
        from paceline.bench.paper_ouroboros_plot import draw_ouroboros

        draw_ouroboros(self, path)


def run(config: PaperConfig, **loaded: Any) -> OuroborosResult:
    """Time the methods, count matches, then time the orders; see `paceline.bench.paper.run_paper`.

    The prompts of tables 1 and 4 are the first ones of every category, `config.limit` of each, and 20 at most;
    `config.every` does not apply to them.

    Raises:
        ConfigError: there is no draft model.
    """
    start = time.perf_counter()
    plain = config.run_of(tables.METHODS, cost_scale=None, draft_cost_scale=None)  # runs enlarge the models themselves
    models = load_models(plain, *(loaded.get(name) for name in ("target", "draft", "tokenizer")))
    progress = loaded.get("progress", True)
    shared = {"target": models.target, "draft": models.draft, "tokenizer": models.tokenizer, "progress": progress}
    timed = config.run_of(tables.METHODS, max_seconds=seconds_left(config, start, _TABLES_SHARE))
    result = OuroborosResult(config, Part.of("tables 2 and 3", run_bench(timed, **shared)))
    if not result.methods.complete:
        return result
    try:
        tasks = by_task(load_prompts(config.prompts), min(OF, config.limit or OF))
        result = dataclasses.replace(result, matches=_matches(config, models, tasks, start, progress))
        result = dataclasses.replace(result, size=_size(result, len(tasks), max(map(len, tasks)), seconds_left(config, start)))
        tasks = [task[: result.size] for task in tasks]
        for order in _orders(config, tasks, result.size, shared) if result.matches and result.matches.complete else ():
            result = dataclasses.replace(result, orders=(*result.orders, order))
    except KeyboardInterrupt:  # while something was being prepared
        pass
    return result


def read(config: PaperConfig, values: dict[str, Any]) -> OuroborosResult:
    """A result from the fields in its JSON file."""
    matches = values["matches"]
    if matches is not None:
        counted = tuple(Matches(**{**one, "substrings": tuple(one["substrings"])}) for one in matches["tasks"])
        matches = MatchStudy(**{**matches, "tasks": counted})
    return OuroborosResult(
        config, Part.read(values["methods"]), matches, values["size"], tuple(Order.read(one) for one in values["orders"])
    )


def _matches(config: PaperConfig, models: Models, tasks: list[list[Prompt]], start: float, progress: bool) -> MatchStudy:
    left = seconds_left(config, start, _MATCHES_SHARE)
    asked = config.run_of(("none",), max_new_tokens=config.max_new_tokens + tables.MATCH_GAMMA, max_seconds=left)
    return study(asked, models, in_turn(tasks, 1), tables.MATCH_GAMMA, progress)


def _consecutive(size: int) -> list[int | None]:
    """The orders to be measured: drawn (None), then the different consecutive numbers."""
    return [None, *dict.fromkeys(scaled(number, size) for number in CONSECUTIVE)]


def _size(result: OuroborosResult, tasks: int, most: int, left: float) -> int:
    """Prompts per task that the seconds left allow; all orders have the same ones, so that they can be compared."""
    cold = result.methods.method(tables.COLD)
    if not left or cold is None or not cold.seconds:
        return most
    each = cold.seconds / cold.answers * len(_DRAFTERS) * result.config.repeats
    return max((size for size in range(1, most + 1) if len(_consecutive(size)) * tasks * size * each <= left), default=1)


def _orders(config: PaperConfig, tasks: list[list[Prompt]], size: int, shared: dict[str, Any]) -> Iterator[Order]:
    """Measure one order after the other, up to the first that is interrupted; that one has too few prompts to be compared."""
    timed = config.run_of(_DRAFTERS, baselines=(), max_seconds=0.0)
    for consecutive in _consecutive(size):
        prompts = shuffled(tasks, config.seed) if consecutive is None else in_turn(tasks, consecutive)
        part = Part.of("table 4", run_bench(timed, prompts=prompts, **shared))
        if not part.complete:
            return
        yield Order(consecutive, part)


def _plain(task: Matches) -> dict[str, Any]:
    prefix, equal = task.per_verification()
    return {
        "task": task.task, "verifications": task.verifications, "prefix": prefix, "equal": equal,
        "substrings": task.per_rejection(),
    }  # fmt: skip
