"""Test that the walk over chosen tokens equals the general walk."""

from __future__ import annotations

import random

from paceline import DraftTree
from paceline.verification.rules import follow, follow_chosen

VOCAB = 3
ENDING = frozenset({2})


def grown_tree(rng: random.Random) -> DraftTree:
    """Return a random tree whose siblings have different tokens, with some probes."""
    edges: dict[tuple[int, int], None] = {}
    for node in range(rng.randrange(12)):
        edges.setdefault((rng.randrange(-1, node), rng.randrange(VOCAB)), None)
    kept = [edge for edge in edges if edge[0] < len(edges)]
    parents = [min(parent, index - 1) for index, (parent, _) in enumerate(kept)]
    nodes = dict.fromkeys(zip(parents, (token for _, token in kept), strict=True))
    if len(nodes) < len(kept):
        return grown_tree(rng)
    probes = rng.randrange(len(kept) + 1)
    return DraftTree([token for _, token in kept], parents, probes=probes)


def test_walk_over_chosen_tokens_equals_the_general_walk() -> None:
    rng = random.Random(0)
    lengths = set()
    for _ in range(3000):
        tree, limit = grown_tree(rng), rng.randrange(1, 5)
        tokens = [rng.randrange(VOCAB) for _ in range(1 + len(tree))]

        def ended(run: list[int], limit: int = limit) -> bool:
            return run[-1] in ENDING or len(run) >= limit

        expected = follow(tree, lambda node: tokens[node + 1], ended)  # noqa: B023
        assert follow_chosen(tree, tokens, ENDING, limit) == expected
        lengths.add(len(expected[1]))
    assert lengths == {1, 2, 3, 4}
