"""SpecDec++ (Huang, Guo, Wang 2024): figures 3 and 4, tables 1 and 2, the oracle of section 2.1, and heads beside one another."""

from __future__ import annotations

import dataclasses
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.bench import paper_specdec_tables as tables
from paceline.bench.locality import prompts_in_sets
from paceline.bench.models import load_models, make_units, torch_threads
from paceline.bench.paper import PaperConfig, Part, Section
from paceline.bench.paper_lines import PLAIN, seconds_left
from paceline.bench.run import run_bench
from paceline.bench.specdec_heads import HeadRow, check_recordings, grid_makers, heads_of, rows_of, train_grid
from paceline.bench.specdec_sweep import (
    LENGTHS,
    Answers,
    Sweep,
    families,
    fixed_length,
    head_spec,
    oracle,
    timed_methods,
)
from paceline.bench.specdec_times import SettingTimes
from paceline.head.recording import prompt_name
from paceline.llm import LLM

# Of the time, what came before included: counts, timed runs; with recordings, training and counts of the trained heads, too.
_SHARES, _GRID_SHARES = (0.7, 0.95, 1.0, 1.0), (0.3, 0.45, 0.65, 0.98)
_SCALED_SHARES, _SCALED_GRID_SHARES = (0.3, 0.95, 1.0, 1.0), (0.2, 0.6, 0.75, 0.98)  # where the timed runs have larger models
_ALONE_PROMPTS = 6
_ADVISED = 0.7  # the threshold that the paper recommends


@dataclass(frozen=True, slots=True)
class SpecDecResult:
    """What was measured; None or empty is what came after an interruption.

    Attributes:
        counts: rates of all rules, figure 4. heads: those that came, or the shipped one.
        seen: prompts of figure 4 that the first head was trained or calibrated on.
        timed: of tables 1 and 2 and section 2.1. alone: the draft model by itself. times: of forwards, table 2.
        grid: heads trained on recordings; grid_heads: their rows.
    """

    config: PaperConfig
    counts: Sweep
    heads: tuple[HeadRow, ...]
    seen: int = 0
    timed: Sweep | None = None
    alone: Part | None = None
    times: tuple[SettingTimes, ...] = ()
    grid: Sweep | None = None
    grid_heads: tuple[HeadRow, ...] = ()

    @property
    def parts(self) -> list[Part]:
        """The runs of the pair that there were."""
        return [sweep.part for sweep in (self.counts, self.timed, self.grid) if sweep is not None]

    @property
    def title(self) -> str:
        """Of the paper."""
        return "SpecDec++ (Huang, Guo, Wang, 2024)"

    @property
    def complete(self) -> bool:
        """Whether all of it was measured."""
        there = self.timed is not None and self.alone is not None and (self.grid is not None or not self.config.recording)
        return there and self.unbroken

    @property
    def unbroken(self) -> bool:
        """Whether none of the runs so far was interrupted."""
        return all(part.complete for part in (*self.parts, self.alone) if part is not None)

    @property
    def timed_part(self) -> Part | None:
        """Of tables 1 and 2, over all prompts."""
        return self.timed.part if self.timed is not None else None

    @property
    def pair_times(self) -> tuple[float, float] | None:
        """Seconds of a draft and a target forward in speculative decoding, fitted to the answers of both settings together."""
        both = next((one.wall for one in self.times if one.setting == tables.IN_BOTH), None)
        if both is None or both.draft is None or both.target is None or min(both.draft, both.target) <= 0:
            return None
        return both.draft, both.target

    def sections(self) -> list[Section]:
        """Every table and figure in the order of the paper."""
        return tables.sections(self)

    def summary(self) -> dict[str, Any]:
        """The same as plain values."""
        from paceline.bench.specdec_summary import summary

        return summary(self)

    def draw(self, path: Path) -> None:
        """All of it on one page."""
        from paceline.bench.paper_specdec_plot import draw_specdec

        draw_specdec(self, path)


def run(config: PaperConfig, **loaded: Any) -> SpecDecResult:
    """Count for figure 4, time for the tables, and compare heads; see `paceline.bench.paper.run_paper`.

    Several prompt files are the sets that are told apart, else the categories are; of the embedded prompts the first
    `config.limit` of each category are asked. What is timed has the prompts that figure 4 found time for.

    Raises:
        ConfigError: there is no draft model, or no head for it.
    """
    measuring = _Measuring(config, loaded)
    result = measuring.count()
    try:
        for step in (measuring.time, measuring.time_alone, measuring.compare):
            result = step(result) if result.unbroken else result
    except KeyboardInterrupt:  # while something was being prepared
        pass
    return result


