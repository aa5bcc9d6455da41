"""Arrange pending tokens and draft trees as the rows of a llama.cpp forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from paceline.core.request import Request
from paceline.core.tree import DraftTree
from paceline.llama_cpp.cells import Branch
from paceline.llama_cpp.context import BatchRows
from paceline.llama_cpp.settings import BATCH_ROWS
from paceline.llama_cpp.slots import sequence_of


@dataclass(frozen=True, slots=True)
class RequestRows:
    """The rows of one request in a forward pass.

    A sequence is a text in llama.cpp's cache. Each leaf of the draft tree has a sequence of its
    own, which contains the tokens up to the leaf.

    Attributes:
        request: The request.
        tree: Draft tree of the request.
        num_pending: Number of the request's pending tokens in the forward pass.
        num_scored: Number of pending tokens whose logits are needed, not counting the newest one.
        branch: Sequence of the request, and sequences of the tree's leaves.
        leaf_of: For each node, the sequence of one leaf below the node. A leaf counts as below
            itself.
        sequences_of: For each node, the sequences of all leaves below the node.
    """

    request: Request
    tree: DraftTree
    num_pending: int
    num_scored: int
    branch: Branch
    leaf_of: list[int]
    sequences_of: list[list[int]]

    def __len__(self) -> int:
        return self.num_pending + len(self.tree)

    def add_to(self, rows: BatchRows) -> None:
        """Append the request's rows to the batch."""
        request, first = self.request, self.request.cached
        start = first + self.num_pending
        rows.token_ids += request.token_ids[first:start]
        rows.token_ids += self.tree.token_ids
        rows.positions += range(first, start)
        depths: list[int] = []
        for parent in self.tree.parents:
            depths.append(0 if parent < 0 else depths[parent] + 1)
        rows.positions += [start + depth for depth in depths]
        rows.sequences += [self.branch.leaves] * self.num_pending
        rows.sequences += self.sequences_of
        num_wanted = 1 + self.num_scored
        rows.wanted += [False] * (self.num_pending - num_wanted) + [True] * num_wanted
        rows.wanted += [True] * len(self.tree)


def rows_of(
    requests: Sequence[Request], trees: Sequence[DraftTree], prefill_chunk: int, spare: int
) -> list[RequestRows]:
    """Return each request's rows in a forward pass.

    Args:
        requests: Open requests.
        trees: One draft tree per request.
        prefill_chunk: Maximum number of pending tokens per request.
        spare: Smallest free sequence id, for the leaves of the trees. All larger ids must also be
            free.
    """
    result = []
    for request, tree in zip(requests, trees, strict=True):
        pending = min(request.pending, prefill_chunk)
        sequence = sequence_of(request)
        leaves, leaf_of, sequences_of = _assign(tree, sequence, spare)
        spare += len(leaves) - 1
        result.append(
            RequestRows(
                request,
                tree,
                pending,
                pending - 1 if request.scoring else 0,
                Branch(sequence, leaves, request.cached + pending),
                leaf_of,
                sequences_of,
            )
        )
    return result


def _assign(
    tree: DraftTree, sequence: int, spare: int
) -> tuple[list[int], list[int], list[list[int]]]:
    """Assign a llama.cpp sequence to each leaf of a tree and to the leaf's ancestors.

    The first leaf uses `sequence`, the request's own sequence. The other leaves use `spare`,
    `spare` + 1, and so on.

    Returns:
        The sequences of all leaves; for each node, the sequence of one leaf below the node; and for
        each node, the sequences of all leaves below the node. A leaf counts as below itself.
    """
    inner, leaves = set(tree.parents), [sequence]
    sequences_of: list[list[int]] = [[] for _ in tree.parents]
    for index, leaf in enumerate(node for node in range(len(tree)) if node not in inner):
        if index:
            leaves.append(spare + index - 1)
        node = leaf
        while node >= 0:
            sequences_of[node].append(leaves[-1])
            node = tree.parents[node]
    return leaves, [ids[0] for ids in sequences_of], sequences_of


def limit_leaves(tree: DraftTree, max_leaves: int) -> DraftTree:
    """Remove the last nodes of a tree until it has at most `max_leaves` leaves."""
    has_child = [False] * len(tree)
    leaves = 0
    for node, parent in enumerate(tree.parents):
        if parent >= 0 and not has_child[parent]:
            has_child[parent] = True
        elif leaves == max_leaves:
            return tree.first(node)
        else:
            leaves += 1
    return tree


def rows_per_call(parts: Sequence[RequestRows]) -> list[list[RequestRows]]:
    """Group requests so that the rows of each group fit into one call of llama.cpp."""
    groups: list[list[RequestRows]] = []
    total = BATCH_ROWS
    for part in parts:
        if total + len(part) > BATCH_ROWS - 1:  # one row is left for padding
            groups.append([])
            total = 0
        groups[-1].append(part)
        total += len(part)
    return groups
