"""Test draft trees, commits, slots and answers with many architectures, against forward passes
without a cache.
"""

from __future__ import annotations

import random
import re
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from paceline import LLM, DraftTree, SamplingParams
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE, tree_shape
from paceline.errors import UnsupportedModelError
from paceline.model import padded_batch as layout_module
from paceline.model.architecture import Architecture
from paceline.model.cached_lm import CachedLM
from paceline.model.padded_kernel import arrange_rows
from paceline.model.self_check import check_tree_forward
from paceline.model.verified import VERIFIED
from tests.support import models
from tests.support.drafters import ScriptedTree
from tests.support.refused_models import REASONS, REFUSED
from tests.support.rotary_models import ROTARY
from tests.support.shared import reference
from tests.support.tree_models import CHAINS, TREES, VOCAB

TOLERANCE = 2e-4
# Shapes and, for each, a path to keep that is not its first nodes.
Shape = tuple[list[int], list[int]]
BUSHY: Shape = ([-1, 0, 1, -1, 3, 4, 0], [3, 4])
WIDE: Shape = ([-1, -1, -1, 0, 1, 1], [1, 5])
SHORT: Shape = ([-1, 0], [])
CHAIN: Shape = ([-1, 0, 1], [0, 1])
EMPTY: Shape = ([], [])
# Probed by default: separate and joined projections, experts, latent attention.
INVARIANT = ("llama", "gpt2", "mixtral", "deepseek_v3")


@torch.inference_mode()
def recompute(model: Any, texts: list[list[int]]) -> Tensor:
    """Return the logits of a causal forward pass without a cache; padding follows the text."""
    longest = max(map(len, texts))
    ids = torch.tensor([text + [0] * (longest - len(text)) for text in texts])
    logits: Tensor = model(input_ids=ids, use_cache=False).logits
    return logits


class Session:
    """Run forward passes over random trees and compare every logit with a pass without a
    cache.
    """

    def __init__(self, model: Any) -> None:
        self.lm = CachedLM(model)
        self.worst = 0.0  # error over tolerance
        self._model = model
        self._random = random.Random(5)

    def tokens(self, count: int) -> list[int]:
        return [self._random.randrange(3, VOCAB) for _ in range(count)]

    def open(self, length: int) -> Request:
        request = Request(self.tokens(length), SamplingParams())
        self.lm.open(request)
        return request

    def step(self, requests: list[Request], shapes: list[Shape]) -> None:
        trees = [DraftTree(self.tokens(len(parents)), parents) for parents, _ in shapes]
        logits = self.lm.forward(requests, trees)
        for row, (request, tree) in enumerate(zip(requests, trees, strict=True)):
            self._compare(logits[row], request, tree)
        self.lm.commit([path for _, path in shapes])
        for request, tree, (_, path) in zip(requests, trees, shapes, strict=True):
            request.token_ids += [tree.token_ids[node] for node in path] + self.tokens(1)

    def _compare(self, logits: Tensor, request: Request, tree: DraftTree) -> None:
        paths = []
        for leaf in set(range(-1, len(tree))) - set(tree.parents) or {-1}:
            nodes = (
                np.flatnonzero(tree_shape(tuple(tree.parents))[1][leaf]).tolist()
                if leaf >= 0
                else []
            )
            paths.append(nodes)
        expected = recompute(
            self._model,
            [request.token_ids + [tree.token_ids[node] for node in nodes] for nodes in paths],
        )
        scale = max(1.0, float(expected.abs().max()))
        for row, nodes in enumerate(paths):
            for place, node in enumerate([-1, *nodes]):
                error = (logits[node + 1] - expected[row, len(request) - 1 + place]).abs().max()
                self.worst = max(self.worst, float(error) / (TOLERANCE * scale))


@pytest.mark.parametrize(("name", "kind"), [*models.CASES, *models.ROTARY_CASES])
def test_ragged_trees_equal_full_forward_passes(name: str, kind: str) -> None:
    """Rows have different lengths and trees, commits keep later branches, and a slot is
    reused.
    """
    session = Session(models.make(name, kind))
    requests = [session.open(length) for length in (10, 23, 17)]
    session.step(requests, [BUSHY, WIDE, SHORT])  # trees ride along with the prompts
    session.step(requests, [WIDE, EMPTY, BUSHY])
    session.step(requests, [CHAIN, BUSHY, WIDE])

    session.lm.close(requests[1])
    session.step([requests[0], requests[2]], [BUSHY, SHORT])  # the rows close ranks
    late = session.open(19)
    assert late.slot in (1, 2)
    session.lm.prefill_chunk = 4
    while not late.ends_prefill(session.lm.prefill_chunk):
        session.lm.feed([late])
    session.step([late], [WIDE])
    everyone = sorted([requests[0], requests[2], late], key=lambda request: request.slot)
    session.step(everyone, [BUSHY, CHAIN, WIDE])
    session.step(everyone, [EMPTY, EMPTY, EMPTY])
    assert session.worst < 1
    assert session.lm.open_sequences == 3


