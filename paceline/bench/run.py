"""Timed runs: every prompt goes through every method in turn, all on the same model object, and answers are compared."""

from __future__ import annotations

import dataclasses
import gc
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.progress import Progress
from transformers import PreTrainedModel

from paceline import demo
from paceline.architecture import Architecture
from paceline.bench.cost_scale import CostScale, cost_label, enlarge, parameter_count
from paceline.bench.environment import load_average, look_around, peak_memory
from paceline.bench.methods import Answer, Method, Paceline, Transformers, same_rules
from paceline.bench.parallel import Lockstep
from paceline.bench.prompts import Prompt, encode, load_prompts
from paceline.bench.result import BenchResult, Call, Counts, Divergence, Row
from paceline.bench.settings import PLAIN, BenchConfig
from paceline.drafters import create
from paceline.errors import CapacityError, ConfigError
from paceline.llm import LLM
from paceline.loading import draft_lm, eos_token_ids, load_model, load_tokenizer
from paceline.metrics import Timing
from paceline.model import CachedLM
from paceline.parallel_ranks import Ranks, local_device

_WARMUP_TOKENS = 16
_SPARE_NODES = 64  # cache positions for draft nodes, allocated before anything is timed
_ONE_BY_ONE = "not possible in transformers with more than one prompt at a time"


@dataclass(frozen=True, slots=True)
class _Models:
    target: PreTrainedModel
    draft: PreTrainedModel | None
    tokenizer: Any
    target_label: str
    draft_label: str | None


@dataclass(frozen=True, slots=True)
class _Unit:
    """Prompts that are answered in one call."""

    prompts: tuple[Prompt, ...]
    token_ids: tuple[list[int], ...]


def run_bench(
    config: BenchConfig,
    *,
    target: PreTrainedModel | None = None,
    draft: PreTrainedModel | None = None,
    tokenizer: Any = None,
    progress: bool = True,
    loaded: Callable[[], None] | None = None,
    ranks: Ranks | None = None,
) -> BenchResult:
    """Run a benchmark. Ctrl-C ends it early: what every method has answered by then is kept.

    Args:
        target, draft, tokenizer: loaded ones, to be used in place of those `config` names.
        loaded: called once the models are loaded, before any answer.
        progress: show progress on standard error, updated between timed calls only.
        ranks: the processes of a parallel run, where they have been joined already.
    Raises:
        ConfigError, CapacityError, UnsupportedModelError: something cannot be run; nothing has been timed then.
    """
    threads = torch.get_num_threads()
    if config.threads is not None:
        torch.set_num_threads(config.threads)
    try:
        lockstep = Lockstep(config, ranks)
        models = _load(config, target, draft, tokenizer)
        units = _units(config, models)
        skipped = _skipped(config)
        if loaded is not None:
            gc.collect()
            loaded()
        methods, eos = _methods(config, models, units, skipped, lockstep)
        gc.collect()
        gc.freeze()  # every call begins with a collection, which need not go through all modules and models
        environment = look_around(models.target.device)
        with same_rules(models.target, config.sampling(), eos):
            run = _Run(config, methods, units, models.target.device, lockstep)
            complete = run.all(progress)
        lockstep.count_busiest(run.calls)
        environment = dataclasses.replace(environment, load_end=load_average(), peak_memory=peak_memory())
        return _result(config, environment, models, methods, units, skipped, run, complete)
    finally:
        gc.unfreeze()
        torch.set_num_threads(threads)


