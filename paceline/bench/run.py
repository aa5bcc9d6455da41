"""Timed runs: every prompt goes through every method in turn, all on the same model object, and
answers are compared.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from rich.markup import escape
from transformers import PreTrainedModel

from paceline.bench.environment import load_average, look_around, peak_memory
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
from paceline.bench.result import AnswerCounts, AnswerRow, BenchResult, Divergence, TimedCall
from paceline.bench.settings import CONTINUOUS, PLAIN, BenchConfig
from paceline.core.drafter import Drafter
from paceline.core.metrics import Timing
from paceline.drafters import create
from paceline.engine.parallel.ranks import Ranks
from paceline.errors import ConfigError
from paceline.llm import LLM
from paceline.model.cached_lm import CachedLM
from paceline.model.forward_mode import mode_of
from paceline.model.loading import draft_lm, eos_token_ids
from paceline.report.progress import progress_bar
from paceline.report.prompts import Prompt

Maker = Callable[[CachedLM], Drafter]

_WARMUP_TOKENS = 16
_SPARE_NODES = 64  # cache positions for draft nodes, allocated before anything is timed
_ONE_BY_ONE = "not possible in transformers with more than one prompt at a time"


def run_bench(
    config: BenchConfig,
    *,
    target: PreTrainedModel | None = None,
    draft: PreTrainedModel | None = None,
    tokenizer: Any = None,
    prompts: Sequence[Prompt] | None = None,
    made: Mapping[str, Maker] | None = None,
    progress: bool = True,
    loaded: Callable[[], None] | None = None,
    ranks: Ranks | None = None,
    budget: bool = True,
) -> BenchResult:
    """Run a benchmark. Ctrl-C ends it early: what every method has answered by then is kept.

    Args:
        target, draft, tokenizer: loaded ones, to be used in place of those `config` names.
        prompts: likewise, to be answered in this order.
        made: further drafters, which no spec names: what to call each, and how to build it from the
            draft model.
        loaded: called once the models are loaded, before any answer.
        progress: show progress on standard error, updated between timed calls only.
        ranks: the processes of a parallel run, where they have been joined already.
        budget: False: all trees are fed whole, whatever that costs, as the papers' methods do.
    Raises:
        ConfigError, CapacityError, UnsupportedModelError: something cannot be run; nothing has been
            timed then.
    """
    with torch_threads(config.models.threads), contextlib.ExitStack() as at_the_end:
        lockstep = Lockstep(config, ranks)
        models = load_models(config, target, draft, tokenizer)
        units = make_units(config, models, prompts)
        skipped = _skipped(config)
        if loaded is not None:
            gc.collect()
            loaded()
        methods, eos = _methods(config, models, units, skipped, lockstep, made or {}, budget)
        gc.collect()
        at_the_end.callback(gc.unfreeze)
        # every call begins with a collection, which need not go through all modules and models
        gc.freeze()
        environment = look_around(models.target.device)
        with same_rules(models.target, config.sampling, eos):
            run = _BenchRun(config, methods, units, models.target.device, lockstep)
            complete = run.all(progress)
        lockstep.count_busiest(run.calls)
        environment = dataclasses.replace(
            environment, load_end=load_average(), peak_memory=peak_memory()
        )
        return _result(config, environment, models, methods, units, skipped, run, complete)


class _BenchRun:
    """The loop: repeats, units, methods in rotating order."""

    def __init__(
        self,
        config: BenchConfig,
        methods: list[Method],
        units: list[Unit],
        device: torch.device,
        lockstep: Lockstep,
    ) -> None:
        self.calls: list[tuple[TimedCall, list[MethodAnswer]]] = []
        self._config, self._methods, self._units, self._device, self._lockstep = (
            config,
            methods,
            units,
            device,
            lockstep,
        )

    def all(self, progress: bool) -> bool:
        """Whether it came to the end."""
        total = self._config.repeats * len(self._units)
        # Nothing is refreshed while a call is timed, hence no automatic refresh.
        with progress_bar(shown=progress, auto_refresh=False) as bar:
            task = bar.add_task("warm-up", total=total)
            try:
                self._warm_up()
                start = time.perf_counter()
                for turn in range(total):
                    repeat, unit = divmod(turn, len(self._units))
                    bar.update(
                        task,
                        completed=turn,
                        description=escape(self._units[unit].prompts[0].id),
                        refresh=True,
                    )
                    if unit == 0:
                        for method in self._methods:
                            method.reset()
                    shift = turn % len(self._methods)
                    order = self._methods[shift:] + self._methods[:shift]
                    self.calls += [self._time(method, unit, repeat) for method in order]
                    if self._lockstep.compact_slots(
                        0 < self._config.max_seconds < time.perf_counter() - start
                    ):
                        break
            except KeyboardInterrupt:
                return False
        return True

    def _warm_up(self) -> None:
        unit, length = self._units[0], min(self._config.sampling.max_new_tokens, _WARMUP_TOKENS)
        for method in self._methods:
            for _ in range(self._config.warmup):
                method.reset()
                method.prepare(list(unit.token_ids), length)()
            if isinstance(method, Paceline) and not self._config.sampling.greedy:
                method.reset()
                method.watch(list(unit.token_ids), length)

    def _time(self, method: Method, unit: int, repeat: int) -> tuple[TimedCall, list[MethodAnswer]]:
        prompts = list(self._units[unit].token_ids)
        call = method.prepare(prompts, self._config.sampling.max_new_tokens)
        gc.collect()
        allocated = self._reset_peak()
        before = method.timing()
        self._lockstep.compact_slots()
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


def _skipped(config: BenchConfig) -> dict[str, str]:
    return {
        name: _ONE_BY_ONE
        for name in config.baselines
        if name not in (PLAIN, CONTINUOUS) and config.batch > 1
    }


def _methods(
    config: BenchConfig,
    models: Models,
    units: list[Unit],
    skipped: dict[str, str],
    lockstep: Lockstep,
    made: Mapping[str, Maker],
    budget: bool,
) -> tuple[list[Method], list[int]]:
    params = config.sampling
    positions = (
        max(len(ids) for unit in units for ids in unit.token_ids)
        + config.sampling.max_new_tokens
        + _SPARE_NODES
    )
    draft = None if models.draft is None else draft_lm(models.draft)
    if draft is not None:
        draft.reserve(config.batch, positions)
    ours: list[Method] = []
    drafting = dict.fromkeys(config.with_draft(), draft)
    makers: dict[str, Callable[[], Drafter]] = {
        spec: partial(create, spec, draft_model=drafting.get(spec)) for spec in config.drafters
    }
    if draft is not None:
        makers |= {name: partial(make, draft) for name, make in made.items()}
    if not budget:
        makers = {spec: partial(feeding_all, make) for spec, make in makers.items()}
    for spec, make in makers.items():
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
        ours.append(Paceline(spec, llm, make, params))
    eos = eos_token_ids(models.target, models.tokenizer)
    theirs: list[Method] = [
        (Continuous if name == CONTINUOUS else Transformers)(
            name, models.target, models.draft, eos, params
        )
        for name in config.baselines
        if name not in skipped
    ]
    if not theirs and not ours:
        raise ConfigError(
            f"bench: nothing is left to run; {', '.join(skipped)}: {_ONE_BY_ONE}. Add a drafter,"
            " or use batch=1."
        )
    return theirs + ours, eos


def _result(
    config: BenchConfig,
    environment: Any,
    models: Models,
    methods: list[Method],
    units: list[Unit],
    skipped: dict[str, str],
    run: _BenchRun,
    complete: bool,
) -> BenchResult:
    names = tuple(method.name for method in methods)
    reference = _reference(config, names)
    comparable = {
        method.name for method in methods if config.sampling.greedy or _keeps_seed(method)
    }
    expected = {
        (call.unit, call.repeat): answers for call, answers in run.calls if call.method == reference
    }
    calls: list[TimedCall] = []
    differing: dict[tuple[str, str], tuple[list[int], list[int], list[int]]] = {}
    for call, answers in run.calls:
        unit, compare = (
            units[call.unit],
            call.method in comparable and call.method != reference and reference is not None,
        )
        rows = []
        for place, (prompt, ids, answer) in enumerate(
            zip(unit.prompts, unit.token_ids, answers, strict=True)
        ):
            want = expected[call.unit, call.repeat][place].token_ids if compare else []
            equal = answer.token_ids == want if compare else None
            if equal is False and config.sampling.greedy:
                differing.setdefault((call.method, prompt.id), (ids, want, answer.token_ids))
            counts = None if answer.stats is None else AnswerCounts.of(answer.stats)
            rows.append(
                AnswerRow(
                    prompt.id, prompt.category, len(ids), len(answer.token_ids), equal, counts
                )
            )
        calls.append(dataclasses.replace(call, rows=tuple(rows)))
    divergences = [_divergence(models.target, *key, *value) for key, value in differing.items()]
    return BenchResult(
        config=config,
        environment=environment,
        complete=complete,
        target=models.target_label,
        draft=models.draft_label,
        dtype=str(models.target.dtype).removeprefix("torch."),
        methods=names,
        baseline=names[0],
        reference=reference,
        skipped=skipped,
        calls=tuple(calls),
        divergences=tuple(divergences),
        cut_prompts=sum(unit.cut for unit in units),
        guarantees={
            method.name: method.guarantee for method in methods if isinstance(method, Paceline)
        },
    )


def _reference(config: BenchConfig, names: tuple[str, ...]) -> str | None:
    """Greedy: transformers itself. Sampled: plain decoding with the same seed."""
    wanted = [PLAIN, "none"] if config.sampling.greedy else ["none"]
    return next((name for name in wanted if name in names), None)


def _keeps_seed(method: Method) -> bool:
    return isinstance(method, Paceline) and not method.draws


def _divergence(
    model: PreTrainedModel,
    method: str,
    prompt: str,
    prompt_ids: list[int],
    want: list[int],
    got: list[int],
) -> Divergence:
    shorter = min(len(want), len(got))
    place = next((i for i in range(shorter) if want[i] != got[i]), shorter)
    with mode_of(model)():
        logits = (
            model(torch.tensor([prompt_ids + want[:place]], device=model.device))
            .logits[0, -1]
            .float()
        )
    top = logits.topk(2).values.tolist()
    expected, chosen = (tokens[place] if place < len(tokens) else None for tokens in (want, got))
    choice = (
        None
        if expected is None or chosen is None
        else abs(float(logits[expected] - logits[chosen]))
    )
    return Divergence(method, prompt, place, expected, chosen, top[0], top[0] - top[1], choice)
