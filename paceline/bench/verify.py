"""Check that decoding returns the same answers with and without drafts."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from rich.markup import escape

from paceline.bench.environment import load_average, look_around, peak_memory
from paceline.bench.models import Models, Unit, feeding_all, load_models, make_units, torch_threads
from paceline.bench.settings import BenchConfig
from paceline.bench.verify_engine import VerifyEngine
from paceline.bench.verify_result import DrafterVerdict, VerifyResult, sets_budget
from paceline.core.drafter import Drafter
from paceline.core.request import Request
from paceline.core.settings import PREFILL_CHUNK
from paceline.drafters import create
from paceline.model.cached_lm import CachedLM
from paceline.model.loading import draft_lm
from paceline.report.progress import progress_bar


def run_verify(
    config: BenchConfig,
    finished: Callable[[DrafterVerdict], None] = lambda verdict: None,
    batches: Sequence[int] = (1,),
    prefill_chunks: Sequence[int] = (PREFILL_CHUNK,),
    progress: bool = False,
) -> VerifyResult:
    """Compare the answers of every drafter with plain decoding, token by token.

    Plain answers are generated one prompt at a time, and drafted answers in batches. After Ctrl-C,
    return the verdicts so far.

    Args:
        config: Models, drafters, prompts, sampling and `max_nodes` of the run.
        finished: Function called with each verdict.
        batches: Batch sizes to test: the maximum number of prompts answered together. Every drafter
            runs with every batch size.
        prefill_chunks: Prefill chunk sizes to test: the maximum number of prompt tokens per forward
            pass. Every drafter runs with every chunk size.
        progress: Whether to show a progress bar on standard error, if it is a terminal.
    Raises:
        ConfigError: Models, prompts or drafters cannot be used, or required batch invariance is
            not available.
        KeyboardInterrupt: Ctrl-C was pressed before the first verdict.
    """
    with torch_threads(config.models.threads), progress_bar(shown=progress) as bar:
        models = load_models(config, None, None, None)
        environment, units = look_around(models.target.device), make_units(config, models)
        draft = None if models.draft is None else draft_lm(models.draft)
        alone = VerifyEngine(config, models)
        prompts = _prompts(units)
        runs = len(prefill_chunks) * len(batches) * len(config.drafters)
        task = bar.add_task("alone, without drafts", total=(1 + runs) * len(prompts))
        advance = partial(bar.advance, task)
        results = alone.answer([ids for _, ids in prompts], 0, done=advance)
        plain = [request.output_ids for request, _ in results]
        verdicts: list[DrafterVerdict] = []
        try:
            for side, spec, label in _sides(config, models, batches, prefill_chunks):
                bar.update(task, description=label)
                side.use(_build(spec, draft))
                verdicts.append(_verdict(side, alone, spec, prompts, plain, advance))
                bar.stop()  # the callback may print
                finished(verdicts[-1])
                bar.start()
        except KeyboardInterrupt:
            if not verdicts:
                raise
        return VerifyResult(
            models.target_label,
            str(models.target.dtype).removeprefix("torch."),
            len(prompts),
            replace(environment, load_end=load_average(), peak_memory=peak_memory()),
            alone.engine.invariance,
            tuple(verdicts),
            sum(unit.cut for unit in units),
            runs,
            models.weights,
        )


def _sides(
    config: BenchConfig, models: Models, batches: Sequence[int], prefill_chunks: Sequence[int]
) -> Iterator[tuple[VerifyEngine, str, str]]:
    """Yield the engine, the drafter's spec and a label for every comparison."""
    for chunk, batch in itertools.product(prefill_chunks, batches):
        side = VerifyEngine(config, models, batch, chunk)
        for spec in config.drafters:
            yield side, spec, f"{escape(spec)}, batch {batch}, chunks of {chunk}"


def _prompts(units: Sequence[Unit]) -> list[tuple[str, list[int]]]:
    """Return the id and the token ids of every prompt."""
    return [
        pair
        for unit in units
        for pair in zip((prompt.id for prompt in unit.prompts), unit.token_ids, strict=True)
    ]


def _build(spec: str, draft: CachedLM | None) -> Drafter:
    """Build a drafter; turn off the draft budget unless the spec sets `budget`."""
    make = partial(create, spec, draft_model=draft)
    return make() if sets_budget(spec) else feeding_all(make)


def _verdict(
    side: VerifyEngine,
    alone: VerifyEngine,
    spec: str,
    prompts: list[tuple[str, list[int]]],
    plain: list[list[int]],
    done: Callable[[int], object],
) -> DrafterVerdict:
    results = side.answer([ids for _, ids in prompts], 0, plain, done)
    drawn = side.drawn
    differing = (
        []
        if drawn
        else [
            number
            for number, (request, _) in enumerate(results)
            if request.output_ids != plain[number]
        ]
    )
    first = None
    for number in differing[:1]:
        request, divergence = results[number]
        assert divergence is not None, "the shorter answer is a prefix of the other"
        first = alone.difference(
            *prompts[number][:1],
            number,
            prompts[number][1],
            plain[number],
            request.output_ids,
            divergence,
        )
    return DrafterVerdict(
        spec,
        side.batch,
        side.prefill_chunk,
        0 if drawn else len(results),
        len(differing),
        sum(request.counters.accepted_tokens for request, _ in results),
        sum(len(request.output_ids) for request, _ in results),
        _tokens_per_forward([request for request, _ in results]),
        first,
    )


def _tokens_per_forward(requests: Sequence[Request]) -> float:
    """Return sum(new tokens - 1) / sum(forward passes after prefill)."""
    counters = [request.counters for request in requests]
    decoding = sum(counts.target_forwards - counts.prefill_forwards for counts in counters)
    return sum(len(request.output_ids) - 1 for request in requests) / decoding if decoding else 1.0
