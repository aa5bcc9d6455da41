"""Test Ouroboros: answers, its phrase pool, and forward passes against the public code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from paceline import LLM, Completion, DraftTree, Outcome, SamplingParams
from paceline.core.request import Request
from paceline.core.tree import node_depths
from paceline.drafters.contract import leftovers
from paceline.drafters.ouroboros.drafter import Ouroboros, OuroborosOptions
from paceline.drafters.ouroboros.learning import inspirations, refine
from paceline.drafters.ouroboros.proposal import Proposal
from paceline.drafters.shared.ngram_pool import NgramPool
from paceline.errors import ConfigError
from paceline.model.cached_lm import CachedLM
from tests.drafters.test_contract import Watched
from tests.support.shared import COUNT, RAGGED, Pair, check_aborts

GOLDEN = json.loads((Path(__file__).parents[1] / "data" / "ouroboros_golden.json").read_text())[
    "runs"
]
# answers of the same target
ANSWERS = json.loads((Path(__file__).parents[1] / "data" / "lookahead_golden.json").read_text())[
    "answers"
]
SETTINGS: list[dict[str, Any]] = [
    {},
    {"shared_pool": True, "gamma": 12},
    {"gamma": 3, "window": 1, "ngram": 2, "suffixes": 0, "max_branches": 0},
    {"gamma": 4, "window": 7, "ngram": 5, "max_branches": 0, "inspiration": "paper"},
    {"gamma": 5, "ngram": 4, "inspiration": "code", "refinement": False},
    {"gamma": 1, "window": 2, "ngram": 3, "inspiration": "off", "refinement": False},
]


def engine(pair: Pair, max_batch: int = 8, **options: Any) -> LLM:
    return LLM(
        pair.target,
        drafter=Ouroboros(OuroborosOptions(**{"budget": False, **options}), CachedLM(pair.draft)),
        max_batch=max_batch,
    )


def answers(llm: LLM, pair: Pair, **params: Any) -> list[Completion]:
    return llm.generate(pair.prompts, SamplingParams(**{"max_new_tokens": COUNT, **params}))


@pytest.mark.parametrize("options", SETTINGS, ids=str)
@pytest.mark.parametrize("batch", [pytest.param(1, marks=pytest.mark.slow), 3])
def test_greedy_answers_equal_plain_decoding(
    pair: Pair, options: dict[str, Any], batch: int
) -> None:
    llm = engine(pair, batch, **options)
    outs = answers(llm, pair)
    assert [out.token_ids for out in outs] == pair.answers
    assert sum(out.stats.target_forwards for out in outs) < 0.75 * COUNT * len(outs)
    assert all(out.stats.draft_forwards > 0 for out in outs)
    if options.get("shared_pool"):
        assert [out.token_ids for out in answers(llm, pair)] == pair.answers


@pytest.mark.parametrize("batch", [1, 3])
def test_end_tokens_inside_runs_and_short_limits(pair: Pair, batch: int) -> None:
    """Check end-of-sequence ids inside accepted runs and short answers, in one batch."""
    llm, plain = engine(pair, batch), pair.engine()
    ids = [answer[place] for answer, place in zip(pair.answers, range(3, 40, 3), strict=False)]
    for one in (llm, plain):
        one.eos_token_ids = ids
    params = [SamplingParams(max_new_tokens=1 + 3 * place) for place in range(len(pair.prompts))]
    outs, expected = llm.generate(pair.prompts, params), plain.generate(pair.prompts, params)
    assert [out.token_ids for out in outs] == [out.token_ids for out in expected]
    assert [out.finish_reason for out in outs] == [out.finish_reason for out in expected]
    assert {out.finish_reason for out in outs} == {"stop", "length"}


@pytest.mark.parametrize("options", [{}, {"shared_pool": True, "max_branches": 0}], ids=str)
@pytest.mark.parametrize("temperature", [pytest.param(0.3, marks=pytest.mark.slow), 1.0])
def test_seeded_text_equals_plain_decoding(
    pair: Pair, options: dict[str, Any], temperature: float
) -> None:
    settings = {"temperature": temperature, "top_p": 0.95, "repetition_penalty": 1.1, "seed": 5}
    outs = answers(engine(pair, 3, **options), pair, **settings)
    assert [out.token_ids for out in outs] == [
        out.token_ids for out in answers(pair.engine(), pair, **settings)
    ]
    assert sum(out.stats.accepted_tokens for out in outs) > 0


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_contract(pair: Pair, options: dict[str, Any], temperature: float) -> None:
    drafter = Watched(Ouroboros(OuroborosOptions(**options), CachedLM(pair.draft)), 256)
    before = Request([1], SamplingParams()).id
    outs = LLM(pair.target, drafter=drafter, max_batch=5).generate(
        pair.prompts, SamplingParams(max_new_tokens=COUNT, temperature=temperature)
    )
    if temperature == 0.0:
        assert [out.token_ids for out in outs] == pair.answers
    assert drafter.empty_on_zero > 10
    assert drafter.nodes > 0
    assert leftovers(drafter, range(before, before + 40)) == []


@pytest.mark.parametrize("options", SETTINGS, ids=str)
def test_an_abort_leaves_no_state(pair: Pair, options: dict[str, Any]) -> None:
    check_aborts(pair, Ouroboros(OuroborosOptions(**options), CachedLM(pair.draft)), RAGGED)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if "_g12_" in name else ()) for name in GOLDEN],
)
def test_fewer_forwards_than_the_public_code(pair: Pair, name: str) -> None:
    gamma, window, ngram, suffixes = (int(part.lstrip("gWNK")) for part in name.split("_")[1:5])
    llm = engine(
        pair,
        1,
        gamma=gamma,
        window=window,
        ngram=ngram,
        suffixes=suffixes,
        shared_pool=name.endswith("_warm"),
    )
    outs = answers(llm, pair, max_new_tokens=96, ignore_eos=True)
    assert [out.token_ids for out in outs] == ANSWERS
    assert sum(out.stats.target_forwards for out in outs) <= GOLDEN[name]["target_forwards"]
    assert sum(out.stats.draft_forwards for out in outs) <= GOLDEN[name]["draft_forwards"]


def test_prompt_beyond_the_draft_context_gets_no_drafts(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    draft = CachedLM(pair.draft)
    longest = max(map(len, pair.prompts))
    monkeypatch.setattr(
        CachedLM, "context_length", property(lambda model: longest + 6 if model is draft else 512)
    )
    llm = LLM(pair.target, drafter=Ouroboros(OuroborosOptions(), draft))
    outs = answers(llm, pair)
    assert [out.token_ids for out in outs] == pair.answers
    (out,) = llm.generate([pair.prompts[0] * 10], SamplingParams(max_new_tokens=5))
    assert out.stats.drafted_tokens == 0


def outcome_of(
    tree: DraftTree, argmax: list[int], new: list[int], text: Sequence[int] = (1, 2)
) -> Outcome:
    request = Request(list(text), SamplingParams())
    request.append(new)
    return Outcome(request, tree, list(range(len(new) - 1)), new, argmax)


def test_inspiration_rules() -> None:
    """Check what each rule learns from the draft 3 4 5 6 7 8 after the text 1 2.

    The target predicts 3, then 9 instead of 4, and agrees with the rest except 8.
    """
    outcome = outcome_of(DraftTree.chain([3, 4, 5, 6, 7, 8]), [3, 9, 5, 6, 7, 0, 2], [3, 9])
    code = [((3, 4), (5, 6)), ((4, 5), (6, 7)), ((5, 6), (7, 0))]
    assert list(inspirations(outcome, range(6), "code", 3)) == code
    assert list(inspirations(outcome, range(6), "paper", 3)) == code[1:]
    assert list(inspirations(outcome, range(6), "every", 3)) == [((1, 2), (3, 9)), *code]
    assert list(inspirations(outcome, range(6), "off", 3)) == []
    right = outcome_of(DraftTree.chain([3, 4, 5]), [3, 4, 5, 6], [3, 4, 5, 6])
    assert (
        list(inspirations(right, range(3), "code", 3))
        == list(inspirations(right, range(3), "paper", 3))
        == []
    )
    # Now a second branch: 3 below the root, or 4 followed by 5, which the target continues with 6.
    branch = outcome_of(DraftTree([3, 4, 5], [-1, -1, 1]), [0, 0, 5, 6], [0])
    assert list(inspirations(branch, range(1), "every", 3)) == [((2, 4), (5, 6))]
    assert list(inspirations(branch, range(1), "code", 3)) == []


def test_refinement_replaces_phrases_by_value() -> None:
    """Check two verified phrases after the draft 3, 4 5 and 6 7.

    The target predicts 4 5 for both.
    """
    tree = DraftTree([3, 4, 5, 6, 7], [-1, 0, 1, 0, 3])
    proposal = Proposal(tree, [0], [((4, 5), [1, 2]), ((6, 7), [3, 4])])
    pool = NgramPool(4)
    for phrase in ((8, 8), (6, 7), (4, 5)):
        pool.add((2, 3), phrase)
    refine(pool, outcome_of(tree, [3, 4, 5, 0, 5, 0], [3, 4, 5, 0]), proposal, 3)
    assert list(pool.newest_first((2, 3))) == list(pool.newest_first((3,))) == [(4, 5), (8, 8)]
    refine(pool, outcome_of(tree, [3, 4, 9, 0, 1, 0], [3, 4, 9]), proposal, 3)
    assert list(pool.newest_first((3,))) == [
        (4, 9),
        (8, 8),
    ]  # in its slot; the other phrase is gone


def test_full_pool_drops_the_least_recently_used_key() -> None:
    pool = NgramPool(2, keys=2)
    for key in (1, 2, 1, 3):
        pool.insert((key,), (key, key))
    assert [list(pool.newest_first((key,))) for key in (1, 2, 3)] == [[(1, 1)], [], [(3, 3)]]


def test_tree_without_branches_is_the_papers(pair: Pair) -> None:
    """Check for a chain of at least gamma tokens and up to K phrases below its end."""
    trees: list[DraftTree] = []

    class RecordingOuroboros(Ouroboros):
        def observe(self, outcomes: Sequence[Outcome]) -> None:
            trees.extend(outcome.tree for outcome in outcomes)
            super().observe(outcomes)

    options = OuroborosOptions(gamma=4, ngram=5, suffixes=2, max_branches=0, budget=False)
    answers(
        LLM(pair.target, drafter=RecordingOuroboros(options, CachedLM(pair.draft)), max_batch=1),
        pair,
    )
    forks = [
        {parent for parent in tree.parents if tree.parents.count(parent) > 1} for tree in trees
    ]
    assert any(forks)
    for tree, fork in zip(trees, forks, strict=True):
        assert all(node >= 3 for node in fork)
        assert max(map(tree.parents.count, fork), default=0) <= 2
    assert max(int(node_depths(tree.parents).max()) for tree in trees if len(tree)) > 8


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"gamma": 0}, "ouroboros: gamma: got 0; expected at least 1."),
        ({"window": 0}, "ouroboros: window: got 0; expected at least 1."),
        ({"ngram": 1}, "ouroboros: ngram: got 1; expected at least 2."),
        ({"suffixes": -1}, "ouroboros: suffixes: got -1; expected at least 0."),
        ({"max_branches": -1}, "ouroboros: max_branches: got -1; expected at least 0."),
        (
            {"inspiration": "papr"},
            "ouroboros: got inspiration='papr'; expected a known value. Did you mean 'paper'?",
        ),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        OuroborosOptions(**options)
    assert str(caught.value).startswith(says)
