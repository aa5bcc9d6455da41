"""Test REST's trees by hand and by slow counting, and its options.

Also show why the verification of its public code is not lossless.
"""

from __future__ import annotations

import random
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import LLM, DraftTree, SamplingParams, datastore
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE
from paceline.drafters import create
from paceline.errors import ConfigError, DatastoreError
from tests.support.enumeration import EOS, PLAIN, Oracle, complete, dist, followed, path_to, target
from tests.support.shared import Pair, tiny_store
from tests.support.stores import Documents, continuations, random_documents, store

HAND_MADE = ((1, 2, 3, 4), (1, 2, 3, 5), (1, 2, 6), (7, 2, 8))


def drafted(
    documents: tuple[tuple[int, ...], ...],
    text: list[int],
    limit: int = 99,
    new: int = 99,
    **options: Any,
) -> DraftTree:
    """Return the tree after `text` with `new` tokens left."""
    drafter = create("rest", datastore=tiny_store(documents, 10), **options)
    (tree,) = drafter.propose([Request(text, SamplingParams(max_new_tokens=new))], [limit])
    return tree


def paths(tree: DraftTree) -> dict[tuple[int, ...], float]:
    """Map each node's path to its confidence."""
    assert tree.confidence is not None or not len(tree)
    return {path_to(tree, node): share for node, share in enumerate(tree.confidence or [])}


def test_prefixes_are_counted() -> None:
    """Check the continuations 3 4, 3 5 and 6 of 1 2.

    Only the longest suffix is used, so 8 is not drafted.
    """
    tree = drafted(HAND_MADE, [9, 1, 2])
    assert (tree.token_ids, tree.parents) == ([3, 4, 5, 6], [-1, 0, 0, -1])
    assert tree.confidence == [2 / 3, 1 / 2, 1 / 2, 1 / 3]
    assert set(paths(drafted(HAND_MADE, [9, 2], min_ngram=1))) == {(3,), (3, 4), (3, 5), (6,), (8,)}


def test_frequent_and_shallow_nodes_come_first() -> None:
    kept = [drafted(HAND_MADE, [1, 2], max_nodes=count).token_ids for count in range(1, 5)]
    assert kept == [[3], [3, 6], [3, 4, 6], [3, 4, 5, 6]]
    assert [drafted(HAND_MADE, [1, 2], limit=count).token_ids for count in range(5)] == [[], *kept]


def test_only_the_first_matches_are_read() -> None:
    """Check that they are read in suffix-array order, which is a biased sample."""
    documents = ((1, 2, 3), (1, 2, 5, 6), (1, 2, 4), (1, 2, 5))
    assert [
        sorted(drafted(documents, [1, 2], max_matches=count).token_ids) for count in (1, 2, 4)
    ] == [[3], [3, 4], [3, 4, 5, 6]]


def test_suffixes_below_min_ngram_are_not_looked_up() -> None:
    assert drafted(HAND_MADE, [4, 2]) is EMPTY_TREE
    assert drafted(HAND_MADE, [9, 9], min_ngram=1) is EMPTY_TREE
    assert drafted(HAND_MADE, [2]) is EMPTY_TREE
    assert drafted(HAND_MADE, [1, 2, 3], max_ngram=2, min_ngram=1).token_ids == [4, 5]


def test_a_continuation_ends_with_its_document() -> None:
    """Check that a shorter suffix is looked up where all matches end their documents."""
    documents = ((1, 2), (3, 4), (5, 2, 6))
    assert drafted(documents, [1, 2]) is EMPTY_TREE
    assert drafted(documents, [1, 2], min_ngram=1).token_ids == [6]
    assert drafted(documents, [1, 2], min_ngram=1).confidence == [1 / 2]


def test_depth_is_limited() -> None:
    documents = ((1, 2, 3, 4, 5, 6),)
    assert drafted(documents, [1, 2], max_draft_tokens=3).token_ids == [3, 4, 5]
    assert [len(drafted(documents, [1, 2], new=new)) for new in range(1, 7)] == [0, 1, 2, 3, 4, 4]


def expected(
    documents: Documents, text: list[int], longest: int, shortest: int, length: int
) -> Counter[tuple[int, ...]]:
    """Count every prefix of the continuations; the empty prefix counts all matches."""
    for size in range(min(longest, len(text)), shortest - 1, -1):
        found = continuations(documents, text[-size:], length)
        if any(found):
            return Counter(tuple(row[:depth]) for row in found for depth in range(len(row) + 1))
    return Counter()


@given(
    text=st.lists(st.integers(0, 5), min_size=1, max_size=12),
    spans=st.tuples(st.integers(1, 3), st.integers(0, 9)),
    length=st.integers(1, 8),
    nodes=st.integers(1, 40),
    seed=st.integers(0, 3),
)
def test_trees_equal_slow_counting(
    text: list[int], spans: tuple[int, int], length: int, nodes: int, seed: int
) -> None:
    documents = random_documents(30, seed=seed)
    shortest, longest = spans[0], sum(spans)
    folder = tiny_store(tuple(map(tuple, documents)), 6)
    options = {
        "min_ngram": shortest,
        "max_ngram": longest,
        "max_draft_tokens": length,
        "max_nodes": nodes,
    }
    drafter = create("rest", datastore=folder, **options)
    (tree,) = drafter.propose([Request(text, SamplingParams())], [99])
    counts = expected(documents, text, longest, shortest, length)
    kept = paths(tree)
    assert all(kept[path] == counts[path] / counts[path[:-1]] for path in kept)
    ranks = sorted((-count, len(path)) for path, count in counts.items() if path)
    assert sorted((-counts[path], len(path)) for path in kept) == ranks[:nodes]


