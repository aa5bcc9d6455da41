"""Define the fixed tree of Token Recycling (3.2, figure 3): 80 nodes, 6 levels.

`paper_tree.json` contains the shape from the authors' release. A node is identified by the ranks
on its path: "0 2" is the third most likely token after the most likely token. For each node with
children, the file lists the number of children. The children have the ranks 0, 1, ...
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from paceline.core.origin import Origin
from paceline.core.tree import IntArray
from paceline.drafters.shared.recycled import ABSENT, SuccessorTable, look_up, size_of
from paceline.drafters.shared.table_settings import LONGEST_KEY
from paceline.drafters.shared.tree_candidate import TreeCandidate
from paceline.util.compiled import Records, compiled

Ranks = tuple[int, ...]
_RECYCLED = int(Origin.RECYCLED)
_CHILDREN: dict[str, int] = json.loads(
    Path(__file__).with_name("paper_tree.json").read_text(encoding="utf-8")
)
CHILDREN: dict[Ranks, int] = {
    tuple(map(int, ranks.split())): count for ranks, count in _CHILDREN.items()
}


def shape() -> tuple[IntArray, IntArray]:
    """Return every node's parent (-1 is the root) and rank, level by level."""
    named: list[Ranks] = [()]
    parents: list[int] = []
    for node, ranks in enumerate(named):  # grows as it goes
        for rank in range(CHILDREN.get(ranks, 0)):
            named.append((*ranks, rank))
            parents.append(node - 1)
    return np.array(parents, dtype=np.int64), np.array(
        [ranks[-1] for ranks in named[1:]], dtype=np.int64
    )


PARENTS, RANKS = shape()


@compiled
def fill(
    table: SuccessorTable,
    newest: IntArray,
    keys: int,
    parents: IntArray,
    ranks: IntArray,
    levels: int,
    tree: Records[TreeCandidate],
) -> int:
    """Fill the fixed tree, omitting nodes without a cached distribution.

    Args:
        table: Cached distributions.
        newest: The newest tokens, at most LONGEST_KEY, ending with the root.
        keys: Maximum number of tokens in a context.
        parents: Parent of each node in the shape.
        ranks: Rank of each node in the shape.
        levels: Maximum depth.
        tree: Output: nodes, [max_nodes].
    Returns:
        The size of the tree.
    """
    rows = len(parents) + 1  # the root, then the nodes of the shape
    node_of, entry_of = np.full(rows, ABSENT), np.full(rows, ABSENT)
    tails, known = np.empty((rows, LONGEST_KEY), dtype=np.int64), np.zeros(rows, dtype=np.int64)
    tails[0, LONGEST_KEY - len(newest) :] = newest
    known[0] = len(newest)
    entry_of[0] = look_up(table, tails[0], min(keys, known[0]))[0]
    size = 0
    for node in range(len(parents)):
        above, row = parents[node] + 1, node + 1
        entry = entry_of[above]
        depth = 1 if above == 0 or entry == ABSENT else tree[node_of[above]].depth + 1
        if entry == ABSENT or size_of(table.entries[entry]) <= ranks[node]:
            continue
        if size == len(tree) or depth > levels:
            continue
        guess = tree[size]
        guess.parent, guess.depth, guess.origin = node_of[above], depth, _RECYCLED
        guess.token = table.entries[entry].tokens[ranks[node]]
        guess.confidence = table.entries[entry].probs[ranks[node]]
        tails[row, :-1] = tails[above, 1:]
        tails[row, -1] = guess.token
        known[row] = min(known[above] + 1, LONGEST_KEY)
        entry_of[row] = look_up(table, tails[row], min(keys, known[row]))[0]
        node_of[row] = size
        size += 1
    return size
