"""Recurrent and hybrid models answer as `generate` does, whatever is drafted, batched or cut."""

from __future__ import annotations

import copy
import functools
import random
from typing import Any

import pytest

from paceline import LLM, DraftTree, SamplingParams, ScriptedDrafter
from paceline.core.drafter import Drafter
from tests.support import models
from tests.support.recurrent_models import BRANCHING, CHAINED
from tests.support.shared import ScriptedTree, reference
from tests.support.tree_models import VOCAB

COUNT = 16
PARAMS = SamplingParams(max_new_tokens=COUNT, ignore_eos=True)
FAST = ("lfm2", "qwen3_5", "granitemoehybrid", "nemotron_h", "zaya")
NAMES = [
    pytest.param(name, marks=() if name in FAST else pytest.mark.slow)
    for name in (*BRANCHING, *CHAINED)
]


@functools.cache
def make(name: str) -> Any:
    """A model that generates beyond the tokens that end a text."""
    model = copy.deepcopy(models.make(name, "sdpa"))
    model.generation_config.eos_token_id = None
    return model


def prompts(count: int, seed: int = 0) -> list[list[int]]:
    """Prompts of 2 to 40 tokens."""
    rng = random.Random(seed)
    return [[rng.randrange(3, VOCAB) for _ in range(rng.randint(2, 40))] for _ in range(count)]


@functools.cache
def known_answers(name: str, count: int, seed: int = 0) -> dict[tuple[int, ...], list[int]]:
    """`generate`'s answers by prompt."""
    return {tuple(prompt): reference(make(name), prompt, COUNT) for prompt in prompts(count, seed)}


def random_trees() -> Drafter:
    """Drafts that are nearly always wrong, of any shape."""
    rng = random.Random(3)

    def tree(limit: int) -> DraftTree:
        size = min(limit, rng.randrange(8))
        tokens = rng.sample(range(VOCAB), size)
        return DraftTree(tokens, [rng.randrange(-1, node) if node else -1 for node in range(size)])

    return ScriptedDrafter(lambda requests, limits: [tree(limit) for limit in limits])


@pytest.mark.parametrize("name", NAMES)
def test_drafts_do_not_change_answers_in_ragged_batches(name: str, many: int) -> None:
    known = known_answers(name, many)
    for drafter in ("none", ScriptedTree(known, VOCAB), random_trees()):
        llm = LLM(make(name), drafter, max_batch=4)
        llm.model.prefill_chunk = 7
        outs = llm.generate([list(prompt) for prompt in known], PARAMS)
        assert [out.token_ids for out in outs] == [*known.values()]
        if isinstance(drafter, ScriptedTree):
            assert sum(out.stats.target_forwards for out in outs) < many * COUNT


@pytest.fixture
def many(request: pytest.FixtureRequest) -> int:
    """Number of prompts: 20 in the slow tests."""
    name = request.node.callspec.params["name"]
    return 5 if name in FAST else 20
