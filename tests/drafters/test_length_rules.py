"""Test each rule for the draft length, by hand and in batches.

Rules must also keep the exact output distribution.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline import LLM, DraftTree, SamplingParams
from paceline.core.request import Request
from paceline.drafters import create
from paceline.drafters.shared.chain import Chain
from paceline.drafters.shared.drawn_tokens import DrawnRows, NewTokens
from paceline.drafters.shared.length_rules import (
    ConfidenceRule,
    EntropyRule,
    HeuristicRule,
    LengthRule,
    ProductRule,
    ThresholdRule,
)
from paceline.drafters.specdec_pp.head_rule import HeadRule
from paceline.errors import ConfigError
from tests.support.drafters import NotingDrafter, draft_room
from tests.support.enumeration import PLAIN, GrowingTree, Oracle, emitted
from tests.support.shared import COUNT, Pair


@pytest.fixture(scope="module")
def sharpened_pair(pair: Pair) -> Pair:
    """Return the pair with logits eight times as large, which leaves greedy answers the same."""
    models = [copy.deepcopy(model) for model in (pair.target, pair.draft)]
    for model in models:
        model.lm_head.weight.data *= 8
    return Pair(models[0], models[1], pair.prompts, pair.answers)


def proposals_of(
    pair: Pair, spec: str, params: SamplingParams, batch: int = 4, eos: Sequence[int] = ()
) -> NotingDrafter:
    """Return what the drafter `spec` proposes for some prompts."""
    watch = NotingDrafter(pair.engine(spec).drafter)
    llm = LLM(pair.target, drafter=watch, max_batch=batch)
    llm.eos_token_ids = list(eos)
    llm.generate(pair.prompts[:6], params)
    return watch


def test_constant_length(pair: Pair) -> None:
    """Check for exactly K tokens, even past an end-of-sequence token."""
    for temperature in (0.0, 1.0):
        watch = proposals_of(
            pair,
            "draft_model:max_draft_tokens=4",
            SamplingParams(COUNT, temperature),
            eos=[pair.answers[1][6]],
        )
        assert watch.notes
        for request, tokens, tree in watch.notes:
            assert len(tree) == min(4, draft_room(request, tokens))


@pytest.mark.parametrize(
    ("start", "accepted", "lengths"),
    [
        (5, [5, 7, 4, 0, 7, 9], [7, 9, 8, 7, 9, 11]),
        (2, [0, 0, 0, 1, 3, 1], [1, 1, 1, 3, 5, 4]),
    ],
)
def test_the_heuristic_by_hand(start: int, accepted: list[int], lengths: list[int]) -> None:
    rule, length, seen = HeuristicRule(start), start, []
    for count in accepted:
        length = rule.next_length(length, length, count)
        seen.append(length)
    assert seen == lengths


@pytest.mark.parametrize(
    "spec",
    ["draft_model:stop_rule=heuristic", "draft_model:stop_rule=heuristic,max_draft_tokens=1"],
)
def test_the_heuristic_in_use(pair: Pair, spec: str) -> None:
    """Check that each sequence starts afresh and that answer limits shorten drafts."""
    watch = proposals_of(pair, spec, SamplingParams(COUNT))
    lengths: dict[int, int] = {}
    for (request, tokens, tree), accepted in zip(watch.notes, watch.accepted, strict=True):
        length = lengths.setdefault(request.id, 1 if "max_draft_tokens=1" in spec else 5)
        assert len(tree) == min(length, draft_room(request, tokens))
        if len(tree):
            lengths[request.id] = length + 2 if accepted == len(tree) else max(1, length - 1)
    assert len(set(lengths.values())) > 1


def stop_positions(
    rule: LengthRule,
    chains: list[Chain],
    runs: list[list[int]],
    scores: Tensor,
    hidden: Tensor | None = None,
) -> list[int | None]:
    """Return where a rule stops chains with `runs` of equal length."""
    figures = rule.figures(DrawnRows(chains, scores, torch.tensor(runs), hidden))
    return rule.stop_after(
        NewTokens(chains, runs, [each.flatten(0, 1).numpy() for each in figures])
    )


CERTAIN, UNSURE, EVEN = [0.9, 0.1, 0.0, 0.0], [0.6, 0.3, 0.1, 0.0], [0.25] * 4


@pytest.mark.parametrize(
    ("rule", "table", "stop"),
    [
        (LengthRule(9), [EVEN] * 3, None),
        (HeuristicRule(9), [EVEN] * 3, None),
        (ProductRule(9, 0.5), [CERTAIN, CERTAIN, UNSURE, CERTAIN], 3),  # products 0.9, 0.81, 0.486
        (ProductRule(9, 0.4), [CERTAIN, CERTAIN, UNSURE], None),
        (ConfidenceRule(9, 0.4), [CERTAIN, UNSURE, EVEN, CERTAIN], 3),
        (ConfidenceRule(9, 0.65), [CERTAIN, UNSURE, EVEN], 2),
        (ConfidenceRule(9, 0.65, min_tokens=3), [CERTAIN, UNSURE, CERTAIN, UNSURE], 4),
        (EntropyRule(9, 0.5), [CERTAIN, UNSURE, EVEN], 3),  # products 0.745, 0.576, 0.473
        (EntropyRule(9, 0.6), [CERTAIN, UNSURE, EVEN], 2),
    ],
)
@pytest.mark.parametrize("at_once", [True, False])
def test_where_rules_stop(
    rule: LengthRule, table: list[list[float]], stop: int | None, at_once: bool
) -> None:
    """Check stops where token 0 is drawn each time, in one forward pass or in several.

    A second chain of the batch stops independently.
    """
    chains = [Chain(Request([1], SamplingParams()), 9, True, True) for _ in range(2)]
    stops: list[int | None] = []
    for step in [table] if at_once else [[row] for row in table]:
        rows = [*step, *([CERTAIN] * len(step))]
        scores = torch.tensor(rows).log().view(2, len(step), -1)
        found = stop_positions(rule, chains, [[0] * len(step)] * 2, scores)
        assert found[1] is None or (isinstance(rule, EntropyRule | ProductRule) and found[1] > 4)
        stops.append(found[0])
        chains[0].tokens += [0] * len(step)
        if found[0] is not None:
            break
    assert stops[:-1] == [None] * (len(stops) - 1)
    assert stops[-1] == (stop if at_once or stop is None else 1)
    assert stop is None or at_once or len(stops) == stop


@pytest.mark.parametrize("lookup", ["true", "false"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_confidence_rule_uses_draft_probabilities(
    sharpened_pair: Pair, temperature: float, lookup: str
) -> None:
    """Check that only a draft's last token is below the threshold, an end or the length limit."""
    spec = "draft_model:stop_rule=confidence,stop_threshold=0.3,max_draft_tokens=7"
    spec += f",use_prompt_lookup={lookup}"
    end = sharpened_pair.answers[1][6]
    watch = proposals_of(sharpened_pair, spec, SamplingParams(COUNT, temperature), eos=[end])
    lengths = set()
    for request, tokens, tree in watch.notes[::2]:
        path = torch.tensor([tokens + tree.token_ids])
        probs = sharpened_pair.draft(path).logits[0, len(tokens) - 1 : -1].detach().softmax(-1)
        own = [float(row[token]) for row, token in zip(probs, tree.token_ids, strict=True)]
        over = [
            chance < 0.3 or token == end for chance, token in zip(own, tree.token_ids, strict=True)
        ]
        assert not any(over[:-1])
        assert not over or over[-1] or len(tree) == min(7, draft_room(request, tokens))
        lengths.add(len(tree))
    assert len(lengths) > 3


