"""Test SpecDec++: draft lengths, the head's input and confidences, and the threshold."""

from __future__ import annotations

import copy
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline import LLM, DraftTree, SamplingParams
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE
from paceline.drafters import create
from paceline.drafters.specdec_pp.drafter import CostClock, SpecDecPP, SpecDecPPOptions
from paceline.drafters.specdec_pp.head import AcceptanceHead
from paceline.errors import ConfigError, UnsupportedModelError
from paceline.model.cached_lm import CachedLM
from tests.support.drafters import NotingDrafter, draft_room
from tests.support.models import make
from tests.support.shared import COUNT, Pair, random_head, with_head


class ConstantHead:
    """Fake head with a constant confidence, also in early tokens if `first`.

    Its thresholds are taken from `best`, one after the other.
    """

    def __init__(
        self,
        chance: float,
        curve: Sequence[object] = (),
        best: Sequence[float] = (),
        first: bool = False,
    ) -> None:
        self.card = SimpleNamespace(curve=curve, prior=(1.0,) if first else ())
        self.times: list[tuple[float, float]] = []
        self._chance, self._best = chance, list(best)

    def confidences(self, hidden: Tensor, log_probs: Tensor, entropies: Tensor) -> Tensor:
        assert hidden.shape[0] == log_probs.shape[0] == entropies.shape[0]
        return torch.full((hidden.shape[0],), self._chance)

    def early_confidences(self, log_probs: Tensor, entropies: Tensor) -> Tensor:
        return torch.full_like(log_probs, self._chance)

    def threshold(self, target_seconds: float, draft_seconds: float) -> float:
        self.times.append((target_seconds, draft_seconds))
        return self._best[len(self.times) - 1]


def recording_drafter(pair: Pair, head: Any, **options: Any) -> NotingDrafter:
    return NotingDrafter(
        SpecDecPP(SpecDecPPOptions(**{"budget": False, **options}), CachedLM(pair.draft), head)
    )


