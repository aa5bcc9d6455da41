"""Test batch invariance: outputs do not depend on the rest of the batch."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline import LLM, DraftTree, SamplingParams
from paceline.core.request import Request
from paceline.core.tree import EMPTY_TREE
from paceline.invariance.invariance import Invariance, resolve_batch_invariance
from paceline.invariance.row_classes import bits
from paceline.model.cached_lm import CachedLM
from tests.support.models import EAGER_ONLY, make
from tests.support.shared import SAME_SEED, Pair
from tests.support.tree_models import TREES, VOCAB

pytestmark = pytest.mark.processor
EXPERTS = {  # models with experts are refused by name
    "mixtral",
    "qwen3_moe",
    "olmoe",
    "granitemoe",
    "deepseek_v2",
    "deepseek_v3",
    "gpt_oss",
    "llama4",
}
OWN_ATTENTION = {"gptj", "falcon"}  # these do not use transformers' attention functions
ALL = [name for name in TREES if name not in EXPERTS | OWN_ATTENTION]
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
BRANCHES = [-1, 0, -1, 2, 2, 1]


class RowDependentLinear(nn.Linear):
    """Linear layer that rounds its partial sums for up to two rows.

    Some kernel does so on every machine.
    """

    def forward(self, input: Tensor) -> Tensor:
        rows = input.reshape(-1, input.shape[-1])
        if len(rows) >= 3:
            total = (rows.float()[:, None] * self.weight.float()).sum(-1)
        else:
            parts = zip(rows.float().chunk(4, 1), self.weight.float().chunk(4, 1), strict=True)
            total = (
                torch.stack([(part[:, None] * weight).sum(-1).bfloat16() for part, weight in parts])
                .float()
                .sum(0)
            )
        return total.to(input.dtype).reshape(*input.shape[:-1], -1)


def tiny(name: str, dtype: torch.dtype, products: type[nn.Linear] | None = None) -> Any:
    model = copy.deepcopy(make(name, "eager" if name in EAGER_ONLY else "sdpa")).to(dtype)
    if products is not None:
        for layer in model.model.layers:
            layer.mlp.down_proj.__class__ = products
    return model


def lm_of(model: Any, found: Invariance, chunk: int, **changes: Any) -> CachedLM:
    return CachedLM(model, **{**found.model_options(chunk), **changes})


class SingleRequest:
    """Feed texts token by token, alone in the batch; feed common prefixes only once."""

    def __init__(self, lm: CachedLM) -> None:
        self._lm, self._seq = lm, Request([1], SamplingParams())
        self._logits: list[Tensor] = []
        lm.open(self._seq)

    def logits(self, text: list[int]) -> Tensor:
        """Return the logits [vocab] after a text."""
        fed = self._seq.token_ids[: len(self._logits)]
        common = next(
            (at for at, (one, other) in enumerate(zip(fed, text, strict=False)) if one != other),
            len(fed),
        )
        common = min(common, len(text))
        self._lm.rewind(self._seq, common)
        self._seq.token_ids = list(text)
        self._logits = self._logits[:common]
        while len(self._logits) < len(text):
            self._logits.append(self._lm.feed([self._seq])[0, 0].clone())
        return self._logits[-1]


def batched_logits(
    model: Any, found: Invariance, texts: list[list[int]], chunk: int, **changes: Any
) -> list[tuple[list[int], Tensor]]:
    """Return texts with their logits from one batch.

    Prompts are prefilled in chunks, and each step verifies a random tree per request.
    """
    lm, chance = lm_of(model, found, chunk, **changes), random.Random(chunk)
    requests = [Request(text, SamplingParams()) for text in texts]
    for request in requests:
        lm.open(request)
    while any(request.pending > chunk for request in requests):
        lm.feed([request for request in requests if request.pending > chunk])
    seen = []
    for _ in range(2):
        trees = [
            DraftTree([chance.randrange(3, VOCAB) for _ in BRANCHES], BRANCHES) for _ in requests
        ]
        trees[-1] = EMPTY_TREE if len(requests) > 1 else trees[-1]
        logits = lm.forward(requests, trees)
        for row, (request, tree) in enumerate(zip(requests, trees, strict=True)):
            paths: list[list[int]] = [[]]
            for token, parent in zip(tree.token_ids, tree.parents, strict=True):
                paths.append([*paths[parent + 1], token])
            seen += [
                ([*request.token_ids, *path], logits[row, node].clone())
                for node, path in enumerate(paths)
            ]
        # Accept nodes other than the first ones, so that they move in the cache.
        accepted = [[2, 4] if len(tree) else [] for tree in trees]
        lm.commit(accepted)
        for request, tree, path in zip(requests, trees, accepted, strict=True):
            request.append([*(tree.token_ids[node] for node in path), 5])
    return seen


def differing(model: Any, found: Invariance, **changes: Any) -> tuple[int, int]:
    """Return how many rows of logits differ from the text alone, and the total."""
    chance = random.Random(1)
    texts = [[chance.randrange(3, VOCAB) for _ in range(length)] for length in (9, 17, 4)]
    reference, unequal, count = SingleRequest(lm_of(model, found, 1, **changes)), 0, 0
    for some, chunk in ((texts, 5), (texts[:1], 512)):
        for text, logits in sorted(
            batched_logits(model, found, some, chunk, **changes), key=lambda one: one[0]
        ):
            unequal += not torch.equal(bits(reference.logits(text)), bits(logits))
            count += 1
    return unequal, count


@pytest.mark.parametrize("name", ALL)
def test_logits_depend_only_on_the_text(name: str) -> None:
    model = tiny(name, torch.bfloat16)
    unequal, count = differing(model, resolve_batch_invariance(model, True))
    assert count > 40
    assert unequal == 0


@pytest.mark.parametrize("dtype", DTYPES)
def test_row_dependent_products_are_padded_in_every_dtype(dtype: torch.dtype) -> None:
    model = tiny("llama", dtype, RowDependentLinear)
    found = resolve_batch_invariance(model, True)
    assert found.min_rows >= 3
    assert differing(model, found)[0] == 0
    assert differing(model, found, min_rows=1)[0] > 0, (
        "the test must detect one row without padding"
    )


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3"])
def test_logits_differ_without_attention_by_position(name: str) -> None:
    model = tiny(name, torch.bfloat16)
    assert differing(model, resolve_batch_invariance(model, True), batch_invariant=False)[0] > 0


@pytest.mark.parametrize("name", sorted(EXPERTS | OWN_ATTENTION))
def test_unsupported_models_turn_batch_invariance_off(name: str) -> None:
    assert not resolve_batch_invariance(tiny(name, torch.bfloat16), "auto").on


def half(pair: Pair) -> Pair:
    """Return the pair in bfloat16."""
    target, draft = (copy.deepcopy(model).to(torch.bfloat16) for model in (pair.target, pair.draft))
    return Pair(target, draft, pair.prompts, pair.answers)


@pytest.fixture(scope="module")
def bf16(pair: Pair) -> Pair:
    return half(pair)


@pytest.fixture(scope="module")
def plain(bf16: Pair) -> dict[SamplingParams, list[list[int]]]:
    """Return the outputs of plain decoding for each prompt alone."""
    llm = LLM(bf16.target, "none", max_batch=1, batch_invariant=True)
    return {
        params: [llm.generate([prompt], params)[0].token_ids for prompt in bf16.prompts]
        for params in PARAMS
    }


PARAMS = [
    SamplingParams(max_new_tokens=30, ignore_eos=True),
    SamplingParams(max_new_tokens=30, ignore_eos=True, temperature=0.8, seed=4),
]


@pytest.mark.parametrize("batch", [1, 3, 8])
@pytest.mark.parametrize("spec", SAME_SEED)
def test_outputs_equal_plain_decoding_of_single_prompts(
    bf16: Pair, plain: dict[SamplingParams, list[list[int]]], spec: str, batch: int
) -> None:
    llm = bf16.engine(spec, max_batch=batch, batch_invariant=True)
    for params in PARAMS:
        outs = llm.generate(bf16.prompts, params)
        unequal = [row for row, out in enumerate(outs) if out.token_ids != plain[params][row]]
        assert unequal == []
        assert all(out.stats.batch_invariant for out in outs)


def test_outputs_differ_without_batch_invariance(
    bf16: Pair, plain: dict[SamplingParams, list[list[int]]]
) -> None:
    """Outputs differ with SDPA and no padding, so the equalities mean something."""
    outs = [
        out.token_ids
        for spec in ("prompt_lookup", "lookahead", "draft_model")
        for out in bf16.engine(spec, batch_invariant=False).generate(bf16.prompts, PARAMS[0])
    ]
    alone = [
        answer
        for _ in range(3)
        for answer in LLM(bf16.target, "none", max_batch=1).generate(bf16.prompts, PARAMS[0])
    ]
    assert sum(got != one.token_ids for got, one in zip(outs, alone, strict=True)) > 0
