"""Test that draft trees in llama.cpp have the logits of plain chains, bit for bit."""

from __future__ import annotations

import itertools
import random

import pytest
import torch

from paceline.core.request import Request
from paceline.core.sampling_params import SamplingParams
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.errors import CapacityError, UnsupportedModelError
from paceline.llama_cpp.draft_rows import limit_leaves
from paceline.llama_cpp.gguf_model import GgufModel
from paceline.llama_cpp.target import GgufTarget
from tests.support.llama_cpp import needs_library

pytestmark = needs_library
PROMPTS = [[5, 9, 11, 5, 9] * 5, [30, 31, 32]]


def open_request(target: GgufTarget, tokens: list[int]) -> Request:
    request = Request(tokens, SamplingParams(max_new_tokens=200))
    target.open(request)
    return request


def plain_logits(model: GgufModel, tokens: list[int]) -> torch.Tensor:
    """Return the logits after each token, computed one by one."""
    target = GgufTarget(model, 1)
    request = open_request(target, tokens[:1])
    logits = [target.feed([request])[0]]
    for token in tokens[1:]:
        request.append([token])
        logits.append(target.feed([request])[0])
    return torch.cat(logits)


def random_tree(size: int, source: random.Random) -> DraftTree:
    parents = [source.randrange(-1, node) for node in range(size)]
    return DraftTree([source.randrange(64) for _ in parents], parents)


def wrong_nodes(
    model: GgufModel, request: Request, tree: DraftTree, logits: torch.Tensor
) -> list[int]:
    """Return the nodes whose logits differ from those of a plain chain."""
    return [
        node
        for node in range(-1, len(tree))
        if not torch.equal(
            plain_logits(
                model, request.token_ids + [tree.token_ids[each] for each in tree.path(node)]
            )[-1],
            logits[1 + node],
        )
    ]


def test_trees_of_a_batch_equal_chains(model: GgufModel) -> None:
    source = random.Random(0)
    target = GgufTarget(model, 1)
    requests = [open_request(target, prompt) for prompt in PROMPTS]
    target.feed(requests)
    for _ in range(6):
        for request in requests:
            request.append([source.randrange(64)])
        trees = [random_tree(source.randrange(1, 9), source) for _ in requests]
        logits = target.forward_nodes(requests, trees)
        for row, (request, tree) in enumerate(zip(requests, trees, strict=True)):
            assert not wrong_nodes(model, request, tree, logits[row])
        paths = [tree.path(source.randrange(-1, len(tree))) for tree in trees]
        target.commit(paths)
        for request, tree, path in zip(requests, trees, paths, strict=True):
            request.append([tree.token_ids[node] for node in path])
            assert request.cached == len(request)


def test_wrong_path_is_noticed(model: GgufModel) -> None:
    target = GgufTarget(model, 1)
    request = open_request(target, [*PROMPTS[0], 4])
    tree = DraftTree([20, 21, 22], [-1, -1, 1])
    target.forward_nodes([request], [tree])
    target.commit([[0]])  # while the text continues with the other branch
    request.append([21, 7])
    logits = target.forward_nodes([request], [EMPTY_TREE])
    assert wrong_nodes(model, request, EMPTY_TREE, logits[0]) == [-1]


def test_moving_and_growing_cells_keep_the_logits(model: GgufModel) -> None:
    source = random.Random(1)
    target = GgufTarget(model, 1)
    first, second = (open_request(target, prompt) for prompt in PROMPTS)
    target.feed([first, second])
    sizes, used = set(), []
    for step in range(125):
        for request in (first, second):
            request.append([source.randrange(64)])
        trees = [random_tree(4, source), EMPTY_TREE]
        logits = target.forward_nodes([first, second], trees)
        used.append(target._cells._num_used)
        sizes.add(target._cells.num_cells)
        if step % 40 == 39:
            assert not wrong_nodes(model, first, trees[0], logits[0])
        target.commit([[], []])
    assert any(after < before for before, after in itertools.pairwise(used))
    assert len(sizes) > 1


def test_forward_without_a_commit_leaves_no_state(model: GgufModel) -> None:
    target = GgufTarget(model, 1)
    request = open_request(target, PROMPTS[0])
    tree = DraftTree([1, 2, 3], [-1, 0, 0])
    first = target.forward_nodes([request], [tree]).flat
    assert torch.equal(target.forward_nodes([request], [tree]).flat, first)
    assert not wrong_nodes(model, request, tree, first)


def test_chunked_prefill_is_lossless(model: GgufModel) -> None:
    target = GgufTarget(model, 1, prefill_chunk=7)
    request = open_request(target, PROMPTS[0])
    while request.pending > 7:
        target.feed([request])
    logits = target.forward_nodes([request], [EMPTY_TREE])
    assert not wrong_nodes(model, request, EMPTY_TREE, logits[0])


def test_prefixes_are_copied_cut_and_passed_on(model: GgufModel) -> None:
    target = GgufTarget(model, 1)
    first = open_request(target, PROMPTS[0])
    target.feed([first])
    second = open_request(target, [*PROMPTS[0][:11], 40, 41])
    target.slots.copy(second, first, 11)
    target.rewind(first, 9)
    logits = target.forward_nodes([second, first], [EMPTY_TREE, EMPTY_TREE])
    for row, request in enumerate((second, first)):
        assert not wrong_nodes(model, request, EMPTY_TREE, logits[row])
    target.commit([[], []])
    third = Request([*PROMPTS[0][:20], 50], SamplingParams())
    target.open(third, first, 20)
    logits = target.forward_nodes([third], [EMPTY_TREE])
    assert not wrong_nodes(model, third, EMPTY_TREE, logits[0])
    assert first.slot == -1
    for request in (second, third):
        target.close(request)
    assert target.open_sequences == 0
    assert target._cells._num_used == 0


@pytest.mark.parametrize(("most", "nodes"), [(1, 2), (2, 4), (3, 5), (9, 5)])
def test_trees_are_cut_to_the_number_of_leaves(most: int, nodes: int) -> None:
    tree = DraftTree([1, 2, 3, 4, 5], [-1, 0, 0, 2, -1])
    assert len(limit_leaves(tree, most)) == nodes


def test_leaves_are_limited_by_the_number_of_sequences(model: GgufModel) -> None:
    target = GgufTarget(model, 1)
    requests = [open_request(target, prompt) for prompt in PROMPTS]
    wide = DraftTree([node % 64 for node in range(300)], [-1] * 300)
    trees = [target.limit_tree(wide, request) for request in requests]
    assert [len(tree) for tree in trees] == [127, 127]
    logits = target.forward_nodes(requests, trees)
    last = DraftTree.chain([wide.token_ids[126]])
    assert not wrong_nodes(model, requests[1], last, logits[1][[0, 127]])


def test_unsupported_calls_are_refused(model: GgufModel) -> None:
    target = GgufTarget(model, 1)
    with pytest.raises(CapacityError, match="the model's context is 256"):
        target.open(Request([1] * 300, SamplingParams()))
    with pytest.raises(UnsupportedModelError, match="hidden states"):
        target.forward_with_states([], [])
