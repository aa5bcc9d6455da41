"""Test `last_logits`, which adds the target's other top tokens as children of the root."""

from __future__ import annotations

import numpy as np
import pytest

from paceline import SamplingParams
from paceline.core.drafter import Outcome, TopTokens
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.drafters import create
from paceline.drafters.contract import check_drafter
from paceline.drafters.sssd.drafter import Sssd
from paceline.drafters.sssd.settings import TOP_TOKEN_CONFIDENCE
from paceline.errors import ConfigError
from paceline.replay import replay

COUNT = 1 + len(TOP_TOKEN_CONFIDENCE)
SPEC = "sssd:last_logits=true"


def drafted(text: list[int], top_tokens: list[int], spec: str = SPEC) -> DraftTree:
    """Draft after a step that appended the last token and reported these top tokens."""
    drafter = create(spec)
    assert isinstance(drafter, Sssd)
    request = Request(text[:-1], SamplingParams(max_new_tokens=10))
    drafter.start(request)
    drafter.propose([request], [0])
    request.append([text[-1]])
    ids = np.array([top_tokens])
    top = TopTokens(ids, np.full(ids.shape, 0.1, np.float32))
    drafter.observe([Outcome(request, EMPTY_TREE, [], [text[-1]], [text[-1]], top)])
    (tree,) = drafter.propose([request], [24])
    drafter.stop(request)
    return tree


def test_top_tokens_follow_the_root_in_order() -> None:
    tree = drafted([1, 2, 3], [3, 10, 11, 12, 13, 14, 15, 16])
    assert tree.token_ids[:7] == [10, 11, 12, 13, 14, 15, 16]
    assert tree.parents[:7] == [-1] * 7
    assert tree.confidence is not None
    assert tree.confidence[:2] == pytest.approx(TOP_TOKEN_CONFIDENCE[:2])
    assert tree.origins is not None
    assert set(tree.origins) == {Origin.RECYCLED}


def test_continuations_of_top_tokens_are_looked_up() -> None:
    """Check that 20, a runner-up of the last logits, continues with 21 as in the prompt."""
    tree = drafted([20, 21, 22, 5, 6], [6, 20, 30, 31, 32, 33, 34, 35])
    child = tree.token_ids.index(20)
    followers = [
        token for token, parent in zip(tree.token_ids, tree.parents, strict=True) if parent == child
    ]
    assert 21 in followers


def test_a_retrieved_child_keeps_its_confidence() -> None:
    text = [5, 6, 7, 8, 5, 6, 7]
    tree, plain = (drafted(text, [7, 8, 9, 10, 11, 12, 13, 14], spec) for spec in (SPEC, "sssd"))
    children = [t for t, parent in zip(tree.token_ids, tree.parents, strict=True) if parent < 0]
    assert children == [8, 9, 10]
    assert tree.confidence is not None
    assert plain.confidence is not None
    assert tree.confidence[0] == plain.confidence[0]
    assert 9 not in plain.token_ids


def test_replay_accepts_top_tokens() -> None:
    """Check an answer without repeats whose next token is always the second top token."""
    answer = list(range(10, 20))
    tops = np.array([[*range(token, token + 2), *range(40, 40 + COUNT - 2)] for token in answer])
    top = TopTokens(tops, np.full(tops.shape, 0.1, np.float32))
    without = replay(create("sssd"), [([1, 2], answer)])
    result = replay(create(SPEC), [([1, 2], answer)], top_tokens=[top])
    assert (without.accepted, without.steps) == (0, 10)
    assert result.steps < 7
    with pytest.raises(ConfigError, match="top tokens"):
        replay(create(SPEC), [([1, 2], answer)])


def test_contract() -> None:
    report = check_drafter(create(SPEC))
    assert report.drafted > report.accepted > 0


def test_paper_fusion_refuses_last_logits() -> None:
    with pytest.raises(ConfigError, match="last_logits"):
        create("sssd:last_logits=true,fusion=paper")
