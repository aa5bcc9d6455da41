"""SSSD (Marzollo et al. 2024): figures 2 to 5, table 1, section 4.2, and the free budget of section 3.2.1."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline import datastore, demo
from paceline.bench import paper_sssd_tables as tables
from paceline.bench.locality import prompts_in_sets
from paceline.bench.models import load_models, make_units, torch_threads
from paceline.bench.paper import PaperConfig, Part, Section
from paceline.bench.paper_lines import PLAIN, seconds_left
from paceline.bench.paper_sssd_acceptance import OWN, SAMPLED_SIZES
from paceline.bench.run import run_bench
from paceline.bench.sssd_answers import VocabularyStudy, answer, retold, sampled
from paceline.bench.sssd_costs import BATCHES, CostStudy, measure
from paceline.bench.sssd_replays import METHODS, Study, replay_all
from paceline.bench.sssd_speed import TIMED, drafter
from paceline.llm import LLM
from paceline.replay import Trace

# Of the time that is left then: decoding one by one, answers, replays, forwards, samples, the other vocabulary, batches.
_ONE_BY_ONE, _ANSWERS, _REPLAYS, _FORWARDS, _SAMPLES, _VOCABULARY, _BATCHES = 0.15, 0.1, 0.25, 0.3, 0.3, 0.3, 1.0


@dataclass(frozen=True, slots=True)
class SssdResult:
    """What was measured; None or missing is what came after an interruption.

    Attributes:
        store, store_tokens: the datastore; None and 0 = there was none.
        timed: runs of figure 2 by the clock, one per batch size. replays: figures 2 and 4. costs: figures 2 and 3, table 1.
        temperatures: section 4.2. vocabularies: figure 5.
    """

    config: PaperConfig
    store: str | None
    store_tokens: int
    timed: tuple[Part, ...]
    replays: Study | None = None
    costs: CostStudy | None = None
    temperatures: Study | None = None
    vocabularies: VocabularyStudy | None = None

    @property
    def parts(self) -> list[Part]:
        """The runs there were."""
        return list(self.timed)

    @property
    def title(self) -> str:
        """Of the paper."""
        return "SSSD (Marzollo, Zhuang, Roemer, Müller, Cavigelli, 2024)"

    @property
    def complete(self) -> bool:
        """Whether all of it was measured."""
        there = None not in (self.replays, self.costs, self.temperatures, self.vocabularies)
        return there and len(self.timed) == len(BATCHES) and self.unbroken

    @property
    def unbroken(self) -> bool:
        """Whether nothing so far was interrupted."""
        measured = (*self.timed, self.replays, self.costs, self.temperatures, self.vocabularies)
        return all(one.complete for one in measured if one is not None)

    def sections(self) -> list[Section]:
        """Every table and figure in the order of the paper."""
        return tables.sections(self)

    def summary(self) -> dict[str, Any]:
        """The same as plain values."""
        from paceline.bench.sssd_summary import summary

        return summary(self)

    def draw(self, path: Path) -> None:
        """All of it on one page."""
        from paceline.bench.paper_sssd_plot import draw_sssd

        draw_sssd(self, path)


def run(config: PaperConfig, **loaded: Any) -> SssdResult:
    """Time decoding, record answers, replay them, time forwards, sample, and time batches; see `paceline.bench.paper.run_paper`.

    Several prompt files are the sets that are told apart, else the categories are; of the embedded prompts the first
    `config.limit` of each category are asked. Only what is timed has the model enlarged by `config.cost_scale`.

    Raises:
        ConfigError: the datastore has ids that the target does not know. DatastoreError: there is none, or one of another
            tokenizer.
    """
    measuring = _Measuring(config, loaded)
    result = measuring.time_one_by_one()
    steps = (measuring.replay, measuring.cost, measuring.sample, measuring.retell, measuring.time_batches)
    try:
        with torch_threads(config.threads):
            for step in steps:
                result = step(result) if result.unbroken else result
    except KeyboardInterrupt:  # before there was anything to keep
        pass
    return result


def read(config: PaperConfig, values: dict[str, Any]) -> SssdResult:
    """A result from the fields in its JSON file."""
    kinds: dict[str, Any] = {"replays": Study, "costs": CostStudy, "temperatures": Study, "vocabularies": VocabularyStudy}
    studies = {name: values[name] and kind.read(values[name]) for name, kind in kinds.items()}
    timed = tuple(Part.read(one) for one in values["timed"])
    return SssdResult(config, values["store"], values["store_tokens"], timed, **studies)


class _Measuring:
    """The steps of a run, each of which adds to the result."""

    def __init__(self, config: PaperConfig, loaded: dict[str, Any]) -> None:
        self._config, self._start, self._progress = config, time.perf_counter(), loaded.get("progress", True)
        self._plain = config.run_of((PLAIN,), draft_model=None, cost_scale=None, draft_cost_scale=None)
        self._models = load_models(self._plain, loaded.get("target"), None, loaded.get("tokenizer"))
        self._store = config.datastore or (demo.NAME if config.model == demo.NAME else None)
        self._store_tokens = datastore.info(self._store).tokens if self._store is not None else 0
        self._prompts = prompts_in_sets(config.prompts, config.limit, config.every)
        self._llm = LLM(self._models.target, tokenizer=self._models.tokenizer)
        self._greedy: dict[str, list[Trace]] = {}

    def time_one_by_one(self) -> SssdResult:
        """Decoding by the clock, one prompt at a time."""
        return SssdResult(self._config, self._store, self._store_tokens, (self._timed(BATCHES[0], _ONE_BY_ONE),))

    def time_batches(self, result: SssdResult) -> SssdResult:
        """Likewise in batches."""
        return dataclasses.replace(result, timed=(*result.timed, *(self._timed(batch, _BATCHES) for batch in BATCHES[1:])))

    def _timed(self, batch: int, share: float) -> Part:
        methods = (PLAIN, *(drafter(size, self._store) for size in TIMED))
        asked = self._config.run_of(methods, draft_model=None, batch=batch, max_seconds=self._left(share))
        shared = {"target": self._models.target, "tokenizer": self._models.tokenizer, "progress": self._progress}
        return Part.of(f"batch of {batch}", run_bench(asked, prompts=self._prompts, **shared))

    def replay(self, result: SssdResult) -> SssdResult:
        """Greedy answers, through every method."""
        units = make_units(self._plain, self._models, self._prompts)
        asked = [(prompt.category, ids) for unit in units for prompt, ids in zip(unit.prompts, unit.token_ids, strict=True)]
        self._greedy = answer(self._llm, asked, self._plain.sampling(), self._left(_ANSWERS), self._progress)
        found = replay_all(self._greedy, METHODS, self._store, left=self._left(_REPLAYS), progress=self._progress)
        return dataclasses.replace(result, replays=found)

    def cost(self, result: SssdResult) -> SssdResult:
        """Forwards of the target, enlarged where that was asked for."""
        scaled = self._config.run_of((PLAIN,), draft_model=None, draft_cost_scale=None)
        models = load_models(scaled, self._models.target, None, self._models.tokenizer)
        found = measure(models.target, models.target_label, self._left(_FORWARDS), self._progress)
        return dataclasses.replace(result, costs=found)

    def sample(self, result: SssdResult) -> SssdResult:
        """The same prompts at other temperatures."""
        found = sampled(
            self._llm, self._traces(), self._plain.sampling(), self._store, self._fusions(result), SAMPLED_SIZES,
            self._left(_SAMPLES), self._progress,
        )  # fmt: skip
        return dataclasses.replace(result, temperatures=found)

    def retell(self, result: SssdResult) -> SssdResult:
        """The greedy answers in another vocabulary."""
        found = retold(
            self._traces(), self._models.tokenizer, OWN, self._llm.model.vocab_size, self._store,
            self._fusions(result), self._left(_VOCABULARY), self._progress,
        )  # fmt: skip
        return dataclasses.replace(result, vocabularies=found)

    def _left(self, share: float) -> float:
        """Seconds out of those that are left; 0 = no limit."""
        return share * seconds_left(self._config, self._start)

    def _traces(self) -> list[Trace]:
        return [trace for some in self._greedy.values() for trace in some]

    def _fusions(self, result: SssdResult) -> list[str]:
        assert result.replays is not None  # without it no later step is taken
        return result.replays.fusions
