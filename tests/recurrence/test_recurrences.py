"""Test recurrences over trees against chains, chunks, folds and torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from paceline.backend.recurrences import Recurrences
from paceline.backend.token_tree import FoldPath, TokenTree
from paceline.cpu.recurrence.backend import CPU_RECURRENCES
from paceline.recurrence.torch_recurrences import TORCH_RECURRENCES
from tests.recurrence.trees import KINDS, TREE, case_of, chain, path_to, token_tree

TOKENS = int(TREE.lengths.sum()) + 3
BOTH = pytest.mark.parametrize("recurrences", [TORCH_RECURRENCES, CPU_RECURRENCES])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_compiled_and_torch_results_agree(kind: str, dtype: torch.dtype) -> None:
    case = case_of(kind, TOKENS, dtype)
    expected, expected_after, _ = case.run(TORCH_RECURRENCES, TREE, case.held)
    output, after, _ = case.run(CPU_RECURRENCES, TREE, case.held)
    tolerance = 1e-5 if dtype == torch.float32 else 2e-2
    assert output.dtype == expected.dtype
    torch.testing.assert_close(output, expected, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(after, expected_after, rtol=1e-5, atol=1e-5)


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_columns_without_a_token_get_zeros(kind: str, recurrences: Recurrences) -> None:
    output, _, _ = case_of(kind, TOKENS, torch.float32).run(
        recurrences, TREE, case_of(kind, TOKENS, torch.float32).held
    )
    used = TREE.columns[~TREE.is_padding()]
    unused = np.setdiff1d(np.arange(TOKENS), used)
    assert len(unused) == 3
    assert not output[unused].any()
    assert output[used].abs().flatten(1).sum(1).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nodes_have_the_bits_of_a_chain(kind: str, dtype: torch.dtype) -> None:
    case = case_of(kind, TOKENS, dtype)
    output, _, _ = case.run(CPU_RECURRENCES, TREE, case.held)
    for request, length in enumerate(TREE.lengths):
        for token in range(length):
            columns = TREE.columns[request, path_to(TREE, request, token)]
            alone, _, _ = case.run(CPU_RECURRENCES, chain(columns, TREE.slots[request]), case.held)
            assert torch.equal(alone[columns[-1]], output[columns[-1]])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cuts", [[1, 4, 9], [2, 5, 9], [9]])
def test_chunks_change_no_bit(kind: str, cuts: list[int]) -> None:
    case = case_of(kind, 9, torch.float32)
    text = np.random.default_rng(1).permutation(9)
    expected, after, _ = case.run(CPU_RECURRENCES, chain(text, 2), case.held)
    held, start = case.held.clone(), 0
    for stop in cuts:
        columns = text[start:stop]
        output, _, fold = case.run(CPU_RECURRENCES, chain(columns, 2), held)
        assert torch.equal(output[columns], expected[columns])
        fold(FoldPath.of([columns]), held, torch.tensor([2]), None)
        start = stop
    assert torch.equal(held[2], after[0])


@BOTH
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("from_pending", [False, True])
def test_folds_give_the_states_of_the_accepted_text(
    kind: str, recurrences: Recurrences, from_pending: bool
) -> None:
    case, accepted = case_of(kind, TOKENS, torch.float32), [[0, 2, 6], [], [1, 3]]
    _, after, fold = case.run(recurrences, TREE, case.held)
    held, slots = case.held.clone(), torch.from_numpy(TREE.slots)
    if from_pending:
        rows = [
            columns[[int(count) + node for node in nodes]]
            for columns, count, nodes in zip(TREE.columns, TREE.pending, accepted, strict=True)
        ]
        fold(FoldPath.of(rows), held, slots, after)
    else:
        fold(TREE.accepted_path(accepted), held, slots, None)
    for request, nodes in enumerate(accepted):
        last = int(TREE.pending[request]) + nodes[-1] if nodes else int(TREE.pending[request]) - 1
        columns = TREE.columns[request, path_to(TREE, request, last)]
        _, alone, _ = case.run(recurrences, chain(columns, TREE.slots[request]), case.held)
        assert torch.equal(held[TREE.slots[request]], alone[0])
    unused = [slot for slot in range(len(held)) if slot not in TREE.slots]
    assert torch.equal(held[unused], case.held[unused])


@BOTH
@pytest.mark.parametrize("kind", KINDS)
def test_tree_recurrence_leaves_held_states_unchanged(kind: str, recurrences: Recurrences) -> None:
    case = case_of(kind, TOKENS, torch.float32)
    held = case.held.clone()
    case.run(recurrences, TREE, held)
    assert torch.equal(held, case.held)


@pytest.mark.parametrize("kind", KINDS)
def test_threads_and_other_requests_change_no_bit(kind: str) -> None:
    tree = token_tree([3, 40], [[-1, 0, -1], [-1, 0, 1, 1]], [1, 2])
    case = case_of(kind, 53, torch.float32)
    alone = TokenTree(
        tree.slots[:1],
        tree.pending[:1],
        tree.nodes[:1],
        tree.columns[:1],
        tree.parents[:1],
        tree.prompt[:1],
    )
    expected, _, _ = case.run(CPU_RECURRENCES, alone, case.held)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        output, _, _ = case.run(CPU_RECURRENCES, tree, case.held)
    finally:
        torch.set_num_threads(before)
    columns = tree.columns[0, : tree.lengths[0]]
    assert torch.equal(output[columns], expected[columns])


def test_tree_reuses_states_no_longer_needed() -> None:
    chain_of_many = token_tree([30], [[-1, *range(9)]], [0])
    assert chain_of_many.order().num_states == 1
    star = token_tree([1], [[-1] * 6], [0])
    assert star.order().num_states == 2
