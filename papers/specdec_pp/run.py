"""Reproduce the SpecDec++ paper: rates for figure 4, times for tables, and heads."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from paceline.bench.models import load_models, make_units, torch_threads
from paceline.bench.run import RunOptions, run_bench
from paceline.llm import LLM
from paceline.model.eagle.modules import uses_target_states
from paceline.training.acceptance_head.recording import prompt_name
from papers.config import TimeLimit
from papers.orders import prompts_in_sets
from papers.part import PLAIN, BenchPart
from papers.specdec_pp.costs import setting_times
from papers.specdec_pp.heads import (
    check_recordings,
    grid_makers,
    heads_of,
    rows_of,
    train_grid,
)
from papers.specdec_pp.options import SpecDecConfig
from papers.specdec_pp.oracle import TargetAnswerCache, oracle
from papers.specdec_pp.result import (
    DRAFT_ALONE,
    IN_BOTH,
    IN_FIXED,
    IN_HEAD,
    TARGET_ALONE,
    SpecDecResult,
    Sweep,
)
from papers.specdec_pp.rules import AUTO, families, head_spec, rivals
from papers.specdec_pp.run_settings import (
    ADVISED_THRESHOLD,
    ALONE_PROMPTS,
    GRID_SHARES,
    SCALED_GRID_SHARES,
    SCALED_SHARES,
    SHARES,
)


def run(config: SpecDecConfig, **loaded: Any) -> SpecDecResult:
    """Count rates for figure 4, measure times for the tables, and compare heads.

    If there are several prompt files, each file is a set; otherwise, each category is a set. Of the
    built-in prompts, the first `limit` of each category are used. Timed runs use the prompts that
    were answered for figure 4. See `papers.registry.run_paper`.

    Raises:
        ConfigError: There is no draft model, or there is no head for it.
    """
    measuring = _SpecDecMeasurement(config, loaded)
    result = measuring.count()
    with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C during preparations
        for step in (measuring.time, measuring.time_alone, measuring.compare):
            result = step(result) if result.unbroken else result
    return result


class _SpecDecMeasurement:
    """Runs the stages of the measurement; each stage adds to the result."""

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
        assert models.draft is not None  # `models` were loaded for its drafters
        self._models, self._heads = models, heads_of(config.head, models.draft)
        check_recordings(config.recording, models.draft)
        self._prompts = prompts_in_sets(config.selection)
        with torch_threads(config.models.threads):
            llm = LLM(models.target, "none", tokenizer=models.tokenizer)
        self._oracle = oracle(TargetAnswerCache(llm, self._counting.sampling))
        self._shared = {"tokenizer": models.tokenizer, "progress": loaded.get("progress", True)}
        self._pair = {**self._shared, "target": models.target, "draft": models.draft}
        if config.cost_scale is None:
            self._shares = GRID_SHARES if config.recording else SHARES
        else:
            self._shares = SCALED_GRID_SHARES if config.recording else SCALED_SHARES

    def count(self) -> SpecDecResult:
        """Count every rule's rates; they do not depend on how long the models take."""
        counting = dataclasses.replace(self._counting, max_seconds=self._time.left(self._shares[0]))
        counts = Sweep.of(
            "figure 4",
            run_bench(
                counting,
                prompts=self._prompts,
                **self._pair,
                options=RunOptions(self._oracle, budget=False),
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
        timed_result = run_bench(
            timed,
            prompts=self._prompts,
            **self._pair,
            options=RunOptions(self._oracle, budget=False),
        )
        groups = {
            IN_FIXED: lengths,
            IN_HEAD: heads,
            IN_BOTH: lengths + heads,
            TARGET_ALONE: [PLAIN],
        }
        times = tuple(setting_times(name, timed_result, group) for name, group in groups.items())
        return dataclasses.replace(
            result, timed=Sweep.of("tables 1 and 2", timed_result), times=times
        )

    def time_alone(self, result: SpecDecResult) -> SpecDecResult:
        """Time the draft model alone, if it can run alone."""
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
        alone_result = run_bench(
            alone,
            target=self._models.draft,
            prompts=self._prompts[:ALONE_PROMPTS],
            **self._shared,
            options=RunOptions(budget=False),
        )
        times = (*result.times, setting_times(DRAFT_ALONE, alone_result, [PLAIN], drafting=True))
        return dataclasses.replace(
            result, alone=BenchPart.of("the draft model alone", alone_result), times=times
        )

    def compare(self, result: SpecDecResult) -> SpecDecResult:
        """Train heads on the recordings, and count their rates as in figure 4."""
        config = self._config
        if not config.recording:
            return result
        with torch_threads(config.models.threads):
            left = self._time.left(self._shares[2])
            heads = train_grid(config.recording, left, config.seed, self._shared["progress"])
        rows, makers = grid_makers(heads)
        drafters, left = (
            (head_spec(config.head, ADVISED_THRESHOLD),),
            self._time.left(self._shares[3]),
        )
        counting = dataclasses.replace(
            self._counting, drafters=drafters, baselines=(), max_seconds=left
        )
        counts = run_bench(
            counting, prompts=self._prompts, **self._pair, options=RunOptions(makers, budget=False)
        )
        return dataclasses.replace(result, grid=Sweep.of("heads", counts), grid_heads=tuple(rows))