def read(config: PaperConfig, values: dict[str, Any]) -> SpecDecResult:
    """A result from the fields in its JSON file."""
    timed, grid = (values[name] and Sweep.read(values[name]) for name in ("timed", "grid"))
    return SpecDecResult(
        config, Sweep.read(values["counts"]), tuple(HeadRow(**row) for row in values["heads"]), values["seen"], timed,
        values["alone"] and Part.read(values["alone"]), tuple(SettingTimes.read(one) for one in values["times"]), grid,
        tuple(HeadRow(**row) for row in values["grid_heads"]),
    )  # fmt: skip


class _Measuring:
    """The steps of a run, each of which adds to the result."""

    def __init__(self, config: PaperConfig, loaded: dict[str, Any]) -> None:
        self._config, self._start = config, time.perf_counter()
        methods = [PLAIN, *(method for family in families(config.head) for method in family.methods.values())]
        self._counting = config.run_of(methods, cost_scale=None, draft_cost_scale=None, repeats=1, warmup=0)
        models = load_models(self._counting, *(loaded.get(name) for name in ("target", "draft", "tokenizer")))
        assert models.draft is not None  # its drafters are among the methods that `models` were loaded for
        self._models, self._heads = models, heads_of(config.head, models.draft)
        check_recordings(config.recording, models.draft)
        self._prompts = prompts_in_sets(config.prompts, config.limit, config.every)
        self._oracle = oracle(Answers(LLM(models.target, tokenizer=models.tokenizer), self._counting.sampling()))
        self._shared = {"tokenizer": models.tokenizer, "progress": loaded.get("progress", True)}
        self._pair = {**self._shared, "target": models.target, "draft": models.draft}
        if config.cost_scale is None:
            self._shares = _GRID_SHARES if config.recording else _SHARES
        else:
            self._shares = _SCALED_GRID_SHARES if config.recording else _SCALED_SHARES

    def count(self) -> SpecDecResult:
        """Rates of every rule; what a forward costs does not matter."""
        counting = dataclasses.replace(self._counting, max_seconds=seconds_left(self._config, self._start, self._shares[0]))
        counts = Sweep.of("figure 4", run_bench(counting, prompts=self._prompts, made=self._oracle, **self._pair))
        plain = counts.part.method(PLAIN)
        self._prompts = self._prompts[: plain.answers if plain else 0]
        units = make_units(counting, self._models, self._prompts) if self._prompts else []
        seen = sum(prompt_name(unit.token_ids[0]) in self._heads[0].card.seen_prompts for unit in units)
        return SpecDecResult(self._config, counts, tuple(rows_of(self._config.head, self._heads)), seen)

    def time(self, result: SpecDecResult) -> SpecDecResult:
        """Speed of the rules of table 1, of plain decoding and of the oracle."""
        methods = timed_methods(self._config.head, bool(self._heads[0].card.curve))
        timed = self._config.run_of(methods, max_seconds=seconds_left(self._config, self._start, self._shares[1]))
        found = run_bench(timed, prompts=self._prompts, made=self._oracle, **self._pair)
        lengths = [fixed_length(length) for length in LENGTHS]
        heads = [method for method in methods if method not in (PLAIN, *lengths)]
        groups = {tables.IN_FIXED: lengths, tables.IN_HEAD: heads, tables.IN_BOTH: lengths + heads, tables.TARGET_ALONE: [PLAIN]}
        times = tuple(SettingTimes.of(name, found, group) for name, group in groups.items())
        return dataclasses.replace(result, timed=Sweep.of("tables 1 and 2", found), times=times)

    def time_alone(self, result: SpecDecResult) -> SpecDecResult:
        """The draft model by itself."""
        config = self._config
        alone = config.run_of(
            (PLAIN,), baselines=(), model=config.draft_model or config.model, draft_model=None,
            cost_scale=config.draft_cost_scale, draft_cost_scale=None, max_seconds=seconds_left(config, self._start),
        )  # fmt: skip
        found = run_bench(alone, target=self._models.draft, prompts=self._prompts[:_ALONE_PROMPTS], **self._shared)
        times = (*result.times, SettingTimes.of(tables.DRAFT_ALONE, found, [PLAIN], drafting=True))
        return dataclasses.replace(result, alone=Part.of("the draft model alone", found), times=times)

    def compare(self, result: SpecDecResult) -> SpecDecResult:
        """Train heads where there are recordings, and count for them as for figure 4."""
        config = self._config
        if not config.recording:
            return result
        with torch_threads(config.threads):
            left = seconds_left(config, self._start, self._shares[2])
            heads = train_grid(config.recording, left, config.seed, self._shared["progress"])
        rows, makers = grid_makers(heads)
        reference = head_spec(config.head[0] if config.head else None, _ADVISED)
        asked = dataclasses.replace(
            self._counting, drafters=(reference,), baselines=(),
            max_seconds=seconds_left(config, self._start, self._shares[3]),
        )  # fmt: skip
        found = run_bench(asked, prompts=self._prompts, made=makers, **self._pair)
        return dataclasses.replace(result, grid=Sweep.of("heads", found), grid_heads=tuple(rows))