@pytest.mark.parametrize("name", TREES)
def test_causal_mask_fails_the_comparison(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the comparison fails if each node sees all earlier nodes."""

    def causal(
        counts: Any, numbers: Any, front: int, columns: Any, padding: Any, block: Any
    ) -> None:
        arrange_rows(counts, numbers, front, columns, padding, block)
        block |= np.tri(block.shape[1], dtype=np.bool_) & ~padding[:, None]

    monkeypatch.setattr(layout_module, "arrange_rows", causal)
    session = Session(models.make(name, "eager"))
    session.step([session.open(10), session.open(14)], [BUSHY, CHAIN])
    assert session.worst > 100


@pytest.mark.parametrize("name", TREES)
def test_wrong_commit_fails_the_comparison(name: str) -> None:
    """Check that the comparison fails if a commit keeps the rows of the wrong branch."""
    session = Session(models.make(name, "eager"))
    request = session.open(10)
    tree = DraftTree(session.tokens(len(BUSHY[0])), BUSHY[0])
    session.lm.forward([request], [tree])
    session.lm.commit([[0, 1]])
    request.token_ids += [tree.token_ids[node] for node in (3, 4)] + session.tokens(1)
    session.step([request], [SHORT])
    assert session.worst > 100


def answers(model: Any, count: int = 14) -> dict[tuple[int, ...], list[int]]:
    """Return three prompts of different lengths and their answers."""
    rng = random.Random(8)
    prompts = [[rng.randrange(3, VOCAB) for _ in range(length)] for length in (9, 21, 13)]
    return {tuple(prompt): reference(model, prompt, count) for prompt in prompts}


def check_greedy(model: Any, invariant: Any = False) -> ScriptedTree:
    known = answers(model)
    prompts = [list(prompt) for prompt in known]
    params = SamplingParams(max_new_tokens=14)
    drafter = ScriptedTree(known, VOCAB)
    llm = LLM(model, drafter=drafter, batch_invariant=invariant)
    forwards = 0
    for batch in (prompts, prompts[:1]):
        outs = llm.generate(batch, params)
        assert [out.token_ids for out in outs] == list(known.values())[: len(batch)]
        forwards += sum(out.stats.target_forwards for out in outs)
    assert forwards < 4 * 14  # drafts were accepted
    assert not drafter.open
    assert llm.model.open_sequences == 0
    return drafter


@pytest.mark.parametrize(("name", "kind"), [*models.CASES, *models.ROTARY_CASES])
def test_greedy_answers_equal_generate(name: str, kind: str) -> None:
    drafter = check_greedy(models.make(name, kind))
    assert drafter.side_branches > 0


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in INVARIANT else pytest.mark.slow)
        for name in (*TREES, *ROTARY)
    ],
)
def test_batch_invariance_keeps_answers(name: str) -> None:
    """Check that the kernels' self-test works with every architecture."""
    check_greedy(models.make(name), "auto")


@pytest.mark.parametrize(("name", "kind"), models.CHAIN_CASES)
def test_slot_bound_models_use_chains(name: str, kind: str) -> None:
    """Check that the engine reduces each tree to a chain for these models."""
    model = models.make(name, kind)
    assert not Architecture.from_model(model).takes_trees
    drafter = check_greedy(model)
    assert drafter.side_branches == 0


def test_table_covers_many_architectures() -> None:
    assert (
        len(
            {
                name
                for name, _ in models.CASES
                if Architecture.from_model(models.make(name)).takes_trees
            }
        )
        >= 30
    )
    assert len(TREES) + len(CHAINS) + 1 >= 42


@pytest.mark.parametrize("name", REFUSED)
def test_models_that_cannot_be_rolled_back_are_refused(name: str) -> None:
    model = models.make(name)
    with pytest.raises(UnsupportedModelError) as caught:
        LLM(model, "none")
    text = str(caught.value)
    assert type(model).__name__ in text
    assert re.search(r"expected|Use (model\.generate|a decoder-only)|use model\.generate", text)
    assert text.endswith(".")
    assert re.search(REASONS[name], text)


def test_trusted_architectures_are_in_the_table() -> None:
    """The engine checks all other architectures at load (`paceline.model.self_check`)."""
    tested = {model_type for model_type, _ in (TREES | CHAINS).values()}
    composite = {"gemma3", "llama4"}  # a text model of the table beside a vision tower
    assert VERIFIED - composite <= tested


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_oss", "deepseek_v3"])
def test_self_check_accepts_correct_models(name: str) -> None:
    check_tree_forward(CachedLM(models.make(name)))


def test_self_check_refuses_model_that_ignores_masks() -> None:
    """Check that the self-check refuses a model that ignores masks."""
    model = models.make("llama")
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: (args, kwargs | {"attention_mask": None}), with_kwargs=True
    )
    try:
        with pytest.raises(
            UnsupportedModelError, match=r"LlamaForCausalLM.*not be lossless.*Use model\.generate"
        ):
            check_tree_forward(CachedLM(model))
    finally:
        hook.remove()


def test_prompt_chunks_do_not_affect_decoding_rows() -> None:
    """Check that the logits of a row do not depend on the other rows."""
    session = Session(models.make("gemma3"))
    short, long = session.open(3), session.open(30)
    session.lm.prefill_chunk = 8
    session.lm.forward([short, long], [EMPTY_TREE, EMPTY_TREE])
    session.lm.commit([[], []])
    short.token_ids += session.tokens(1)
    while not long.ends_prefill(session.lm.prefill_chunk):
        session.lm.feed([short, long])
        short.token_ids += session.tokens(1)
    session.step([short, long], [BUSHY, WIDE])
    assert session.worst < 1


def test_rows_may_change_slots_and_pause() -> None:
    """Rows change slots while longer and shorter rows are left out of the pass."""
    session = Session(models.make("mistral"))
    requests = []
    for length in (25, 4, 118, 9):  # the cache grows in rows and in length
        requests.append(session.open(length))
        session.step(requests[-1:], [SHORT])
    for part in ((1, 3), (3, 1, 0), (2, 0), (0, 1, 2, 3), (3,), (3, 2, 1, 0)):
        session.step([requests[i] for i in part], [(BUSHY, WIDE, CHAIN, EMPTY)[i] for i in part])
    session.lm.close(requests[2])
    session.step([requests[3], requests[0]], [BUSHY, WIDE])
    assert session.worst < 1
    assert session.lm.open_sequences == 3