class _Run:
    """The loop: repeats, units, methods in rotating order."""

    def __init__(
        self, config: BenchConfig, methods: list[Method], units: list[_Unit], device: torch.device, lockstep: Lockstep
    ) -> None:
        self.calls: list[tuple[Call, list[Answer]]] = []
        self._config, self._methods, self._units, self._device, self._lockstep = config, methods, units, device, lockstep

    def all(self, progress: bool) -> bool:
        """Whether it came to the end."""
        total = self._config.repeats * len(self._units)
        # Nothing is refreshed while a call is timed, hence no automatic refresh.
        with Progress(console=Console(stderr=True), auto_refresh=False, transient=True, disable=not progress) as bar:
            task = bar.add_task("warm-up", total=total)
            try:
                self._warm_up()
                start = time.perf_counter()
                for turn in range(total):
                    repeat, unit = divmod(turn, len(self._units))
                    bar.update(task, completed=turn, description=escape(self._units[unit].prompts[0].id), refresh=True)
                    if unit == 0:
                        for method in self._methods:
                            method.reset()
                    shift = turn % len(self._methods)
                    order = self._methods[shift:] + self._methods[:shift]
                    self.calls += [self._time(method, unit, repeat) for method in order]
                    if self._lockstep.line_up(0 < self._config.max_seconds < time.perf_counter() - start):
                        break
            except KeyboardInterrupt:
                return False
        return True

    def _warm_up(self) -> None:
        unit, length = self._units[0], min(self._config.max_new_tokens, _WARMUP_TOKENS)
        for method in self._methods:
            for _ in range(self._config.warmup):
                method.reset()
                method.prepare(list(unit.token_ids), length)()
            if isinstance(method, Paceline) and not self._config.sampling().greedy:
                method.reset()
                method.watch(list(unit.token_ids), length)

    def _time(self, method: Method, unit: int, repeat: int) -> tuple[Call, list[Answer]]:
        prompts = list(self._units[unit].token_ids)
        call = method.prepare(prompts, self._config.max_new_tokens)
        gc.collect()
        allocated = self._reset_peak()
        before = method.timing()
        self._lockstep.line_up()
        self._synchronise()
        cpu, start = time.process_time(), time.perf_counter()
        raw = call()
        self._synchronise()
        seconds, cpu_seconds = time.perf_counter() - start, time.process_time() - cpu
        after = method.timing()
        timing: Timing | None = after - before if after is not None and before is not None else None
        peak = torch.cuda.max_memory_allocated(self._device) - allocated if self._device.type == "cuda" else None
        return Call(method.name, unit, repeat, seconds, cpu_seconds, timing, peak, ()), method.collect(raw, prompts)

    def _synchronise(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)

    def _reset_peak(self) -> int:
        if self._device.type != "cuda":
            return 0
        torch.cuda.reset_peak_memory_stats(self._device)
        return torch.cuda.memory_allocated(self._device)


def _load(config: BenchConfig, target: PreTrainedModel | None, draft: PreTrainedModel | None, tokenizer: Any) -> _Models:
    embedded = config.model == demo.NAME
    wanted = config.draft_model or (demo.NAME if embedded else None)
    tokenizer = load_tokenizer(tokenizer, demo.TARGET if embedded else config.model)
    device = local_device(config.device) if config.lookahead_parallel else config.device
    model = target or load_model(demo.TARGET if embedded else config.model, config.dtype, device)
    if not config.needs_draft():
        draft = None
    elif draft is None and wanted is not None:
        draft = load_model(demo.DRAFT if wanted == demo.NAME else wanted, config.dtype, str(model.device))
    if draft is None and config.needs_draft():
        raise ConfigError(f"bench: {config.needs_draft()[0]!r} needs a draft model, and none came; pass draft_model=DIRECTORY.")
    model, label = _scaled(model, config.model, config.cost_scale)
    if draft is None:
        return _Models(model, None, tokenizer, label, None)
    draft, draft_label = _scaled(draft, wanted or "draft", config.draft_cost_scale)
    return _Models(model, draft, tokenizer, label, draft_label)


def _scaled(model: PreTrainedModel, name: str, spec: str | None) -> tuple[PreTrainedModel, str]:
    short = Path(name).name or name
    if spec is None:
        return model, f"{short} ({parameter_count(model) / 1e6:.3g} M)"
    scale = CostScale.parse(spec)
    model = enlarge(model, scale.width, scale.layers)
    return model, f"{short}, {cost_label(scale, model)}"


def _units(config: BenchConfig, models: _Models) -> list[_Unit]:
    prompts = load_prompts(config.prompts, config.limit, config.every)
    loaded = [model for model in (models.target, models.draft) if model is not None]
    context = min(Architecture.of(model).context_length for model in loaded)
    room = context - config.max_new_tokens
    if room < 8:
        raise CapacityError(
            f"bench: max_new_tokens is {config.max_new_tokens} and the context {context} tokens, which leaves {room} for prompts;"
            " at least 8 are needed. Reduce max_new_tokens."
        )
    ids = [encode(prompt, models.tokenizer, room) for prompt in prompts]
    starts = range(0, len(prompts), config.batch)
    return [_Unit(tuple(prompts[at : at + config.batch]), tuple(ids[at : at + config.batch])) for at in starts]


def _skipped(config: BenchConfig) -> dict[str, str]:
    return {name: _ONE_BY_ONE for name in config.baselines if name != PLAIN and config.batch > 1}


