"""Check that the compiled check of plain trees agrees with the detailed check."""

from __future__ import annotations

import random

import pytest

from paceline.core.origin import Origin
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.verification.broken_trees import broken_tree
from paceline.verification.plain_trees import check_plain_trees

VOCAB = 5


def random_tree(rng: random.Random) -> DraftTree:
    count = rng.randrange(7)
    tokens = [rng.randrange(VOCAB) for _ in range(count)]
    parents = [rng.randrange(-1, node) if node else -1 for node in range(count)]
    if count and rng.random() < 0.2:
        tokens[-1] = rng.choice((-1, VOCAB))
    if count and rng.random() < 0.2:
        parents[rng.randrange(count)] = rng.choice((-2, count))
    return DraftTree(tokens, parents, None, [0.5] * count, origins=[Origin.DRAFT] * count)


def test_plain_check_accepts_exactly_the_valid_trees() -> None:
    rng, accepted = random.Random(0), 0
    for _ in range(400):
        trees = [random_tree(rng) for _ in range(rng.randrange(1, 3))]
        limits = [rng.randrange(3, 8) for _ in trees]
        flat = check_plain_trees(trees, limits, VOCAB)
        problems = [
            broken_tree(tree, limit, VOCAB) for tree, limit in zip(trees, limits, strict=True)
        ]
        assert (flat is not None) == (not any(problems)), (trees, limits, problems)
        if flat is not None:
            accepted += 1
            assert flat.token_ids.tolist() == [token for tree in trees for token in tree.token_ids]
            assert flat.parents.tolist() == [parent for tree in trees for parent in tree.parents]
    assert 40 < accepted < 360


@pytest.mark.parametrize(
    "tree",
    [
        DraftTree([1], [-1]),
        DraftTree([1], [-1], None, [0.5], probes=1),
        DraftTree([1], [-1], [None], [0.5]),
        DraftTree([1.0], [-1], None, [0.5]),  # type: ignore[list-item]
        DraftTree([True], [-1], None, [0.5]),
        DraftTree([2**70], [-1], None, [0.5]),
        DraftTree([1], [-1], None, [0.5, 0.5]),
        DraftTree([1], [-1], None, ["x"]),  # type: ignore[list-item]
        DraftTree([1], [-1], None, [0.5], origins=[Origin.TARGET]),
        DraftTree([1], [-1], None, [0.5], origins=[]),
        DraftTree((1,), (-1,), None, (0.5,)),  # type: ignore[arg-type]
    ],
)
def test_trees_that_need_the_detailed_check(tree: DraftTree) -> None:
    assert check_plain_trees([EMPTY_TREE, tree], [4, 4], 2**71) is None