def test_several_shards_and_a_batch(tmp_path: Path) -> None:
    """Check that one search per batch finds the trees of single requests and of one shard."""
    documents = random_documents(300)
    many = tmp_path / "many"
    datastore.build(many, documents, 6, shard_tokens=1024, workers=1)
    one = store(tmp_path / "one", documents)
    assert len(datastore.info(many).shards) > 2
    rng = random.Random(1)
    requests = [Request([rng.randrange(6) for _ in range(20)], SamplingParams()) for _ in range(8)]
    limits = [0, 1, 3, 9, 64, 64, 64, 64]
    split, whole = (create("rest", datastore=str(path), max_nodes=10**6) for path in (many, one))
    trees = split.propose(requests, limits)
    assert trees == [
        split.propose([request], [limit])[0]
        for request, limit in zip(requests, limits, strict=True)
    ]
    assert [len(tree) for tree in trees[:3]] == limits[:3]
    every = [10**6] * 8
    assert [paths(tree) for tree in split.propose(requests, every)] == [
        paths(tree) for tree in whole.propose(requests, every)
    ]
    assert split.propose([], []) == []


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("", "no datastore was given.*paceline datastore build PATH.*rest:datastore=PATH"),
        ("datastore=x,min_ngram=0", "min_ngram: got 0; expected at least 1"),
        ("datastore=x,max_ngram=3,min_ngram=4", "max_ngram: got 3; expected at least 4"),
        (
            "datastore=x,max_ngram=60,max_draft_tokens=5",
            "got max_ngram=60 and max_draft_tokens=5; expected at most 64 together",
        ),
        ("datastore=x,max_matches=0", "max_matches: got 0"),
        ("datastore=x,max_nodes=0", "max_nodes: got 0"),
    ],
)
def test_invalid_options_are_refused(options: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        create(f"rest:{options}")


def test_missing_datastore_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DatastoreError, match="nowhere"):
        create("rest", datastore=str(tmp_path / "nowhere"))


def test_datastore_with_a_larger_vocabulary_is_refused(pair: Pair, tmp_path: Path) -> None:
    """Check that a smaller vocabulary is accepted: models often have padding rows."""
    datastore.build(tmp_path, [[1, 2, 300]], 301, workers=1)
    with pytest.raises(
        ConfigError, match=r"vocabulary of 301 tokens; expected at most 256, .*target's tokenizer"
    ):
        LLM(pair.target, drafter=f"rest:datastore={tmp_path}")
    LLM(pair.target, drafter=f"rest:datastore={tiny_store(HAND_MADE, 10)}")


def test_a_damaged_shard_is_named(tmp_path: Path) -> None:
    path = store(tmp_path / "store")
    (shard,) = datastore.info(path).shards
    content = bytearray((path / shard.name).read_bytes())
    content[5000] ^= 1
    (path / shard.name).write_bytes(content)
    drafter = create("rest", datastore=str(path))
    with pytest.raises(DatastoreError, match=shard.name):
        drafter.propose([Request([1, 2], SamplingParams())], [9])


def public_rule(tree: DraftTree, oracle: Oracle) -> tuple[int, ...]:
    """Accept as in REST's public code, which draws separately for each branch.

    The longest accepted branch wins, and the next token is drawn from the whole distribution.
    """
    parents = set(tree.parents)
    best: tuple[int, ...] = ()
    for branch in (path_to(tree, leaf) for leaf in range(len(tree)) if leaf not in parents):
        agreed = 0
        while agreed < len(branch) and oracle.draw(target(branch[:agreed])) == branch[agreed]:
            agreed += 1
        best = max(best, branch[:agreed], key=len)
    return complete(oracle, list(best[: best.index(EOS) + 1] if EOS in best else best))


@pytest.mark.parametrize(
    "tree",
    [DraftTree([1], [-1]), DraftTree([0, 2, 1], [-1, -1, 0]), DraftTree([0, 1, 2], [-1, 0, 0])],
)
def test_public_verification_is_not_lossless(tree: DraftTree) -> None:
    """Compare with our verification, which follows the target's own draws and is lossless."""
    assert Oracle().enumerate(lambda oracle: public_rule(tree, oracle)) != PLAIN
    assert followed(lambda oracle: tree) == PLAIN


def test_public_verification_overrates_a_guess() -> None:
    """Check that guess 1 of (0.4, 0.3, 0.2, 0.1) is emitted with p + (1 - p) p = 0.51, not 0.3."""

    def experiment(oracle: Oracle) -> tuple[int, ...]:
        agreed = oracle.draw(dist(4, 3, 2, 1)) == 1
        return (1 if agreed else oracle.draw(dist(4, 3, 2, 1)),)

    law = Oracle().enumerate(experiment)
    assert law == {
        (0,): Fraction(28, 100),
        (1,): Fraction(51, 100),
        (2,): Fraction(14, 100),
        (3,): Fraction(7, 100),
    }
