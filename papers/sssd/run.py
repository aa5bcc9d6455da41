"""Reproduce the SSSD paper: timed runs, replays, costs, samples and vocabularies."""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from paceline import datastore, demo
from paceline.bench.models import load_models, make_units, torch_threads
from paceline.bench.run import RunOptions, run_bench
from paceline.llm import LLM
from paceline.replay.run import Trace
from papers.config import TimeLimit
from papers.orders import prompts_in_sets
from papers.part import PLAIN, BenchPart
from papers.sssd.answers import answer, in_vocabularies, sampled
from papers.sssd.costs import measure
from papers.sssd.options import SssdConfig
from papers.sssd.paper_settings import (
    ANSWERS_SHARE,
    BATCHES,
    BATCHES_SHARE,
    COSTS_SHARE,
    ONE_BY_ONE_SHARE,
    REPLAYS_SHARE,
    SAMPLED_SIZES,
    SAMPLES_SHARE,
    TIMED,
    VOCABULARY_SHARE,
)
from papers.sssd.replays import ReplayOptions, replay_all
from papers.sssd.result import SssdResult
from papers.sssd.speed import drafter

OWN = "the model's own"  # name of the model's vocabulary


def run(config: SssdConfig, **loaded: Any) -> SssdResult:
    """Run all stages of the measurement, and return the results.

    If there are several prompt files, each file is a set; otherwise, each category is a set. Of the
    built-in prompts, the first `limit` of each category are used. `config.cost_scale` enlarges the
    model only in timed runs. See `papers.registry.run_paper`.

    Raises:
        ConfigError: The datastore contains token ids that the target does not have.
        DatastoreError: The datastore does not exist, or uses a different tokenizer.
    """
    measuring = _SssdMeasurement(config, loaded)
    result = measuring.time_one_by_one()
    with torch_threads(config.models.threads):
        steps = (
            measuring.replay,
            measuring.cost,
            measuring.sample,
            measuring.compare_vocabularies,
            measuring.time_batches,
        )
        with contextlib.suppress(KeyboardInterrupt):  # Ctrl-C before a stage had a result
            for step in steps:
                result = step(result) if result.unbroken else result
    return result


class _SssdMeasurement:
    """Runs the stages of the measurement; each stage adds to the result."""

    def __init__(self, config: SssdConfig, loaded: dict[str, Any]) -> None:
        self._config, self._time, self._progress = (
            config,
            TimeLimit(config.max_seconds),
            loaded.get("progress", True),
        )
        self._plain = config.run_of(
            (PLAIN,), draft_model=None, cost_scale=None, draft_cost_scale=None
        )
        self._models = load_models(self._plain, loaded.get("target"), None, loaded.get("tokenizer"))
        self._store = config.datastore or (demo.NAME if config.models.model == demo.NAME else None)
        self._store_tokens = datastore.info(self._store).tokens if self._store is not None else 0
        self._prompts = prompts_in_sets(config.selection)
        self._llm = LLM(self._models.target, "none", tokenizer=self._models.tokenizer)
        self._greedy: dict[str, list[Trace]] = {}

    def time_one_by_one(self) -> SssdResult:
        """Time decoding with one prompt at a time."""
        return SssdResult(
            self._config,
            self._store,
            self._store_tokens,
            (self._timed(BATCHES[0], ONE_BY_ONE_SHARE),),
        )

    def time_batches(self, result: SssdResult) -> SssdResult:
        """Time decoding with several prompts at a time."""
        return dataclasses.replace(
            result,
            timed=(*result.timed, *(self._timed(batch, BATCHES_SHARE) for batch in BATCHES[1:])),
        )

    def _timed(self, batch: int, share: float) -> BenchPart:
        methods = (PLAIN, *(drafter(size, self._store) for size in TIMED))
        timed = self._config.run_of(
            methods, draft_model=None, batch=batch, max_seconds=self._left(share)
        )
        shared = {
            "target": self._models.target,
            "tokenizer": self._models.tokenizer,
            "progress": self._progress,
        }
        return BenchPart.of(
            f"batch {batch}",
            run_bench(timed, prompts=self._prompts, **shared, options=RunOptions(budget=False)),
        )

    def replay(self, result: SssdResult) -> SssdResult:
        """Replay greedy answers with every method."""
        units = make_units(self._plain, self._models, self._prompts)
        prompts = [
            (prompt.category, ids)
            for unit in units
            for prompt, ids in zip(unit.prompts, unit.token_ids, strict=True)
        ]
        self._greedy = answer(
            self._llm, prompts, self._plain.sampling, self._left(ANSWERS_SHARE), self._progress
        )
        options = ReplayOptions(
            self._store, left=self._left(REPLAYS_SHARE), progress=self._progress
        )
        return dataclasses.replace(result, replays=replay_all(self._greedy, options))

    def cost(self, result: SssdResult) -> SssdResult:
        """Time the forward passes of the target, enlarged to its cost scale."""
        scaled = self._config.run_of((PLAIN,), draft_model=None, draft_cost_scale=None)
        models = load_models(scaled, self._models.target, None, self._models.tokenizer)
        costs = measure(models.target, models.target_label, self._left(COSTS_SHARE), self._progress)
        return dataclasses.replace(result, costs=costs)

    def sample(self, result: SssdResult) -> SssdResult:
        """Sample the same prompts at other temperatures, and replay the answers."""
        options = ReplayOptions(
            self._store,
            self._fusions(result),
            SAMPLED_SIZES,
            self._left(SAMPLES_SHARE),
            self._progress,
        )
        study = sampled(self._llm, self._traces(), self._plain.sampling, options)
        return dataclasses.replace(result, temperatures=study)

    def compare_vocabularies(self, result: SssdResult) -> SssdResult:
        """Replay the greedy answers in another vocabulary."""
        options = ReplayOptions(
            self._store,
            self._fusions(result),
            left=self._left(VOCABULARY_SHARE),
            progress=self._progress,
        )
        vocab_size = self._llm.model.vocab_size
        study = in_vocabularies(self._traces(), self._models.tokenizer, OWN, vocab_size, options)
        return dataclasses.replace(result, vocabularies=study)

    def _left(self, share: float) -> float:
        """Return the seconds left of a share of the time limit; 0 means no limit."""
        return share * self._time.left()

    def _traces(self) -> list[Trace]:
        return [trace for traces in self._greedy.values() for trace in traces]

    def _fusions(self, result: SssdResult) -> list[str]:
        assert result.replays is not None  # later stages only run after it
        return result.replays.fusions
