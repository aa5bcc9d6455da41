"""Compare a run's answers with the reference answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.bench.methods import Method, MethodAnswer, Paceline
from paceline.bench.models import Models, Unit
from paceline.bench.settings import PLAIN, BenchConfig
from paceline.bench.timed_calls import AnswerCounts, AnswerRow, Divergence, TimedCall
from paceline.engine.target_loading import LoadedModel, next_logits


@dataclass(frozen=True, slots=True)
class Comparison:
    """The timed calls of a run, and the result of comparing their answers.

    Attributes:
        reference: Method whose tokens all other methods must match; None if there is no such
            method.
        calls: Timed calls, each with one `AnswerRow` per answer.
        divergences: For each answer that differs from the reference answer, the first difference
            between the two answers.
    """

    reference: str | None
    calls: tuple[TimedCall, ...]
    divergences: tuple[Divergence, ...]


def compare(
    config: BenchConfig,
    models: Models,
    methods: Sequence[Method],
    units: Sequence[Unit],
    timed: Sequence[tuple[TimedCall, list[MethodAnswer]]],
) -> Comparison:
    """Compare the answers of all methods with the reference answers.

    Args:
        config: Configuration for the run.
        models: Loaded models. The target computes the logits at the position where an answer first
            differs from the reference answer.
        methods: Methods to compare.
        units: Prompts or batches that the methods answered.
        timed: Every timed call, with empty `rows`, and the answers that the call returned.
    """
    reference = _reference(config, models, tuple(method.name for method in methods))
    comparable = {
        method.name for method in methods if config.sampling.greedy or _keeps_seed(method)
    }
    expected = {
        (call.unit, call.repeat): answers for call, answers in timed if call.method == reference
    }
    calls: list[TimedCall] = []
    differing: dict[tuple[str, str], tuple[list[int], list[int], list[int]]] = {}
    for call, answers in timed:
        unit = units[call.unit]
        compared = call.method in comparable and call.method != reference and reference is not None
        rows = []
        for index, (prompt, ids, answer) in enumerate(
            zip(unit.prompts, unit.token_ids, answers, strict=True)
        ):
            reference_ids = expected[call.unit, call.repeat][index].token_ids if compared else []
            equal = answer.token_ids == reference_ids if compared else None
            if equal is False and config.sampling.greedy:
                differing.setdefault(
                    (call.method, prompt.id), (ids, reference_ids, answer.token_ids)
                )
            counts = None if answer.stats is None else AnswerCounts.of(answer.stats)
            rows.append(
                AnswerRow(
                    prompt.id, prompt.category, len(ids), len(answer.token_ids), equal, counts
                )
            )
        calls.append(dataclasses.replace(call, rows=tuple(rows)))
    divergences = [_divergence(models.target, *key, *value) for key, value in differing.items()]
    return Comparison(reference, tuple(calls), tuple(divergences))


def _reference(config: BenchConfig, models: Models, names: tuple[str, ...]) -> str | None:
    """Return the method whose tokens all other methods must match.

    Greedy answers must match transformers' answers, if transformers runs the same model. Sampled
    answers must match plain decoding with the same seed.
    """
    wanted = ["none"]
    if config.sampling.greedy:
        is_shared = models.transformers_target is models.target
        wanted = [PLAIN, *wanted] if is_shared else [*wanted, PLAIN]
    return next((name for name in wanted if name in names), None)


def _keeps_seed(method: Method) -> bool:
    return isinstance(method, Paceline) and not method.draws


def _divergence(
    model: LoadedModel,
    method: str,
    prompt: str,
    prompt_ids: list[int],
    reference: list[int],
    got: list[int],
) -> Divergence:
    shorter = min(len(reference), len(got))
    position = next((i for i in range(shorter) if reference[i] != got[i]), shorter)
    logits = next_logits(model, prompt_ids + reference[:position]).float()
    top = logits.topk(2).values.tolist()
    expected, chosen = (
        tokens[position] if position < len(tokens) else None for tokens in (reference, got)
    )
    choice = (
        None
        if expected is None or chosen is None
        else abs(float(logits[expected] - logits[chosen]))
    )
    return Divergence(method, prompt, position, expected, chosen, top[0], top[0] - top[1], choice)
