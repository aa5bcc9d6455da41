"""Test with thousands of seeds that sampled output has the target's exact distribution.

A model of six tokens makes the distribution of the first three tokens a table of at most 216
cells, computed with transformers' own logits processors. Pearson's chi-square test compares the
table with the counts. Seeds are fixed, so a test either always passes or never does. Drafters that
break the contract show that the test notices a wrong distribution.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from paceline import LLM, Drafter, DraftTree, SamplingParams
from paceline.core.request import Request
from paceline.drafters import available
from paceline.drafters.draft_model.drafter import DraftModel, DraftModelOptions
from paceline.model.cached_lm import CachedLM
from tests.support.models import make
from tests.support.shared import has_draft, is_fair_sample, with_head, with_store, without_budget
from tests.support.state_heads import random_eagle3
from tests.support.stores import random_documents

PROMPT = [1, 3, 4, 3, 5, 3]
EOS = 2
SAMPLES, BATCH = 4000, 500
ENOUGH = 2000  # enough to notice the wrong distributions below
PLAIN = SamplingParams(max_new_tokens=4, temperature=1.0)
TRUNCATED = SamplingParams(
    max_new_tokens=4, temperature=1.4, top_k=5, top_p=0.9, repetition_penalty=1.2
)
# The target accepts a fair share of these drafts, as `sample` requires. Drafters without an entry
# run with their defaults.
CHOSEN = [
    "draft_model",
    "draft_model:verification=follow",
    "draft_model:verification=traverse",
    "draft_model:stop_rule=confidence",
    "draft_model:stop_rule=heuristic,max_draft_tokens=2",
    "specdec_pp:min_draft_tokens=1",
    "jacobi:block=2",
    "lookahead:window=1,ngram=2,guesses=1",
    "lookahead:window=3,ngram=2,guesses=3",
    "lookahead:window=1,ngram=3,guesses=1",
    "ouroboros:gamma=2,window=1,ngram=3,suffixes=1,max_branches=0",
    "ouroboros:gamma=2,window=1,ngram=3,suffixes=1,max_branches=1",
    "rest:max_nodes=3",
    "pia:max_nodes=2",
    "sssd:max_nodes=3",
    "auto",
    "auto:use_draft_model=true,max_nodes=5",
]


def named(specs: Iterable[str]) -> set[str]:
    return {spec.partition(":")[0] for spec in specs}


def samples_drafts(spec: str) -> bool:
    """Return whether sampled drafts decide the output, so that a seed gives another text."""
    return spec.startswith(("draft_model", "specdec_pp")) and "verification=follow" not in spec


def slow(spec: str) -> Any:
    """Return the mark of specs whose drafter and verification other specs already cover."""
    second = ("draft_model:stop_rule", "lookahead:window=3", "lookahead:window=1,ngram=3")
    return pytest.mark.slow if spec.startswith(second) or spec.endswith("branches=0") else ()


SPECS = [*CHOSEN, *(name for name in available() if name not in named(CHOSEN))]


def processors(params: SamplingParams) -> Any:
    chosen: list[Any] = []
    if params.repetition_penalty != 1.0:
        chosen.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    chosen.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        chosen.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1.0:
        chosen.append(TopPLogitsWarper(params.top_p))
    return LogitsProcessorList(chosen)


@torch.inference_mode()
def exact_distribution(params: SamplingParams, length: int = 3) -> dict[tuple[int, ...], float]:
    """Return the probability of every prefix of `length` tokens, or fewer at an end token."""
    model, process = make("six_words"), processors(params)
    open_ends: dict[tuple[int, ...], float] = {(): 1.0}
    done: dict[tuple[int, ...], float] = {}
    for _ in range(length):
        ids = torch.tensor([[*PROMPT, *tokens] for tokens in open_ends])
        probs = (
            process(ids, model(input_ids=ids, use_cache=False).logits[:, -1]).softmax(-1).tolist()
        )
        longer = {
            (*head, token): open_ends[head] * row[token]
            for head, row in zip(open_ends, probs, strict=True)
            for token in range(6)
        }
        done |= {tokens: chance for tokens, chance in longer.items() if tokens[-1] == EOS}
        open_ends = {
            tokens: chance for tokens, chance in longer.items() if tokens[-1] != EOS and chance > 0
        }
    return done | open_ends


def answers(
    drafter: str | Drafter, params: SamplingParams, count: int = SAMPLES, batch: int = BATCH
) -> list[list[int]]:
    """Return the answers for all seeds below `count`, with `batch` requests at a time."""
    draft = make("six_words_draft") if isinstance(drafter, str) and has_draft(drafter) else None
    documents = tuple(map(tuple, random_documents(vocab_size=6)))
    if isinstance(drafter, str) and drafter.startswith("state_head"):
        drafter = f"{drafter}:head={random_eagle3(make('six_words'))}"
    chosen = (
        with_store(with_head(without_budget(drafter), draft), documents, 6)
        if isinstance(drafter, str)
        else drafter
    )
    llm = LLM(make("six_words"), drafter=chosen, draft_model=draft, max_batch=batch)
    outs = []
    for start in range(0, count, batch):
        seeds = range(start, start + batch)
        outs += llm.generate(
            [PROMPT] * batch, [dataclasses.replace(params, seed=seed) for seed in seeds]
        )
    if drafter != "none":
        accepted = sum(out.stats.accepted_tokens for out in outs) / sum(
            out.stats.drafted_tokens for out in outs
        )
        assert 0.1 < accepted < 0.9  # both acceptance and rejection must be frequent
    return [out.token_ids for out in outs]


def sample(
    drafter: str | Drafter, params: SamplingParams, count: int = SAMPLES
) -> Counter[tuple[int, ...]]:
    """Count the prefixes emitted over the seeds below `count`."""
    return beginnings(answers(drafter, params, count))


def beginnings(texts: list[list[int]]) -> Counter[tuple[int, ...]]:
    return Counter(tuple(text[:3]) for text in texts)


@pytest.mark.parametrize("params", [PLAIN, TRUNCATED], ids=["plain", "truncated"])
def test_distribution_has_enough_cells(params: SamplingParams) -> None:
    chances = exact_distribution(params)
    assert math.isclose(sum(chances.values()), 1.0, abs_tol=1e-5)
    assert len([chance for chance in chances.values() if chance * SAMPLES >= 5]) > 40


def test_every_drafter_is_sampled() -> None:
    assert named(SPECS) == set(available())
    assert named(filter(samples_drafts, SPECS)) == {"draft_model", "specdec_pp"}


@functools.cache
def plain_answers(params: SamplingParams, count: int) -> list[list[int]]:
    """Return the answers of plain decoding for all seeds below `count`."""
    return answers("none", params, count, min(count, BATCH))


def test_distribution_without_drafts() -> None:
    assert is_fair_sample(
        beginnings(plain_answers(TRUNCATED, SAMPLES)), exact_distribution(TRUNCATED)
    )


@pytest.mark.parametrize(
    "spec", [pytest.param(spec, marks=slow(spec)) for spec in SPECS if spec != "none"]
)
def test_distribution_of_every_drafter(spec: str) -> None:
    """Compare the distribution if drafts are sampled, otherwise the answers themselves.

    Equal answers are the stronger check, so they need fewer seeds.
    """
    if samples_drafts(spec):
        assert is_fair_sample(sample(spec, TRUNCATED), exact_distribution(TRUNCATED))
    else:
        few = SAMPLES // 8
        assert (
            answers(spec, TRUNCATED, few, few // 4) == plain_answers(TRUNCATED, SAMPLES)[:few]
        )  # in several batches, as some drafters learn from answers


@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("draft_model", marks=pytest.mark.slow),
        pytest.param("draft_model:max_draft_tokens=2", marks=pytest.mark.slow),
        "draft_model:branch_threshold=0.02",
    ],
)
def test_distribution_without_truncation(spec: str) -> None:
    assert is_fair_sample(sample(spec, PLAIN), exact_distribution(PLAIN))


def draft_lm() -> CachedLM:
    return CachedLM(make("six_words_draft"))


class Misreporting(DraftModel):
    """Draft model that reports flatter probabilities than it samples from."""

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        return [self._flatten(tree) for tree in super().propose(requests, max_nodes)]

    def _flatten(self, tree: DraftTree) -> DraftTree:
        def flat(probs: Tensor | None) -> Tensor | None:
            return None if probs is None else probs.sqrt() / probs.sqrt().sum()

        return dataclasses.replace(tree, probs=[flat(probs) for probs in tree.probs or []])


class DropsUnlikelyDraws(DraftModel):
    """Draft model that drops its first unlikely draw and all later ones.

    The decision depends on a draw that it then does not propose.
    """

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        return [self._cut(tree) for tree in super().propose(requests, max_nodes)]

    def _cut(self, tree: DraftTree) -> DraftTree:
        kept = 0
        for token, probs in zip(tree.token_ids, tree.probs or [], strict=True):
            if probs is None or probs[token] < 0.25:
                break
            kept += 1
        return DraftTree.chain(tree.token_ids[:kept], (tree.probs or [])[:kept] if kept else None)


class HidesProbs(DraftModel):
    """Draft model that proposes its draws without probabilities."""

    def propose(self, requests: Sequence[Request], max_nodes: list[int]) -> list[DraftTree]:
        return [DraftTree.chain(tree.token_ids) for tree in super().propose(requests, max_nodes)]


@pytest.mark.parametrize("broken", [Misreporting, DropsUnlikelyDraws])
def test_broken_drafters_are_noticed(broken: type[DraftModel]) -> None:
    drafter = broken(DraftModelOptions(max_draft_tokens=3), draft_lm())
    assert not is_fair_sample(sample(drafter, PLAIN, ENOUGH), exact_distribution(PLAIN))


def test_draws_without_probabilities_are_harmless() -> None:
    """Check that `follow` does not depend on where a draft comes from."""
    assert is_fair_sample(
        sample(HidesProbs(DraftModelOptions(max_draft_tokens=3), draft_lm()), PLAIN),
        exact_distribution(PLAIN),
    )


def test_wrong_temperature_is_noticed() -> None:
    """Check the test's power with a temperature of 1.2 instead of 1."""
    warmer = dataclasses.replace(PLAIN, temperature=1.2)
    assert not is_fair_sample(sample("none", warmer, ENOUGH), exact_distribution(PLAIN))
