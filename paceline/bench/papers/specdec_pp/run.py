"""Measures the SpecDec++ paper: counts for figure 4, times for the tables, heads beside one
another.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from paceline.bench.models import load_models, make_units, torch_threads
from paceline.bench.papers.config import TimeLimit
from paceline.bench.papers.orders import prompts_in_sets
from paceline.bench.papers.part import PLAIN, BenchPart
from paceline.bench.papers.specdec_pp.costs import setting_times
from paceline.bench.papers.specdec_pp.heads import (
    check_recordings,
    grid_makers,
    heads_of,
    rows_of,
    train_grid,
)
from paceline.bench.papers.specdec_pp.options import SpecDecConfig
from paceline.bench.papers.specdec_pp.oracle import TargetAnswerCache, oracle
from paceline.bench.papers.specdec_pp.result import (
    DRAFT_ALONE,
    IN_BOTH,
    IN_FIXED,
    IN_HEAD,
    TARGET_ALONE,
    SpecDecResult,
    Sweep,
)
from paceline.bench.papers.specdec_pp.rules import AUTO, families, head_spec, rivals
from paceline.bench.run import run_bench
from paceline.llm import LLM
from paceline.model.eagle.modules import uses_target_states
from paceline.training.acceptance_head.recording import prompt_name

# Of the time, what came before included: counts, timed runs; with recordings, training and counts
# of the trained heads, too.
_SHARES, _GRID_SHARES = (0.7, 0.95, 1.0, 1.0), (0.3, 0.45, 0.65, 0.98)
_SCALED_SHARES, _SCALED_GRID_SHARES = (
    (0.3, 0.95, 1.0, 1.0),
    (0.2, 0.6, 0.75, 0.98),
)  # where the timed runs have larger models
_ALONE_PROMPTS = 6
_ADVISED = 0.7  # the threshold that the paper recommends


def run(config: SpecDecConfig, **loaded: Any) -> SpecDecResult:
    """Count for figure 4, time for the tables, and compare heads; see
    `paceline.bench.papers.registry.run_paper`.

    Several prompt files are the sets that are told apart, else the categories are; of the embedded
    prompts the first `limit` of each category are asked. What is timed has the prompts that figure
    4 found time for.

    Raises:
        ConfigError: there is no draft model, or no head for it.
    """
    measuring = _SpecDecMeasurement(config, loaded)
    result = measuring.count()
    with contextlib.suppress(KeyboardInterrupt):  # while something was being prepared
        for step in (measuring.time, measuring.time_alone, measuring.compare):
            result = step(result) if result.unbroken else result
    return result


class _SpecDecMeasurement:
    """The steps of a run, each of which adds to the result."""

    def __init__(self, config: SpecDecConfig, loaded: dict[str, Any]) -> None:
        self._config, self._time = config, TimeLimit(config.max_seconds)
        methods = [
            PLAIN,
            *(method for rules in families(config.head).values() for method in rules.values()),
        ]
        self._counting = config.run_of(
            methods, cost_scale=None, draft_cost_scale=None, repeats=1, warmup=0
        )
        models = load_models(
            self._counting, *(loaded.get(name) for name in ("target", "draft", "tokenizer"))
        )
        assert (
            models.draft is not None
        )  # its drafters are among the methods that `models` were loaded for
        self._models, self._heads = models, heads_of(config.head, models.draft)
        check_recordings(config.recording, models.draft)
        self._prompts = prompts_in_sets(config.selection)
        with torch_threads(config.models.threads):
            llm = LLM(models.target, "none", tokenizer=models.tokenizer)
        self._oracle = oracle(TargetAnswerCache(llm, self._counting.sampling))
        self._shared = {"tokenizer": models.tokenizer, "progress": loaded.get("progress", True)}
        self._pair = {**self._shared, "target": models.target, "draft": models.draft}
        if config.cost_scale is None:
            self._shares = _GRID_SHARES if config.recording else _SHARES
        else:
            self._shares = _SCALED_GRID_SHARES if config.recording else _SCALED_SHARES

    def count(self) -> SpecDecResult:
        """Count the rates of every rule; what a forward costs does not matter."""
        counting = dataclasses.replace(self._counting, max_seconds=self._time.left(self._shares[0]))
        counts = Sweep.of(
            "figure 4",
            run_bench(
                counting, prompts=self._prompts, made=self._oracle, **self._pair, budget=False
            ),
        )
        plain = counts.part.method(PLAIN)
        self._prompts = self._prompts[: plain.answers if plain else 0]
        units = make_units(counting, self._models, self._prompts) if self._prompts else []
        seen = sum(
            prompt_name(unit.token_ids[0]) in self._heads[0].card.seen_prompts for unit in units
        )
        return SpecDecResult(
            self._config, counts, tuple(rows_of(self._config.head, self._heads)), seen
        )

    def time(self, result: SpecDecResult) -> SpecDecResult:
        """Time the rules of table 1, plain decoding and the oracle."""
        lengths, heads = rivals(self._config.head)
        heads += [head_spec(self._config.head, AUTO)] if self._heads[0].card.curve else []
        timed = self._config.run_of(
            [PLAIN, *lengths, *heads], max_seconds=self._time.left(self._shares[1])
        )
        found = run_bench(
            timed, prompts=self._prompts, made=self._oracle, **self._pair, budget=False
        )
        groups = {
            IN_FIXED: lengths,
            IN_HEAD: heads,
            IN_BOTH: lengths + heads,
            TARGET_ALONE: [PLAIN],
        }
        times = tuple(setting_times(name, found, group) for name, group in groups.items())
        return dataclasses.replace(result, timed=Sweep.of("tables 1 and 2", found), times=times)

    def time_alone(self, result: SpecDecResult) -> SpecDecResult:
        """Time the draft model by itself, where it can be."""
        config = self._config
        assert self._models.draft is not None  # see __init__
        if uses_target_states(self._models.draft):
            return dataclasses.replace(result, stands_alone=False)
        alone = config.run_of(
            (PLAIN,),
            baselines=(),
            model=config.models.draft_model or config.models.model,
            draft_model=None,
            cost_scale=config.draft_cost_scale,
            draft_cost_scale=None,
            max_seconds=self._time.left(),
        )
        found = run_bench(
            alone,
            target=self._models.draft,
            prompts=self._prompts[:_ALONE_PROMPTS],
            **self._shared,
            budget=False,
        )
        times = (*result.times, setting_times(DRAFT_ALONE, found, [PLAIN], drafting=True))
        return dataclasses.replace(
            result, alone=BenchPart.of("the draft model alone", found), times=times
        )

    def compare(self, result: SpecDecResult) -> SpecDecResult:
        """Train heads where there are recordings, and count for them as for figure 4."""
        config = self._config
        if not config.recording:
            return result
        with torch_threads(config.models.threads):
            left = self._time.left(self._shares[2])
            heads = train_grid(config.recording, left, config.seed, self._shared["progress"])
        rows, makers = grid_makers(heads)
        drafters, left = (head_spec(config.head, _ADVISED),), self._time.left(self._shares[3])
        asked = dataclasses.replace(
            self._counting, drafters=drafters, baselines=(), max_seconds=left
        )
        found = run_bench(asked, prompts=self._prompts, made=makers, **self._pair, budget=False)
        return dataclasses.replace(result, grid=Sweep.of("heads", found), grid_heads=tuple(rows))
