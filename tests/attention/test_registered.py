"""Test batch-invariant attention in transformers and in our forward passes."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, GPTJPreTrainedModel

from paceline import DraftTree, SamplingParams
from paceline.attention import why_not_by_position
from paceline.core.request import Request
from paceline.errors import UnsupportedModelError
from paceline.model.cached_lm import CachedLM
from paceline.model.forward_arguments import GENERATE_CACHE
from paceline.model.self_check import check_tree_forward
from tests.support import models
from tests.support.attention import row_by_row
from tests.support.tree_models import CHAINS, TREES, VOCAB

pytestmark = pytest.mark.processor
# Attention that uses no attention function of transformers; GPT-J only in older versions.
OWN_CODE = {"falcon", *CHAINS} | (
    set() if GPTJPreTrainedModel._can_set_attn_implementation() else {"gptj"}
)
NAME = "paceline"


def registered(name: str) -> Any:
    """Return a small model with our attention and with products of one row at a time."""
    model = row_by_row(models.make(name))
    model.set_attn_implementation(NAME)
    return model


@pytest.mark.parametrize("name", [name for name in TREES if name not in OWN_CODE])
def test_all_layers_of_all_architectures_support_it(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attend, calls = AttentionInterface()[NAME], []

    def watch(module: nn.Module, *args: Any, **options: Any) -> Any:
        calls.append(module)
        return attend(module, *args, **options)

    monkeypatch.setitem(AttentionInterface._global_mapping, NAME, watch)
    model = models.make(name)
    assert why_not_by_position(model) is None
    check_tree_forward(CachedLM(model, batch_invariant=True))  # of itself as it was loaded: eager
    assert len(calls) == 2 * model.config.num_hidden_layers  # the prompt and the tree


@pytest.mark.parametrize("name", sorted(OWN_CODE))
def test_others_are_refused_with_the_reason(name: str) -> None:
    with pytest.raises(
        UnsupportedModelError, match="cannot be batch-invariant: it has its own attention code"
    ):
        CachedLM(models.make(name), batch_invariant=True)


def test_other_dtypes_are_refused_with_the_reason() -> None:
    assert "float64" in (why_not_by_position(copy.deepcopy(models.make("llama")).double()) or "")


class Decoding:
    """Decode one text with trees and token by token, and compare the bits of the logits."""

    def __init__(self, model: Any, batch_invariant: bool) -> None:
        self._model = model
        self._batch_invariant = batch_invariant

    def logits(self, texts: list[list[int]], chunk: int, trees: list[DraftTree]) -> Tensor:
        lm = CachedLM(self._model, chunk, self._batch_invariant)
        requests = [Request(text, SamplingParams()) for text in texts]
        for request in requests:
            lm.open(request)
        while not all(request.ends_prefill(lm.prefill_chunk) for request in requests):
            lm.feed([request for request in requests if not request.ends_prefill(lm.prefill_chunk)])
        return lm.forward(requests, trees)

    def differing(self) -> int:
        """Return how many tree nodes of a ragged batch have other logits than single
        tokens.
        """
        texts = [
            [(7 * i + 3 * row) % VOCAB for i in range(length)]
            for row, length in enumerate((23, 3, 12))
        ]
        parents = [[-1, 0, 1, -1, 3, 0, 5, -1], [-1, -1, 0], []]
        trees = [
            DraftTree([(11 * node + 5) % VOCAB for node in range(len(one))], one) for one in parents
        ]
        together = self.logits(texts, 8, trees)
        count = 0
        for row, (text, tree) in enumerate(zip(texts, trees, strict=True)):
            for node in range(-1, len(tree)):
                path: list[int] = []
                at = node
                while at >= 0:
                    path.insert(0, tree.token_ids[at])
                    at = tree.parents[at]
                alone = self.logits([[*text, *path]], 1, [DraftTree([], [])])
                count += not torch.equal(alone[0, 0], together[row, 1 + node])
        return count


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("llama", torch.float32),
        ("llama", torch.float16),
        ("mistral", torch.bfloat16),
        ("gemma2", torch.bfloat16),
    ],
)
def test_trees_have_the_logits_of_plain_decoding(name: str, dtype: torch.dtype) -> None:
    assert Decoding(row_by_row(models.make(name)).to(dtype), batch_invariant=True).differing() == 0


def test_default_attention_fails_the_same_test() -> None:
    assert (
        Decoding(
            row_by_row(models.make("llama", "sdpa")).to(torch.bfloat16), batch_invariant=False
        ).differing()
        > 0
    )


def test_a_model_loaded_with_it_uses_it_in_our_forwards() -> None:
    assert Decoding(registered("llama").to(torch.bfloat16), batch_invariant=False).differing() == 0


@pytest.mark.parametrize("name", ["llama", "mistral", "gemma3", "gpt_oss", "deepseek_v3"])
def test_logits_in_transformers_equal_eager_attention(name: str) -> None:
    eager = models.make(name)
    ours = copy.deepcopy(eager)
    ours.set_attn_implementation(NAME)
    ids = torch.arange(40).reshape(2, 20) * 7 % VOCAB
    seen = torch.ones_like(ids)
    seen[1, :6] = 0  # padding on the left
    with torch.inference_mode():
        for mask in (None, seen):
            expected, got = (model(ids, attention_mask=mask).logits for model in (eager, ours))
            assert torch.allclose(got[0], expected[0], atol=2e-4)
            assert torch.allclose(got[1, 6:], expected[1, 6:], atol=2e-4)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_bits_in_transformers_do_not_depend_on_batch_or_chunks(name: str) -> None:
    model = registered(name)
    prompts = [[5, 6, 7, 8, 9] * 5, [11, 12, 13]]
    alone = [
        model.generate(
            torch.tensor([prompt]), max_new_tokens=12, min_new_tokens=12, do_sample=False
        )[0]
        for prompt in prompts
    ]
    padded = torch.tensor([[0] * (25 - len(prompt)) + prompt for prompt in prompts])
    seen = torch.tensor([[0] * (25 - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    both = model.generate(
        padded, attention_mask=seen, max_new_tokens=12, min_new_tokens=12, do_sample=False
    )
    with torch.inference_mode():
        for row, text in enumerate(alone):
            assert torch.equal(both[row, 25 - len(prompts[row]) :], text)
            whole = model(text[None]).logits[0]
            cache, parts = None, []
            for begin, end in ((0, 4), (4, 5), (5, 9), *((i, i + 1) for i in range(9, len(text)))):
                out = model(text[None, begin:end], **{GENERATE_CACHE: cache}, use_cache=True)
                cache = out[GENERATE_CACHE]
                parts.append(out.logits[0])
            assert torch.equal(torch.cat(parts), whole)


def test_unknown_arguments_are_refused() -> None:
    attend, module = AttentionInterface()[NAME], nn.Module()
    states = torch.randn(1, 2, 3, 16)
    mask = torch.ones(1, 1, 3, 3, dtype=torch.bool)
    for options, message in (
        (
            {"attention_mask": mask.float()},
            r"a mask torch.float32 \[1, 1, 3, 3\]; expected torch.bool \[batch, 1, 3, 3\]",
        ),
        ({"attention_mask": mask[:, :, :2]}, "a mask"),
        ({"attention_mask": mask, "dropout": 0.1}, "dropout 0.1"),
        ({"attention_mask": mask, "position_bias": states}, "position_bias"),
        ({"attention_mask": None, "is_causal": False}, "no mask"),
    ):
        with pytest.raises(UnsupportedModelError, match=message):
            attend(module, states, states, states, **options)
    with pytest.raises(UnsupportedModelError, match="float64 on cpu"):
        attend(module, states.double(), states.double(), states.double(), mask)
    with pytest.raises(UnsupportedModelError, match="differentiate"):
        attend(module, states.requires_grad_(), states, states, mask)
