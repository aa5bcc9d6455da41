"""Answer every prompt with every method, using one model, and compare the answers."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from transformers import PreTrainedModel

from paceline.bench.bench_settings import PROGRESS_SECONDS, SPARE_NODES, WARMUP_TOKENS
from paceline.bench.compare import compare
from paceline.bench.environment import Environment, load_average, look_around, peak_memory
from paceline.bench.methods import (
    Continuous,
    Method,
    MethodAnswer,
    Paceline,
    Transformers,
    same_rules,
)
from paceline.bench.models import Models, Unit, feeding_all, load_models, make_units, torch_threads
from paceline.bench.parallel import Lockstep
from paceline.bench.result import BenchResult
from paceline.bench.settings import CONTINUOUS, ONE_BY_ONE, BenchConfig
from paceline.bench.timed_calls import TimedCall
from paceline.core.drafter import Drafter
from paceline.core.metrics import Timing
from paceline.drafters import create
from paceline.engine.parallel.ranks import Ranks
from paceline.engine.target_loading import LoadedModel
from paceline.errors import ConfigError
from paceline.llm import LLM
from paceline.model.cached_lm import CachedLM
from paceline.model.loading import draft_lm, eos_token_ids
from paceline.report.progress import progress_bar
from paceline.report.prompts import Prompt
from paceline.util.garbage_collection import survivors_exempt

Maker = Callable[[CachedLM], Drafter]


@dataclasses.dataclass(frozen=True, slots=True)
class RunOptions:
    """Options of a run that its configuration does not store.

    Attributes:
        makers: Functions that build additional drafters from the draft model, by drafter name.
        ranks: The connected processes of a parallel run; None if the processes have not connected
            yet.
        budget: Whether a draft budget may shrink the trees. Reproductions of papers use no budget.
    """

    makers: Mapping[str, Maker] = dataclasses.field(default_factory=dict)
    ranks: Ranks | None = None
    budget: bool = True


def run_bench(
    config: BenchConfig,
    *,
    target: LoadedModel | None = None,
    draft: PreTrainedModel | None = None,
    tokenizer: Any = None,
    prompts: Sequence[Prompt] | None = None,
    progress: bool = True,
    options: RunOptions | None = None,
) -> BenchResult:
    """Run a benchmark; after Ctrl-C, return the results of completed prompts.

    Args:
        config: Methods, prompts and models.
        target, draft, tokenizer: Loaded models to use instead of those named in `config`.
        prompts: Prompts to use, in this order, instead of those named in `config`.
        progress: Whether to show progress on standard error, updated only between timed calls.
            Without a terminal, a line appears every few seconds.
        options: Additional options; see `RunOptions`.
    Raises:
        ConfigError, CapacityError, UnsupportedModelError: Part of the benchmark cannot be run.
    """
    options = options or RunOptions()
    with torch_threads(config.models.threads), contextlib.ExitStack() as at_the_end:
        lockstep = Lockstep(config, options.ranks)
        models = load_models(config, target, draft, tokenizer)
        units = make_units(config, models, prompts)
        skipped = config.skipped()
        methods, eos = _methods(config, models, units, skipped, lockstep, options)
        at_the_end.enter_context(survivors_exempt())  # from the collection before every call
        environment = look_around(models.target.device)
        with same_rules(models.transformers_target, config.sampling, eos):
            run = _BenchRun(config, methods, units, models.target.device, lockstep)
            complete = run.all(progress)
        lockstep.count_busiest(run.calls)
        environment = dataclasses.replace(
            environment, load_end=load_average(), peak_memory=peak_memory()
        )
        return _result(environment, models, skipped, run, complete)


class _BenchRun:
    """Measures all methods on every prompt or batch, rotating the methods' order."""

    def __init__(
        self,
        config: BenchConfig,
        methods: list[Method],
        units: list[Unit],
        device: torch.device,
        lockstep: Lockstep,
    ) -> None:
        self.calls: list[tuple[TimedCall, list[MethodAnswer]]] = []
        self.config, self.methods, self.units = config, methods, units
        self._device, self._lockstep = device, lockstep
        self._logged = time.perf_counter()

    def all(self, progress: bool) -> bool:
        """Time all methods on all prompts; return False if interrupted."""
        total = self.config.repeats * len(self.units)
        # A refresh would disturb timed calls, so the bar is refreshed between them.
        with progress_bar(shown=progress, auto_refresh=False) as bar:
            task = bar.add_task("warm-up", total=total)
            try:
                self._warm_up()
                start = time.perf_counter()
                for round_number in range(total):
                    repeat, unit = divmod(round_number, len(self.units))
                    label = escape(self.units[unit].prompts[0].id)
                    bar.update(task, completed=round_number, description=label, refresh=True)
                    if progress and bar.disable:
                        self._log_progress(bar.console, f"{label}, {round_number + 1} of {total}")
                    if unit == 0:
                        for method in self.methods:
                            method.reset()
                    shift = round_number % len(self.methods)
                    order = self.methods[shift:] + self.methods[:shift]
                    self.calls += [self._time(method, unit, repeat) for method in order]
                    if self._lockstep.wait_for_all(
                        0 < self.config.max_seconds < time.perf_counter() - start
                    ):
                        break
            except KeyboardInterrupt:
                return False
        return True

    def _log_progress(self, console: Console, done: str) -> None:
        """Replace the bar, without a terminal, by a line every few seconds."""
        if time.perf_counter() - self._logged >= PROGRESS_SECONDS:
            self._logged = time.perf_counter()
            console.print(f"bench: {done}")

    def _warm_up(self) -> None:
        unit, length = self.units[0], min(self.config.sampling.max_new_tokens, WARMUP_TOKENS)
        for method in self.methods:
            for _ in range(self.config.warmup):
                method.reset()
                method.prepare(list(unit.token_ids), length)()
            if isinstance(method, Paceline) and not self.config.sampling.greedy:
                method.reset()
                method.watch(list(unit.token_ids), length)

    def _time(self, method: Method, unit: int, repeat: int) -> tuple[TimedCall, list[MethodAnswer]]:
        prompts = list(self.units[unit].token_ids)
        call = method.prepare(prompts, self.config.sampling.max_new_tokens)
        gc.collect()
        allocated = self._reset_peak()
        before = method.timing()
        self._lockstep.wait_for_all()
        self._synchronise()
        cpu, start = time.process_time(), time.perf_counter()
        raw = call()
        self._synchronise()
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        after = method.timing()
        timing: Timing | None = after - before if after is not None and before is not None else None
        peak = (
            torch.cuda.max_memory_allocated(self._device) - allocated
            if self._device.type == "cuda"
            else None
        )
        return TimedCall(
            method.name, unit, repeat, seconds, cpu_seconds, timing, peak, ()
        ), method.collect(raw, prompts)

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _reset_peak(self) -> int:
        if self._device.type != "cuda":
            return 0
        torch.cuda.reset_peak_memory_stats(self._device)
        return torch.cuda.memory_allocated(self._device)