@pytest.mark.parametrize("temperature", [pytest.param(0.0, marks=pytest.mark.slow), 1.0])
@pytest.mark.parametrize(
    "spec",
    [
        pytest.param("draft_model:stop_rule=confidence", marks=pytest.mark.slow),
        "draft_model:stop_rule=entropy",
        "draft_model:stop_rule=heuristic",
        "draft_model:max_draft_tokens=8,stop_threshold=0.3",
        pytest.param("specdec_pp", marks=pytest.mark.slow),
        "specdec_pp:use_prompt_lookup=true,min_draft_tokens=1",
    ],
)
def test_batched_drafts_equal_single_drafts(
    sharpened_pair: Pair, spec: str, temperature: float
) -> None:
    """Check that stopped sequences stay in the batch without changing its other drafts."""
    params = [SamplingParams(COUNT // 2, temperature, seed=row) for row in range(7)]
    alone, together = (
        sharpened_pair.engine(spec, max_batch=batch).generate(sharpened_pair.prompts[:7], params)
        for batch in (1, 5)
    )
    for one, other in zip(alone, together, strict=True):
        assert one.token_ids == other.token_ids
        assert one.stats.drafted_tokens == other.stats.drafted_tokens
        assert one.stats.accepted_tokens == other.stats.accepted_tokens
    assert (
        sum(
            one.stats.draft_forwards < other.stats.draft_forwards
            for one, other in zip(alone, together, strict=True)
        )
        > 2
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("stop_rule=confidance", "Did you mean 'confidence'"),
        (
            "stop_rule=heuristic,stop_threshold=0.2",
            "stop_threshold has no effect with stop_rule='heuristic'; it needs product or",
        ),
        (
            "stop_rule=entropy,branch_threshold=0.2",
            "branch_threshold has no effect with stop_rule='entropy'; it needs product",
        ),
        (
            "stop_rule=confidence,stop_threshold=1.5",
            "stop_threshold: got 1.5; expected from 0 to 1",
        ),
        ("stop_rule=heuristic,max_draft_tokens=0", "max_draft_tokens: got 0"),
    ],
)
def test_invalid_options_are_refused(pair: Pair, options: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        create(f"draft_model:{options}", draft_model=pair.draft)


# The exact output distribution of every sampling rule, over the four tokens of `enumeration`.


class TokenHead:
    """Fake acceptance head whose confidence depends on the token alone.

    Hidden states are one-hot here. Before it has one, it returns the token's probability.
    """

    card = SimpleNamespace(prior=(1.0,))

    def confidences(self, hidden: Tensor, log_probs: Tensor, entropies: Tensor) -> Tensor:
        return hidden @ torch.tensor([0.9, 0.3, 0.6, 0.8])

    def early_confidences(self, log_probs: Tensor, entropies: Tensor) -> Tensor:
        return log_probs.exp()


RULES: dict[str, Callable[[], ThresholdRule]] = {
    "product": lambda: ProductRule(3, 0.35),
    "confidence": lambda: ConfidenceRule(3, 0.3),
    "entropy": lambda: EntropyRule(3, 0.55, min_tokens=2),
    "head": lambda: HeadRule(TokenHead(), 0.5, 1, 3, counts_newest=False),  # type: ignore[arg-type]
    "head, newest token": lambda: HeadRule(TokenHead(), 0.65, 1, 3, counts_newest=True),  # type: ignore[arg-type]
}


def draft_by_rule(oracle: Oracle, rule: ThresholdRule, undraws: bool = False) -> DraftTree:
    """Draft until the rule stops; `undraws` drops an unlikely last token."""
    tree, node = GrowingTree(oracle), -1
    state = Chain(Request([1], SamplingParams()), 3, open=True, draws=True)
    while len(state.tokens) < 3:
        hidden = torch.zeros(1, 4)
        hidden[0, tree.tokens[node] if node >= 0 else 0] = 1.0
        node = tree.draw(node)
        probs: Any = torch.tensor([[float(chance) for chance in tree.probs[node]]])
        runs = [[tree.tokens[node]]]
        (stop,) = stop_positions(rule, [state], runs, probs[None].log(), hidden[None])
        state.tokens.append(tree.tokens[node])
        if stop is not None:
            break
    shown = len(state.tokens) - (undraws and float(tree.probs[node][tree.tokens[node]]) < 0.3)
    return DraftTree(tree.tokens[:shown], tree.parents[:shown], tree.probs[:shown])


@pytest.mark.parametrize("rule", RULES)
def test_rules_keep_the_output_distribution(rule: str) -> None:
    lengths = set()

    def propose(oracle: Oracle) -> DraftTree:
        tree = draft_by_rule(oracle, RULES[rule]())
        lengths.add(len(tree))
        return tree

    assert emitted(propose) == PLAIN
    assert len(lengths) > 1


@pytest.mark.parametrize("rule", RULES)
def test_dropping_the_last_draw_changes_the_distribution(rule: str) -> None:
    assert emitted(lambda oracle: draft_by_rule(oracle, RULES[rule](), undraws=True)) != PLAIN


def test_rules_work_on_a_reduced_vocabulary() -> None:
    kept = np.array([1, 4, 5, 9, 12])
    scores = torch.randn(3, len(kept), generator=torch.Generator().manual_seed(3))
    whole = torch.full((3, 14), torch.finfo(torch.float32).min / 4)
    whole[:, kept] = scores
    columns = scores.argmax(-1)
    said = torch.from_numpy(kept)[columns]
    some, every = DrawnRows([], scores, columns), DrawnRows([], whole, said)
    assert torch.allclose(some.token_probs(), every.token_probs())
    assert torch.allclose(some.entropies(), every.entropies(), atol=1e-6)
    runs = [said.tolist()[:2], said.tolist()[2:]]
    (tokens, probs), (all_tokens, all_probs) = (
        NewTokens([], runs, [], vocabulary).seconds(*map(Tensor.numpy, rows.two_likeliest()))
        for rows, vocabulary in ((some, kept), (every, None))
    )
    assert tokens == all_tokens
    assert probs == pytest.approx(all_probs)
    assert set(tokens) < set(kept.tolist())
