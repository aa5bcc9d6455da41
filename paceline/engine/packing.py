"""One forward of several sequences without padding: their pending tokens and tree nodes behind one another, in a single row.

To the model this is one text; what each token sees is up to attention by position, which is told for every query (`KeyOrder`).
So a sequence costs the tokens it feeds, whatever the others feed.
"""

from __future__ import annotations

from collections.abc import Sequence as ListLike
from dataclasses import dataclass

import numpy as np

from paceline.engine.attention.order import KeyOrder, Visible
from paceline.engine.attention.reach import visible_in_trees
from paceline.engine.sequence import Sequence
from paceline.engine.tree import DraftTree, IntArray, node_depths


@dataclass(frozen=True, slots=True)
class Packing:
    """Sequences laid out behind one another: of each its pending tokens, the newest last, then its nodes; at the end padding.

    Attributes:
        token_ids, positions, places, slots: [queries]: ids, position in the text, position in the cache and its slot there.
        starts: [rows + 1]: the first query of each sequence; padding counts as the last one's.
        cached, pending, nodes: [rows]: tokens in the cache before, pending tokens fed, tree nodes fed.
        asked: [n]: queries whose logits are wanted: the newest token and the nodes of every sequence, and padding.
        parents, depths, ranks: of all nodes, see `visible_in_trees`.
    """

    token_ids: IntArray
    positions: IntArray
    places: IntArray
    slots: IntArray
    starts: IntArray
    cached: IntArray
    pending: IntArray
    nodes: IntArray
    asked: IntArray
    parents: IntArray
    depths: IntArray
    ranks: IntArray

    def visible(self, window: int | None = None, chunk: int | None = None) -> Visible:
        """What every query sees, in layers with a sliding window, with chunks, or with neither."""
        begins = np.concatenate([[0], np.cumsum(self.nodes)])
        shape = self.parents, self.depths, self.ranks, begins
        return visible_in_trees(self.starts, self.cached, self.pending, *shape, window, chunk)

    def order(self, marks: dict[int, Visible]) -> KeyOrder:
        """The keys of every sequence by position.

        Args:
            marks: see `KeyOrder`.
        """
        fed, behind = self.pending + self.nodes, self.cached + self.pending
        tail = self.cached[:, None] + np.arange(fed.max())
        row = np.repeat(np.arange(len(fed)), self.nodes)
        number = np.arange(len(row)) - np.repeat(np.cumsum(self.nodes) - self.nodes, self.nodes)  # in its own tree
        tail[row, self.pending[row] + self.ranks] = behind[row] + number
        return KeyOrder(self.cached, tail, int((self.cached + fed).max()), marks)


def pack(seqs: ListLike[Sequence], trees: ListLike[DraftTree], chunk: int, least_rows: int = 1) -> Packing:
    """Pack up to `chunk` pending tokens and the tree of every sequence.

    Args:
        least_rows: so many queries, and logits, there are at least; padding makes up for the rest.
    """
    cached = np.array([seq.cached for seq in seqs], dtype=np.int64)
    pending = np.array([min(seq.pending, chunk) for seq in seqs], dtype=np.int64)
    nodes = np.array([len(tree) for tree in trees], dtype=np.int64)
    token_ids: list[int] = []
    positions, asked, depths, ranks = [], [], [], []
    for seq, tree, past, fed in zip(seqs, trees, cached.tolist(), pending.tolist(), strict=True):
        root = len(token_ids) + fed - 1
        token_ids += seq.token_ids[past : past + fed]
        token_ids += tree.token_ids
        positions.append(np.arange(past, past + fed))
        asked.append(np.arange(root, root + 1 + len(tree)))
        if len(tree):
            depth = node_depths(tree.parents)
            positions.append(past + fed - 1 + depth)
            depths.append(depth)
            ranks.append(np.argsort(np.argsort(depth, kind="stable")))
    padding = max(0, least_rows - len(seqs) - int(nodes.sum()))
    fed_rows = pending + nodes
    fed_rows[-1] += padding
    asked.append(np.arange(len(token_ids), len(token_ids) + padding))
    starts = np.concatenate([[0], np.cumsum(fed_rows)])
    places = np.arange(starts[-1]) - np.repeat(starts[:-1] - cached, fed_rows)
    return Packing(
        np.array(token_ids + [0] * padding, dtype=np.int64),
        np.concatenate([*positions, np.zeros(padding, dtype=np.int64)]),
        places,
        seqs[0].slot + np.repeat(np.arange(len(seqs)), fed_rows),
        starts, cached, pending, nodes, np.concatenate(asked),
        np.array([parent for tree in trees for parent in tree.parents], dtype=np.int64),
        np.concatenate(depths) if depths else np.empty(0, dtype=np.int64),
        np.concatenate(ranks) if ranks else np.empty(0, dtype=np.int64),
    )  # fmt: skip