def _methods(
    config: BenchConfig,
    models: Models,
    units: list[Unit],
    skipped: dict[str, str],
    lockstep: Lockstep,
    options: RunOptions,
) -> tuple[list[Method], list[int]]:
    params = config.sampling
    positions = (
        max(len(ids) for unit in units for ids in unit.token_ids)
        + config.sampling.max_new_tokens
        + SPARE_NODES
    )
    draft = None if models.draft is None else draft_lm(models.draft)
    if draft is not None:
        draft.reserve(config.batch, positions)
    drafters: list[Method] = []
    for spec, make in _makers(config, draft, options).items():
        llm = LLM(
            models.target,
            make(),
            tokenizer=models.tokenizer,
            max_batch=config.batch,
            max_nodes=config.max_nodes,
            lookahead_parallel=lockstep.ranks(spec) or False,
            batch_invariant=config.models.invariance,
        )
        llm.model.reserve(config.batch, positions)
        drafters.append(Paceline(spec, llm, make, params))
    eos = eos_token_ids(models.target, models.tokenizer)
    baselines: list[Method] = [
        (Continuous if name == CONTINUOUS else Transformers)(
            name, models.transformers_target, models.draft, eos, params
        )
        for name in config.baselines
        if name not in skipped
    ]
    if not baselines and not drafters:
        raise ConfigError(
            f"bench: nothing is left to run; {', '.join(skipped)}: {ONE_BY_ONE}. Add a drafter,"
            " or use \0batch=1\0."
        )
    return baselines + drafters, eos


def _makers(
    config: BenchConfig, draft: CachedLM | None, options: RunOptions
) -> dict[str, Callable[[], Drafter]]:
    drafting = dict.fromkeys(config.with_draft(), draft)
    makers: dict[str, Callable[[], Drafter]] = {
        spec: partial(create, spec, draft_model=drafting.get(spec)) for spec in config.drafters
    }
    if draft is not None:
        makers |= {name: partial(make, draft) for name, make in options.makers.items()}
    if not options.budget:
        makers = {spec: partial(feeding_all, make) for spec, make in makers.items()}
    return makers


def _result(
    environment: Environment,
    models: Models,
    skipped: dict[str, str],
    run: _BenchRun,
    complete: bool,
) -> BenchResult:
    config, methods, units = run.config, run.methods, run.units
    comparison = compare(config, models, methods, units, run.calls)
    return BenchResult(
        config=config,
        environment=environment,
        complete=complete,
        target=models.target_label,
        draft=models.draft_label,
        dtype=str(models.target.dtype).removeprefix("torch."),
        weights=models.weights,
        methods=tuple(method.name for method in methods),
        baseline=methods[0].name,
        reference=comparison.reference,
        skipped=skipped,
        calls=comparison.calls,
        divergences=comparison.divergences,
        cut_prompts=sum(unit.cut for unit in units),
        guarantees={
            method.name: method.guarantee for method in methods if isinstance(method, Paceline)
        },
    )