@pytest.mark.parametrize(
    ("chance", "options", "length"),
    [
        (0.9, {}, 13),  # as measured in the public code: 0.9 ** 12 < 0.3 <= 0.9 ** 11
        (0.9, {"threshold": 0.7}, 13),
        (0.9, {"threshold": 0.5}, 8),
        (0.9, {"max_draft_tokens": 10}, 10),
        (0.1, {}, 2),
        (0.1, {"min_draft_tokens": 1}, 2),  # confidences count from the second token
        (0.1, {"min_draft_tokens": 5}, 5),
        (1.0, {}, 20),
        (0.5, {"threshold": 0.5}, 3),  # must exceed the threshold
        (0.9, {"use_prompt_lookup": True}, 13),
        (0.9, {"verification": "follow"}, 13),
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_draft_lengths_of_a_constant_head(
    pair: Pair, chance: float, options: dict[str, Any], length: int, temperature: float
) -> None:
    drafter = recording_drafter(pair, ConstantHead(chance), **options)
    LLM(pair.target, drafter=drafter, max_batch=3).generate(
        pair.prompts[:5], SamplingParams(COUNT, temperature, ignore_eos=True)
    )
    for request, tokens, tree in drafter.notes:
        assert len(tree) == min(length, draft_room(request, tokens))
        assert (tree.probs is None) == (
            temperature == 0.0 or "verification" in options or not len(tree)
        )
        if len(tree):
            assert tree.confidence is not None
            assert tree.confidence[:-1] == pytest.approx([chance] * (len(tree) - 1))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_an_end_of_sequence_token_ends_the_draft(pair: Pair, temperature: float) -> None:
    """Check that the end token is drafted and verified, and nothing after it."""
    ends = [pair.answers[1][6], *range(0, 256, 9)]
    drafter = recording_drafter(pair, ConstantHead(1.0))
    llm = LLM(pair.target, drafter=drafter, max_batch=3)
    llm.eos_token_ids = ends
    llm.generate(pair.prompts, SamplingParams(COUNT, temperature))
    ended = 0
    for request, tokens, tree in drafter.notes:
        assert not set(tree.token_ids[:-1]) & set(ends)
        ended += len(tree) > 0 and tree.token_ids[-1] in ends
        assert (
            not len(tree)
            or tree.token_ids[-1] in ends
            or len(tree) == min(20, draft_room(request, tokens))
        )
    assert ended > 3


@pytest.mark.parametrize(("newest", "length"), [(True, 12), (False, 13)])
def test_undecided_newest_token_counts(pair: Pair, newest: bool, length: int) -> None:
    """Check that drafts are one token shorter: the last of 13 factors is the newest token's."""
    drafter = recording_drafter(pair, ConstantHead(0.9, first=True), count_undecided=newest)
    LLM(pair.target, drafter=drafter, max_batch=3).generate(
        pair.prompts, SamplingParams(COUNT, ignore_eos=True)
    )
    full = [
        len(tree)
        for request, tokens, tree in drafter.notes
        if draft_room(request, tokens) >= length and len(tree)
    ]
    assert full
    assert set(full) == {length}


@pytest.mark.parametrize(
    "options", [{}, {"verification": "follow"}, {"second_choices": False}, {"budget": False}]
)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_second_choices_are_drafted_with_a_budget(
    pair: Pair, temperature: float, options: dict[str, Any]
) -> None:
    drafter = recording_drafter(
        pair, ConstantHead(0.8), **{"budget": True, "max_draft_tokens": 8, **options}
    )
    guesses = temperature == 0.0 or "verification" in options
    llm = LLM(pair.target, drafter=drafter, max_batch=3)
    outs = llm.generate(pair.prompts[:6], SamplingParams(COUNT, temperature, seed=3))
    if temperature == 0.0:
        assert [out.token_ids for out in outs] == pair.answers[:6]
    found = 0
    for request, tokens, tree in drafter.notes:
        first = next((at for at in range(1, len(tree)) if tree.parents[at] != at - 1), len(tree))
        assert len(tree) <= min(8, draft_room(request, tokens))
        found += len(tree) - first
        for at in range(first, len(tree)):
            first_choice = tree.parents[at] + 1  # the token of the chain it is an alternative to
            assert tree.token_ids[at] != tree.token_ids[first_choice]
            assert tree.confidence is not None
            assert tree.confidence[at] <= 1 - tree.confidence[first_choice] + 1e-6
    assert (found > 10) is (
        guesses and options.get("second_choices", True) and options.get("budget", True)
    )


@torch.no_grad()
def expected_confidences(
    pair: Pair,
    head: AcceptanceHead,
    tokens: list[int],
    tree: DraftTree,
    temperature: float,
    top_k: int,
) -> list[float]:
    """Return the head's confidences from one plain forward pass of the draft model."""
    made = pair.draft(torch.tensor([tokens + tree.token_ids]), output_hidden_states=True)
    scores = made.logits[0, len(tokens) - 1 : -1]
    if temperature:
        scores = scores / temperature
        scores = scores.masked_fill(scores < scores.topk(top_k).values[:, -1:], -torch.inf)
    probs = scores.softmax(-1)
    own = probs[range(len(tree)), tree.token_ids].log()
    hidden = made.hidden_states[-1][0, len(tokens) :]
    confidences = head.confidences(hidden, own, torch.special.entr(probs).sum(-1)).tolist()
    return [*confidences[:-1], float(own[-1].exp())]


@pytest.mark.parametrize("lookup", [True, False])
@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_head_reads_each_tokens_own_hidden_state(
    pair: Pair, temperature: float, lookup: bool
) -> None:
    """Check ragged batches, rejections and looked-up text, and where the drafts stop."""
    head = AcceptanceHead.load(random_head(pair.draft), pair.draft)
    drafter = recording_drafter(
        pair, head, threshold=0.9, min_draft_tokens=1, max_draft_tokens=7, use_prompt_lookup=lookup
    )
    params = SamplingParams(COUNT, temperature, top_k=30)
    LLM(pair.target, drafter=drafter, max_batch=4).generate(pair.prompts, params)
    lengths = set()
    for request, tokens, tree in drafter.notes[::3]:
        if tree.confidence is not None:
            assert tree.confidence == pytest.approx(
                expected_confidences(pair, head, tokens, tree, temperature, 30), rel=1e-3, abs=1e-5
            )
            product = torch.tensor(tree.confidence[:-1], dtype=torch.float64).cumprod(0)
            assert (1 - product[:-1] <= 0.9).all()
            assert len(tree) == min(7, draft_room(request, tokens)) or 1 - product[-1] > 0.9
            lengths.add(len(tree))
    assert len(lengths) > 3


@pytest.mark.parametrize(
    "name", ["llama", "gpt2", "opt", "gemma3", "qwen2_mixed", "bloom", "falcon_alibi"]
)
def test_hidden_states_are_the_lm_heads_input(name: str) -> None:
    """Check ragged batches, and that no hook stays on the model."""
    model = make(name)
    lm, other = CachedLM(model), CachedLM(model)
    requests = [Request(list(range(3, 3 + length)), SamplingParams()) for length in (4, 9, 6)]
    for request in requests:
        lm.open(request)
    trees = [DraftTree.chain([5, 6, 7]), EMPTY_TREE, DraftTree.chain([9])]
    logits, hidden = lm.forward_with_hidden(requests, trees)
    assert hidden.shape == (3, 4, model.config.hidden_size)
    with torch.inference_mode():
        again = model.get_output_embeddings()(hidden)
    for row, tree in enumerate(trees):
        torch.testing.assert_close(again[row, : 1 + len(tree)], logits[row, : 1 + len(tree)])
    assert not model.get_output_embeddings()._forward_pre_hooks
    other.open(requests[0])
    other.forward(requests[:1], trees[:1])


def test_a_model_without_an_lm_head_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make("llama")
    monkeypatch.setattr(model, "get_output_embeddings", lambda: None)
    lm, request = CachedLM(model), Request([3, 4], SamplingParams())
    lm.open(request)
    with pytest.raises(UnsupportedModelError, match="without an LM head"):
        lm.forward_with_hidden([request], [EMPTY_TREE])


def test_cost_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check medians after 8 steps and every 32, without outliers and steps without a draft."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    clock = CostClock()
    medians = {}
    for step in range(1, 80):
        clock.drafted(0.0, 0)
        assert clock.verified() is None
        clock.drafted(4 * (0.9 if step == 3 else 0.1 if step < 20 else 0.2), 4)
        now[0] += 7.0 if step == 5 else 0.5
        times = clock.verified()
        if times:
            medians[step] = times
    assert list(medians) == [8, 40, 72]
    assert medians[8] == pytest.approx((0.5, 0.1))
    assert medians[72] == pytest.approx((0.5, 0.2))


def test_auto_threshold_follows_measured_times(pair: Pair) -> None:
    """Check that the threshold starts at the paper's time ratio, then uses measured times."""
    head = ConstantHead(0.8, curve=["a point"], best=[0.5, 0.1, 0.95, 0.95, 0.95])
    drafter = recording_drafter(pair, head)
    inner = drafter.inner
    assert isinstance(inner, SpecDecPP)
    assert (head.times, inner.threshold) == ([(5.0, 1.0)], 0.5)
    outs = LLM(pair.target, drafter=drafter, max_batch=2).generate(
        pair.prompts, SamplingParams(COUNT)
    )
    assert [out.token_ids for out in outs] == pair.answers
    assert len(head.times) > 2
    assert all(0 < seconds < 60 for times in head.times[1:] for seconds in times)
    assert inner.threshold == 0.95
    lengths = [
        len(tree) for request, tokens, tree in drafter.notes if draft_room(request, tokens) > 16
    ]
    assert (lengths[0], min(lengths), max(lengths)) == (5, 2, 15)
    fixed: Any = recording_drafter(pair, ConstantHead(0.8, curve=["a point"]), threshold=0.4).inner
    default: Any = recording_drafter(pair, ConstantHead(0.8)).inner
    assert (fixed.threshold, default.threshold) == (0.4, 0.7)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("threshold=1.5", "got threshold=1.5; expected a number above 0 and below 1, or 'auto'"),
        ("threshold=0", "got threshold=0.0; expected"),
        ("threshold=1", "got threshold=1.0; expected"),
        (
            "threshold=atuo",
            "got threshold='atuo'; expected a number between 0 and 1. Did you mean 'auto'",
        ),
        ("threshold=auto", "no threshold costs are stored with the head"),
        ("min_draft_tokens=0", "min_draft_tokens: got 0; expected at least 1"),
        ("min_draft_tokens=5,max_draft_tokens=4", "max_draft_tokens: got 4; expected at least 5"),
        (
            "verification=folow",
            "specdec_pp: got verification='folow'; expected a known value. Did you mean 'follow'",
        ),
        ("head=no/such/folder", "'no/such/folder'"),
    ],
)
def test_invalid_options_are_refused(pair: Pair, options: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        create(with_head(f"specdec_pp:{options}", pair.draft), draft_model=pair.draft)


def test_draft_model_without_a_head_is_refused(pair: Pair, tmp_path: Path) -> None:
    """Check that the shipped head and another model's head are refused."""
    with pytest.raises(
        ConfigError,
        match=r"no head was given.*Train a head for this draft model.*pass head=DIRECTORY",
    ):
        create("specdec_pp", draft_model=pair.draft)
    other = copy.deepcopy(pair.draft)
    with torch.no_grad():
        embedding = other.get_input_embeddings().weight
        embedding.copy_(embedding.roll(7, 0))
    with pytest.raises(ConfigError, match=r"expected .*trained for the draft model 'a tiny model'"):
        create(f"specdec_pp:head={random_head(pair.draft)}", draft_model=other)
