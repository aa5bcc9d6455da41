"""Prompt lookup by hand: what it proposes, in which order, and how sure it is."""

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

# behind 1, 2 come 4 and before that 3; 7, 1 and 2 are the most frequent tokens
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


def test_a_chain_is_what_followed_the_latest_match() -> None:
    tree = proposed("prompt_lookup:max_matches=1,max_frequent_tokens=0,max_draft_tokens=3", TEXT)
    assert (tree.token_ids, tree.parents) == ([4, 9, 1], [-1, 0, 1])


def test_earlier_matches_are_branches() -> None:
    tree = proposed("prompt_lookup:max_frequent_tokens=0,max_draft_tokens=2", TEXT)
    assert (tree.token_ids, tree.parents) == ([4, 9, 3, 7], [-1, 0, -1, 2])
    first, _, second, _ = tree.confidence or []
    assert first > second


def test_frequent_tokens_come_last_the_most_frequent_first() -> None:
    tree = proposed("prompt_lookup:max_draft_tokens=1", TEXT)
    assert tree.token_ids == [4, 3, 7, 1, 2, 9]  # 4 and 3 are there already
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


def test_where_nothing_matches_frequent_tokens_are_all_there_is() -> None:
    alone, beside = (
        proposed("prompt_lookup:max_draft_tokens=1", text).confidence
        for text in ([5, 5, 6, 8], TEXT)
    )
    assert proposed("prompt_lookup", [5, 5, 6, 8]).token_ids == [5, 6, 8]
    assert (alone or [])[0] > (beside or [])[2]  # the likelier, the less else is known
    assert (
        proposed("prompt_lookup:budget=false", [5, 5, 6, 8]) is EMPTY_TREE
    )  # else each of them would be fed at every step
    assert proposed("prompt_lookup:budget=false,max_frequent_tokens=1", [5, 5, 6, 8]).token_ids == [
        5
    ]


def test_nothing_is_proposed_for_the_last_token() -> None:
    assert proposed("prompt_lookup", TEXT, more=1) is EMPTY_TREE


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), max_size=40), st.integers(0, 12))
def test_tokens_by_how_often_they_are_there(pieces: list[list[int]], most: int) -> None:
    frequencies, text = Frequencies(), list[int]()
    for piece in pieces:
        text += piece
        frequencies.update(text)
    found, counts = frequencies.most_frequent(most), Counter(text)
    assert [counts[token] for token, _ in found] == sorted(counts.values(), reverse=True)[:most]
    assert all(text.index(token) == place for token, place in found)


@pytest.mark.parametrize(
    "spec", ["prompt_lookup:max_frequent_tokens=-1", "prompt_lookup:max_frequent_tokens=few"]
)
def test_bad_numbers_of_frequent_tokens_are_refused(spec: str) -> None:
    with pytest.raises(ValueError, match="frequent"):
        create(spec)
