"""Measures the SSSD paper: decoding by the clock, answers that are replayed, forwards, samples,
another vocabulary.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any

from paceline import datastore, demo
from paceline.bench.models import load_models, make_units, torch_threads
from paceline.bench.papers.config import TimeLimit
from paceline.bench.papers.orders import prompts_in_sets
from paceline.bench.papers.part import PLAIN, BenchPart
from paceline.bench.papers.sssd.answers import answer, in_vocabularies, sampled
from paceline.bench.papers.sssd.costs import measure
from paceline.bench.papers.sssd.options import SssdConfig
from paceline.bench.papers.sssd.replays import replay_all
from paceline.bench.papers.sssd.result import BATCHES, SssdResult
from paceline.bench.papers.sssd.speed import TIMED, drafter
from paceline.bench.run import run_bench
from paceline.llm import LLM
from paceline.replay.run import Trace

OWN = "the model's own"  # vocabulary
SAMPLED_SIZES = (16, 32)  # s_q of section 4.2
# Of the time that is left then: decoding one by one, answers, replays, forwards, samples, the other
# vocabulary, batches.
_ONE_BY_ONE, _ANSWERS, _REPLAYS, _FORWARDS, _SAMPLES, _VOCABULARY, _BATCHES = (
    0.15,
    0.1,
    0.25,
    0.3,
    0.3,
    0.3,
    1.0,
)


def run(config: SssdConfig, **loaded: Any) -> SssdResult:
    """Time decoding, record answers, replay them, time forwards, sample, and time batches; see
    `registry.run_paper`.

    Several prompt files are the sets that are told apart, else the categories are; of the embedded
    prompts the first `limit` of each category are asked. Only what is timed has the model enlarged
    by `config.cost_scale`.

    Raises:
        ConfigError: the datastore has ids that the target does not know. DatastoreError: there is
            none, or one of another tokenizer.
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
        with contextlib.suppress(KeyboardInterrupt):  # before there was anything to keep
            for step in steps:
                result = step(result) if result.unbroken else result
    return result


class _SssdMeasurement:
    """The steps of a run, each of which adds to the result."""

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
        """Time decoding, one prompt at a time."""
        return SssdResult(
            self._config, self._store, self._store_tokens, (self._timed(BATCHES[0], _ONE_BY_ONE),)
        )

    def time_batches(self, result: SssdResult) -> SssdResult:
        """Time decoding in batches."""
        return dataclasses.replace(
            result, timed=(*result.timed, *(self._timed(batch, _BATCHES) for batch in BATCHES[1:]))
        )

    def _timed(self, batch: int, share: float) -> BenchPart:
        methods = (PLAIN, *(drafter(size, self._store) for size in TIMED))
        asked = self._config.run_of(
            methods, draft_model=None, batch=batch, max_seconds=self._left(share)
        )
        shared = {
            "target": self._models.target,
            "tokenizer": self._models.tokenizer,
            "progress": self._progress,
        }
        return BenchPart.of(
            f"batch of {batch}", run_bench(asked, prompts=self._prompts, **shared, budget=False)
        )

    def replay(self, result: SssdResult) -> SssdResult:
        """Replay greedy answers through every method."""
        units = make_units(self._plain, self._models, self._prompts)
        asked = [
            (prompt.category, ids)
            for unit in units
            for prompt, ids in zip(unit.prompts, unit.token_ids, strict=True)
        ]
        self._greedy = answer(
            self._llm, asked, self._plain.sampling, self._left(_ANSWERS), self._progress
        )
        found = replay_all(
            self._greedy, self._store, left=self._left(_REPLAYS), progress=self._progress
        )
        return dataclasses.replace(result, replays=found)

    def cost(self, result: SssdResult) -> SssdResult:
        """Time forwards of the target, enlarged where that was asked for."""
        scaled = self._config.run_of((PLAIN,), draft_model=None, draft_cost_scale=None)
        models = load_models(scaled, self._models.target, None, self._models.tokenizer)
        found = measure(models.target, models.target_label, self._left(_FORWARDS), self._progress)
        return dataclasses.replace(result, costs=found)

    def sample(self, result: SssdResult) -> SssdResult:
        """Replay answers to the same prompts at other temperatures."""
        found = sampled(
            self._llm,
            self._traces(),
            self._plain.sampling,
            self._store,
            self._fusions(result),
            SAMPLED_SIZES,
            self._left(_SAMPLES),
            self._progress,
        )
        return dataclasses.replace(result, temperatures=found)

    def compare_vocabularies(self, result: SssdResult) -> SssdResult:
        """Replay the greedy answers in another vocabulary."""
        found = in_vocabularies(
            self._traces(),
            self._models.tokenizer,
            OWN,
            self._llm.model.vocab_size,
            self._store,
            self._fusions(result),
            self._left(_VOCABULARY),
            self._progress,
        )
        return dataclasses.replace(result, vocabularies=found)

    def _left(self, share: float) -> float:
        """Seconds out of those that are left; 0 = no limit."""
        return share * self._time.left()

    def _traces(self) -> list[Trace]:
        return [trace for some in self._greedy.values() for trace in some]

    def _fusions(self, result: SssdResult) -> list[str]:
        assert result.replays is not None  # without it no later step is taken
        return result.replays.fusions
