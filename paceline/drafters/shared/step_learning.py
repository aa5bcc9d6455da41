"""Update cached distributions and acceptance counts from verified trees.

Each verified tree is described by a record, which is a sequence of integers. One array contains the
records of all trees in a step. A record consists of the following parts, in this order:

1. The head: the number of newest tokens, the number of nodes, the number of new tokens, and the
   arguments `begin` and `end` of `record_of`.
2. The newest tokens before the step.
3. The tokens of the nodes, then the parents of the nodes.
4. The new tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.core.tree import DraftTree, IntArray
from paceline.drafters.shared.merged_tree import count_tree
from paceline.drafters.shared.recycled import SuccessorTable, cache_distributions
from paceline.drafters.shared.source_calibration import SourceCalibration
from paceline.drafters.shared.table_settings import LONGEST_KEY
from paceline.util.compiled import compiled

_HEAD = 5  # number of integers that precede the tokens in a record


def record_of(
    newest: Sequence[int], tree: DraftTree, new_tokens: Sequence[int], begin: int, end: int
) -> list[int]:
    """Describe one verified tree as a list of integers, which `learn_step` reads.

    Args:
        newest: Newest tokens of the text before the step, at most LONGEST_KEY; the last one is the
            root.
        tree: Verified tree.
        new_tokens: Tokens that the target chose after the root.
        begin: Index of the tree's first node in the output of `grow_trees`.
        end: Index after the tree's last node in this output; equal to `begin` if the output does
            not contain the tree.
    """
    head = (len(newest), len(tree.token_ids), len(new_tokens), begin, end)
    return [*head, *newest, *tree.token_ids, *tree.parents, *new_tokens]


@compiled
def learn_step(
    table: SuccessorTable,
    calibration: SourceCalibration,
    max_context: int,
    records: IntArray,
    candidates: Any,
    token_ids: IntArray,
    probs: NDArray[np.float32],
) -> None:
    """Cache the target's distributions after all nodes, and count accepted tokens.

    Args:
        table: Cached distributions, to be updated.
        calibration: Counts of tried and accepted tokens, to be updated.
        max_context: Maximum number of tokens in the context of a cached distribution.
        records: Results of `record_of` for all verified trees, one after the other.
        candidates: Output of `grow_trees`: nodes of all trees, as records of type CANDIDATE, [n].
        token_ids: Most likely next tokens after each root and node, as in `TopTokens`,
            [trees + nodes, k].
        probs: Probabilities of these tokens, [trees + nodes, k]; rows of zeros are skipped.
    """
    rows = len(token_ids)
    tails = np.empty((rows, LONGEST_KEY), dtype=np.int64)
    known = np.empty(rows, dtype=np.int64)
    keys = np.empty((rows, LONGEST_KEY), dtype=np.uint64)
    offset, root = 0, 0
    while offset < len(records):
        num_newest, num_nodes, num_new, begin, end = records[offset : offset + _HEAD]
        first_node = offset + _HEAD + num_newest
        first_new = first_node + 2 * num_nodes
        after = root + 1 + num_nodes
        cache_distributions(
            table,
            max_context,
            records[offset + _HEAD : first_node],
            records[first_node:first_new],
            (tails[root:after], known[root:after], keys[root:after]),
            (token_ids[root:after], probs[root:after]),
        )
        offset, root = first_new + num_new, after
        count_tree(calibration, candidates[begin:end], records[first_new:offset])
