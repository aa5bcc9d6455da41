"""Test prompt lookup by hand: its drafts, their order and their confidences."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import DraftTree, SamplingParams
from paceline.core.origin import Origin
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE
from paceline.drafters import create
from paceline.drafters.shared.frequencies import Frequencies

# 1, 2 was followed by 4 and, earlier, by 3; the most frequent tokens are 7, 1 and 2
TEXT = [
    7,
    1,
    2,
    3,
    7,
    7,
    1,
    2,
    4,
    9,
    1,
    2,
]


def proposed(
    spec: str, text: list[int], nodes: int = 64, prompt: int = 4, more: int = 50
) -> DraftTree:
    drafter, request = (
        create(spec),
        Request(text[:prompt], SamplingParams(max_new_tokens=len(text) - prompt + more)),
    )
    drafter.start(request)
    request.append(text[prompt:])
    (tree,) = drafter.propose([request], [nodes])
    drafter.stop(request)
    return tree


def test_chain_continues_the_latest_match() -> None:
    tree = proposed("prompt_lookup:max_matches=1,max_frequent_tokens=0,max_draft_tokens=3", TEXT)
    assert (tree.token_ids, tree.parents) == ([4, 9, 1], [-1, 0, 1])


def test_earlier_matches_are_branches() -> None:
    tree = proposed("prompt_lookup:max_frequent_tokens=0,max_draft_tokens=2", TEXT)
    assert (tree.token_ids, tree.parents) == ([4, 9, 3, 7], [-1, 0, -1, 2])
    first, _, second, _ = tree.confidence or []
    assert first > second


def test_frequent_tokens_come_last_in_order() -> None:
    tree = proposed("prompt_lookup:max_draft_tokens=1", TEXT)
    assert tree.token_ids == [4, 3, 7, 1, 2, 9]  # 4 and 3 are already drafted
    assert tree.parents == [-1] * 6
    chances = (tree.confidence or [])[2:]
    assert chances == sorted(chances, reverse=True)
    assert 0 < chances[0] < 0.1
    assert tree.origins == [
        Origin.OUTPUT,
        Origin.PROMPT,
        Origin.PROMPT,
        Origin.PROMPT,
        Origin.PROMPT,
        Origin.OUTPUT,
    ]
    assert proposed("prompt_lookup:max_draft_tokens=1,max_frequent_tokens=3", TEXT).token_ids == [
        4,
        3,
        7,
        1,
        2,
    ]
    assert proposed("prompt_lookup:max_draft_tokens=1", TEXT, nodes=3).token_ids == [4, 3, 7]


def test_only_frequent_tokens_without_a_match() -> None:
    alone, with_match = (
        proposed("prompt_lookup:max_draft_tokens=1", text).confidence
        for text in ([5, 5, 6, 8], TEXT)
    )
    assert proposed("prompt_lookup", [5, 5, 6, 8]).token_ids == [5, 6, 8]
    assert (alone or [])[0] > (with_match or [])[2]  # likelier where there is no match
    assert (
        proposed("prompt_lookup:budget=false", [5, 5, 6, 8]) is EMPTY_TREE
    )  # without a budget, each of them would be fed at every step
    assert proposed("prompt_lookup:budget=false,max_frequent_tokens=1", [5, 5, 6, 8]).token_ids == [
        5
    ]


def test_nothing_is_proposed_for_the_last_token() -> None:
    assert proposed("prompt_lookup", TEXT, more=1) is EMPTY_TREE


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=40), st.integers(0, 12))
def test_frequencies_equal_plain_counts(parts: list[list[int]], most: int) -> None:
    frequencies, text = Frequencies(), list[int]()
    for part in parts:
        text += part
        frequencies.update(text)
    found, counts = frequencies.most_frequent(most), Counter(text)
    assert [counts[token] for token, _ in found] == sorted(counts.values(), reverse=True)[:most]
    assert all(text.index(token) == place for token, place in found)


@pytest.mark.parametrize(
    "spec", ["prompt_lookup:max_frequent_tokens=-1", "prompt_lookup:max_frequent_tokens=few"]
)
def test_invalid_frequent_token_counts_are_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="frequent"):
        create(spec)
