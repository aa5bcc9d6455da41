"""Test draft trees: shapes, merging, and the best chain."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline import DraftTree
from paceline.core.tree import EMPTY_TREE, node_depths, tree_shape
from paceline.core.tree_builder import TreeBuilder


@st.composite
def shapes(draw: st.DrawFn) -> list[int]:
    """Return the parents of a random tree: parents[i] < i."""
    return [draw(st.integers(-1, node - 1)) for node in range(draw(st.integers(0, 24)))]


def path_to(parents: list[int], node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = parents[node]
    return path


@given(shapes())
def test_depths_and_ancestors(parents: list[int]) -> None:
    depth, mask = tree_shape(tuple(parents))
    assert depth.shape == (len(parents),)
    assert mask.shape == (len(parents), len(parents))
    for node in range(len(parents)):
        path = path_to(parents, node)
        assert depth[node] == len(path)
        assert np.flatnonzero(mask[node]).tolist() == path


@given(shapes())
def test_children_lists_nodes_by_parent(parents: list[int]) -> None:
    tree = DraftTree(list(range(len(parents))), parents)
    children = tree.children()
    assert len(children) == len(parents) + 1
    for parent in range(-1, len(parents)):
        assert children[parent + 1] == [
            node for node, above in enumerate(parents) if above == parent
        ]
    assert tree.is_chain() == all(len(nodes) == 1 for nodes in children[:-1])


def test_child_finds_a_token_below_a_node() -> None:
    tree = DraftTree([5, 7, 5, 7, 9, 7], [-1, -1, 1, 0, 1, 1], probes=1)
    assert [tree.child(node, 7) for node in range(-1, 6)] == [1, 3, None, None, None, None, None]
    assert [tree.child(node, 5) for node in range(-1, 3)] == [0, None, 2, None]
    assert tree.child(-1, 9) is None


def test_shapes_are_shared_and_cannot_be_written() -> None:
    depth, mask = tree_shape((-1, 0, 0))
    assert tree_shape((-1, 0, 0))[0] is depth
    for array in (depth, mask):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 1
    assert node_depths([-1, 0, 0]).tolist() == [1, 2, 2]
    assert tree_shape((-1, 0, 0))[1].tolist() == [
        [True, False, False],
        [True, True, False],
        [True, False, True],
    ]


paths = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=6), max_size=8)


@given(paths, st.integers(0, 20))
def test_builder_merges_branches(branches: list[list[int]], limit: int) -> None:
    """The tree has all prefixes once, up to the limit."""
    builder = TreeBuilder(limit)
    for branch in branches:
        builder.add_path(branch)
    tree = builder.build()
    wanted = {tuple(branch[:size]) for branch in branches for size in range(1, len(branch) + 1)}
    built = [
        tuple(tree.token_ids[i] for i in path_to(tree.parents, node)) for node in range(len(tree))
    ]
    assert len(built) == len(set(built)) == min(limit, len(wanted))
    assert set(built) <= wanted
    assert all(parent < node for node, parent in enumerate(tree.parents))


def test_builder_continues_below_a_node() -> None:
    builder = TreeBuilder(5)
    node = builder.add_path([7, 8])
    assert node == 1
    assert builder.add_path([9], node) == 2
    assert builder.add_path([7, 8, 9]) == 2
    assert builder.add_path([5, 6, 4]) == 4  # the last node within the limit
    assert builder.add_path([1]) == -1
    assert builder.add_path([7]) == 0
    assert builder.build() == DraftTree([7, 8, 9, 5, 6], [-1, 0, 1, -1, 3])


def test_chains_are_trees_without_branches() -> None:
    assert DraftTree.chain([4, 5, 6]) == DraftTree([4, 5, 6], [-1, 0, 1])
    assert DraftTree.chain([]) == EMPTY_TREE
    assert len(EMPTY_TREE) == 0
    assert EMPTY_TREE.is_chain()


@given(shapes())
def test_best_chain_is_the_deepest_path(parents: list[int]) -> None:
    tree = DraftTree(list(range(len(parents))), parents)
    chain = tree.best_chain()
    assert chain.is_chain()
    longest = [path_to(parents, node) for node in range(len(parents))]
    best = max(map(len, longest), default=0)
    assert chain.token_ids == next((path for path in longest if len(path) == best), [])


def test_best_chain_follows_confidence() -> None:
    """The chain is the path with the most expected accepted tokens."""
    # 0.2 + 0.18 + 0.162 < 0.6
    doubtful = DraftTree([10, 11, 12, 13], [-1, 0, 1, -1], confidence=[0.2, 0.9, 0.9, 0.6])
    assert doubtful.best_chain() == DraftTree([13], [-1], confidence=[0.6])
    likely = DraftTree([10, 11, 12, 13], [-1, 0, 1, -1], confidence=[0.4, 0.9, 0.9, 0.6])
    assert likely.best_chain() == DraftTree([10, 11, 12], [-1, 0, 1], confidence=[0.4, 0.9, 0.9])