def _methods(
    config: BenchConfig, models: _Models, units: list[_Unit], skipped: dict[str, str], lockstep: Lockstep
) -> tuple[list[Method], list[int]]:
    params = config.sampling()
    positions = max(len(ids) for unit in units for ids in unit.token_ids) + config.max_new_tokens + _SPARE_NODES
    draft = None if models.draft is None else draft_lm(models.draft)
    if draft is not None:
        draft.reserve(config.batch, positions)
    ours: list[Method] = []
    for spec in config.drafters:
        llm = LLM(
            models.target, create(spec, draft_model=draft), tokenizer=models.tokenizer, max_batch=config.batch,
            max_nodes=config.max_nodes, lookahead_parallel=lockstep.ranks(spec) or False,
        )  # fmt: skip
        llm.model.reserve(config.batch, positions)
        ours.append(Paceline(spec, llm, _maker(spec, draft), params))
    eos = eos_token_ids(models.target, models.tokenizer)
    theirs: list[Method] = [
        Transformers(name, models.target, models.draft, eos, params) for name in config.baselines if name not in skipped
    ]
    if not theirs and not ours:
        raise ConfigError(f"bench: nothing is left to run; {', '.join(skipped)}: {_ONE_BY_ONE}. Add a drafter, or use batch=1.")
    return theirs + ours, eos


def _maker(spec: str, draft: CachedLM | None) -> Any:
    return lambda: create(spec, draft_model=draft)


def _result(
    config: BenchConfig, environment: Any, models: _Models, methods: list[Method], units: list[_Unit],
    skipped: dict[str, str], run: _Run, complete: bool,
) -> BenchResult:  # fmt: skip
    names = tuple(method.name for method in methods)
    reference = _reference(config, names)
    comparable = {method.name for method in methods if config.sampling().greedy or _keeps_seed(method)}
    expected = {(call.unit, call.repeat): answers for call, answers in run.calls if call.method == reference}
    calls: list[Call] = []
    differing: dict[tuple[str, str], tuple[list[int], list[int], list[int]]] = {}
    for call, answers in run.calls:
        unit, compare = units[call.unit], call.method in comparable and call.method != reference and reference is not None
        rows = []
        for place, (prompt, ids, answer) in enumerate(zip(unit.prompts, unit.token_ids, answers, strict=True)):
            want = expected[call.unit, call.repeat][place].token_ids if compare else []
            equal = answer.token_ids == want if compare else None
            if equal is False and config.sampling().greedy:
                differing.setdefault((call.method, prompt.id), (ids, want, answer.token_ids))
            counts = None if answer.stats is None else Counts.of(answer.stats)
            rows.append(Row(prompt.id, prompt.category, len(ids), len(answer.token_ids), equal, counts))
        calls.append(dataclasses.replace(call, rows=tuple(rows)))
    divergences = [_divergence(models.target, *key, *value) for key, value in differing.items()]
    return BenchResult(
        config=config, environment=environment, complete=complete, target=models.target_label, draft=models.draft_label,
        dtype=str(models.target.dtype).removeprefix("torch."), methods=names, baseline=names[0], reference=reference,
        skipped=skipped, calls=tuple(calls), divergences=tuple(divergences),
    )  # fmt: skip


def _reference(config: BenchConfig, names: tuple[str, ...]) -> str | None:
    """Greedy: transformers itself. Sampled: plain decoding with the same seed."""
    wanted = [PLAIN, "none"] if config.sampling().greedy else ["none"]
    return next((name for name in wanted if name in names), None)


def _keeps_seed(method: Method) -> bool:
    return isinstance(method, Paceline) and not method.draws


def _divergence(
    model: PreTrainedModel, method: str, prompt: str, prompt_ids: list[int], want: list[int], got: list[int]
) -> Divergence:
    shorter = min(len(want), len(got))
    place = next((i for i in range(shorter) if want[i] != got[i]), shorter)
    with torch.inference_mode():
        logits = model(torch.tensor([prompt_ids + want[:place]], device=model.device)).logits[0, -1].float()
    top = logits.topk(2).values.tolist()
    expected, chosen = (tokens[place] if place < len(tokens) else None for tokens in (want, got))
    choice = None if expected is None or chosen is None else abs(float(logits[expected] - logits[chosen]))
    return Divergence(method, prompt, place, expected, chosen, top[0], top[0] - top[1], choice)
