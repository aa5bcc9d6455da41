"""Test recurrent layers in llama.cpp, whose states can roll back along chains."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("gguf")

from paceline import LLM, SamplingParams
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, DraftTree
from paceline.llama_cpp.gguf_model import GgufModel
from paceline.llama_cpp.target import GgufTarget
from tests.support.gguf_architectures import write_hybrid
from tests.support.llama_cpp import needs_library

pytestmark = needs_library
PROMPTS = [[5, 9, 11, 5, 9, 11, 5], [30, 31, 32], [8, 8, 8, 8], [40, 3, 40, 3, 40] * 6]
GREEDY = SamplingParams(max_new_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hybrid(tmp_path_factory.mktemp("hybrid") / "hybrid.gguf")


@pytest.fixture(scope="module")
def model(hybrid: Path) -> GgufModel:
    return GgufModel(hybrid, on_gpu=False)


def open_request(target: GgufTarget, tokens: list[int]) -> Request:
    request = Request(tokens, SamplingParams(max_new_tokens=200))
    target.open(request)
    return request


def load(file: Path, drafter: str, **options: Any) -> LLM:
    return LLM(file, drafter, engine="llama.cpp", device="cpu", **options)


def test_chains_after_partial_acceptance(model: GgufModel) -> None:
    assert model.is_recurrent
    assert model.max_rollback == 8
    source = random.Random(0)
    target, plain = GgufTarget(model, 1), GgufTarget(model, 1)
    requests = [open_request(target, prompt) for prompt in PROMPTS[:2]]
    target.feed(requests)
    for _ in range(8):
        for request in requests:
            request.append([source.randrange(64)])
        chains = [DraftTree.chain([source.randrange(64) for _ in range(5)]) for _ in requests]
        logits = target.forward_nodes(requests, chains)
        paths = [list(range(source.randrange(6))) for _ in requests]
        for row, (request, chain) in enumerate(zip(requests, chains, strict=True)):
            for node in (-1, 2, 4):
                alone = open_request(plain, request.token_ids + chain.token_ids[: node + 1])
                assert torch.allclose(plain.feed([alone])[0, 0], logits[row][1 + node], atol=1e-3)
                plain.close(alone)
        target.commit(paths)
        for request, chain, path in zip(requests, chains, paths, strict=True):
            request.append(chain.token_ids[: len(path)])
            assert request.cached == len(request)


@pytest.mark.parametrize("reversible", [True, False])
def test_forwards_without_a_commit(model: GgufModel, reversible: bool) -> None:
    target = GgufTarget(model, 1, reversible=reversible)
    request = open_request(target, PROMPTS[3])
    target.feed([request])
    request.append([7])
    chain = DraftTree.chain(list(range(20)))
    first = target.forward_nodes([request], [chain]).flat
    second = target.forward_nodes([request], [chain.first(6)]).flat
    assert torch.allclose(first[:7], second, atol=1e-3)
    # otherwise the text is fed from its first token
    assert (request.cached == len(request) - 1) == reversible
    target.commit([[]])
    assert request.cached == len(request)
    alone = target.forward_nodes([open_request(target, [*PROMPTS[3], 7])], [EMPTY_TREE]).flat
    assert torch.allclose(alone[0], second[0], atol=1e-3)


@pytest.mark.parametrize("drafter", ["prompt_lookup", "sssd", "auto"])
def test_answers_equal_plain_decoding(hybrid: Path, drafter: str) -> None:
    expected = [each.token_ids for each in load(hybrid, "none").generate(PROMPTS, GREEDY)]
    llm = load(hybrid, drafter, max_batch=3, keep_prefixes=2)
    llm.drafter.budget = False
    answers = llm.generate(PROMPTS, GREEDY)
    assert [each.token_ids for each in answers] == expected
    assert sum(each.stats.drafted_tokens for each in answers) > 0
    if drafter == "auto":  # the random text only repeats pairs of tokens
        assert sum(each.stats.accepted_tokens for each in answers) > 0
    assert not llm.model.takes_trees
    assert "order of their cache" in llm.invariance.reason
    follow_up = [[*PROMPTS[3], *expected[3], 9]]
    again = [each.token_ids for each in llm.generate(follow_up, GREEDY)]
    assert again == [each.token_ids for each in load(hybrid, "none").generate(follow_up, GREEDY)]


def test_only_whole_prefixes_are_reused(model: GgufModel) -> None:
    target = GgufTarget(model, 1)
    source = open_request(target, PROMPTS[3])
    target.feed([source])
    assert target.reusable_length(source, 40) == 30
    assert target.reusable_length(source, 29) == 0
